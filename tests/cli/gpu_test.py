"""The CUDA target from the command line. Device code compiles without a GPU, where NVRTC is found;
what needs a GPU is skipped by name where there is none."""
import json
import re

import numpy as np
import pytest
from conftest import random, save
from onnx import TensorProto, helper

USAGE, UNSUPPORTED, DEVICE = 1, 3, 7
ROWS = ["--shape", "rows=3"]


@pytest.fixture
def machine(obelisk):
    findings = json.loads(obelisk("doctor", "--json").out)["findings"]
    return {one["name"]: one for one in findings}


@pytest.fixture
def nvrtc(machine):
    if not machine["nvrtc"]["ok"]:
        pytest.skip(f"no device compiler: {machine['nvrtc']['text']}")


@pytest.fixture
def gpu(machine, nvrtc):
    if not machine["gpu"]["ok"]:
        pytest.skip(f"no GPU: {machine['gpu']['text']}")


def test_doctor_tells_what_mends_the_gpu(machine):
    for name in ("gpu", "nvrtc"):
        assert machine[name]["ok"] or machine[name]["mend"], machine[name]
        assert not machine[name]["essential"]


def wide_layers(folder):
    """Products as wide as BERT's and a convolution of 64 channels: their tiles fill what shared memory there is."""
    nodes = [
        helper.make_node("MatMul", ["x", "up"], ["a"]),
        helper.make_node("Relu", ["a"], ["b"]),
        helper.make_node("MatMul", ["b", "down"], ["y"]),
        helper.make_node("Conv", ["image", "kernel"], ["z"], pads=[1, 1, 1, 1]),
    ]
    weights = {"up": random(768, 3072), "down": random(3072, 768), "kernel": random(64, 64, 3, 3)}
    inputs, outputs = ({name: (TensorProto.FLOAT, dims) for name, dims in each.items()} for each in (
        {"x": [128, 768], "image": [1, 64, 56, 56]}, {"y": [128, 768], "z": [1, 64, 56, 56]}))
    return save(folder / "wide.onnx", nodes, inputs, outputs, weights)


@pytest.mark.parametrize("precision", ["fp16", "fp32"])
@pytest.mark.parametrize("target", ["sm_80", "sm_89"])
def test_wide_layers_fit_a_gpu_of_little_shared_memory(obelisk, nvrtc, tmp_path, target, precision):
    most = {"sm_80": 163, "sm_89": 99}[target] * 1024
    for granularity in ("mono", "stitch"):
        report = obelisk("compile", wide_layers(tmp_path), "-o", "m.obk", "--target", target, "--granularity", granularity,
                         "--precision", precision, "--json", code=0).json
        assert all(kernel["smem_bytes"] <= most for kernel in report["kernels"])


@pytest.mark.parametrize("granularity", ["mono", "stitch", "op", "auto"])
@pytest.mark.parametrize("target", ["sm_90a", "sm_80", "sm_86", "sm_89", "sm_100a", "sm_120a"])
def test_compiles_for_a_gpu_that_is_not_there(obelisk, mlp, nvrtc, target, granularity):
    report = obelisk(
        "compile",
        mlp,
        "-o",
        "m.obk",
        *ROWS,
        "--target",
        target,
        "--granularity",
        granularity,
        "--json",
        code=0,
    ).json
    assert report["target"] == target
    assert report["granularity"] == granularity or granularity == "auto"
    assert report["launches"] == 1 or report["granularity"] != "mono"
    assert report["barriers"] == (report["phases"] - 1 if report["granularity"] == "mono" else 0)
    assert report["cubin_bytes"] > 1000 and report["kernels"]
    for kernel in report["kernels"]:
        assert {"name", "registers", "spill_bytes", "smem_bytes"} <= kernel.keys()
        assert kernel["spill_bytes"] <= 128, kernel
    assert max(kernel["registers"] for kernel in report["kernels"]) in range(8, 256)
    if granularity == "auto":
        assert report["granularity"] in report["choice"]


def test_emits_readable_texts(obelisk, mlp, nvrtc, tmp_path):
    obelisk(
        "compile",
        mlp,
        *ROWS,
        "--target",
        "sm_90a",
        "--granularity",
        "mono",
        "--emit",
        "cuda,ptx,schedule",
        "-d",
        "texts",
        code=0,
    )
    texts = {path.name: path.read_text() for path in (tmp_path / "texts").iterdir()}
    assert "obk_dispatch" in texts["program.cu"]
    assert ".target sm_90a" in texts["program.ptx"]
    assert "wave" in texts["program.schedule.txt"]


def test_emit_needs_a_gpu_target(obelisk, mlp):
    result = obelisk("compile", mlp, *ROWS, "--target", "cpu", "--emit", "ptx", code=USAGE)
    assert "--target" in result.err


