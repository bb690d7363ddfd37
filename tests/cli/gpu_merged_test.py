"""scripts/gpu_merged.py on the CPU: that two networks in one program answer as each alone, never how quick they are."""
import json
import subprocess
import sys

import numpy as np
import pytest
from conftest import ROOT, TensorProto, helper, onnx, random, save

SCRIPT = ROOT / "scripts" / "gpu_merged.py"
sys.path.insert(0, str(ROOT / "scripts"))
import gpu_merged as script  # noqa: E402


@pytest.fixture
def two(tmp_path):
    """Networks whose values, inputs and weights have the same names."""
    shapes = {"one": (8, 16), "two": (5, 24)}
    for name, (rows, columns) in shapes.items():
        nodes = [helper.make_node("MatMul", ["x", "w"], ["a"]), helper.make_node("Relu", ["a"], ["y"])]
        ports = [{"x": (TensorProto.FLOAT, [rows, 32])}, {"y": (TensorProto.FLOAT, [rows, columns])}]
        save(tmp_path / f"{name}.onnx", nodes, *ports, {"w": random(32, columns)})
    return shapes


def test_merged_networks_answer_as_each_alone(obelisk, two, tmp_path):
    script.merge([tmp_path / "one.onnx", tmp_path / "two.onnx"], tmp_path / "both.onnx")
    graph = onnx.load(tmp_path / "both.onnx").graph
    assert [port.name for port in graph.input] == ["0/x", "1/x"] and [port.name for port in graph.output] == ["0/y", "1/y"]
    x = {name: random(rows, 32) for name, (rows, _) in two.items()}
    np.savez(tmp_path / "both.npz", **{"0/x": x["one"], "1/x": x["two"]})
    obelisk("run", "both.onnx", "--inputs", "both.npz", "--output-dir", "both", code=0)
    answers = sorted((tmp_path / "both").glob("**/*.npy"))
    assert len(answers) == 2
    for name, answer in zip(two, answers):
        np.savez(tmp_path / f"{name}.npz", x=x[name])
        obelisk("run", f"{name}.onnx", "--inputs", f"{name}.npz", "--output-dir", name, code=0)
        alone, = (tmp_path / name).glob("*.npy")
        np.testing.assert_array_equal(np.load(answer), np.load(alone))


def test_rows_hold_each_pair(obelisk, two, tmp_path):
    command = [sys.executable, SCRIPT, "--pairs", "one+two,one+none", "--target", "cpu", "--precision", "keep", "--seconds", "0.02", "--sms", "2",
               "--work", tmp_path, "--out", tmp_path / "rows.json"]
    done = subprocess.run([str(word) for word in command], capture_output=True, text=True, env=obelisk.environment, timeout=200)
    body = json.loads((tmp_path / "rows.json").read_text())
    row, = body["rows"]
    assert row["networks"] == ["one", "two"] and row["alone_us"].keys() == {"one", "two"} and row["merged_us"]["cpu"] > 0
    assert row["in_turn_us"] == pytest.approx(sum(times["cpu"] for times in row["alone_us"].values()), abs=0.02)
    failure, = body["failures"]
    assert done.returncode == 1 and failure.startswith("one+none: "), done.stdout + done.stderr
