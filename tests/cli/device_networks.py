"""Networks whose layers have the shapes of the suite's (scripts/gpu_models.py), but few of them: what device_code_test.py compiles.

Each is spelled as PyTorch's exporter spells it, with random weights from a fixed seed. Its `small` form has the same layers and widths with fewer
pixels, tokens or rows, so that the reference interpreter answers soon.

    python tests/cli/device_networks.py FOLDER [NAME…]     # writes FOLDER/NAME.onnx, in full size
"""
import sys
import zlib
from pathlib import Path

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

FLOAT, HALF, INT64 = TensorProto.FLOAT, TensorProto.FLOAT16, TensorProto.INT64


class Net:
    """A graph that grows node by node. Values are names; add() returns the new one."""

    def __init__(self, name, dtype=np.float32):
        self.name, self.dtype = name, dtype
        self.random = np.random.default_rng(zlib.crc32(name.encode()))
        self.nodes, self.inputs, self.outputs, self.stored = [], [], [], {}

    def input(self, name, kind, *dims):
        self.inputs.append(helper.make_tensor_value_info(name, kind, dims))
        return name

    def output(self, value, kind, *dims):
        self.outputs.append(helper.make_tensor_value_info(value, kind, dims))

    def const(self, values, dtype=None):
        array = np.asarray(values, dtype=dtype or self.dtype)
        name = f"c{len(self.stored)}"
        self.stored[name] = numpy_helper.from_array(array, name)
        return name

    def ints(self, *values):
        return self.const(values, np.int64)

    def weight(self, *dims, scale=None, shift=0.0):
        """Normal numbers. `scale`: their deviation; without one such that a sum over all dims but the first keeps its size."""
        if scale is None:
            scale = (2.0 / max(1, np.prod(dims[1:]))) ** 0.5
        return self.const(self.random.standard_normal(dims, dtype=np.float32) * np.float32(scale) + np.float32(shift))

    def add(self, op, *inputs, outputs=1, **attributes):
        names = [f"v{len(self.nodes)}_{k}" for k in range(outputs)]
        self.nodes.append(helper.make_node(op, inputs, names, name=f"{op}_{len(self.nodes)}", **attributes))
        return names[0] if outputs == 1 else names

    def save(self, path, opset):
        graph = helper.make_graph(self.nodes, self.name, self.inputs, self.outputs, list(self.stored.values()))
        onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=9), path)

    # what several networks share
    def linear(self, x, inputs, outputs, bias=True):
        y = self.add("MatMul", x, self.weight(inputs, outputs, scale=inputs ** -0.5))
        return self.add("Add", y, self.weight(outputs, scale=0.02)) if bias else y

    def layer_norm(self, x, width):
        return self.add("LayerNormalization", x, self.weight(width, scale=0.1, shift=1), self.weight(width, scale=0.1), axis=-1, epsilon=1e-5)

    def conv(self, x, inputs, outputs, kernel=3, stride=1, group=1, norm=False, relu=True, padding=None):
        kh, kw = kernel if isinstance(kernel, tuple) else (kernel, kernel)
        ph, pw = (kh // 2, kw // 2) if padding is None else padding
        weights = [self.weight(outputs, inputs // group, kh, kw)] + ([] if norm else [self.weight(outputs, scale=0.02)])
        x = self.add("Conv", x, *weights, kernel_shape=[kh, kw], strides=[stride, stride], pads=[ph, pw, ph, pw], group=group)
        if norm:
            x = self.batch_norm(x, outputs)
        return self.add("Relu", x) if relu else x

    def batch_norm(self, x, width):
        parts = [self.weight(width, scale=0.1, shift=1), self.weight(width, scale=0.1), self.weight(width, scale=0.1),
                 self.const(self.random.uniform(0.5, 1.5, width))]
        return self.add("BatchNormalization", x, *parts, epsilon=1e-5)

    def pool(self, x, kernel, stride, padding=(0, 0), kind="MaxPool", **attributes):
        kernel, stride = ((v, v) if isinstance(v, int) else v for v in (kernel, stride))
        return self.add(kind, x, kernel_shape=kernel, strides=stride, pads=[*padding, *padding], **attributes)

    def classifier(self, x, width, classes=1000):
        x = self.add("Flatten", self.add("GlobalAveragePool", x), axis=1)
        return self.add("Gemm", x, self.weight(classes, width), self.weight(classes, scale=0.02), transB=1)

    def split_heads(self, x, batch, length, heads, size, perm=(0, 2, 1, 3)):
        return self.add("Transpose", self.add("Reshape", x, self.ints(batch, length, heads, size)), perm=perm)

    def attention(self, q, k_turned, v, size, mask=None):
        scores = self.add("Mul", self.add("MatMul", q, k_turned), self.const(size ** -0.5))
        if mask:
            scores = self.add("Add", scores, mask)
        return self.add("MatMul", self.add("Softmax", scores, axis=-1), v)

    def gelu(self, x):
        erf = self.add("Erf", self.add("Div", x, self.const(2 ** 0.5)))
        return self.add("Mul", self.add("Mul", x, self.add("Add", erf, self.const(1.0))), self.const(0.5))

    def silu(self, x):
        return self.add("Mul", x, self.add("Sigmoid", x))


# ---- text --------------------------------------------------------------------------------------
def encoder(width, heads, inner, batch=1, layers=2):
    """Words, positions, layers that are normalised after their residuals, and a pooled first token, as of BERT and MiniLM."""
    def make(net, small):
        count, length = (min(batch, 2), 16) if small else (batch, 128)
        ids, seen = net.input("ids", INT64, count, length), net.input("mask", INT64, count, length)
        x = net.add("Add", net.add("Gather", net.weight(1000, width, scale=0.5), ids), net.weight(length, width, scale=0.1))
        x = net.layer_norm(x, width)
        hidden = net.add("Cast", net.add("Unsqueeze", seen, net.ints(1, 2)), to=FLOAT)
        hidden = net.add("Mul", net.add("Sub", net.const(1.0), hidden), net.const(-10000.0))
        size = width // heads
        for _ in range(layers):
            q, k, v = (net.linear(x, width, width) for _ in range(3))
            q, v = (net.split_heads(part, count, length, heads, size) for part in (q, v))
            k = net.split_heads(k, count, length, heads, size, perm=(0, 2, 3, 1))
            y = net.add("Transpose", net.attention(q, k, v, size, hidden), perm=(0, 2, 1, 3))
            y = net.linear(net.add("Reshape", y, net.ints(count, length, width)), width, width)
            x = net.layer_norm(net.add("Add", x, y), width)
            y = net.linear(net.gelu(net.linear(x, width, inner)), inner, width)
            x = net.layer_norm(net.add("Add", x, y), width)
        net.output(x, FLOAT, count, length, width)
        first = net.add("Gather", x, net.const(0, np.int64), axis=1)
        net.output(net.add("Tanh", net.linear(first, width, width)), FLOAT, count, width)
    return make


def decoder(width, heads, groups, size, inner, gives_cache=False, layers=2, words=1024):
    """One token: norms by their root mean square, rotated queries and keys in groups, a cache, which may be an answer too, a gate. Stored in 16 bits."""
    def make(net, small):
        keys, count = (32, 1) if small else (1024, layers)
        ids = net.input("ids", INT64, 1, 1)
        cosine, sine = (net.input(name, HALF, 1, 1, 1, size) for name in ("cosine", "sine"))
        spread = heads // groups

        def norm(x):
            wide = net.add("Cast", x, to=FLOAT)
            mean = net.add("ReduceMean", net.add("Mul", wide, wide), axes=[-1], keepdims=1)
            root = net.add("Sqrt", net.add("Add", mean, net.const(1e-5, np.float32)))
            y = net.add("Cast", net.add("Div", wide, root), to=HALF)
            return net.add("Mul", y, net.weight(width, scale=0.1, shift=1))

        def part(x, begin, end, axis=-1):
            return net.add("Slice", x, *(net.ints(v) for v in (begin, end, axis)))

        def turn(x):
            turned = net.add("Concat", net.add("Neg", part(x, size // 2, size)), part(x, 0, size // 2), axis=-1)
            return net.add("Add", net.add("Mul", x, cosine), net.add("Mul", turned, sine))

        table = net.weight(words, width, scale=0.5)
        x = net.add("Gather", table, ids)
        for layer in range(count):
            past = [net.input(f"{name}{layer}", HALF, 1, groups, keys - 1, size) for name in ("keys", "values")]
            qkv = net.linear(norm(x), width, (heads + 2 * groups) * size, bias=False)
            q, k, v = net.add("Split", qkv, net.ints(heads * size, groups * size, groups * size), axis=-1, outputs=3)
            q, k, v = (net.split_heads(y, 1, 1, n, size) for y, n in ((q, heads), (k, groups), (v, groups)))
            q, k = turn(q), turn(k)
            k, v = (net.add("Concat", old, new, axis=2) for old, new in zip(past, (k, v)))
            for value in (k, v) if gives_cache else ():
                net.output(value, HALF, 1, groups, keys, size)
            q = net.add("Reshape", q, net.ints(1, groups, spread, size))
            y = net.attention(q, net.add("Transpose", k, perm=(0, 1, 3, 2)), v, size)
            y = net.linear(net.add("Reshape", y, net.ints(1, 1, heads * size)), heads * size, width, bias=False)
            x = net.add("Add", x, y)
            y = norm(x)
            gate, up = (net.linear(y, width, inner, bias=False) for _ in range(2))
            x = net.add("Add", x, net.linear(net.add("Mul", net.silu(gate), up), inner, width, bias=False))
        y = net.add("MatMul", norm(x), net.add("Transpose", table, perm=(1, 0)))
        net.output(y, HALF, 1, 1, words)
    return make


# ---- pictures ----------------------------------------------------------------------------------
def vit(net, small, width=768, heads=12, inner=3072, layers=2):
    """Patches of 16 by 16 pixels and a class; layers that are normalised before each part."""
    side = 2 if small else 14
    tokens, size = side * side + 1, width // heads
    x = net.conv(net.input("image", FLOAT, 1, 3, side * 16, side * 16), 3, width, 16, 16, padding=(0, 0), relu=False)
    x = net.add("Transpose", net.add("Reshape", x, net.ints(1, width, side * side)), perm=(0, 2, 1))
    x = net.add("Add", net.add("Concat", net.weight(1, 1, width, scale=0.5), x, axis=1), net.weight(1, tokens, width, scale=0.1))
    for _ in range(layers):
        y = net.linear(net.layer_norm(x, width), width, 3 * width)
        y = net.add("Transpose", net.add("Reshape", y, net.ints(1, tokens, 3, heads, size)), perm=(2, 0, 3, 1, 4))
        q, k, v = (net.add("Gather", y, net.const(which, np.int64), axis=0) for which in range(3))
        y = net.attention(q, net.add("Transpose", k, perm=(0, 1, 3, 2)), v, size)
        y = net.add("Reshape", net.add("Transpose", y, perm=(0, 2, 1, 3)), net.ints(1, tokens, width))
        x = net.add("Add", x, net.linear(y, width, width))
        y = net.linear(net.layer_norm(x, width), width, inner)
        x = net.add("Add", x, net.linear(net.gelu(y), inner, width))
    x = net.add("Gather", net.layer_norm(x, width), net.const(0, np.int64), axis=1)
    net.output(net.add("Gemm", x, net.weight(1000, width), net.weight(1000, scale=0.02), transB=1), FLOAT, 1, 1000)


def resnet18(net, small):
    """All of it, its batch norms not folded yet."""
    x = net.conv(net.input("image", FLOAT, 1, 3, *[32 if small else 224] * 2), 3, 64, 7, 2, norm=True)
    x, before = net.pool(x, 3, 2, (1, 1)), 64
    for width, stride in ((64, 1), (128, 2), (256, 2), (512, 2)):
        for step in (stride, 1):
            kept = x if before == width else net.conv(x, before, width, 1, step, norm=True, relu=False)
            x = net.conv(net.conv(x, before, width, 3, step, norm=True), width, width, norm=True, relu=False)
            x, before = net.add("Relu", net.add("Add", x, kept)), width
    net.output(net.classifier(x, 512), FLOAT, 1, 1000)


def resnet50(batch):
    """Two of each stage's blocks: the one that narrows and the one that repeats."""
    def make(net, small):
        x = net.conv(net.input("image", FLOAT, batch, 3, *[32 if small else 224] * 2), 3, 64, 7, 2)
        x, before = net.pool(x, 3, 2, (1, 1)), 64
        for width, stride in ((64, 1), (128, 2), (256, 2), (512, 2)):
            for step in (stride, 1):
                kept = x if before == 4 * width else net.conv(x, before, 4 * width, 1, step, relu=False)
                x = net.conv(net.conv(x, before, width, 1), width, width, 3, step)
                x = net.add("Relu", net.add("Add", net.conv(x, width, 4 * width, 1, relu=False), kept))
                before = 4 * width
        net.output(net.classifier(x, 2048), FLOAT, batch, 1000)
    return make


def googlenet(net, small):
    """The stem and a block of each of two sizes: branches of 1x1, 3x3 and 5x5, and a pooled one, side by side."""
    x = net.conv(net.input("image", FLOAT, 1, 3, *[64 if small else 224] * 2), 3, 64, 7, 2)
    x = net.pool(x, 3, 2, ceil_mode=1)
    x = net.conv(net.conv(x, 64, 64, 1), 64, 192, 3)
    before = 192
    for one, three_in, three, five_in, five, pooled in ((64, 96, 128, 16, 32, 32), (256, 160, 320, 32, 128, 128)):
        x = net.pool(x, 3, 2, ceil_mode=1)
        branches = [net.conv(x, before, one, 1), net.conv(net.conv(x, before, three_in, 1), three_in, three, 3),
                    net.conv(net.conv(x, before, five_in, 1), five_in, five, 5), net.conv(net.pool(x, 3, 1, (1, 1)), before, pooled, 1)]
        x, before = net.add("Concat", *branches, axis=1), one + three + five + pooled
    net.output(net.classifier(x, before), FLOAT, 1, 1000)


def inception(net, small):
    """Inception-v3's stem and one of its blocks A, B and C: 5x5, 3x3 twice, a stride of 2, 1x7 and 7x1, averages."""
    x = net.conv(net.input("image", FLOAT, 1, 3, *[75 if small else 299] * 2), 3, 32, 3, 2, padding=(0, 0))
    x = net.conv(net.conv(x, 32, 32, 3, padding=(0, 0)), 32, 64, 3)
    x = net.conv(net.conv(net.pool(x, 3, 2), 64, 80, 1), 80, 192, 3, padding=(0, 0))
    x = net.pool(x, 3, 2)

    def averaged(x, before, width):
        return net.conv(net.pool(x, 3, 1, (1, 1), kind="AveragePool", count_include_pad=1), before, width, 1)

    branches = [net.conv(x, 192, 64, 1), net.conv(net.conv(x, 192, 48, 1), 48, 64, 5),
                net.conv(net.conv(net.conv(x, 192, 64, 1), 64, 96), 96, 96), averaged(x, 192, 32)]
    x = net.add("Concat", *branches, axis=1)
    twice = net.conv(net.conv(net.conv(x, 256, 64, 1), 64, 96), 96, 96, 3, 2, padding=(0, 0))
    x = net.add("Concat", net.conv(x, 256, 384, 3, 2, padding=(0, 0)), twice, net.pool(x, 3, 2), axis=1)
    flat, tall = (1, 7), (7, 1)
    once = net.conv(net.conv(net.conv(x, 736, 128, 1), 128, 128, flat), 128, 192, tall)
    twice = net.conv(x, 736, 128, 1)
    for kernel, width in ((tall, 128), (flat, 128), (tall, 128), (flat, 192)):
        twice = net.conv(twice, 128, width, kernel)
    x = net.add("Concat", net.conv(x, 736, 192, 1), once, twice, averaged(x, 736, 192), axis=1)
    net.output(net.classifier(x, 768), FLOAT, 1, 1000)


def mobilenet(net, small):
    """Depthwise convolutions between 1x1 ones, with and without a residual."""
    def clipped(x):
        return net.add("Clip", x, net.const(0.0), net.const(6.0))

    side = 32 if small else 224
    x, before = clipped(net.conv(net.input("image", FLOAT, 1, 3, side, side), 3, 32, 3, 2, relu=False)), 32
    for width, stride, spread in ((16, 1, 1), (24, 2, 6), (24, 1, 6), (96, 2, 6), (96, 1, 6)):
        y, inner = x, before * spread
        if spread > 1:
            y = clipped(net.conv(y, before, inner, 1, relu=False))
        y = clipped(net.conv(y, inner, inner, 3, stride, group=inner, relu=False))
        y = net.conv(y, inner, width, 1, relu=False)
        x, before = net.add("Add", x, y) if stride == 1 and width == before else y, width
    net.output(net.classifier(x, before), FLOAT, 1, 1000)


def efficientnet(net, small):
    """Depthwise convolutions, each with squeeze-and-excitation, between 1x1 ones; swish and, in the last, hard sigmoid."""
    def swish(x):
        return net.add("Mul", x, net.add("Sigmoid", x))

    def excited(x, width, squeezed, gate):
        h = swish(net.conv(net.add("GlobalAveragePool", x), width, squeezed, 1, relu=False))
        return net.add("Mul", x, net.add(gate, net.conv(h, squeezed, width, 1, relu=False)))

    side = 32 if small else 224
    x, before = swish(net.conv(net.input("image", FLOAT, 1, 3, side, side), 3, 32, 3, 2, relu=False)), 32
    for width, stride, inner, gate in ((16, 1, 32, "Sigmoid"), (24, 2, 96, "Sigmoid"), (40, 2, 240, "Sigmoid"), (112, 2, 672, "Sigmoid"), (192, 2, 1152, "HardSigmoid")):
        y = x if inner == before else swish(net.conv(x, before, inner, 1, relu=False))
        y = swish(net.conv(y, inner, inner, 3, stride, group=inner, relu=False))
        x, before = net.conv(excited(y, inner, max(before // 4, 4), gate), inner, width, 1, relu=False), width
    net.output(net.classifier(x, before), FLOAT, 1, 1000)


def nasnet(net, small):
    """Separable convolutions of 42 and 84 channels, which are no multiples of eight, added by pairs and concatenated, as of NASNet-A-Large."""
    def separable(x, inputs, outputs, kernel, stride=1):
        for before, step in ((inputs, stride), (outputs, 1)):
            x = net.conv(net.add("Relu", x), before, before, kernel, step, group=before, relu=False)
            x = net.conv(x, before, outputs, 1, relu=False)
        return x

    def adjusted(x, inputs, width):
        return net.conv(net.add("Relu", x), inputs, width, 1, relu=False)

    side = 33 if small else 331
    stem = net.conv(net.input("image", FLOAT, 1, 3, side, side), 3, 96, 3, 2, relu=False, padding=(0, 0))
    x = adjusted(stem, 96, 42)  # a cell that halves the image
    first = net.add("Add", separable(x, 42, 42, 5, 2), separable(stem, 96, 42, 7, 2))
    second = net.add("Add", net.pool(x, 3, 2, (1, 1)), separable(stem, 96, 42, 7, 2))
    third = net.add("Add", net.pool(x, 3, 2, (1, 1), "AveragePool", count_include_pad=0), separable(stem, 96, 42, 5, 2))
    fourth = net.add("Add", net.pool(first, 3, 1, (1, 1), "AveragePool", count_include_pad=0), second)
    fifth = net.add("Add", separable(first, 42, 42, 3), net.pool(x, 3, 2, (1, 1)))
    before = net.add("Concat", second, third, fourth, fifth, axis=1)
    x, left = adjusted(before, 168, 84), adjusted(before, 168, 84)  # one that does not
    parts = [net.add("Add", separable(x, 84, 84, 5), separable(left, 84, 84, 3)), net.add("Add", separable(left, 84, 84, 5), separable(left, 84, 84, 3)),
             net.add("Add", separable(x, 84, 84, 3), x)]
    x = net.add("Concat", left, *parts, axis=1)
    net.output(net.classifier(net.add("Relu", x), 336), FLOAT, 1, 1000)


def unet(net, small):
    """Down and up by strided convolutions and transposed ones, with norms over groups of channels, and a mask made larger at the end."""
    side, widths = (16 if small else 96), (32, 64, 128)

    def group_norm(x, width, at):
        y = net.add("Reshape", x, net.ints(0, 8, -1))
        y = net.add("InstanceNormalization", y, net.const(np.ones(8)), net.const(np.zeros(8)), epsilon=1e-5)
        y = net.add("Reshape", y, net.ints(1, width, at, at))
        y = net.add("Mul", y, net.weight(width, 1, 1, scale=0.1, shift=1))
        return net.silu(net.add("Add", y, net.weight(width, 1, 1, scale=0.1)))

    def block(x, before, width, at):
        return group_norm(net.conv(net.conv(x, before, width, norm=True), width, width, relu=False), width, at)

    x, before, kept = net.input("image", FLOAT, 1, 3, side, side), 3, []
    for level, width in enumerate(widths):
        x = block(x if level == 0 else net.pool(x, 2, 2), before, width, side >> level)
        kept.append(x)
        before = width
    for level in (1, 0):
        width = widths[level]
        up = net.add("ConvTranspose", x, net.weight(before, width, 2, 2, scale=before ** -0.5), net.weight(width, scale=0.02),
                     kernel_shape=[2, 2], strides=[2, 2])
        x, before = block(net.add("Concat", up, kept[level], axis=1), 2 * width, width, side >> level), width
    x = net.conv(x, before, 2, 1, relu=False)
    x = net.add("Resize", x, "", net.const([1.0, 1.0, 2.0, 2.0], np.float32), mode="linear", coordinate_transformation_mode="half_pixel")
    net.output(net.add("Sigmoid", x), FLOAT, 1, 2, 2 * side, 2 * side)


def crnn(net, small):
    """Text in pictures: seven convolutions, then an LSTM in both directions over the columns."""
    wide = 24 if small else 100
    x, before = net.input("image", FLOAT, 1, 1, 32, wide), 1
    for layer, (width, pool) in enumerate(((64, (2, 2)), (128, (2, 2)), (256, None), (256, (2, 1)), (512, None), (512, (2, 1)), (512, None))):
        last = layer == 6
        x = net.conv(x, before, width, 2 if last else 3, padding=(0, 0) if last else None)
        if pool:
            x = net.pool(x, 2, pool, (0, 0) if pool == (2, 2) else (0, 1))
        before = width
    x = net.add("Transpose", net.add("Squeeze", x, net.ints(2)), perm=(2, 0, 1))
    x = recurrent(net, x, "LSTM", 512, 256)
    steps = wide // 4 + 1
    net.output(net.add("LogSoftmax", net.linear(x, 512, 37), axis=-1), FLOAT, steps, 1, 37)


def recurrent(net, x, cell, inputs, width):
    """Both directions, the answers of both beside each other."""
    gates = {"LSTM": 4, "GRU": 3}[cell]
    weights = [net.weight(2, gates * width, size, scale=width ** -0.5) for size in (inputs, width)]
    flags = {"linear_before_reset": 1} if cell == "GRU" else {}
    bias = net.weight(2, 2 * gates * width, scale=0.05)
    y, *_ = net.add(cell, x, *weights, bias, outputs=2, hidden_size=width, direction="bidirectional", **flags)
    return net.add("Reshape", net.add("Transpose", y, perm=(0, 2, 1, 3)), net.ints(0, 0, -1))


def gru(net, small):
    steps = 4 if small else 25
    x = net.input("x", FLOAT, steps, 1, 512)
    x = recurrent(net, x, "GRU", 512, 256)
    net.output(net.linear(x, 512, 37), FLOAT, steps, 1, 37)


# ---- tables ------------------------------------------------------------------------------------
def deepfm(batch, fields=39, values=100, width=16, hidden=(400, 400, 400)):
    """Click prediction: a factorisation machine beside a perceptron over the same embeddings."""
    def make(net, small):
        rows = min(batch, 8) if small else batch
        ids = net.input("ids", INT64, rows, fields)
        linear = net.add("Gather", net.weight(fields * values, 1, scale=0.1), ids)
        factors = net.add("Gather", net.weight(fields * values, width, scale=0.1), ids)
        one = net.ints(1)
        total = net.add("ReduceSum", factors, one, keepdims=0)
        squares = net.add("ReduceSum", net.add("Mul", factors, factors), one, keepdims=0)
        pairs = net.add("ReduceSum", net.add("Sub", net.add("Mul", total, total), squares), one, keepdims=1)
        y, before = net.add("Reshape", factors, net.ints(rows, fields * width)), fields * width
        for outputs in hidden:
            y = net.add("Relu", net.add("Gemm", y, net.weight(outputs, before), net.weight(outputs, scale=0.02), transB=1))
            before = outputs
        y = net.add("Gemm", y, net.weight(1, before), net.weight(1, scale=0.02), transB=1)
        first = net.add("Add", net.add("ReduceSum", linear, one, keepdims=0), net.add("Mul", pairs, net.const(0.5)))
        net.output(net.add("Sigmoid", net.add("Add", first, y)), FLOAT, rows, 1)
    return make


NETWORKS = {
    "minilm": encoder(384, 12, 1536),
    "bert": encoder(768, 12, 3072),
    "bert_b8": encoder(768, 12, 3072, batch=8),
    "vit": vit,
    "decoder": decoder(2048, 32, 8, 64, 8192),
    "decoder_cache": decoder(1024, 16, 4, 64, 2816, gives_cache=True, layers=1),
    "resnet18": resnet18,
    "resnet50": resnet50(1),
    "resnet50_b8": resnet50(8),
    "googlenet": googlenet,
    "inception": inception,
    "mobilenet": mobilenet,
    "efficientnet": efficientnet,
    "nasnet": nasnet,
    "unet": unet,
    "crnn": crnn,
    "gru": gru,
    "deepfm": deepfm(1),
    "deepfm_b512": deepfm(512),
}
HALVES = {"decoder", "decoder_cache"}  # whose weights are stored in 16 bits

# What is compiled for GPUs: (network, granularity, precision, target, or target/multiprocessors).
PROGRAMS = [(name, granularity, "fp16", "sm_90a") for name in NETWORKS for granularity in ("op", "stitch", "mono")]
PROGRAMS += [(name, granularity, precision, "sm_90a") for name in ("minilm", "resnet18") for precision in ("fp32", "bf16") for granularity in ("stitch", "mono")]
PROGRAMS += [(name, "stitch", "fp32", "sm_90a") for name in ("nasnet", "deepfm")]
PROGRAMS += [(name, granularity, "tf32", "sm_90a") for name, granularity in (("minilm", "stitch"), ("deepfm", "stitch"), ("deepfm", "mono"), ("googlenet", "mono"))]
PROGRAMS += [(name, "mono", "fp16", "sm_80") for name in ("minilm", "resnet18")]
# For 16 multiprocessors, beside other programs.
PROGRAMS += [(name, granularity, "fp16", "sm_90a/16") for name, granularity in (("minilm", "stitch"), ("resnet18", "stitch"), ("resnet18", "mono"))]


def write(name, path, small=False):
    net = Net(name, np.float16 if name in HALVES else np.float32)
    NETWORKS[name](net, small)
    net.save(path, opset=17)
    return path


if __name__ == "__main__":
    folder = Path(sys.argv[1])
    folder.mkdir(parents=True, exist_ok=True)
    for wanted in sys.argv[2:] or NETWORKS:
        print(write(wanted, folder / f"{wanted}.onnx"))
