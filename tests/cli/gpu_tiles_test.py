"""scripts/gpu_tiles.py without a GPU: which tiles it tries, that programs get them, and all of it over a driver that computes nothing."""
import json
import os
import subprocess
import sys
from types import SimpleNamespace

import pytest
from conftest import ROOT, found

sys.path.insert(0, str(ROOT / "scripts"))
import gpu_tiles as script  # noqa: E402

STUB = ROOT / "build" / "stub"


def test_tiles_are_those_nearest_to_one_a_multiprocessor():
    tiles = script.candidates(197, 3072, 132, fewest=12, most=6)
    assert len(tiles) == 6 and set(rows for rows, _ in tiles) <= {50, 99}
    count = [-(-197 // rows) * -(-3072 // columns) for rows, columns in tiles]
    assert all(66 < n < 264 for n in count), count
    assert (99, 48) in tiles and (50, 96) in tiles  # 128 tasks each
    assert script.candidates(64, 64, 132, fewest=12, most=6) == []


def test_programs_have_the_tiles_that_are_tried(obelisk, tmp_path):
    rows, depth, columns = map(int, script.SHAPES["dinov2_small"][0].split("x"))
    script.write_model(tmp_path / "products.onnx", rows, depth, columns, copies=2)
    given, got = SimpleNamespace(target="sm_90a"), {}
    for tile in [None, *script.candidates(rows, columns, 132, fewest=12, most=5)]:
        words = script.words(given, "compile", "products.onnx", tile)
        got[tile] = script.TILES.findall(obelisk(*words, "--to", "schedule", "--explain", "schedule", code=0).out)
        assert len(got[tile]) == 2
    assert len(got) == 6 and all(each == [tuple(map(str, tile))] * 2 for tile, each in got.items() if tile)


def test_rows_over_a_driver_that_computes_nothing(obelisk, tmp_path):
    if not (STUB / "libcuda.so.1").exists():
        pytest.skip("the stub of a driver is not built")
    if not found(obelisk, "nvrtc")["ok"]:
        pytest.skip("no device compiler")
    out = tmp_path / "rows.json"
    words = ["--shapes", "64x128x1024", "--copies", "2", "--most", "2", "--jobs", "2", "--work", tmp_path / "work", "--out", out]

    def run():
        done = subprocess.run([sys.executable, ROOT / "scripts" / "gpu_tiles.py", *map(str, words)], capture_output=True, text=True, timeout=300,
                              env=os.environ | obelisk.environment | {"LD_LIBRARY_PATH": str(STUB)})
        assert done.returncode == 0, done.stdout + done.stderr
        return json.loads(out.read_text())

    record = run()
    (row,) = record["rows"]
    assert row["shape"] == "64x128x1024" and row["tried"] >= 2
    assert row["share"] <= 1 and row["tuned_us"] <= row["chosen_us"]
    assert record["of_tuned"]["shapes"] == 1 and record["of_tuned"]["least"] == row["share"]
    # What an earlier call has compiled is not asked for again.
    kept = tmp_path / "work" / "64x128x1024.json"
    kept.write_text(json.dumps(json.loads(kept.read_text()) | {"tiles": []}))
    assert run()["rows"][0]["tried"] == 1
