"""PyTorch as the other side: `bench --against torch`, and the processes that scripts/gpu.py makes
ready in parallel. A stub stands in for PyTorch (stub/torch.py); no GPU is wanted."""

import sys
from pathlib import Path

import gpu_sides
import numpy as np
import pytest

STUB = Path(__file__).resolve().parent / "stub"
ROWS = ("--shape", "rows=3")
MODULE = """
import numpy, torch
def make():
    x = torch.Tensor(numpy.ones((3, 8), "f4"))
    return torch.Module(lambda x: x.sum(1, keepdims=True)), (x,), ("x",)
"""


@pytest.fixture
def torch(obelisk, mlp, tmp_path, monkeypatch):
    """The stub in the place of PyTorch, a module beside the model."""
    mlp.with_suffix(".torch.py").write_text(MODULE)
    more = {
        "PYTHONPATH": str(STUB),
        "OBELISK_PYTHON": sys.executable,
        "STUB_TORCH_LOG": str(tmp_path / "log"),
    }
    for name, value in more.items():
        monkeypatch.setitem(obelisk.environment, name, value)
        monkeypatch.setenv(name, value)
    return tmp_path / "log"


def bench(obelisk, model, *flags, code=0):
    return obelisk("bench", model, *ROWS, "--target", "cpu", "--against", "torch", "--seconds",
                   "0.05", *flags, code=code)


def test_every_way_of_pytorch_stands_beside_ours(obelisk, mlp, torch):
    answer = bench(obelisk, mlp, "--json").json
    # The stub has no max-autotune: a way that a PyTorch lacks is left out.
    names = ["torch eager", "torch graph", "torch compile"]
    assert [side["name"] for side in answer["against"]] == names and answer["precision"] == "keep"
    for side in answer["against"]:
        assert side["version"] == "0-stub" and side["latency_us"]["median"] > 0
        assert side["device_us"]["median"] > 0 and side["device_us"]["p99"] > 0
        wanted = side["latency_us"]["median"] / answer["latency_us"]["median"]
        assert side["speedup"] == pytest.approx(wanted)
    eager, graph, _ = (side["device_us"]["median"] for side in answer["against"])
    assert graph < eager


def test_ways_are_chosen_by_name(obelisk, mlp, torch):
    flags = ("--target", "cpu", "--seconds", "0.05")
    answer = obelisk("bench", mlp, *ROWS, *flags, "--against", "torch=compile,eager", "--json",
                     code=0).json
    assert [side["name"] for side in answer["against"]] == ["torch compile", "torch eager"]
    copied = obelisk("bench", mlp, *ROWS, *flags, "--against", "torch=copy", "--json", code=0).json
    assert [side["name"] for side in copied["against"]] == ["torch copy"]
    assert "copy 54 -> 54" in torch.read_text()  # half of [3, 8] and [3, 1] in f32
    unknown = obelisk("bench", mlp, *ROWS, *flags, "--against", "torch=quick", code=1)
    assert "'quick'" in unknown.err and "max-autotune" in unknown.err


def test_the_table_has_a_line_for_each(obelisk, mlp, torch):
    text = bench(obelisk, mlp).out
    for name in ("obelisk", "torch eager 0-stub", "torch graph 0-stub", "torch compile 0-stub"):
        assert any(line.startswith(name) for line in text.splitlines()), text


@pytest.mark.parametrize("precision, rounds", [("keep", "False"), ("tf32", "True")])
def test_pytorch_computes_in_the_same_arithmetic(obelisk, mlp, torch, precision, rounds):
    bench(obelisk, mlp, "--precision", precision)
    assert f"matmul.allow_tf32 = {rounds}" in torch.read_text()


def test_without_a_gpu_pytorch_says_so(obelisk, mlp, torch, monkeypatch):
    monkeypatch.setitem(obelisk.environment, "STUB_TORCH_NO_GPU", "1")
    assert "finds no GPU" in bench(obelisk, mlp, code=1).err