def test_device_code_is_cached_and_reproducible(obelisk, mlp, nvrtc, tmp_path):
    flags = [*ROWS, "--target", "sm_90a", "--granularity", "mono", "--cache", "cache"]
    obelisk("compile", mlp, "-o", "one.obk", *flags, code=0)
    entries = obelisk("cache", "ls", "--cache", "cache", "--json", code=0).json["entries"]
    assert [entry["file"].rsplit(".", 1)[1] for entry in entries] == ["cubin"]
    obelisk("compile", mlp, "-o", "two.obk", *flags, code=0)
    assert (tmp_path / "one.obk").read_bytes() == (tmp_path / "two.obk").read_bytes()
    damaged = tmp_path / "cache" / entries[0]["file"]
    damaged.write_bytes(b"nonsense")
    obelisk("compile", mlp, "-o", "three.obk", *flags, code=0)
    assert (tmp_path / "one.obk").read_bytes() == (tmp_path / "three.obk").read_bytes()


def test_recurrent_steps_are_one_phase_or_many(obelisk, tmp_path):
    (tmp_path / "steps.ir").write_text(
        """graph "steps" {
  in %0 "fed": f32[9,1,2048]
  in %1 "r": f16[2,1024,256]
  %2: f16[9,2,1,256] = Recurrence(%0, %1) {cell = "lstm", direction = "bidirectional"}
  out %2 "y"
}"""
    )

    def waves(*flags):
        text = obelisk("compile", "steps.ir", *flags, "--to", "schedule", code=0).out
        return int(text.split(" waves")[0])

    assert waves("--target", "sm_90a") == waves("--target", "sm_90a", "--teams") == 1
    assert waves("--target", "sm_90a", "--no-teams") >= 9
    assert waves("--target", "sm_80") >= 9  # no clusters, no teams
    assert waves("--target", "cpu") == 1


def test_of_any_batch_the_same_ops_are_run(obelisk, tmp_path):
    def weights(rows, columns):
        return "0x" + random(rows, columns).astype(np.float16).tobytes().hex()

    first, second, third = weights(768, 64), weights(64, 1536), weights(1536, 64)

    def ops(rows, granularity, *flags):
        (tmp_path / "rows.ir").write_text(
            f"""graph "rows" {{
  in %0 "x": f16[{rows},768]
  const %1: f16[768,64] = {first}
  const %2: f16[64,1536] = {second}
  const %3: f16[1536,64] = {third}
  const %4: i64[1] = [1]
  %5: f16[{rows},64] = MatMul(%0, %1)
  %6: f16[{rows},64] = Softmax(%5) {{axis = 1}}
  %7: f16[{rows},1536] = MatMul(%6, %2)
  %8: f16[{rows},64] = MatMul(%7, %3)
  %9: f16[{rows},1] = ReduceMean(%8, %4) {{keepdims = 1}}
  %10: f16[{rows},64] = Sub(%8, %9)
  out %10 "y"
}}"""
        )
        machine = ("--target", "sm_90a", "--granularity", granularity, *flags)
        text = obelisk("compile", "rows.ir", *machine, "--to", "fit", code=0).out
        return re.findall(r"= (\w+)\(", text)

    for granularity in ("mono", "stitch"):
        few, some, many = (ops(rows, granularity, "--batch-invariant") for rows in (8, 200, 1000))
        assert few == some == many
        assert len({tuple(ops(rows, granularity)) for rows in (8, 200, 1000)}) > 1


def test_few_rows_flow_in_one_kernel(obelisk, tmp_path, nvrtc):
    nodes = [
        helper.make_node("MatMul", ["x", "w"], ["xw"]),
        helper.make_node("Relu", ["xw"], ["r"]),
        helper.make_node("MatMul", ["r", "v"], ["y"]),
    ]
    weights = {"w": random(256, 512), "v": random(512, 64)}
    ports = [{"x": (TensorProto.FLOAT, ["rows", 256])}, {"y": (TensorProto.FLOAT, ["rows", 64])}]
    save(tmp_path / "two.onnx", nodes, *ports, weights)

    def barriers(rows, *flags):
        words = ["--shape", f"rows={rows}", "--target", "sm_90a", "--precision", "fp16"]
        words += ["--granularity", "mono", "-o", "two.obk", *flags]
        return obelisk("compile", "two.onnx", *words, "--json", code=0).json["barriers"]

    assert barriers(3) == barriers(8) == 0
    assert barriers(3, "--disable", "flow") == barriers(9) == 2


