"""scripts/gpu.py in the folder that a pack is, with a program that answers as one on a GPU does and a
stub of PyTorch: both sides in one run, and auto's choice. No GPU is wanted."""

import subprocess
import sys

import numpy as np
import pytest

MODULE = """
import numpy, torch
def make():
    return torch.Module(lambda x: x.sum(1)), (torch.Tensor(numpy.ones((3, 8), "f4")),), ("x",)
"""
# `stitch` takes less than the others; `run` answers what the module does, or WRONG.
PROGRAM = f"""#!{sys.executable}
import json, os, pathlib, sys
import numpy
words = sys.argv[1:]
def after(flag):
    return words[words.index(flag) + 1]
us = {{"mono": 120, "stitch": 100, "op": 500}}
with open(os.environ["ASKED"], "a") as log:
    log.write(" ".join(words) + "\\n")
def row(granularity):
    return {{"granularity": granularity, "device_us": {{"median": us[granularity], "p99": 1}},
            "latency_us": {{"median": 1}}, "launches": 1, "phases": 2, "bytes_streamed": 3,
            "roof_share": 0.5}}
if words[0] == "bench" and "auto" in after("--granularity"):
    chosen = os.environ.get("CHOSEN", "stitch")
    print(json.dumps({{"granularities": [row(g) for g in (chosen, "mono", "stitch", "op")]}}))
elif words[0] == "bench":
    print(json.dumps(row(after("--granularity"))))
elif words[0] == "compile" and "-o" in words:
    pathlib.Path(after("-o")).write_text(after("--granularity"))
    print(json.dumps({{"launches": 1 if after("--granularity") == "mono" else 2}}))
elif words[0] == "run":
    assert (numpy.load(after("--inputs"))["x"] == 1).all()
    folder = pathlib.Path(after("--output-dir"))
    folder.mkdir()
    numpy.save(folder / "y.npy", numpy.full(3, 8.0 + float(os.environ.get("WRONG", 0)), "f4"))
    print(json.dumps({{"outputs": [{{"file": str(folder / "y.npy")}}]}}))
"""


@pytest.fixture
def gpu_py(pack):
    for name in ("a", "b"):
        (pack.folder / "work" / f"{name}.onnx").touch()
        (pack.folder / "work" / f"{name}.torch.py").write_text(MODULE)
    def run(*words, **more):
        words = (*words, "--granularity", "mono,stitch", "--ways", "eager,graph")
        return pack.gpu_py(PROGRAM, *words, **more)
    run.asked = pack.folder / "asked"
    return run


def test_one_run_has_both_sides(gpu_py):
    done, result = gpu_py("run", "bench", "peers", "auto")
    assert done.returncode == 0, done.stdout + done.stderr
    assert [(r["model"], r["granularity"], r["ok"]) for r in result["answers"]] == [
        (m, g, True) for m in "ab" for g in ("mono", "stitch")
    ]
    assert len(result["obelisk"]) == 4
    assert [(r["model"], r["way"]) for r in result["pytorch"]["rows"]] == [
        (m, w) for m in "ab" for w in ("eager", "graph")
    ]
    assert result["pytorch"]["version"] == "0-stub"
    assert {row["chosen"] for row in result["auto"]} == {"stitch"}
    asked = gpu_py.asked.read_text().splitlines()
    first_timed = next(k for k, line in enumerate(asked) if line.startswith(("run", "bench")))
    assert sum(line.startswith("compile") for line in asked[:first_timed]) == 4  # before all else
    for line in asked:  # a network's own precision stands behind its name
        assert ("--precision fp32" in line) == ("b.onnx" in line)


def test_answers_that_hardly_depend_on_the_inputs_show_nothing(gpu_py, pack):
    (pack.folder / "work" / "a.torch.py").write_text(MODULE.replace("x.sum(1)", "x.sum(1) * 1e-3 + 7.992"))
    done, result = gpu_py("run", WRONG="0.02")
    assert done.returncode == 2 and [row["ok"] for row in result["answers"]] == [False, False, True, True]
    assert "says little" in result["answers"][0]["error"] and result["answers"][2]["moved"] == 2


