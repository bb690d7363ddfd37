"""scripts/gpu_super_kernels.py and the program that it runs, on the CPU and over a driver that computes nothing: that
its rows add up, never how quick anything is."""
import json
import subprocess
import sys

import ml_dtypes
import numpy as np
import pytest
from conftest import ROOT, helper, onnx

SCRIPT, PROGRAM, STUB = ROOT / "scripts" / "gpu_super_kernels.py", ROOT / "build" / "bin" / "tenants", ROOT / "build" / "stub"
sys.path.insert(0, str(ROOT / "scripts"))
import gpu_super_kernels as script  # noqa: E402


def run(work, environment, *words):
    out = work / "rows.json"
    command = [sys.executable, SCRIPT, "--device", "cpu", "--precisions", "fp32", "--programs", 4, "--step", 1, "--seconds", 0.01, "--jobs", 2,
               "--work", work / "work", "--out", out, *words]
    done = subprocess.run([str(word) for word in command], capture_output=True, text=True, env=environment, timeout=300)
    return done, json.loads(out.read_text()) if out.exists() else None


def test_rows_of_every_part_add_up(obelisk, tmp_path):
    done, body = run(tmp_path, obelisk.environment, "--runs", "1,2,3", "--weights-at", "2", "--together-at", "1,2", "--mixed", 5)
    assert done.returncode == 0 and body["failures"] == [] and body["left_out"] == 0, done.stdout + done.stderr
    assert sorted((row["shape"], row["runs"]) for row in body["rows"]) == sorted((shape, r) for shape in script.SHAPES for r in (1, 2, 3))
    for row in body["rows"]:
        assert set(row["us"]) == {"ours", "batched", "one_at_a_time"} | ({"weights"} if row["runs"] == 2 else set())
        assert all(error <= 2e-5 for error in row["errors"].values())
        assert row["bytes"] == 4 * row["runs"] * (row["rows"] * row["depth"] + row["depth"] * row["columns"] + row["rows"] * row["columns"])
        assert row["over_batched"] == pytest.approx(row["us"]["batched"] / row["us"]["ours"], rel=0.01, abs=1e-3)
        work = 2 * row["runs"] * row["rows"] * row["columns"] * row["depth"]
        assert row["tflops"]["ours"] == pytest.approx(work / row["us"]["ours"] / 1e6, rel=0.01, abs=1e-3)
        roofs = body["roofs"]["fp32"]
        assert row["roof_us"] == pytest.approx(max(row["bytes"] / roofs["bytes_per_us"], work / roofs["flops_per_us"]), rel=0.01)
    for one in body["summary"]:  # R = 1 does not count
        ratios = [row["over_batched"] for row in body["rows"] if row["shape"] == one["shape"] and row["runs"] >= 2]
        assert one["over_batched"] == pytest.approx(np.prod(ratios) ** (1 / len(ratios)), rel=0.01, abs=1e-3)
    assert {(row["shape"], row["runs"]) for row in body["together"]} == {(shape, r) for shape in script.SHAPES for r in (1, 2)}
    for row in body["together"]:
        assert row["differ"] == 0 and row["error"] <= 2e-5 and row["groups"] * row["runs"] <= 4
        assert row["together_us"] > 0 and row["one_by_one_us"] > 0 and row["batched_graph_us"] > 0
    mixed, = body["mixed"]
    assert mixed["products"] == 5 and set(mixed["us"]) == {"mono", "stitch", "one_at_a_time"} and max(mixed["errors"].values()) <= 2e-5


def test_a_wrong_answer_is_a_failure_and_the_rest_goes_on(obelisk, tmp_path):
    (tmp_path / "work").mkdir()
    path = tmp_path / "work" / "vector.fp32.2.onnx"
    script.write_batch(path, script.SHAPES["vector"], 2, "fp32")
    model = onnx.load(path)
    model.graph.node[0].output[0] = "n"
    model.graph.node.append(helper.make_node("Neg", ["n"], ["c"]))
    onnx.save(model, path)
    done, body = run(tmp_path, obelisk.environment, "--shapes", "vector", "--runs", "1,2", "--weights-at", "", "--together-at", "", "--mixed", 0)
    assert done.returncode == 1 and "vector fp32 2 ours: error" in body["failures"][0], done.stdout + done.stderr
    assert {row["runs"]: row["errors"]["ours"] <= 2e-5 for row in body["rows"]} == {1: True, 2: False}


def test_the_largest_fall_is_that_between_neighbours_of_the_step():
    points = [(1, 9.0), (8, 1.0), (16, 2.0), (20, 0.1), (24, 1.5), (32, 3.0), (40, 2.7)]
    assert script.largest_fall(points, 8) == {"from": 16, "to": 24, "fall": 0.25}
    assert script.largest_fall([(8, 1.0), (16, 1.0), (24, 2.0)], 8) is None


def test_constants_are_rounded_to_nearest_even():
    values = np.array([1, 1 + 2**-8, 1 + 3 * 2**-8, -1.00390625001, 3.0e-39, 255.5], np.float32)
    tensor = script.constant(values, "b", "bf16")
    assert tensor.raw_data == values.astype(ml_dtypes.bfloat16).tobytes()
    assert np.array_equal(script.rounded(values, "bf16"), values.astype(ml_dtypes.bfloat16).astype(np.float32))


def test_fifty_problems_are_the_three_shapes_and_layers():
    shapes = script.problems(50)
    assert len(shapes) == 50 and shapes[:3] == list(script.SHAPES.values()) and shapes == script.problems(50)
    assert len(set(shapes)) > 12


def test_programs_share_a_launch_over_a_driver_that_computes_nothing(obelisk, tmp_path):
    if not (STUB / "libcuda.so.1").exists():
        pytest.skip("the stub of a driver is not built")
    findings = {one["name"]: one for one in json.loads(obelisk("doctor", "--json").out)["findings"]}
    if not findings["nvrtc"]["ok"]:
        pytest.skip(f"no device compiler: {findings['nvrtc']['text']}")
    for seed in range(2):
        script.write_one(tmp_path / f"{seed}.onnx", script.SHAPES["square"], "bf16", seed)
    environment = obelisk.environment | {"LD_LIBRARY_PATH": str(STUB)}
    words = [PROGRAM, "super-kernels", tmp_path / "0.onnx", tmp_path / "1.onnx", "--runs", "2,3", "--seconds", 0, "--programs", 6]
    done = subprocess.run([str(word) for word in words], capture_output=True, text=True, env=environment, timeout=300)
    lines = [json.loads(line) for line in done.stdout.splitlines()]
    assert [(line["runs"], line["sms"], line["groups"]) for line in lines] == [(2, 66, 3), (3, 44, 2)], done.stdout + done.stderr
    assert done.returncode == 0 and not any("error" in line for line in lines)
