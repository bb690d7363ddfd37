"""The CUDA target from the command line. Device code compiles without a GPU, where NVRTC is found;
what needs a GPU is skipped by name where there is none."""
import json
import re
import sys
from pathlib import Path

import numpy as np
import pytest
from conftest import ROOT, found, random, save, shared_library
from onnx import TensorProto, helper

USAGE, UNSUPPORTED, MEMORY, DEVICE = 1, 3, 6, 7
NVRTC = ("OBELISK_NVRTC", "PYTHONPATH", "VIRTUAL_ENV")  # what people set for their own programs
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
def nvdisasm(machine, nvrtc):
    if not machine["nvdisasm"]["ok"]:
        pytest.skip(f"no nvdisasm: {machine['nvdisasm']['mend']}")


@pytest.fixture
def gpu(machine, nvrtc):
    if not machine["gpu"]["ok"]:
        pytest.skip(f"no GPU: {machine['gpu']['text']}")


def test_doctor_tells_what_mends_the_gpu(machine):
    for name in ("gpu", "nvrtc"):
        assert machine[name]["ok"] or machine[name]["mend"], machine[name]
        assert not machine[name]["essential"]


def alone(obelisk, monkeypatch, tmp_path):
    """A machine without environments of Python: an OBELISK_PYTHON of a folder of its own, no other."""
    for name in NVRTC:
        monkeypatch.setitem(obelisk.environment, name, "")
    own = tmp_path / "own"
    (own / "bin").mkdir(parents=True)
    (own / "bin" / "python").symlink_to(sys.executable)
    for name, value in {"PATH": "/usr/bin:/bin", "HOME": tmp_path, "OBELISK_PYTHON": own / "bin" / "python"}.items():
        monkeypatch.setitem(obelisk.environment, name, str(value))
    return own / "lib" / "python3.99" / "site-packages"


def test_the_device_compiler_is_found_in_the_environment_of_our_python(obelisk, machine, nvrtc, monkeypatch, tmp_path):
    packages = alone(obelisk, monkeypatch, tmp_path)
    library = Path(machine["nvrtc"]["text"].rsplit(" (version", 1)[0]).resolve()
    if not library.is_file():
        pytest.skip(f"the system finds it by its name alone: {library}")
    (packages / "nvidia" / "cu99").mkdir(parents=True)
    (packages / "nvidia" / "cu99" / "lib").symlink_to(library.parent)
    if not (Path("/usr/local/cuda/lib64") / library.name).exists():
        assert str(packages / "nvidia" / "cu99" / "lib") in found(obelisk, "nvrtc")["text"]


def test_a_device_compiler_that_is_too_old_is_passed_over_or_refused(obelisk, machine, nvrtc, monkeypatch, tmp_path):
    vendor = alone(obelisk, monkeypatch, tmp_path) / "nvidia"
    old = vendor / "cu99" / "lib"
    shared_library(old / "libnvrtc.so.12", "int nvrtcVersion(int* major, int* minor) { *major = 12, *minor = 3; return 0; }")
    (vendor / "cu98").mkdir()
    (vendor / "cu98" / "lib").symlink_to(Path(machine["nvrtc"]["text"].rsplit(" (version", 1)[0]).resolve().parent)
    other = found(obelisk, "nvrtc")
    assert other["ok"] and str(old) not in other["text"]
    monkeypatch.setitem(obelisk.environment, "OBELISK_NVRTC", str(old))
    refused = found(obelisk, "nvrtc")
    assert not refused["ok"] and "-m pip install --upgrade nvidia-cuda-nvrtc" in refused["mend"]
    assert f"{old}/libnvrtc.so.12 is version 12.3, wanted is 12.4 or later" in refused["text"]
    shared_library(old / "libnvrtc.so.12", "int nvrtcVersion(int* major, int* minor) { *major = 12, *minor = 9; return 0; }")
    broken = found(obelisk, "nvrtc")
    assert not broken["ok"] and f"{old}/libnvrtc.so.12 has no nvrtcCreateProgram" in broken["text"]


