"""Depthwise convolutions by themselves on a GPU: what `obelisk profile` says of each, channels last between two 1x1
convolutions, as one kernel of a graph (fp16 of batch 1 and 8, fp32 of batch 1).

    python bench/micro/depthwise.py build/bin/obelisk OUT.json [CHANNELS ...]

CHANNELS: of these alone. A row has the shape, the tile, and of its kernel in microseconds: the lower bound, what was predicted and measured, and what
the median task took. Needs onnx and numpy.
"""
import pathlib
import sys
import tempfile

import numpy as np
import onnx
import profiled
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


def main():
    obelisk, out = pathlib.Path(sys.argv[1]).resolve(), pathlib.Path(sys.argv[2])
    wanted = {int(word) for word in sys.argv[3:]}
    items = [(shape, *how) for shape in SHAPES if not wanted or shape[0] in wanted for how in ((1, "fp16"), (8, "fp16"), (1, "fp32"))]
    with tempfile.TemporaryDirectory() as folder:
        def measure(item):
            shape, batch, precision = item
            path = write(pathlib.Path(folder), *shape, batch)
            row = dict(zip(("channels", "size", "kernel", "stride"), shape), batch=batch, precision=precision)
            return row | profiled.kernel(obelisk, path, "depthwise", precision, "op")
        profiled.record("bench/micro/depthwise.py", items, measure, out)


if __name__ == "__main__":
    main()
