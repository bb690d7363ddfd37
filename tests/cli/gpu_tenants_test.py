"""scripts/gpu_tenants.py and the program that it runs: on the CPU, where answers can be compared, and over a driver
that computes nothing. Networks lie where the script would have exported them, so no PyTorch is wanted."""
import json
import os
import subprocess
import sys

import numpy as np
import pytest
from conftest import ROOT, TensorProto, helper, numpy_helper, onnx

SCRIPT = ROOT / "scripts" / "gpu_tenants.py"
STUB = ROOT / "build" / "stub"
TENANTS = 3


@pytest.fixture
def work(tmp_path):
    folder = tmp_path / "work" / "minilm"
    folder.mkdir(parents=True)
    for seed in range(2):
        random = np.random.default_rng(seed)
        weights = random.standard_normal((16, 8), dtype=np.float32)
        graph = helper.make_graph(
            [helper.make_node("MatMul", ["x", "w"], ["y"])], "net",
            [helper.make_tensor_value_info("x", TensorProto.FLOAT, [4, 16])],
            [helper.make_tensor_value_info("y", TensorProto.FLOAT, [4, 8])],
            [numpy_helper.from_array(weights, "w")])
        onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8), folder / f"{seed}.onnx")
    for tenant in range(TENANTS):
        np.random.default_rng(tenant).standard_normal((4, 16), dtype=np.float32).tofile(folder / f"{tenant}.x.bin")
    return tmp_path / "work"


@pytest.fixture
def batch(work):
    """The network of the first tenant for any number of inputs."""
    model = onnx.load(work / "minilm" / "0.onnx")
    graph = helper.make_graph(model.graph.node, "net", [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["batch", 4, 16])],
                              [helper.make_tensor_value_info("y", TensorProto.FLOAT, ["batch", 4, 8])], model.graph.initializer)
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8), work / "minilm" / "batch.onnx")


def run(work, environment, *words, models="minilm"):
    out = work / "rows.json"
    command = [sys.executable, SCRIPT, "--models", models, "--tenants", TENANTS, "--seconds", 0.1, "--work", work,
               "--precision", "keep", "--out", out, *words]
    done = subprocess.run([str(word) for word in command], capture_output=True, text=True, env=environment, timeout=300)
    return done, json.loads(out.read_text()) if out.exists() else None


def test_every_way_has_a_row_and_answers_have_the_bits_of_those_alone(obelisk, work):
    done, body = run(work, obelisk.environment, "--target", "cpu", "--sms", 2)
    assert done.returncode == 0, done.stdout + done.stderr
    assert [row["way"] for row in body["rows"]] == ["serial", "streams", "narrow", "shared"]
    for row in body["rows"]:
        assert row["tenants"] == TENANTS and row["rounds"] >= 20
        assert row["answers_that_differ"] == 0 and row["moved_by_nan"] == 0
        closed = row["closed"]
        assert 0 < closed["median_us_fastest"] <= closed["median_us_slowest"] and closed["median_ratio"] >= 1
        assert 0 < closed["answers_fewest"] <= closed["answers_most"] and closed["answers"] >= TENANTS * closed["answers_fewest"]
        assert row["memory"]["models_mib"] >= 0 and row["memory"]["gpu_mib"] is None
        assert 0 < row["alone_us"] and 0 < row["round_us"] <= row["round_p90_us"] and 0 < row["back_to_back_us"] and row["load_s"] >= 0
    for row, told in zip(body["rows"], body["summary"], strict=True):
        assert (told["way"], told["tenants"], told["per_s"]) == (row["way"], TENANTS, row["closed"]["per_s"])
        assert told["close"] == (row["closed"]["median_ratio"] <= 1.05) and "slow_down" not in told


def test_tenants_are_held_against_one_program_for_all_of_them(obelisk, work, batch):
    done, body = run(work, obelisk.environment, "--target", "cpu", "--sms", 2, "--ways", "serial,narrow:1", "--against-batch")
    assert done.returncode == 0, done.stdout + done.stderr
    assert [(row["way"], row["sms"], row["tenants"]) for row in body["rows"]] == [
        ("batch", 2, 1), ("serial", 2, TENANTS), ("narrow:1", 1, TENANTS), ("batch", 2, 1)]
    rows = {row["way"]: row["closed"] for row in body["rows"]}
    least = min(row["closed"]["median_us_fastest"] for row in body["rows"] if row["way"] == "batch")
    for told in body["summary"]:
        slow = rows[told["way"]]["median_us_slowest"] / least
        assert told["batch_us"] == least and told["slow_down"] == pytest.approx(slow, abs=1e-3)
        assert told["slow_down_is_wanted"] == (slow <= 1.3) and told["rate_of_batch"] > 0
    # Its inputs are those of all tenants, one behind the other.
    joined = (work / "minilm" / f"batch{TENANTS}" / "0.x.bin").read_bytes()
    assert joined == b"".join((work / "minilm" / f"{tenant}.x.bin").read_bytes() for tenant in range(TENANTS))


def test_sixty_tenants_have_memory_of_their_own(obelisk, work):
    for tenant in range(TENANTS, 60):
        np.random.default_rng(tenant).standard_normal((4, 16), dtype=np.float32).tofile(work / "minilm" / f"{tenant}.x.bin")
    done, body = run(work, obelisk.environment, "--target", "cpu", "--sms", 2, "--tenants", 60, "--ways", "serial,narrow:1", "--seconds", 0.3)
    assert done.returncode == 0, done.stdout + done.stderr
    for told, row in zip(body["summary"], body["rows"], strict=True):
        assert told["tenants"] == 60 and told["per_s"] > 0 and row["closed"]["answers_fewest"] > 0
        assert 60 * 4 * 16 * 8 <= told["models_mib"] * 2**20, "weights are shared"


