"""Whether attention should be merged with the product behind it: layers in which one product joins
the heads, or one product for each head, whose planes of sums the norm adds, as a merged phase
would leave them.

    attention_planes.py one|planes FILE.onnx
    obelisk bench FILE.onnx --target cuda --precision fp16 --granularity mono
                            (one: also with --disable split_products)
"""

import sys

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

ROWS, WIDTH, HEADS, LAYERS = 128, 768, 12, 12
SIZE = WIDTH // HEADS


class Writer:
    def __init__(self):
        self.nodes, self.constants, self.random = [], {}, np.random.default_rng(1)

    def op(self, kind, inputs, output, **attributes):
        self.nodes.append(helper.make_node(kind, inputs, [output], **attributes))
        return output

    def constant(self, name, value):
        self.constants[name] = np.asarray(value)
        return name

    def weights(self, name, *shape):
        numbers = self.random.standard_normal(shape) * WIDTH**-0.5
        return self.constant(name, numbers.astype(np.float32))

    def attention(self, x, at):
        """The heads' answers, [1, heads, rows, size]."""
        sides = []
        for side, perm in (("q", [0, 2, 1, 3]), ("k", [0, 2, 3, 1]), ("v", [0, 2, 1, 3])):
            product = self.op("MatMul", [x, self.weights(f"{at}.{side}.w", WIDTH, WIDTH)], f"{at}.{side}.m")
            heads = self.constant("by_heads", np.array([1, ROWS, HEADS, SIZE]))
            sides.append(
                self.op("Transpose", [self.op("Reshape", [product, heads], f"{at}.{side}.h")], f"{at}.{side}", perm=perm)
            )
        scores = self.op("MatMul", sides[:2], f"{at}.scores")
        scaled = self.op("Mul", [scores, self.constant("scale", np.float32(SIZE**-0.5))], f"{at}.scaled")
        return self.op("MatMul", [self.op("Softmax", [scaled], f"{at}.share", axis=-1), sides[2]], f"{at}.heads")

    def joined(self, heads, at, planes):
        """[1, rows, width]: the product of what all heads answer."""
        flat = self.constant("flat", np.array([1, ROWS, WIDTH]))
        if not planes:
            rows = self.op("Transpose", [heads], f"{at}.turned", perm=[0, 2, 1, 3])
            rows = self.op("Reshape", [rows, flat], f"{at}.rows")
            return self.op("MatMul", [rows, self.weights(f"{at}.o.w", WIDTH, WIDTH)], f"{at}.o")
        rows = self.op("Reshape", [heads, self.constant("planes", np.array([HEADS, ROWS, SIZE]))], f"{at}.planes")
        sums = self.op("MatMul", [rows, self.weights(f"{at}.o.w", HEADS, SIZE, WIDTH)], f"{at}.sums")
        ends = [self.constant(f"end.{k}", np.array([k])) for k in range(HEADS + 1)]
        parts = [
            self.op("Slice", [sums, ends[k], ends[k + 1], ends[0]], f"{at}.sum.{k}") for k in range(HEADS)
        ]
        return self.op("Reshape", [self.op("Sum", parts, f"{at}.added"), flat], f"{at}.o")

    def layer(self, x, at, planes):
        y = self.joined(self.attention(x, at), at, planes)
        scale, bias = np.ones(WIDTH, np.float32), np.zeros(WIDTH, np.float32)
        norm = [self.op("Add", [y, x], f"{at}.residual"), self.constant(f"{at}.g", scale), self.constant(f"{at}.b", bias)]
        return self.op("LayerNormalization", norm, f"{at}.norm", axis=-1)


def main():
    which, path = sys.argv[1:]
    writer, x = Writer(), "x"
    for layer in range(LAYERS):
        x = writer.layer(x, f"layer.{layer}", {"one": False, "planes": True}[which])
    writer.op("Identity", [x], "y")
    ports = [
        helper.make_tensor_value_info(name, TensorProto.FLOAT, [1, ROWS, WIDTH]) for name in "xy"
    ]
    constants = [numpy_helper.from_array(value, name) for name, value in writer.constants.items()]
    graph = helper.make_graph(writer.nodes, which, ports[:1], ports[1:], constants)
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8), path)


if __name__ == "__main__":
    main()