def test_a_device_compiler_of_another_python_is_named_and_not_opened(obelisk, machine, monkeypatch, tmp_path):
    if machine["nvrtc"]["ok"] and "site-packages" not in machine["nvrtc"]["text"]:
        pytest.skip(f"the system has one: {machine['nvrtc']['text']}")
    alone(obelisk, monkeypatch, tmp_path)
    if found(obelisk, "nvrtc")["ok"]:
        pytest.skip("beside the program, or in the system's packages, there is one")
    opened = tmp_path / "opened"
    library = ('#include <fcntl.h>\n__attribute__((constructor)) static void opened(void) { open("%s", O_CREAT | O_WRONLY, 0600); }\n' % opened +
               "int nvrtcVersion(int* major, int* minor) { *major = 12, *minor = 9; return 0; }")
    site = Path("lib") / "python3.99" / "site-packages"
    places = {"PYTHONPATH": tmp_path / "told", "VIRTUAL_ENV": tmp_path / "venv" / site, "PATH": tmp_path / "other" / site,
              "HOME": tmp_path / "home" / ".local" / site}
    for variable, packages in places.items():
        folder = packages / "nvidia" / "cu99" / "lib"
        shared_library(folder / "libnvrtc.so.12", library)
        value = {"PYTHONPATH": packages, "VIRTUAL_ENV": tmp_path / "venv", "PATH": f"{tmp_path}/other/bin:/usr/bin:/bin", "HOME": tmp_path / "home"}[variable]
        if variable == "PATH":
            (tmp_path / "other" / "bin").mkdir()
            (tmp_path / "other" / "bin" / "python3").symlink_to(sys.executable)
        before = obelisk.environment.get(variable, "")
        obelisk.environment[variable] = str(value)
        finding = found(obelisk, "nvrtc")
        obelisk.environment[variable] = before
        assert not finding["ok"] and str(folder) in finding["text"] and finding["mend"] == f"OBELISK_NVRTC={folder}", variable
        assert not opened.exists(), variable


def test_no_folder_of_the_checkout_stands_in_the_program(program):
    assert f"{ROOT}/.venv".encode() not in program.read_bytes()
    assert f"{ROOT}/scripts".encode() not in program.read_bytes()


def test_nvdisasm_is_found_in_a_wheel(obelisk, monkeypatch, tmp_path):
    tool = alone(obelisk, monkeypatch, tmp_path) / "nvidia" / "cu99" / "bin" / "nvdisasm"
    tool.parent.mkdir(parents=True)
    tool.write_text("#!/bin/sh\necho a listing\n")
    tool.chmod(0o755)
    finding = found(obelisk, "nvdisasm")
    if finding["text"].startswith(("/usr/bin/", "/usr/local/cuda/")):
        pytest.skip(f"the toolkit has one: {finding['text']}")
    assert finding["ok"] and finding["text"] == str(tool)


def test_without_nvdisasm_nothing_is_compiled(obelisk, mlp, monkeypatch, tmp_path):
    monkeypatch.setitem(obelisk.environment, "OBELISK_NVDISASM", str(tmp_path / "gone"))
    finding = found(obelisk, "nvdisasm")
    assert not finding["ok"] and not finding["essential"]
    assert "-m pip install nvidia-cuda-nvdisasm" in finding["mend"]
    lines = obelisk("doctor", code=0).out.splitlines()
    assert [line.split()[0] for line in lines if " nvdisasm " in line] == ["absent"]
    refused = obelisk("compile", mlp, *ROWS, "-o", "m.obk", "--target", "sm_90a", "--emit", "sass", "-d", "texts", code=USAGE)
    assert "nvdisasm" in refused.err and finding["mend"] in refused.err
    assert not (tmp_path / "m.obk").exists() and not (tmp_path / "texts").exists()


def test_machine_code_is_disassembled(obelisk, mlp, nvdisasm, tmp_path):
    report = obelisk("compile", mlp, *ROWS, "--target", "sm_90a", "--granularity", "op", "--emit", "sass", "-d", "texts", "--json", code=0).json
    assert report["emitted"] == ["texts/program.sass"]
    text = (tmp_path / "texts" / "program.sass").read_text()
    for kernel in report["kernels"]:
        assert f".text.{kernel['name']}" in text
    assert "EXIT" in text and "sm_90" in text


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