def test_a_model_without_a_module_names_the_way_out(obelisk, mlp, torch):
    mlp.with_suffix(".torch.py").unlink()
    error = bench(obelisk, mlp, "--json", code=1).json["error"]
    assert "mlp.torch.py" in error["message"] and "make()" in error["hint"]


def finding(obelisk):
    return {one["name"]: one for one in obelisk("doctor", "--json", code=0).json["findings"]}["torch"]


def python_without_torch(obelisk, tmp_path, monkeypatch):
    """A Python whose packages cannot be seen."""
    python = tmp_path / "python"
    python.write_text(f'#!/bin/sh\nexec {sys.executable} -S -I "$@"\n')
    python.chmod(0o755)
    monkeypatch.setitem(obelisk.environment, "OBELISK_PYTHON", str(python))


def test_without_pytorch_one_line_says_so_and_what_mends_it(obelisk, mlp, tmp_path, monkeypatch):
    python_without_torch(obelisk, tmp_path, monkeypatch)
    refused = bench(obelisk, mlp, "--json", code=1)
    error = refused.json["error"]
    assert error["message"] == f"PyTorch is not found in {sys.executable}"
    assert "pip install torch" in error["hint"] and "OBELISK_PYTHON=" in error["hint"]
    assert "Traceback" not in refused.err and len(refused.err.splitlines()) == 3, refused


def test_a_pytorch_that_does_not_load_is_named(obelisk, mlp, torch, tmp_path, monkeypatch):
    (tmp_path / "broken").mkdir()
    (tmp_path / "broken" / "torch.py").write_text('raise ImportError("libgone.so: cannot open\\nmore")\n')
    monkeypatch.setitem(obelisk.environment, "PYTHONPATH", str(tmp_path / "broken"))
    refused = bench(obelisk, mlp, code=1)
    assert "does not load" in refused.err and "libgone.so" in refused.err
    assert "Traceback" not in refused.err and "more" not in refused.err.split("libgone.so")[1].splitlines()[0]


def test_doctor_says_whether_pytorch_is_here(obelisk, torch, tmp_path, monkeypatch):
    found = finding(obelisk)
    assert found["ok"] and sys.executable in found["text"]
    python_without_torch(obelisk, tmp_path, monkeypatch)
    absent = finding(obelisk)
    assert not absent["ok"] and not absent["essential"] and "pip install torch" in absent["mend"]
    lines = obelisk("doctor", code=0).out.splitlines()
    assert [line.split()[0] for line in lines if " torch " in line] == ["absent"]


def test_sides_are_made_ready_at_once_and_timed_one_at_a_time(mlp, torch, tmp_path):
    sides = gpu_sides.Sides(jobs=4, seconds=60)
    order = []
    for name in ("a", "b"):
        sides.start(name, mlp, "fp16", ["eager", "graph"], before=lambda n=name: order.append(n),
                    answers=tmp_path / f"{name}.npz")
    sides.start("none", tmp_path / "none.onnx", "fp16", ["eager"])
    sides.wait()
    try:
        assert set(sides.errors) == {"none"} and "none.torch.py" in sides.errors["none"]
        assert sorted(order) == ["a", "b"]
        for name in ("a", "b"):
            assert sides.sides[name].ways == ["eager", "graph"]
            times = sides.device_us(name, "graph")
            assert times == sorted(times) and len(times) == 20
        kept = np.load(tmp_path / "a.npz")
        assert list(kept["names"]) == ["x"] and kept["0.in"].shape == (3, 8)
        assert (kept["0.out"] == 8).all()  # in f32, before the arithmetic changes
    finally:
        sides.close()
    assert all(side.process.returncode == 0 for side in sides.sides.values())


def test_a_side_that_hangs_or_dies_is_an_error_and_no_wait(mlp, torch):
    mlp.with_suffix(".torch.py").write_text("import time\ntime.sleep(60)\n")
    sides = gpu_sides.Sides(jobs=1, seconds=1)
    sides.start("late", mlp, "fp16", ["eager"])
    sides.wait()
    sides.close()
    assert "more than 1 s" in sides.errors["late"]
