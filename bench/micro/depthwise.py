"""Depthwise convolutions by themselves on a GPU: what `obelisk profile` says of each, channels last between two 1x1
convolutions, as one kernel of a graph (fp16 of batch 1 and 8, fp32 of batch 1).

    python bench/micro/depthwise.py build/bin/obelisk OUT.json [CHANNELS ...]

CHANNELS: of these alone. A row has the shape, the tile, and of its kernel in microseconds: the lower bound, what was predicted and measured, and what
the median task took. Needs onnx and numpy.
"""
import concurrent.futures
import datetime
import json
import pathlib
import re
import subprocess
import sys
import tempfile

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

# channels, height and width, kernel, stride: MobileNetV2, EfficientNet-B0, ConvNeXt; NASNet-A-Large and its like, whose
# channels are read by packs of 2 (42), 4 (84) and 8
SHAPES = [(32, 112, 3, 1), (96, 112, 3, 2), (144, 56, 3, 1), (144, 56, 5, 2), (240, 28, 5, 1), (480, 14, 3, 1),
          (672, 14, 5, 1), (960, 7, 3, 1), (1152, 7, 5, 1), (96, 56, 7, 1), (384, 14, 7, 1)]
SHAPES += [(channels, size, kernel, 1) for channels, size in ((42, 165), (84, 83), (168, 42), (336, 21), (672, 11)) for kernel in (3, 5, 7)]
SHAPES += [(42, 165, 5, 2), (42, 165, 7, 2), (42, 83, 3, 1), (84, 83, 5, 2), (84, 42, 5, 1), (168, 42, 7, 2)]
ENDS = 16  # channels before and behind


def write(folder, channels, size, kernel, stride, batch):
    random = np.random.default_rng(channels + size + kernel)

    def weights(name, *dims):
        values = random.standard_normal(dims) / np.sqrt(np.prod(dims[1:]))
        return numpy_helper.from_array(values.astype(np.float32), name)

    out = (size + stride - 1) // stride
    nodes = [
        helper.make_node("Conv", ["x", "w0"], ["a"], name="in"),
        helper.make_node("Conv", ["a", "w1"], ["b"], name="depthwise", group=channels, kernel_shape=[kernel, kernel],
                         strides=[stride, stride], pads=[kernel // 2] * 4),
        helper.make_node("Conv", ["b", "w2"], ["y"], name="out"),
    ]
    graph = helper.make_graph(
        nodes, "depthwise",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, [batch, ENDS, size, size])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, [batch, ENDS, out, out])],
        [weights("w0", channels, ENDS, 1, 1), weights("w1", channels, 1, kernel, kernel), weights("w2", ENDS, channels, 1, 1)],
    )
    path = folder / f"{channels}_{size}_{kernel}_{stride}_{batch}.onnx"
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=9), path)
    return path


def measure(obelisk, folder, shape, batch, precision):
    path = write(folder, *shape, batch)
    words = ["--target", "cuda", "--precision", precision, "--granularity", "op"]
    said = subprocess.run([obelisk, "compile", path, *words, "--verify", "off", "--to", "schedule", "--explain", "schedule"],
                          capture_output=True, text=True, check=True)
    told = subprocess.run([obelisk, "profile", path, *words, "--json"], capture_output=True, text=True, check=True)
    line = next(line for line in (said.stdout + said.stderr).splitlines() if line.startswith("work ") and "'depthwise'" in line)
    wave = int(re.search(r": wave (\d+)", line)[1])
    tile = [int(n) for n in re.search(r"tiles of (\d+) x (\d+)", line).groups()]
    phase = json.loads(told.stdout)["phases"][wave]
    row = dict(zip(("channels", "size", "kernel", "stride"), shape), batch=batch, precision=precision, tile=tile, tasks=phase["tasks"])
    return row | {key: round(phase[key], 3) for key in ("floor_us", "predicted_us", "measured_us", "task_us")}


def main():
    obelisk, out = pathlib.Path(sys.argv[1]).resolve(), pathlib.Path(sys.argv[2])
    wanted = {int(word) for word in sys.argv[3:]}
    items = [(shape, *how) for shape in SHAPES if not wanted or shape[0] in wanted for how in ((1, "fp16"), (8, "fp16"), (1, "fp32"))]
    with tempfile.TemporaryDirectory() as folder:
        folder = pathlib.Path(folder)
        with concurrent.futures.ThreadPoolExecutor(8) as pool:  # compiled once, side by side; then timed one after the other
            list(pool.map(lambda item: measure(obelisk, folder, *item), items))
        rows = [measure(obelisk, folder, *item) for item in items]
    smi = subprocess.run(["nvidia-smi", "--query-gpu=name,driver_version", "--format=csv,noheader"], capture_output=True, text=True)
    device, _, driver = smi.stdout.splitlines()[0].partition(", ")
    out.write_text(json.dumps({"device": device, "driver": driver, "date": str(datetime.date.today()),
                               "command": "bench/micro/depthwise.py", "rows": rows}, indent=1) + "\n")
    for row in rows:
        print(json.dumps(row))


if __name__ == "__main__":
    main()
