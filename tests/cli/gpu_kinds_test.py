"""scripts/gpu_kinds.py without a GPU: that its network has four kinds of works in one wave, and that it counts those of a trace."""
import re
import sys

from conftest import ROOT

sys.path.insert(0, str(ROOT / "scripts"))
import gpu_kinds as script  # noqa: E402


def test_all_kinds_are_in_one_wave(obelisk, tmp_path):
    script.network(script.KINDS, tmp_path / "all.onnx")
    words = ("compile", "all.onnx", "--target", "sm_90a", "--granularity", "mono", "--dispatch", "critical", "--explain", "schedule", "--to", "schedule")
    text = obelisk(*words, code=0).out
    wave = dict(re.findall(r"^work \d+ \w+ '(\w+)': wave (\d+)", text, re.MULTILINE))
    assert {wave[kind] for kind in script.KINDS} == {"1"}


def test_kinds_of_a_trace():
    def task(sm, name, start, end):
        return {"ph": "X", "pid": 0, "tid": sm, "name": name, "ts": start, "dur": end - start}

    lanes = [{"ph": "M", "name": "process_name", "pid": 1, "args": {"name": "lanes"}}, {**task(7, "conv", 0, 90), "pid": 1}]
    tasks = [task(0, "gemm", 0, 10), task(1, "gemm", 5, 10), task(2, "conv", 5, 20), task(3, "softmax", 8, 10), task(4, "other", 0, 50), task(0, "elementwise", 30, 40)]
    at_once, sms = script.kinds_of({"traceEvents": lanes + tasks})
    assert at_once == {0: 10 / 40, 1: 25 / 40, 2: round(3 / 40, 3), 3: round(2 / 40, 3)}
    assert sms == {"gemm": 2, "conv": 1, "softmax": 1, "elementwise": 1}
