"""The oldest NVRTC that is supported compiles networks of the suite's layers for a GPU that is not here, and takes the tensor cores as the pinned one does:
what older assemblers know other forms of (the mbarriers of a cluster, wgmma with operands in registers) is in these.

The compiler stands in build/oldest, where scripts/test.sh installs it:
    python3 -m venv build/oldest && build/oldest/bin/pip install --no-deps -r scripts/requirements-oldest.txt
"""
import re

import device_networks
import pytest
from conftest import ROOT, found, shared_library

BUILD = 4
PROGRAMS = [("vit", "stitch"), ("bert_b8", "stitch"), ("resnet18", "stitch"), ("inception", "stitch"), ("resnet18", "mono"), ("minilm", "mono"), ("decoder", "mono")]


@pytest.fixture
def oldest(obelisk, monkeypatch):
    folders = list((ROOT / "build" / "oldest").glob("lib/python*/site-packages/nvidia/cuda_nvrtc/lib"))
    if not folders:
        pytest.skip("no compiler in build/oldest (scripts/requirements-oldest.txt)")
    monkeypatch.setitem(obelisk.environment, "OBELISK_NVRTC", str(folders[0]))
    said = found(obelisk, "nvrtc")
    assert said["ok"] and said["text"].endswith("(version 12.4)"), said
    return folders[0]


@pytest.mark.parametrize("network, granularity", PROGRAMS)
def test_networks_compile_and_nothing_is_serialised(obelisk, oldest, tmp_path, network, granularity):
    model = device_networks.write(network, tmp_path / "full.onnx")
    made = obelisk("compile", model, "-o", tmp_path / "made.obk", "--target", "sm_90a", "--granularity", granularity, "--precision", "fp16",
                   "--verify", "off", "--cache", tmp_path / "cache", "--json", code=0)
    assert "serialise" not in made.err, made.err
    assert made.json["kernels"] and all(0 < kernel["registers"] <= 255 for kernel in made.json["kernels"])


def test_a_gpu_that_it_does_not_know_is_named(obelisk, oldest, tmp_path):
    model = device_networks.write("deepfm", tmp_path / "full.onnx")
    refused = obelisk("compile", model, "-o", tmp_path / "made.obk", "--target", "sm_100a", "--verify", "off", code=BUILD)
    assert f"NVRTC 12.4 does not compile for sm_100a: {oldest}" in refused.err and "-m pip install --upgrade nvidia-cuda-nvrtc" in refused.err
    assert "\0" not in refused.err


def driver_of(folder, version):
    """A libcuda.so.1 of a CUDA version that finds no GPU."""
    names = set(re.findall(r'"(cu[A-Z]\w+)"', (ROOT / "src" / "runtime" / "cuda" / "driver.h").read_text()))
    text = "".join(f"int {name}() {{ return 100; }}\n" for name in names)  # CUDA_ERROR_NO_DEVICE
    shared_library(folder / "libcuda.so.1", text + f"int cuDriverGetVersion(int* told) {{ *told = {version}; return 0; }}")
    return folder


def test_a_compiler_newer_than_the_driver_is_taken_for_want_of_another(obelisk, oldest, monkeypatch, tmp_path):
    def made():
        model = device_networks.write("deepfm", tmp_path / "full.onnx")
        return obelisk("compile", model, "-o", tmp_path / "made.obk", "--target", "sm_90a", "--granularity", "mono", "--verify", "off", "--cache", "off", code=0)

    monkeypatch.delitem(obelisk.environment, "OBELISK_NVRTC")
    newest = found(obelisk, "nvrtc")
    if not newest["ok"] or "(version 13." not in newest["text"]:
        pytest.skip(f"no compiler of CUDA 13: {newest['text']}")
    monkeypatch.setitem(obelisk.environment, "LD_LIBRARY_PATH", str(driver_of(tmp_path / "twelve", 12040)))
    of_twelve = found(obelisk, "nvrtc")
    assert not of_twelve["ok"] and "whose code the driver (of CUDA 12.4) does not load" in of_twelve["text"]
    assert "-m pip install --upgrade 'nvidia-cuda-nvrtc-cu12>=12.4', or update the driver" in of_twelve["mend"]
    made()  # for another machine
    pinned = obelisk.environment["OBELISK_PYTHON"]
    monkeypatch.setitem(obelisk.environment, "OBELISK_PYTHON", str(ROOT / "build" / "oldest" / "bin" / "python"))
    both = found(obelisk, "nvrtc")
    assert both["ok"] and both["text"] == f"{oldest}/libnvrtc.so.12 (version 12.4)"
    made()
    monkeypatch.setitem(obelisk.environment, "LD_LIBRARY_PATH", str(driver_of(tmp_path / "thirteen", 13000)))
    monkeypatch.setitem(obelisk.environment, "OBELISK_PYTHON", pinned)
    assert found(obelisk, "nvrtc") == newest