def test_unknown_targets_and_granularities(obelisk, mlp):
    assert (
        "sm_12345"
        in obelisk("compile", mlp, "-o", "m.obk", *ROWS, "--target", "sm_12345", code=USAGE).err
    )
    assert (
        "tiny"
        in obelisk("compile", mlp, "-o", "m.obk", *ROWS, "--granularity", "tiny", code=USAGE).err
    )
    assert obelisk("compile", mlp, "-o", "m.obk", *ROWS, "--granularity", "op,mono", code=USAGE).err


def test_a_gpu_that_is_missing_is_an_error_with_a_way_out(obelisk, mlp, machine, nvrtc):
    if machine["gpu"]["ok"]:
        pytest.skip("there is a GPU")
    assert "--target cpu" in obelisk("run", mlp, *ROWS, "--target", "cuda", code=DEVICE).err
    obelisk("compile", mlp, "-o", "m.obk", *ROWS, "--target", "sm_90a", code=0)
    assert obelisk("inspect", "m.obk", "--json", code=0).json["target"] == "sm_90a"
    assert obelisk("run", "m.obk", code=DEVICE).err
    assert obelisk("run", "m.obk", "--portable", "--target", "cpu", code=0).out


def test_a_product_in_parts_comes_back_from_its_file(obelisk, nvrtc, tmp_path):
    """Its weights are packed as a batch of matrices."""
    nodes = [
        helper.make_node("MatMul", ["x", "w"], ["p"]),
        helper.make_node("Add", ["p", "r"], ["s"]),
        helper.make_node("LayerNormalization", ["s", "g"], ["y"], axis=-1),
    ]
    inputs = {"x": (TensorProto.FLOAT, [64, 1536]), "r": (TensorProto.FLOAT, [64, 384])}
    outputs = {"y": (TensorProto.FLOAT, [64, 384])}
    weights = {"w": random(1536, 384), "g": random(384)}
    model = save(tmp_path / "parts.onnx", nodes, inputs, outputs, weights)
    flags = ("--target", "sm_90a", "--precision", "fp16")
    schedule = obelisk("compile", model, *flags, "--to", "schedule", code=0).out
    assert "f16[4,384,384]: weight" in schedule
    made = obelisk("compile", model, "-o", "m.obk", *flags, "--json", code=0).json
    assert obelisk("inspect", "m.obk", "--json", code=0).json["tasks"] == made["tasks"]


def test_a_damaged_file_is_refused(obelisk, mlp, nvrtc, tmp_path):
    obelisk("compile", mlp, "-o", "m.obk", *ROWS, "--target", "sm_90a", code=0)
    whole = (tmp_path / "m.obk").read_bytes()
    for cut in (100, len(whole) // 2, len(whole) - 1):
        (tmp_path / "cut.obk").write_bytes(whole[:cut])
        assert obelisk("inspect", "cut.obk").code == 2


@pytest.mark.parametrize("granularity", ["mono", "stitch", "op"])
def test_answers_on_a_gpu(obelisk, mlp, gpu, tmp_path, granularity):
    obelisk("verify", mlp, *ROWS, "--target", "cuda", "--granularity", granularity, code=0)
    obelisk(
        "compile",
        mlp,
        "-o",
        "m.obk",
        *ROWS,
        "--target",
        "cuda",
        "--granularity",
        granularity,
        code=0,
    )
    report = obelisk("bench", "m.obk", "--seconds", "0.1", "--json", code=0).json
    assert (
        report["device_us"]["median"] > 0 and report["launches"] >= 1 and 0 < report["roof_share"]
    )
    phases = obelisk("profile", "m.obk", "--trace", "t.json", "--json", code=0).json["phases"]
    assert phases and all(phase["measured_us"] > 0 for phase in phases)
    assert json.loads((tmp_path / "t.json").read_text())["traceEvents"]


def test_granularities_side_by_side(obelisk, mlp, gpu):
    report = obelisk(
        "bench",
        mlp,
        *ROWS,
        "--target",
        "cuda",
        "--granularity",
        "op,stitch,mono",
        "--seconds",
        "0.1",
        "--json",
        code=0,
    ).json
    assert [row["granularity"] for row in report["granularities"]] == ["op", "stitch", "mono"]


def test_a_memory_limit_is_an_error(obelisk, gpu, tmp_path):
    weights = {"w": np.tile(random(512, 1), (1, 4096))}
    model = save(
        tmp_path / "wide.onnx",
        [helper.make_node("MatMul", ["x", "w"], ["y"])],
        {"x": (TensorProto.FLOAT, [1, 512])},
        {"y": (TensorProto.FLOAT, [1, 4096])},
        weights,
    )
    result = obelisk(
        "run", model, "--target", "cuda", "--granularity", "mono", "--memory-limit", "1"
    )
    assert result.code == 6 and "limit" in result.err, result
