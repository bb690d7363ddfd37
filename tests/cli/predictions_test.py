"""Floors and predictions beside what was measured on an H200 or an H100 (bench/results): no kernel is measured below its floor, floors of what is all memory traffic are
near, and what global means and convolutions are predicted to take is within twice what they took. Nothing is timed here: `compile --explain schedule` says
what a table is predicted to take, and the records say what it took.
"""
import json
import math
import re
from pathlib import Path

import device_networks
import pytest
from device_networks import FLOAT, Net

ROOT = Path(__file__).resolve().parents[2]
RESULTS = ROOT / "bench" / "results"
SMS, PROFILED_AT, MEASURED_AT = 132, "b7c2d77", "09145b9"
PHASE_US = {"mono": 0.95, "stitch": 0.95 * 1.2, "op": 0.95 * 1.5}  # costs_cuda.h: a grid barrier, and its share of a kernel of a graph
WORK = re.compile(
    r"^work \d+ (?P<op>\w+)(?: '(?P<name>[^']*)')?: wave (?P<wave>\d+), .*?(?P<tasks>\d+) tasks for \d+ workers.*?"
    r"(?:, about (?P<us>[\d.]+) us each)?, no less than (?P<floor>[\d.]+) us in all$",
    re.MULTILINE,
)


@pytest.fixture
def works(obelisk, tmp_path):
    """What is said of each work of a network: (op, wave, rounds of all SMs times a task's time, floor)."""

    def of(network, granularity="mono", precision="fp16"):
        path = network if isinstance(network, Path) else device_networks.write(network, tmp_path / f"{network}.onnx")
        said = obelisk("compile", path, "--target", "sm_90a", "--granularity", granularity, "--precision", precision, "--verify", "off",
                   "--to", "schedule", "--explain", "schedule", code=0)
        found = [(m["op"], int(m["wave"]), math.ceil(int(m["tasks"]) / SMS) * float(m["us"] or 0), float(m["floor"])) for m in WORK.finditer(said.out + said.err)]
        assert len(found) == len(re.findall(r"^work \d+ [^:]+: wave", said.out + said.err, re.MULTILINE)) > 0, said
        return found

    return of


def record(name):
    return json.loads((RESULTS / name).read_text())


def newest(model, granularity):
    """The network's device time in the last run of all networks."""
    rows = next(run["obelisk"] for run in reversed(record("h200_networks.json")["runs"]) if run["commit"].startswith(MEASURED_AT))
    return next(row["device_us"]["median"] for row in rows if (row["model"], row["granularity"]) == (model, granularity))


@pytest.mark.parametrize("network", ["minilm", "bert"])
def test_no_phase_is_measured_below_its_floor(works, network):
    """Seven phases a layer; the network here has two layers, the recorded one six or twelve that are alike."""
    table = next(p for p in record("h200_networks.json")["profile"]
                 if (p["commit"], p["model"], p["granularity"]) == (PROFILED_AT, f"{network}_b1", "mono"))
    floors = {}
    for _, wave, _, floor in works(network):
        floors[wave] = floors.get(wave, 0) + floor
    assert sorted(floors) == list(range(16))
    last = len(table["phases"]) - 1
    assert last % 7 == 1
    for phase in table["phases"]:
        k = phase["phase"]
        here = 15 if k == last else k if k < 8 else 8 + (k - 1) % 7
        assert floors[here] <= phase["measured_us"], f"phase {k}"
    # They say something, though a phase of few rows is mostly its barrier.
    assert max(floors.values()) > 0.05 * max(phase["measured_us"] for phase in table["phases"])


@pytest.mark.parametrize("network, model, share", [
    ("bert_b8", "bert_b8", 2 / 12),
    ("bert", "bert_b1", 2 / 12),
    ("decoder", "llama1b_decode", 2 / 16),
    ("resnet18", "resnet18_b1", 1),
    ("crnn", "crnn_b1", 1),
    ("deepfm_b512", "deepfm_b512", 1),
])
def test_no_network_is_measured_below_its_floors(works, network, model, share):
    """`share`: of the recorded network's layers, those that the network here has. The pooled token and the embedding come on top of them."""
    floor = sum(floor for _, _, _, floor in works(network, "stitch"))
    assert 0 < floor <= newest(model, "stitch") * share