ARCHITECTURES = {"sm_80": 80, "sm_86": 86, "sm_87": 87, "sm_89": 89, "sm_90a": 90, "sm_100a": 100, "sm_103a": 103, "sm_110a": 110, "sm_120a": 120, "sm_121a": 121}


@pytest.mark.parametrize("target", ARCHITECTURES)
def test_every_architecture_compiles_with_what_it_has(obelisk, mlp, nvrtc, tmp_path, target):
    """Pages of weights and kernels that begin early are where the hardware has them: from sm_90 on, sm_100a and later too."""
    has = ARCHITECTURES[target] >= 90
    for granularity in ("mono", "stitch"):
        words = ("compile", mlp, *ROWS, "-o", "m.obk", "--target", target, "--precision", "fp16", "--granularity", granularity)
        report = obelisk(*words, "--emit", "ptx", "-d", "texts", "--json", code=0).json
        assert report["target"] == target and report["kernels"]
        assert report["overlaps"] == (has and granularity == "stitch")
        text = (tmp_path / "texts" / "program.ptx").read_text()
        assert f".target {target}" in text
        assert ("cp.async.bulk." in text) == has
        assert ("griddepcontrol.wait" in text) == (has and granularity == "stitch")


@pytest.mark.parametrize("granularity", ["mono", "stitch", "op", "auto"])
@pytest.mark.parametrize("target", ["sm_90a", "sm_80", "sm_89", "sm_120a"])
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
    # One kernel waits between its phases, unless its values flow; kernels of a graph never do.
    waits = report["granularity"] == "mono" and not report["dataflow"]
    assert report["barriers"] == (report["phases"] - 1 if waits else 0)
    assert report["cubin_bytes"] > 1000 and report["kernels"]
    for kernel in report["kernels"]:
        assert {"name", "registers", "spill_bytes", "smem_bytes"} <= kernel.keys()
        assert kernel["registers"] in range(8, 256) and kernel["spill_bytes"] <= 128, kernel
    assert sum(kernel["launches"] for kernel in report["kernels"]) == report["launches"]
    if granularity == "auto":
        assert report["granularity"] in report["choice"]


def test_auto_explains_what_it_chose(obelisk, mlp, nvrtc):
    """Each candidate goes through the same steps, so what is explained is what the chosen granularity explains when it is asked for by its name."""
    steps = "fold_norms,expand_for_machine,split_products,stitch,schedule,codegen,assemble"
    words = ("compile", mlp, *ROWS, "-o", "m.obk", "--target", "sm_90a", "--precision", "fp16", f"--explain={steps}", "--json")
    left_open = obelisk(*words, code=0).json
    asked = obelisk(*words, "--granularity", left_open["granularity"], code=0).json
    assert left_open["explained"] == asked["explained"] and set(asked["explained"]) == set(steps.split(","))
    for count in ("launches", "phases", "barriers"):
        assert left_open[count] == asked[count]


@pytest.mark.parametrize("granularity", ["mono", "stitch", "op"])
def test_kernels_are_what_is_launched(obelisk, nvrtc, tmp_path, granularity):
    """Products in parts are summed by functions of hand-written blocks, which are no kernels."""
    report = obelisk("compile", wide_layers(tmp_path), "-o", "m.obk", "--target", "sm_90a", "--precision", "fp16",
                     "--granularity", granularity, "--emit", "cuda", "-d", "texts", "--json", code=0).json
    names = [kernel["name"] for kernel in report["kernels"]]
    assert len(set(names)) == len(names)
    if granularity == "mono":
        assert names == ["obk_program"] and report["kernels"][0]["launches"] == report["launches"] == 1
    else:
        assert sum(kernel["launches"] for kernel in report["kernels"]) == report["launches"] >= 2
        text = (tmp_path / "texts" / "program.cu").read_text()
        declared = set(re.findall(r"^OBK_\w*KERNEL\((obk_kernel_\d+),", text, re.MULTILINE))
        assert set(names) <= declared and declared
    assert all(kernel["registers"] > 0 for kernel in report["kernels"])
    assert report["functions"] or granularity != "mono"  # its convolution is called
    for function in report["functions"]:
        assert function.keys() == {"name", "spill_bytes"} and function["name"] not in names


