"""What one run of a network gives a GPU to do, counted from outside: by a driver of our own (stub/driver.c)
that writes down launches, copies and fills, and computes nothing. No GPU is wanted, the device compiler is.
On a GPU the vendor's profiling library counts the same (scripts/gpu.py launches)."""
import json
import subprocess
from collections import Counter
from pathlib import Path

import device_networks
import numpy
import onnx
import pytest

STUB = Path(__file__).with_name("stub") / "driver.c"
NETWORK = "minilm"  # two of its layers


@pytest.fixture
def gpu(obelisk, monkeypatch, tmp_path):
    """The stub is the driver from now on; what it wrote down."""
    log = tmp_path / "calls"
    subprocess.run(["cc", "-shared", "-fPIC", "-w", STUB, "-o", tmp_path / "libcuda.so.1"], check=True)
    monkeypatch.setitem(obelisk.environment, "LD_LIBRARY_PATH", str(tmp_path))
    monkeypatch.setitem(obelisk.environment, "STUB_DRIVER_LOG", str(log))
    findings = {one["name"]: one for one in json.loads(obelisk("doctor", "--json").out)["findings"]}
    assert findings["gpu"]["ok"] and "stub" in findings["gpu"]["text"], findings["gpu"]
    if not findings["nvrtc"]["ok"]:
        pytest.skip(f"no device compiler: {findings['nvrtc']['text']}")
    return log


def runs(log):
    """What the GPU was given by each run, by kind of call: a run ends when the host has waited for it."""
    found, calls = [], Counter()
    for line in log.read_text().splitlines():
        kind, *number = line.split()
        if kind == "wait":
            if any(call.startswith(("launch", "cooperative", "graph")) for call in calls):
                found.append(calls)
            calls = Counter()
        else:
            calls[" ".join((kind, *number)) if kind == "graph" else kind] += 1
    assert not calls, f"the host did not wait for {calls}"
    return found


@pytest.mark.parametrize("granularity", ["mono", "stitch"])
def test_a_run_is_its_launches_and_the_callers_copies(obelisk, gpu, tmp_path, granularity):
    model = device_networks.write(NETWORK, tmp_path / "network.onnx")
    words = ("--target", "cuda", "--granularity", granularity, "--precision", "fp16")
    made = obelisk("compile", model, "-o", "network.obk", *words, "--verify", "off", "--json", code=0).json
    ports = obelisk("inspect", "network.obk", "--json", code=0).json
    gpu.write_text("")
    obelisk("run", "network.obk", "--verify", "off", code=0)
    first, again = runs(gpu)
    launched = {"cooperative": 1} if granularity == "mono" else {f"graph {made['launches']}": 1}
    assert made["launches"] == 1 if granularity == "mono" else made["launches"] > 10
    assert len(ports["inputs"]) == len(ports["outputs"]) == 2
    # Kernels of a graph read the few kilobytes of inputs where the host has them; of neighbours there is one copy.
    copies = {"to_device": 1, "to_host": 1} if granularity == "mono" else {"to_host": 1}
    assert again == launched | copies
    # Kernels of a graph read the addresses of inputs and outputs from a table, which the first run fills.
    assert first - again == ({} if granularity == "mono" else {"to_device": 1}) and again - first == {}


@pytest.mark.parametrize("inputs, outputs, to_device, to_host", [(64, 64, 0, 0), (64, 40960, 0, 1), (40960, 64, 1, 0), (40960, 40960, 1, 1)])
def test_few_kilobytes_are_read_and_written_where_the_host_has_them(obelisk, gpu, tmp_path, inputs, outputs, to_device, to_host):
    """Of floats: a row of `inputs` to its mean, which is added to a constant row of `outputs`."""
    given = onnx.helper.make_tensor_value_info("x", onnx.TensorProto.FLOAT, [1, inputs])
    made = onnx.helper.make_tensor_value_info("y", onnx.TensorProto.FLOAT, [1, outputs])
    nodes = [onnx.helper.make_node("ReduceMean", ["x"], ["mean"], axes=[1], keepdims=1), onnx.helper.make_node("Add", ["mean", "row"], ["y"])]
    row = onnx.numpy_helper.from_array(numpy.ones((1, outputs), numpy.float32), "row")
    graph = onnx.helper.make_graph(nodes, "mean", [given], [made], [row])
    onnx.save(onnx.helper.make_model(graph, opset_imports=[onnx.helper.make_opsetid("", 17)], ir_version=9), tmp_path / "mean.onnx")
    obelisk("compile", tmp_path / "mean.onnx", "-o", "mean.obk", "--target", "cuda", "--granularity", "stitch", "--verify", "off", code=0)
    gpu.write_text("")
    obelisk("run", "mean.obk", "--verify", "off", code=0)
    again = runs(gpu)[1]
    assert (again["to_device"], again["to_host"]) == (to_device, to_host)