def test_wrong_answers_and_a_slower_choice_are_failures(gpu_py):
    done, result = gpu_py("run", "auto", WRONG="3", CHOSEN="mono")
    assert done.returncode == 6 and not any(row["ok"] for row in result["answers"])
    assert "chose mono, 120.0 us, where one takes 100.0" in done.stdout
    assert "pytorch" not in result


def test_launches_that_are_told_are_those_that_are_counted(gpu_py, pack):
    (pack.folder / "bin" / "libtensors.so").touch()
    counter = pack.folder / "scripts" / "tensors.py"
    counter.write_text("import os, pathlib, sys\nassert '--count' in sys.argv and sys.argv[4] == 'cuda'\n"
                       "kernels = 1 if pathlib.Path(sys.argv[2]).read_text() == 'mono' else 2\n"
                       "print(f'a run: {kernels} kernels, {os.environ.get(\"COPIES\", 0)} copies, 0 fills')\n")
    done, result = gpu_py("launches")
    assert done.returncode == 0, done.stdout + done.stderr
    assert [(row["granularity"], row["launches"], row["a_run"]) for row in result["launches"]] == [
        ("mono", 1, "a run: 1 kernels, 0 copies, 0 fills"), ("stitch", 2, "a run: 2 kernels, 0 copies, 0 fills")] * 2
    done, _ = gpu_py("launches", COPIES="1")
    assert done.returncode == 4 and "told are 2 kernels; a run: 2 kernels, 1 copies, 0 fills" in done.stdout
    counter.write_text("import sys\nsys.exit('no PyTorch')\n")
    done, _ = gpu_py("launches")
    assert done.returncode == 4 and "told are 1 kernels; no PyTorch" in done.stdout


def test_bench_alone_wants_no_pytorch(gpu_py):
    done, result = gpu_py("bench", STUB_TORCH_NO_GPU="1")
    assert done.returncode == 0 and len(result["obelisk"]) == 4, done.stdout
    assert np.isclose(result["obelisk"][0]["device_us"]["median"], 120)


def test_a_network_has_one_precision_in_a_run(pack):
    words = ("bench", "--models", "a,b,a@fp32", "--work", pack.folder / "work")
    done = subprocess.run([sys.executable, pack.folder / "scripts" / "gpu.py", *words], capture_output=True, text=True,
                          timeout=100, env=pack.environment)
    assert done.returncode != 0 and "a is named twice" in done.stderr, done.stdout + done.stderr


def test_shards_of_test_programs_are_counted_together(gpu_py, tmp_path):
    program = tmp_path / "bin" / "api_test"
    program.write_text(f"""#!{sys.executable}
import os, sys
shard, bad = int(os.environ["GTEST_SHARD_INDEX"]), os.environ.get("BAD")
assert os.environ["GTEST_TOTAL_SHARDS"] == "2" and sys.argv[1:] == []
print('  | [  PASSED  ] 50 tests.')  # of a process of a test's own
print('{{"test": "words", "phases": 10, "wrong_words": 0}}')
if bad != "all":
    print(f"[  PASSED  ] {{3 + shard}} tests.")
if bad == "signal" and shard == 1:
    os.kill(os.getpid(), 9)
print("[  SKIPPED ] 1 test, listed below:")
if bad == str(shard):
    print("[  FAILED  ] One.Test (2 ms)\\n[  FAILED  ] 1 test, listed below:")
    sys.exit(1)
""")
    program.chmod(0o755)
    done, result = gpu_py("tests")
    (row,) = result["tests"]
    assert done.returncode == 0, done.stdout
    counts = (row[k] for k in ("program", "exit", "passed", "skipped", "failed"))
    assert (*counts,) == ("api_test", 0, 7, 2, 0)
    assert row["measured"] == [{"test": "words", "phases": 10, "wrong_words": 0}] * 2
    done, result = gpu_py("tests", BAD="1")
    assert done.returncode == 1 and "One.Test" in done.stdout
    assert result["tests"][0]["exit"] == 1 and result["tests"][0]["failed"] == 1
    done, result = gpu_py("tests", BAD="signal")
    assert done.returncode == 1 and result["tests"][0]["exit"] == -9
    done, _ = gpu_py("tests", BAD="all")
    assert done.returncode == 1 and "not one passed" in done.stdout