def test_registers_that_are_spilled_are_told(obelisk, nvrtc, tmp_path):
    """Of a row that one task holds while the network flows: nothing is wrong with its kernel, but it is slow."""
    nodes = [
        helper.make_node("MatMul", ["x", "w"], ["xw"]),
        helper.make_node("Relu", ["xw"], ["r"]),
        helper.make_node("MatMul", ["r", "v"], ["y"]),
        helper.make_node("Tanh", ["z"], ["e"]),
        helper.make_node("Softmax", ["e"], ["p"], axis=-1),
    ]
    inputs, outputs = ({name: (TensorProto.FLOAT, dims) for name, dims in each.items()} for each in (
        {"x": [3, 256], "z": [2, 36000]}, {"y": [3, 64], "p": [2, 36000]}))
    model = save(tmp_path / "long.onnx", nodes, inputs, outputs, {"w": random(256, 512), "v": random(512, 64)})
    flags = ("-o", "m.obk", "--target", "sm_90a", "--precision", "fp16", "--granularity", "mono")
    report = obelisk("compile", model, *flags, "--json", code=0).json
    spilling = [one for one in report["kernels"] + report["functions"]
                if one["name"].startswith("obk_") and one["spill_bytes"] > 0]
    if not spilling:
        pytest.skip("this assembler finds a register for everything")
    assert len(report["warnings"]) == len(spilling)
    text = obelisk("compile", model, *flags, code=0).out
    for one, warning in zip(spilling, report["warnings"]):
        assert one["name"] in warning and f"{one['spill_bytes']} bytes" in warning
        assert f"warning  {warning}" in text


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


def test_texts_are_written_before_anything_is_compiled(obelisk, mlp, tmp_path, monkeypatch):
    monkeypatch.setenv("OBELISK_NVRTC", str(tmp_path / "nowhere"))  # no device compiler
    flags = ("--target", "sm_90a", "--granularity", "stitch", "--emit", "cuda,schedule", "-d", "texts", "--json")
    report = obelisk("compile", mlp, *ROWS, *flags, "--to", "assemble", code=0).json
    assert report["stopped_after"] == "assemble" and report["emitted"] == ["texts/program.cu", "texts/program.schedule.txt"]
    assert "OBK_BODY(obk_body)" in (tmp_path / "texts" / "program.cu").read_text()
    assert "emitted" not in obelisk("compile", mlp, *ROWS, *flags, "--to", "codegen", code=0).json  # no program yet


def test_emit_needs_a_gpu_target(obelisk, mlp):
    result = obelisk("compile", mlp, *ROWS, "--target", "cpu", "--emit", "ptx", code=USAGE)
    assert "--target" in result.err
    obelisk("compile", mlp, *ROWS, "-o", "m.obk", "--target", "cpu", "--emit", "sass", code=USAGE)
    assert not mlp.with_name("m.obk").exists()  # said before anything is compiled


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

    assert waves("--target", "sm_90a") == waves("--target", "sm_90a", "--gangs") == 1
    assert waves("--target", "sm_90a", "--no-gangs") >= 9
    assert waves("--target", "sm_80") >= 9  # no clusters, no gangs
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
        text = obelisk("compile", "rows.ir", *machine, "--to", "split_products", code=0).out
        return re.findall(r"= (\w+)\(", text)

    for granularity in ("mono", "stitch"):
        few, some, many = (ops(rows, granularity, "--batch-invariant") for rows in (8, 200, 1000))
        assert few == some == many
        assert len({tuple(ops(rows, granularity)) for rows in (8, 200, 1000)}) > 1


