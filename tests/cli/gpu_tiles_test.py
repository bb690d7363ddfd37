"""scripts/gpu_tiles.py without a GPU: which tiles it tries, and that programs get them."""
import re
import sys

import onnx
from conftest import ROOT

sys.path.insert(0, str(ROOT / "scripts"))
import gpu_tiles as script  # noqa: E402


def test_tiles_are_those_nearest_to_one_a_multiprocessor():
    tiles = script.candidates(197, 3072, 132, fewest=12, most=6)
    assert len(tiles) == 6 and set(rows for rows, _ in tiles) <= {50, 99}
    count = [-(-197 // rows) * -(-3072 // columns) for rows, columns in tiles]
    assert all(66 < n < 264 for n in count), count
    assert (99, 48) in tiles and (50, 96) in tiles  # 128 tasks each
    assert script.candidates(64, 64, 132, fewest=12, most=6) == []


def test_programs_have_the_tiles_that_are_tried(obelisk, tmp_path):
    shape = script.SHAPES["dinov2_small"][0]
    rows, depth, columns = map(int, shape.split("x"))
    script.write_model(tmp_path / "products.onnx", rows, depth, columns, copies=2)
    assert len(onnx.load(tmp_path / "products.onnx").graph.output) == 2
    given = type("Given", (), {"target": "sm_90a", "precision": "keep"})
    bench = script.Bench.__new__(script.Bench)
    bench.given = given
    got = {}
    for tile in [None, *script.candidates(rows, columns, 132, fewest=12, most=5)]:
        out = obelisk(*bench.words("compile", "products.onnx", tile), "--to", "schedule", "--explain", "schedule", code=0).out
        got[tile] = script.TILES.findall(out)
        assert len(got[tile]) == 2
    assert all(found == [tuple(map(str, tile))] * 2 for tile, found in got.items() if tile)
    assert re.fullmatch(r"\d+", got[None][0][0])
