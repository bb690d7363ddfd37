"""bench/micro/overlap.py: with a program that answers as one on a GPU does, and as it is on a CPU."""
import json
import subprocess
import sys

import numpy as np
import onnx
import onnx.reference
import pytest
from conftest import ROOT

sys.path.insert(0, str(ROOT / "bench" / "micro"))
import overlap  # noqa: E402

# A step of a GEMM takes 40 us, of a copy 10, of others 20, and 5 us are paid once. Side by side the shorter one is hidden by half.
PROGRAM = f"""#!{sys.executable}
import json, os, pathlib, re, sys
words = sys.argv[1:]
step = {{"gemm": 40, "copy": 10, "softmax": 20, "depthwise": 20}}
def after(flag):
    return words[words.index(flag) + 1]
def us(path):
    return [5 + step[kind] * int(count) for kind, count in re.findall("([a-z]+)([0-9]+)", pathlib.Path(path).stem)]
def both(times):
    return max(times) + (min(times) / 2 if len(times) > 1 else 0)
if pathlib.Path(sys.argv[0]).name == "streams":
    a, b = (us(path)[0] for path in words[:2])
    print(json.dumps({{"a_us": a, "b_us": b, "both_us": max(a, b), "same_bits": "softmax" not in words[0]}}))
elif words[0] == "compile":
    sys.exit("error: nothing that is told")
elif after("--granularity") == "mono" and "depthwise" in words[1]:
    sys.exit("error: no such kernel")
else:
    dispatches = after("--dispatch").split(",") if "--dispatch" in words else [""]
    rows = [{{"launches": 3, "device_us": {{"median": sum(us(words[1])) if name == "sequential" else both(us(words[1]))}}}} for name in dispatches]
    print(json.dumps({{"granularities": rows}} if len(rows) > 1 else rows[0]))
"""


@pytest.fixture
def probe(tmp_path):
    for name in ("obelisk", "streams"):
        (tmp_path / name).write_text(PROGRAM)
        (tmp_path / name).chmod(0o755)

    def run(*flags):
        words = (sys.executable, ROOT / "bench" / "micro" / "overlap.py", tmp_path / "obelisk", tmp_path / "out.json", "--small", *flags)
        done = subprocess.run(words, capture_output=True, text=True, timeout=100)
        return done, json.loads((tmp_path / "out.json").read_text())

    return run


def test_chains_are_of_about_one_length(probe):
    done, result = probe("--pairs", "gemm+copy,gemm+depthwise", "--ways", "op,stitch")
    assert done.returncode == 0, done.stderr
    assert {(one["way"], one["kind"]) for one in result["alone"]} == {(way, kind) for way in ("op", "stitch") for kind in ("gemm", "copy", "depthwise")}
    assert {one["kind"]: one["steps"] for one in result["alone"]} == {"gemm": 8, "copy": 32, "depthwise": 16}
    assert {one["us"] for one in result["alone"]} == {325}
    by_way = {(row["b"], row["way"]): row["overlap"] for row in result["rows"]}
    assert by_way == {(b, way): 0 if "sequential" in way else 0.5 for b in ("copy", "depthwise")
                      for way in (f"{one} {dispatch}" for one in ("op", "stitch") for dispatch in overlap.DISPATCHES)}


def test_what_fails_is_left_out_and_told(probe):
    done, result = probe("--pairs", "gemm+copy,depthwise+copy,softmax+copy", "--ways", "mono,streams")
    told = {(row["a"], row["way"]): row["overlap"] for row in result["rows"]}
    assert told == {("gemm", "mono"): 0.5, ("softmax", "mono"): 0.5, ("gemm", "streams"): 1, ("depthwise", "streams"): 1}
    assert result["failed"] == ["depthwise alone, mono", "softmax beside copy, streams"]
    assert done.returncode == 2 and "no such kernel" in done.stderr and "other bits" in done.stderr


@pytest.mark.parametrize("kind", overlap.KINDS)
def test_graphs_are_chains_side_by_side(tmp_path, kind):
    branches = overlap.Branches(small=True)
    branches.chain(kind, 3)
    branches.chain("copy", 2)
    model = onnx.load(branches.write(tmp_path / "both.onnx"))
    onnx.checker.check_model(model, full_check=True)
    evaluated = onnx.reference.ReferenceEvaluator(model)
    inputs = {port.name: np.random.default_rng(1).random(overlap.shape_of(k, True)).astype("float16") for port, k in zip(model.graph.input, (kind, "copy"))}
    answers = evaluated.run(None, inputs)
    x = inputs["x1"]
    for _ in range(2):
        x = x + np.roll(x, len(x) // 2, axis=0)
    assert np.array_equal(answers[1], x) and np.isfinite(answers[0]).all() and answers[0].any()


def test_on_a_cpu_as_it_is(program, environment, tmp_path):
    streams = program.parent / "streams"
    if not streams.exists():
        pytest.skip("this build has no bench/tenants")
    words = (sys.executable, ROOT / "bench" / "micro" / "overlap.py", program, tmp_path / "out.json", "--small", "--target", "cpu",
             "--pairs", "copy+softmax", "--ways", "mono,streams", "--seconds", "0.05")
    done = subprocess.run(list(map(str, words)), capture_output=True, text=True, timeout=110, env=environment)
    assert done.returncode == 0, done.stderr
    rows = json.loads((tmp_path / "out.json").read_text())["rows"]
    assert [row["way"] for row in rows] == ["mono", "streams"]
    for row in rows:
        assert min(row["a_us"], row["b_us"], row["both_us"]) > 0
        assert row["overlap"] == pytest.approx((row["a_us"] + row["b_us"] - row["both_us"]) / min(row["a_us"], row["b_us"]))