def test_a_long_k_has_as_many_parts_as_leave_workers_tiles(obelisk, tmp_path):
    nodes = [
        helper.make_node("Tanh", ["x"], ["a"]),
        helper.make_node("MatMul", ["a", "w"], ["y"]),
        helper.make_node("Softmax", ["y"], ["z"]),
    ]
    for name, depth, columns in (("long", 3072, 192), ("narrow", 8192, 32)):
        ports = [{"x": (TensorProto.FLOAT, ["rows", depth])}, {"z": (TensorProto.FLOAT, ["rows", columns])}]
        save(tmp_path / f"{name}.onnx", nodes, *ports, {"w": random(depth, columns)})

    def parts(rows, *flags, model="long.onnx"):
        words = ["--shape", f"rows={rows}", "--target", "sm_90a", "--precision", "fp16"]
        words += ["--granularity", "stitch", "--to", "split_products", *flags]
        text = obelisk("compile", model, *words, code=0).out
        return max([1, text.count("Slice("), *map(int, re.findall(r"parts = (\d+)", text))])

    for rows in (40, 200):  # by columns and workers, not by rows
        assert [parts(rows, f"--sms={sms}") for sms in (132, 16, 8, 4)] == [4, 4, 2, 1], rows
    # Of many rows where tiles of 64 rows, one a worker, are not quicker.
    assert parts(600) == parts(60000) == 1
    assert parts(600, model="narrow.onnx") == 4
    assert parts(600, "--disable", "tall_gemm", model="narrow.onnx") == 1


def test_few_rows_are_dataflow_in_one_kernel(obelisk, tmp_path, nvrtc):
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
        report = obelisk("compile", "two.onnx", *words, "--json", code=0).json
        assert report["dataflow"] == (report["barriers"] == 0)
        return report["barriers"]

    assert barriers(3) == barriers(8) == 0
    assert barriers(3, "--disable", "dataflow") == barriers(9) == 2


@pytest.mark.parametrize("target", ["sm_70", "sm_90", "sm_12345", "gpu", "cuda:x"])
def test_an_unknown_target_lists_those_that_there_are(obelisk, mlp, target):
    error = obelisk("compile", mlp, "-o", "m.obk", *ROWS, "--target", target, "--json", code=USAGE).json["error"]
    assert f"'{target}'" in error["message"]
    for known in ARCHITECTURES:
        assert known in error["hint"]
    assert error["hint"].startswith("sm_90a is") == (target == "sm_90")
    assert ("cuda" in error["hint"]) == (not target.startswith("sm_"))


def test_unknown_granularities(obelisk, mlp):
    error = obelisk("compile", mlp, "-o", "m.obk", *ROWS, "--granularity", "tiny", code=USAGE).err
    assert "tiny" in error and "op, stitch, mono" in error
    assert obelisk("compile", mlp, "-o", "m.obk", *ROWS, "--granularity", "op,mono", code=USAGE).err


@pytest.mark.parametrize("target", ["cpu", "reference"])
def test_a_cpu_has_no_granularity(obelisk, mlp, tmp_path, target):
    for verb, *more in (["compile", "-o", "m.obk"], ["run"], ["bench"]):
        error = obelisk(verb, mlp, *ROWS, *more, "--target", target, "--granularity", "mono", code=USAGE).err
        assert f"--granularity mono is of GPUs, the target is {target}" in error
    assert not (tmp_path / "m.obk").exists()
    obelisk("run", mlp, *ROWS, "--target", target, "--granularity", "auto", code=0)


def test_where_auto_falls_to_the_cpu_the_granularity_is_remarked(obelisk, mlp, machine):
    if machine["gpu"]["ok"] and machine["nvrtc"]["ok"]:
        pytest.skip("auto takes the GPU")
    for verb, *more in (["compile", "-o", "m.obk"], ["run"]):
        said = obelisk(verb, mlp, *ROWS, *more, "--granularity", "mono", code=0)
        assert said.err.count("--granularity mono is of GPUs") == 1
        assert "granularity" not in obelisk(verb, mlp, *ROWS, *more, code=0).err


def test_a_compiled_file_keeps_its_granularity(obelisk, mlp, machine):
    obelisk("compile", mlp, "-o", "m.obk", *ROWS, "--target", "cpu", code=0)
    assert "comes too late" in obelisk("run", "m.obk", "--granularity", "mono", code=USAGE).err


def test_the_answer_names_what_was_compiled_for(obelisk, mlp, nvrtc):
    for target in ("cpu", "sm_90a"):
        text = obelisk("compile", mlp, "-o", "m.obk", *ROWS, "--target", target, code=0).out
        assert re.search(rf"^ device +{target} ", text, re.MULTILINE), text