MEMORY = {
    "softmax_8192": 'in %0 "x": f32[8192,8192]\n  %1: f32[8192,8192] = Softmax(%0) {axis = 1}',
    "transpose_8192": 'in %0 "x": f32[8192,8192]\n  %1: f32[8192,8192] = Transpose(%0) {perm = [1, 0]}',
    "columnsum_8192": 'in %0 "x": f32[8192,8192]\n  const %2: i64[1] = [0]\n  %1: f32[8192] = ReduceSum(%0, %2) {keepdims = 0}',
}


@pytest.mark.parametrize("name", MEMORY)
def test_floors_of_memory_traffic_are_near(works, tmp_path, name):
    path = tmp_path / f"{name}.ir"
    path.write_text(f'graph "g" {{\n  {MEMORY[name]}\n  out %1 "y"\n}}\n')
    took = record("h200_memory.json")["at_5370c45"]["rows"][name]["device_us"]["median"]
    floor = sum(floor for _, _, _, floor in works(path, "stitch", "keep"))
    assert took / 2 <= floor <= took


# ---- squeeze-and-excitation blocks and convolutions ------------------------------------------------
def efficientnet(path):
    """EfficientNet-B0: depthwise convolutions between 1x1 ones, each scaled by a mean of its pixels."""
    net = Net("efficientnet")

    def conv(x, before, width, kernel, stride=1, group=1, active=True):
        y = net.conv(x, before, width, kernel, stride, group=group, relu=False)
        return net.silu(y) if active else y

    x, before = conv(net.input("image", FLOAT, 1, 3, 224, 224), 3, 32, 3, 2), 32
    for spread, width, repeats, stride, kernel in ((1, 16, 1, 1, 3), (6, 24, 2, 2, 3), (6, 40, 2, 2, 5), (6, 80, 3, 2, 3), (6, 112, 3, 1, 5), (6, 192, 4, 2, 5), (6, 320, 1, 1, 3)):
        for k in range(repeats):
            y, inner = x, before * spread
            if spread > 1:
                y = conv(y, before, inner, 1)
            y = conv(y, inner, inner, kernel, stride if k == 0 else 1, group=inner)
            squeeze = conv(net.add("GlobalAveragePool", y), inner, before // 4, 1)
            y = net.add("Mul", y, net.add("Sigmoid", conv(squeeze, before // 4, inner, 1, active=False)))
            y = conv(y, inner, width, 1, active=False)
            x, before = net.add("Add", x, y) if k > 0 else y, width
    x = conv(x, before, 1280, 1)
    net.output(net.classifier(x, 1280), FLOAT, 1, 1000)
    net.save(path, opset=17)
    return path


def test_gated_blocks_and_convolutions_are_predicted_within_twice_what_they_took(works, tmp_path):
    took = record("h200_predictions.json")["efficientnet_b0_blocks"]
    all_works = works(efficientnet(tmp_path / "efficientnet.onnx"), "stitch")
    blocks = [us for op, _, us, _ in all_works if op == "SqueezeExcite"]
    assert len(blocks) == took["blocks"]
    assert took["blocks_us"] / 2 <= sum(blocks) <= took["blocks_us"] * 2
    assert took["largest_block_us"] / 2 <= max(blocks) <= took["largest_block_us"] * 2
    convolutions = [(us, floor) for op, _, us, floor in all_works if op == "Conv"]
    assert len(convolutions) == took["convolutions"]
    predicted = sum(us for us, _ in convolutions)
    assert took["convolutions_us"] / 2 <= predicted <= took["convolutions_us"] * 2
    assert sum(floor for _, floor in convolutions) <= took["convolutions_us"]


def mobilenet_v2(path):
    """A depthwise convolution between two of 1x1, seventeen times."""
    net = Net("mobilenet_v2")

    def clipped(x):
        return net.add("Clip", x, net.const(0.0), net.const(6.0))

    x, before = clipped(net.conv(net.input("image", FLOAT, 1, 3, 224, 224), 3, 32, 3, 2, relu=False)), 32
    for spread, width, repeats, stride in ((1, 16, 1, 1), (6, 24, 2, 2), (6, 32, 3, 2), (6, 64, 4, 2), (6, 96, 3, 1), (6, 160, 3, 2), (6, 320, 1, 1)):
        for k in range(repeats):
            y, inner = x, before * spread
            if spread > 1:
                y = clipped(net.conv(y, before, inner, 1, relu=False))
            y = clipped(net.conv(y, inner, inner, 3, stride if k == 0 else 1, group=inner, relu=False))
            y = net.conv(y, inner, width, 1, relu=False)
            x, before = net.add("Add", x, y) if k > 0 else y, width
    x = clipped(net.conv(x, before, 1280, 1, relu=False))
    net.output(net.classifier(x, 1280), FLOAT, 1, 1000)
    net.save(path, opset=17)
    return path


@pytest.mark.parametrize("granularity", ["mono", "stitch", "op"])
def test_a_network_of_depthwise_convolutions_is_predicted_within_twice_what_it_took(works, tmp_path, granularity):
    took = next(row["obelisk_us"] for row in record("gpu_zoo.json")["rows"] if row["network"] == "torchvision.mobilenet_v2")[granularity]
    waves, floors = {}, 0
    for _, wave, us, floor in works(mobilenet_v2(tmp_path / "mobilenet_v2.onnx"), granularity):
        waves[wave], floors = max(waves.get(wave, 0), us), floors + floor
    predicted = sum(waves.values()) + len(waves) * PHASE_US[granularity]
    assert took / 2 <= predicted <= took * 2
    assert floors <= took


def test_a_depthwise_convolution_is_predicted_within_twice_what_it_took(works, tmp_path):
    """Between two convolutions of 1x1, as bench/micro/depthwise.py measures it."""
    rows = record("h100_depthwise.json")["rows"]
    assert {row["kernel"] for row in rows} == {3, 5}
    for row in rows:
        net, channels, kernel = Net("depthwise"), row["channels"], row["kernel"]
        x = net.conv(net.input("x", FLOAT, row["batch"], 16, row["size"], row["size"]), 16, channels, 1, relu=False)
        y = net.conv(x, channels, channels, kernel, row["stride"], group=channels, relu=False)
        size = (row["size"] + row["stride"] - 1) // row["stride"]
        net.output(net.conv(y, channels, 16, 1, relu=False), FLOAT, row["batch"], 16, size, size)
        path = tmp_path / "depthwise.onnx"
        net.save(path, opset=17)
        convolutions = [(us, floor) for op, _, us, floor in works(path, "op", row["precision"]) if op == "Conv"]
        assert len(convolutions) == 3
        us, floor = convolutions[1]
        assert floor <= row["measured_us"] <= 2 * (us + PHASE_US["op"]), row
        assert us + PHASE_US["op"] <= 2 * row["measured_us"], row


# ---- where costs come from ---------------------------------------------------------------------
def keys(value):
    if isinstance(value, dict):
        for key, inner in value.items():
            yield key
            yield from keys(inner)
    elif isinstance(value, list):
        for inner in value:
            yield from keys(inner)


@pytest.mark.parametrize("header", ["costs_cuda.h", "costs_cpu.h"])
def test_every_measurement_that_a_cost_names_is_on_record(header):
    text = re.sub(r"\n\s*//+", "", (ROOT / "src" / "machine" / header).read_text())
    named = re.findall(r"(\w+\.json), ([\w.]*\w)", text)
    assert named or header == "costs_cpu.h"
    for file, key in named:
        assert key in set(keys(record(file))), f"{file} has no {key}"