@pytest.fixture
def mixed(work):
    """Two more networks, of other widths."""
    for name, width in (("deepfm", 32), ("crnn", 96)):
        (work / name).mkdir()
        random = np.random.default_rng(width)
        graph = helper.make_graph(
            [helper.make_node("MatMul", ["x", "w"], ["h"]), helper.make_node("Softmax", ["h"], ["y"])], "net",
            [helper.make_tensor_value_info("x", TensorProto.FLOAT, [4, width])], [helper.make_tensor_value_info("y", TensorProto.FLOAT, [4, 8])],
            [numpy_helper.from_array(random.standard_normal((width, 8), dtype=np.float32), "w")])
        onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8), work / name / "0.onnx")
        for tenant in range(TENANTS):
            random.standard_normal((4, width), dtype=np.float32).tofile(work / name / f"{tenant}.x.bin")
    return "minilm,deepfm,crnn"


def test_random_mixes_have_the_bits_of_those_alone(obelisk, work, mixed):
    done, body = run(work, obelisk.environment, "--target", "cpu", "--sms", 2, "--seeds", 1, "--mixes", 400, models=mixed)
    assert done.returncode == 0, done.stdout + done.stderr
    assert [row["shared"] for row in body["mixes"]] == [False, True] and body["rows"] == []
    for row in body["mixes"]:
        assert row["models"] == 3 and row["mixes"] == 400 and row["differ"] == row["wrong"] == 0
        assert row["of_nan"] > 0 and row["guests"] >= 1 and row["of_guests"] >= 2 * (TENANTS + 1)
        assert row["large_refused"] >= 1 and "it takes " in row["large_reason"]
        assert row["requests"] >= 400 and row["answered"] + row["cancelled"] + row["late_or_refused"] <= row["requests"]


@pytest.mark.parametrize("report, clean", [("", True), ("========= Invalid __global__ write of size 4 bytes\n=========     at kernel+0x10 in tile.cuh:7\n=========\n", False)])
def test_what_a_sanitizer_reports_of_mixes_is_a_failure(obelisk, work, mixed, tmp_path, report, clean):
    """A tool that runs the program and writes this report in its log."""
    tool = tmp_path / "tools" / "compute-sanitizer"
    tool.parent.mkdir()
    tool.write_text(f"""#!{sys.executable}
import pathlib, subprocess, sys
words = sys.argv[1:]
assert words[:2] == ["--tool", "memcheck"], words
at = words.index("--log-file")
pathlib.Path(words[at + 1]).write_text({report!r} + "========= ERROR SUMMARY: {0 if clean else 1} errors\\n")
sys.exit(subprocess.run(words[at + 2:]).returncode)
""")
    tool.chmod(0o755)
    environment = {**obelisk.environment, "PATH": f"{tool.parent}:{os.environ['PATH']}"}
    done, body = run(work, environment, "--target", "cpu", "--sms", 2, "--seeds", 1, "--mixes", 40, "--sanitizer", "memcheck", models=mixed)
    assert (done.returncode == 0) == clean, done.stdout + done.stderr
    for row in body["mixes"]:
        assert row["sanitizer"]["tool"] == "memcheck" and bool(row["sanitizer"]["reports"]) != clean
        assert row["sanitizer"]["summary"] == [f"{0 if clean else 1} errors"]


def test_a_mix_whose_large_model_is_taken_fails(obelisk, work, mixed):
    """The check itself: what is said to be too large, and fits."""
    words = [ROOT / "build" / "bin" / "tenants", "mixes", f"minilm={work / 'minilm' / '0.onnx'}", "--inputs", work, "--target", "cpu", "--workers", 2,
             "--mixes", 20, "--large", work / "deepfm" / "0.onnx"]
    done = subprocess.run([str(word) for word in words], capture_output=True, text=True, env=obelisk.environment, timeout=300)
    assert done.returncode == 1 and json.loads(done.stdout)["large_refused"] == 0, done.stdout + done.stderr


def test_what_cannot_be_made_is_told_and_the_rest_goes_on(obelisk, work):
    (work / "minilm" / "1.x.bin").unlink()
    done, body = run(work, obelisk.environment, "--target", "cpu", "--sms", 2, "--ways", "narrow")
    assert done.returncode == 1 and body["rows"] == [] and body["failures"] == ["minilm narrow"]
    assert "1.x.bin cannot be read" in done.stdout
    done, _ = run(work, obelisk.environment, models="nobody")
    assert done.returncode == 2 and "there is no nobody" in done.stderr
    done, _ = run(work, obelisk.environment, "--ways", "narrow:0")
    assert done.returncode == 2 and "there is no narrow:0" in done.stderr


def test_over_a_driver_that_computes_nothing_programs_are_narrow(obelisk, work):
    if not (STUB / "libcuda.so.1").exists():
        pytest.skip("the stub of a driver is not built")
    environment = obelisk.environment | {"LD_LIBRARY_PATH": str(STUB)}
    findings = {one["name"]: one for one in json.loads(obelisk("doctor", "--json").out)["findings"]}
    if not findings["nvrtc"]["ok"]:
        pytest.skip(f"no device compiler: {findings['nvrtc']['text']}")
    done, body = run(work, environment, "--ways", "serial,narrow", "--seeds", 1)
    # Kernels do not run, so answers are whatever lies there: only the rows are looked at.
    assert [(row["way"], row["sms"], row["inputs"]) for row in body["rows"]] == [("serial", 132, "device"), ("narrow", 44, "device")], done.stdout
    assert os.path.exists(work / "minilm" / "0.44.obk")
    assert all(told["gpu_mib"] >= told["gpu_mib_of_tenants"] for told in body["summary"])