@pytest.mark.parametrize("granularity", ["mono", "stitch", "op", "auto"])
def test_an_op_without_device_code_is_named(obelisk, nvrtc, tmp_path, granularity):
    nodes = [
        helper.make_node("Relu", ["x"], ["r"], name="before"),
        helper.make_node("LRN", ["r"], ["y"], size=65, name="norm/LRN"),
    ]
    ports = ({name: (TensorProto.FLOAT, [1, 80, 4, 4])} for name in "xy")
    model = save(tmp_path / "lrn.onnx", nodes, *ports)
    flags = ("-o", "m.obk", "--target", "sm_90a", "--granularity", granularity)
    error = obelisk("compile", model, *flags, "--json", code=UNSUPPORTED).json["error"]
    assert error["node"] == "norm/LRN" and "LRN has no device code" in error["message"]
    assert "--target cpu" in error["hint"] and not (tmp_path / "m.obk").exists()
    obelisk("run", model, "--target", "cpu", code=0)


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


@pytest.mark.parametrize("precision", ["fp16", "tf32", "fp32"])
def test_a_batch_in_full_rounds_and_the_others_on_a_gpu(obelisk, gpu, tmp_path, precision):
    """With a bias of each product and one for all, of activations and of weights."""
    graph = """graph "batch" {
  in %0 "x": f32[72,256,1152]
  in %1 "w": f32[72,1152,128]
  in %2 "own": f32[72,1,128]
  in %3 "common": f32[128]
  %4: f32[72,256,128] = MatMul(%0, %1)
  %5: f32[72,256,128] = Add(%4, %2)
  %6: f32[72,256,128] = Add(%5, %3)
  %7: f32[72,256,128] = Relu(%6)
  out %7 "y"
}"""
    (tmp_path / "batch.ir").write_text(graph)
    words = ("batch.ir", "--target", "cuda", "--granularity", "stitch", "--precision", precision)
    assert obelisk("compile", *words, "--to", "split_batches", code=0).out.count("MatMul(") == 2
    obelisk("verify", *words, code=0)


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


@pytest.fixture
def eight_mebibytes(tmp_path):
    """A product whose weights take so much."""
    weights = {"w": np.tile(random(512, 1), (1, 4096))}
    return save(
        tmp_path / "wide.onnx",
        [helper.make_node("MatMul", ["x", "w"], ["y"])],
        {"x": (TensorProto.FLOAT, [1, 512])},
        {"y": (TensorProto.FLOAT, [1, 4096])},
        weights,
    )


@pytest.mark.parametrize("granularity", ["mono", "stitch", "auto"])
def test_a_memory_limit_is_kept_without_a_gpu(obelisk, eight_mebibytes, nvrtc, tmp_path, granularity):
    flags = ("-o", "m.obk", "--target", "sm_90a", "--granularity", granularity)
    refused = obelisk("compile", eight_mebibytes, *flags, "--memory-limit", "1", code=MEMORY).err
    assert re.search(r"takes 8\.\d MiB of the GPU's memory .* the limit is 1\.0 MiB", refused), refused
    assert "--memory-limit" in refused and not (tmp_path / "m.obk").exists()
    obelisk("compile", eight_mebibytes, *flags, "--memory-limit", "9", code=0)


def test_auto_takes_what_the_memory_limit_leaves(obelisk, nvrtc, tmp_path):
    (tmp_path / "chain.ir").write_text("""graph "chain" {
  in %0 "x": f32[1048576]
  %1: f32[1048576] = Exp(%0)
  %2: f32[1048576] = Tanh(%1)
  %3: f32[1048576] = Sigmoid(%2)
  out %3 "y"
}""")
    machine = ("--target", "sm_90a", "-o", "m.obk", "--verify", "off", "--json")
    # Op by op the values in between take eight mebibytes more.
    choice = obelisk("compile", "chain.ir", *machine, "--memory-limit", "9", code=0).json["choice"]
    assert re.match("(mono|stitch): ", choice) and "op (" in choice and "the limit is 9.0 MiB" in choice
    obelisk("compile", "chain.ir", *machine, "--memory-limit", "1", code=MEMORY)


def test_a_memory_limit_is_an_error(obelisk, eight_mebibytes, gpu):
    result = obelisk(
        "run", eight_mebibytes, "--target", "cuda", "--granularity", "mono", "--memory-limit", "1"
    )
    assert result.code == MEMORY and "limit" in result.err, result
