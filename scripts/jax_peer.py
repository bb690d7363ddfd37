"""XLA on a GPU as the other side: an ONNX file as one function of JAX, compiled by jax.jit.

`python jax_peer.py` answers the questions of torch_peer.py, in lines of JSON. A question for a
model also has `answers`: the file that torch_peer.py writes, from which come the inputs and what
the module gives in f32. A program whose outputs are off by `tolerance` (0.05) of their root mean
square or more is refused; what it was off by stands in the answer as max_error, and `layouts` says
whether XLA chose those of the weights.

What is done so that XLA is at its best:
- Weights are arguments that stay on the device, in the wanted precision, and in the layout that XLA
  asks for (Layout.AUTO), so that no call transposes one. Convolutions are written over NCHW, as
  in the file: XLA assigns layouts itself, through the whole graph, NHWC where tensor cores want it.
- Shapes, and whatever else follows from constants, are computed by NumPy while JAX traces.
- Norms, softmax and other statistics are in f32 inside; products and convolutions sum in f32.
- An LSTM is one lax.scan for both directions, its product with the inputs ahead of it.
"""

import contextlib
import json
import os
import sys
import time

import ml_dtypes
import numpy
import onnx

WAYS = ("xla",)
F32 = numpy.dtype("float32")
TYPES = {"keep": F32, "fp32": F32, "tf32": F32, "fp16": numpy.dtype("float16"),
         "bf16": numpy.dtype(ml_dtypes.bfloat16)}
PRODUCTS = {"keep": "highest", "fp32": "highest", "tf32": "tensorfloat32"}  # XLA's own is tf32
FEW = 16  # floats up to so many are constants of the program, more are its arguments
UNROLL = 32  # steps of a scan without a loop around them: the loop costs more than they do
OLDEST = 13  # operator set: earlier ones have other meanings for some names


class Refusal(Exception):
    """What this side does not do, and which node asked for it."""


def is_float(x):
    return x.dtype.kind == "f" or x.dtype == ml_dtypes.bfloat16


def is_known(x):
    """NumPy's own: what JAX traces is of another type."""
    return type(x) is numpy.ndarray or isinstance(x, numpy.generic)


def wide(x):
    return x.astype(F32) if is_float(x) else x


# ---- the ops: op(call, *inputs) -> an output, or a tuple of them ----
# call.xp is NumPy where all inputs are known, else jax.numpy.
def unary(name):
    return lambda call, x: getattr(call.xp, name)(x)


def of_lax(name):
    return lambda call, x: getattr(call.lax, name)(x)


def binary(name):
    def op(call, a, b):
        a, b, narrow = meet(call, a, b)
        answer = getattr(call.xp, name)(a, b)
        return answer.astype(narrow) if narrow else answer
    return op


def meet(call, a, b):
    """Operands of one type, and the type to go back to. A constant takes the other's; f32, which
    statistics have, beside 16 bits computes in f32 and gives 16 bits."""
    if a.dtype == b.dtype or not (is_float(a) and is_float(b)):
        return a, b, None
    if is_known(a):
        return a.astype(b.dtype), b, None
    if is_known(b):
        return a, b.astype(a.dtype), None
    return wide(a), wide(b), call.dtype


def divide(call, a, b):
    if is_float(a):
        return binary("divide")(call, a, b)
    xp = call.xp  # whole numbers are cut towards zero
    return xp.sign(a) * xp.sign(b) * (xp.abs(a) // xp.abs(b))


def power(call, x, exponent):
    if is_known(exponent) and exponent.size == 1 and float(exponent.item()).is_integer():
        exponent = int(exponent.item())  # by products
    return wide(x) ** exponent


def modulo(call, a, b):
    return (call.xp.fmod if call.attribute("fmod", 0) else call.xp.mod)(a, b)


def where(call, condition, a, b):
    a, b, narrow = meet(call, a, b)
    answer = call.xp.where(condition, a, b)
    return answer.astype(narrow) if narrow else answer


def cast(call, x):
    wanted = onnx.helper.tensor_dtype_to_np_dtype(call.attribute("to"))
    if is_known(x):
        return x.astype(wanted)
    if numpy.dtype(wanted).kind == "f":  # every float is of the run's precision, statistics of f32
        return x if is_float(x) else x.astype(call.dtype)
    return x.astype({"int64": "int32"}.get(numpy.dtype(wanted).name, wanted))


def reduction(name, keeps_f32):
    def op(call, x, axes=None):
        axes = call.attribute("axes", None) if axes is None else call.numbers(axes, "axes")
        if not axes and call.attribute("noop_with_empty_axes", 0):
            return x
        axes = tuple(axes) if axes else None
        keeps = bool(call.attribute("keepdims", 1))
        answer = getattr(call.xp, name)(wide(x), axis=axes, keepdims=keeps)
        return answer if keeps_f32 else answer.astype(x.dtype)
    return op


def softmax(call, x):
    axis, xp, y = call.attribute("axis", -1), call.xp, wide(x)
    y = xp.exp(y - xp.max(y, axis=axis, keepdims=True))
    return (y / xp.sum(y, axis=axis, keepdims=True)).astype(x.dtype)


def log_softmax(call, x):
    axis, xp, y = call.attribute("axis", -1), call.xp, wide(x)
    y = y - xp.max(y, axis=axis, keepdims=True)
    return (y - xp.log(xp.sum(xp.exp(y), axis=axis, keepdims=True))).astype(x.dtype)


def layer_norm(call, x, scale, bias=None):
    xp, y = call.xp, wide(x)
    axes = tuple(range(call.attribute("axis", -1) % x.ndim, x.ndim))
    y = y - xp.mean(y, axis=axes, keepdims=True)
    variance = xp.mean(y * y, axis=axes, keepdims=True)
    y = y / xp.sqrt(variance + F32.type(call.attribute("epsilon", 1e-5))) * wide(scale)
    return (y if bias is None else y + wide(bias)).astype(x.dtype)


def batch_norm(call, x, scale, bias, mean, variance):
    if call.attribute("training_mode", 0):
        raise call.refusal("training_mode = 1")
    def of_channels(t):
        return wide(t).reshape((1, -1) + (1,) * (x.ndim - 2))
    gain = of_channels(scale) / call.xp.sqrt(
        of_channels(variance) + F32.type(call.attribute("epsilon", 1e-5)))
    return ((wide(x) - of_channels(mean)) * gain + of_channels(bias)).astype(x.dtype)


def matmul(call, a, b):
    return call.xp.matmul(*call.narrowed(a, b))


def gemm(call, a, b, c=None):
    a, b = call.narrowed(a, b)
    y = call.xp.matmul(a.T if call.attribute("transA", 0) else a,
                       b.T if call.attribute("transB", 0) else b)
    alpha, beta = call.attribute("alpha", 1.0), call.attribute("beta", 1.0)
    y = y if alpha == 1 else y * alpha
    return y if c is None else binary("add")(call, y, c if beta == 1 else c * beta)


def pads_of(call, spatial):
    if call.attribute("auto_pad", b"NOTSET") not in (b"NOTSET", b"VALID"):
        raise call.refusal("auto_pad other than NOTSET and VALID")
    pads = call.attribute("pads", [0] * 2 * spatial)
    return list(zip(pads[:spatial], pads[spatial:], strict=True))


def convolution(call, x, w, bias=None):
    spatial = x.ndim - 2
    x, w = call.narrowed(x, w)
    space = "DHW"[-spatial:]
    y = call.lax.conv_general_dilated(
        x, w, call.attribute("strides", [1] * spatial), pads_of(call, spatial),
        rhs_dilation=call.attribute("dilations", [1] * spatial),
        dimension_numbers=("NC" + space, "OI" + space, "NC" + space),
        feature_group_count=call.attribute("group", 1),
    )
    if bias is None:
        return y
    return y + bias.astype(y.dtype).reshape((1, -1) + (1,) * spatial)


def window_of(call, x):
    """Sizes, steps, pads of a pool; ceil_mode as more padding behind."""
    kernel = call.attribute("kernel_shape")
    strides = call.attribute("strides", [1] * len(kernel))
    pads = pads_of(call, len(kernel))
    if any(d != 1 for d in call.attribute("dilations", [1])):
        raise call.refusal("dilations")
    if call.attribute("ceil_mode", 0):
        for k, (size, step, (before, after)) in enumerate(zip(kernel, strides, pads, strict=True)):
            extent = x.shape[2 + k]
            last = -(-(extent + before + after - size) // step)
            if last * step >= extent + before:  # a window that begins behind the input
                last -= 1
            pads[k] = (before, max(after, last * step + size - extent - before))
    return kernel, strides, pads


def reduce_window(call, x, start, combine, window):
    kernel, strides, pads = window
    return call.lax.reduce_window(x, numpy.asarray(start, x.dtype), combine, (1, 1, *kernel),
                                  (1, 1, *strides), ((0, 0), (0, 0), *pads))


def max_pool(call, x):
    if len(call.node.output) > 1:
        raise call.refusal("an output of indices")
    return reduce_window(call, x, -numpy.inf, call.lax.max, window_of(call, x))


def average_pool(call, x):
    kernel, strides, pads = window = window_of(call, x)
    if call.attribute("ceil_mode", 0) and call.attribute("count_include_pad", 0):
        raise call.refusal("ceil_mode with count_include_pad")
    total = reduce_window(call, wide(x), 0, call.lax.add, window)
    count = numpy.ones((), F32)  # of a window's numbers, by place
    for k, (size, step, (before, _)) in enumerate(zip(kernel, strides, pads, strict=True)):
        begin = numpy.arange(total.shape[2 + k]) * step - before
        inside = numpy.minimum(begin + size, x.shape[2 + k]) - numpy.maximum(begin, 0)
        if call.attribute("count_include_pad", 0):
            inside = numpy.full_like(begin, size)
        count = count[..., None] * inside.astype(F32)
    return (total / count).astype(x.dtype)


def global_average_pool(call, x):
    return call.xp.mean(wide(x), axis=tuple(range(2, x.ndim)), keepdims=True).astype(x.dtype)


def lstm(call, x, w, r, bias=None, lengths=None, h=None, cell=None, peepholes=None):
    plain = {"activations": None, "clip": None, "input_forget": 0, "layout": 0}
    for name, usual in plain.items():
        if call.attribute(name, usual) != usual:
            raise call.refusal(f"the attribute {name}")
    if lengths is not None or peepholes is not None:
        raise call.refusal("sequence_lens, or peepholes")
    xp, lax = call.jnp, call.lax
    x, w, r = call.narrowed(x, w, r)
    backward = {b"forward": [False], b"reverse": [True], b"bidirectional": [False, True]}[
        call.attribute("direction", b"forward")]
    (steps, batch, _), (directions, _, size) = x.shape, r.shape

    def in_time(t):  # each direction from its first step to its last, or back
        parts = [t[:, d][::-1] if back else t[:, d] for d, back in enumerate(backward)]
        return xp.stack(parts, 1)

    gates = xp.einsum("tbi,dgi->tdbg", x, w)
    if bias is not None:
        both = (bias[:, : 4 * size] + bias[:, 4 * size :]).astype(gates.dtype)
        gates = gates + both[None, :, None, :]
    none = xp.zeros((directions, batch, size), x.dtype)
    first = (none if h is None else xp.asarray(h).astype(x.dtype),
             wide(none if cell is None else xp.asarray(cell)))

    def step(before, row):
        h, cell = before
        i, o, f, g = xp.split(wide(row + xp.einsum("dbh,dgh->dbg", h, r)), 4, -1)
        cell = lax.logistic(f) * cell + lax.logistic(i) * xp.tanh(g)
        h = (lax.logistic(o) * xp.tanh(cell)).astype(row.dtype)
        return (h, cell), h

    (h, cell), rows = lax.scan(step, first, in_time(gates), unroll=min(steps, UNROLL))
    return in_time(rows), h, cell.astype(x.dtype)


def reshape(call, x, shape):
    if call.attribute("allowzero", 0):
        raise call.refusal("allowzero")
    shape = call.numbers(shape, "a shape")
    return x.reshape([x.shape[k] if n == 0 else n for k, n in enumerate(shape)])


def flatten(call, x):
    axis = call.attribute("axis", 1)
    axis += x.ndim if axis < 0 else 0
    return x.reshape((int(numpy.prod(x.shape[:axis])), -1))


def transpose(call, x):
    return call.xp.transpose(x, call.attribute("perm", list(range(x.ndim))[::-1]))


def squeeze(call, x, axes=None):
    return call.xp.squeeze(x, None if axes is None else tuple(call.numbers(axes, "axes")))


def unsqueeze(call, x, axes):
    return call.xp.expand_dims(x, tuple(call.numbers(axes, "axes")))


def expand(call, x, shape):
    shape = tuple(call.numbers(shape, "a shape"))
    return call.xp.broadcast_to(x, numpy.broadcast_shapes(x.shape, shape))


def concat(call, *parts):
    if any(is_float(part) and part.dtype != parts[0].dtype for part in parts):
        parts = call.narrowed(*parts)
    return call.xp.concatenate(parts, call.attribute("axis"))


def split(call, x, sizes=None):
    axis = call.attribute("axis", 0)
    count = len(call.node.output)
    whole = -(-x.shape[axis] // count)
    sizes = [whole] * (count - 1) if sizes is None else call.numbers(sizes, "sizes")[:-1]
    return tuple(call.xp.split(x, [int(n) for n in numpy.cumsum(sizes)], axis))


def slices(call, x, starts, ends, axes=None, steps=None):
    starts, ends = call.numbers(starts, "starts"), call.numbers(ends, "ends")
    axes = list(range(len(starts))) if axes is None else call.numbers(axes, "axes")
    steps = [1] * len(starts) if steps is None else call.numbers(steps, "steps")
    parts = [slice(None)] * x.ndim
    for start, end, axis, step in zip(starts, ends, axes, steps, strict=True):
        parts[axis] = slice(start, end, step)
    return x[tuple(parts)]


def gather(call, x, indices):
    axis = call.attribute("axis", 0) % x.ndim
    if is_known(indices) and indices.ndim == 0:
        return x[(slice(None),) * axis + (int(indices),)]
    indices = call.xp.where(indices < 0, indices + x.shape[axis], indices)
    return call.xp.take(x, indices, axis=axis, mode="clip")


def shape_of(call, x):
    part = slice(call.attribute("start", 0), call.attribute("end", None))
    return numpy.array(x.shape[part], "int64")


def constant_of_shape(call, shape):
    value = call.attribute("value", None)
    value = numpy.zeros(1, F32) if value is None else onnx.numpy_helper.to_array(value)
    return numpy.full(call.numbers(shape, "a shape"), value.item(), value.dtype)


OPS = {
    "Abs": unary("abs"), "Exp": unary("exp"), "Log": unary("log"), "Neg": unary("negative"),
    "Sqrt": unary("sqrt"), "Tanh": unary("tanh"), "Not": unary("logical_not"),
    "Relu": lambda call, x: call.xp.maximum(x, x.dtype.type(0)),
    "Reciprocal": lambda call, x: x.dtype.type(1) / x, "Identity": lambda call, x: x,
    "Erf": of_lax("erf"), "Sigmoid": of_lax("logistic"),
    "Add": binary("add"), "Sub": binary("subtract"), "Mul": binary("multiply"), "Div": divide,
    "Pow": power, "Mod": modulo, "Equal": binary("equal"), "Less": binary("less"),
    "Greater": binary("greater"), "Where": where, "Cast": cast,
    "ReduceSum": reduction("sum", False), "ReduceMean": reduction("mean", True),
    "Softmax": softmax, "LogSoftmax": log_softmax, "LayerNormalization": layer_norm,
    "BatchNormalization": batch_norm, "MatMul": matmul, "Gemm": gemm, "Conv": convolution,
    "MaxPool": max_pool, "AveragePool": average_pool, "GlobalAveragePool": global_average_pool,
    "LSTM": lstm, "Reshape": reshape, "Flatten": flatten, "Transpose": transpose,
    "Squeeze": squeeze, "Unsqueeze": unsqueeze, "Expand": expand, "Concat": concat, "Split": split,
    "Slice": slices, "Gather": gather, "Shape": shape_of, "ConstantOfShape": constant_of_shape,
}


# ---- the graph ----
class Call:
    """One node, as its op sees it."""

    def __init__(self, node, jax, dtype, xp):
        self.node, self.dtype, self.xp = node, dtype, xp
        self.jnp, self.lax = jax.numpy, jax.lax

    def attribute(self, name, *default):
        for attribute in self.node.attribute:
            if attribute.name == name:
                return onnx.helper.get_attribute_value(attribute)
        if not default:
            raise self.refusal(f"no attribute {name}")
        return default[0]

    def numbers(self, x, what):
        """Whole numbers that must be known while JAX traces."""
        if not is_known(x):
            raise self.refusal(f"{what} computed from the inputs' values")
        return [int(n) for n in numpy.atleast_1d(x)]

    def narrowed(self, *parts):
        """Floats in the run's precision."""
        return [part.astype(self.dtype) if is_float(part) else part for part in parts]

    def refusal(self, what):
        node = self.node
        return Refusal(f"{node.op_type} {node.name!r} has {what}, which this side does not do")


class Graph:
    """An ONNX graph as a function (weights, inputs) -> outputs."""

    def __init__(self, model, jax, dtype):
        self.jax, self.dtype, self.nodes = jax, dtype, []
        self.weights, self.known = {}, {"": None}
        sets = {s.domain: s.version for s in model.opset_import}
        if sets.get("", 0) < OLDEST:
            raise Refusal(f"operator set {sets.get('')}: {OLDEST} or later is read")
        for tensor in model.graph.initializer:
            self.keep(tensor.name, onnx.numpy_helper.to_array(tensor))
        for node in model.graph.node:
            if node.op_type == "Constant":
                self.keep(node.output[0], self.constant(node))
            elif node.op_type not in OPS or node.domain not in ("", "ai.onnx"):
                raise Refusal(f"no rule for {node.op_type} of node {node.name!r}; there is one for "
                              f"{', '.join(sorted(OPS))}")
            else:
                self.nodes.append(node)
        self.names = list(self.weights)
        stored = {*self.weights, *self.known}
        self.inputs = [i.name for i in model.graph.input if i.name not in stored]
        self.outputs = [o.name for o in model.graph.output]

    @staticmethod
    def constant(node):
        (attribute,) = node.attribute
        value = onnx.helper.get_attribute_value(attribute)
        if attribute.name == "value":
            return onnx.numpy_helper.to_array(value)
        return numpy.array(value, F32 if attribute.name.startswith("value_float") else "int64")

    def keep(self, name, array):
        if not is_float(array):
            self.known[name] = array
        elif array.size <= FEW:
            self.known[name] = wide(array)
        else:
            self.weights[name] = array.astype(self.dtype)

    def __call__(self, weights, inputs):
        values = {**self.known, **dict(zip(self.names, weights, strict=True)),
                  **dict(zip(self.inputs, inputs, strict=True))}
        known = set(self.known)
        for node in self.nodes:
            folds = all(name in known for name in node.input)
            call = Call(node, self.jax, self.dtype, numpy if folds else self.jax.numpy)
            given = [values[name] for name in node.input]
            try:
                answers = OPS[node.op_type](call, *given)
            except Refusal:
                raise
            except Exception as error:
                raise Refusal(f"{node.op_type} {node.name!r} of "
                              f"{[getattr(x, 'shape', None) for x in given]}: {error}") from error
            answers = answers if isinstance(answers, tuple) else (answers,)
            values.update(zip(node.output, answers))
            if (folds or node.op_type == "Shape") and all(is_known(x) for x in answers):
                known.update(node.output)
        return tuple(self.jax.numpy.asarray(values[name]) for name in self.outputs)


# ---- the side ----
def turn():
    """The GPU for oneself while XLA measures its candidates, among sides that get ready at once."""
    if not os.environ.get("OBELISK_GPU_TURN"):
        return contextlib.nullcontext()
    import gpu_sides
    return gpu_sides.turn()


def is_row_major(form):
    order = form.layout.major_to_minor
    return order == tuple(range(len(order)))


class Peer:
    def __init__(self, model, kept, precision="fp16", tolerance=0.05, backend="gpu"):
        import jax
        self.jax, dtype = jax, TYPES[precision]
        device = jax.devices(backend)[0]
        jax.config.update("jax_default_device", device)
        jax.config.update("jax_default_matmul_precision", PRODUCTS.get(precision))
        graph = Graph(onnx.load(model), jax, dtype)
        names = [str(n) for n in kept["names"]] or graph.inputs
        given = {name: kept[f"{k}.in"] for k, name in enumerate(names)}
        absent = [name for name in graph.inputs if name not in given]
        if absent:
            raise Refusal(f"the answers have no input {absent[0]!r}: they have {', '.join(given)}")
        self.inputs = tuple(
            jax.device_put(a.astype(dtype) if is_float(a) else
                           a.astype("int32") if a.dtype == "int64" else a, device)
            for a in (given[name] for name in graph.inputs)
        )
        self.compile(graph, tuple(graph.weights.values()), device)
        graph.weights = {}  # they are on the device
        self.max_error = self.error(kept)
        if not self.max_error < tolerance:
            raise Refusal(f"its outputs are off by {self.max_error:.2g} of their root mean square, "
                          f"less than {tolerance} is wanted")

    def compile(self, graph, weights, device):
        jax = self.jax
        shapes = jax.tree.map(
            lambda a: jax.ShapeDtypeStruct(a.shape, a.dtype), (weights, self.inputs))
        try:
            from jax.experimental.layout import Format, Layout
            self.layouts = "auto"
            traced = jax.jit(graph, in_shardings=(Format(Layout.AUTO), None)).lower(*shapes)
            with turn():
                self.compiled = traced.compile()
            self.weights = tuple(
                jax.device_put(weight, device if is_row_major(form) else form)
                for weight, form in zip(weights, self.compiled.input_formats[0][0], strict=True))
        except Refusal:
            raise
        except Exception as error:  # a JAX without layouts of one's own
            print(f"jax_peer: row-major weights, Layout.AUTO gave {error!r}", file=sys.stderr)
            self.layouts = "row-major"
            traced = jax.jit(graph).lower(*shapes)
            with turn():
                self.compiled = traced.compile()
            self.weights = jax.device_put(weights, device)

    def __call__(self):
        return self.compiled(self.weights, self.inputs)

    def wait(self, outputs):
        self.jax.block_until_ready(outputs)

    def error(self, kept):
        """The largest distance from the module's answers, over their root mean square."""
        errors = []
        for k, output in enumerate(self()):
            wanted = kept[f"{k}.out"].astype("float64")
            got = numpy.asarray(output).astype("float64")
            if got.shape != wanted.shape or not numpy.isfinite(got).all():
                return float("inf")
            rms = numpy.sqrt(numpy.mean(wanted**2)) + 1e-12
            errors.append(float(numpy.max(numpy.abs(got - wanted), initial=0) / rms))
        return max(errors)


def device_us(peer, count=20, row=50):
    """Means of `row` runs in a row, so that the host's latency is hidden where the device takes
    longer, and of the host alone: where both are alike, the host's part was all that was timed."""
    for _ in range(10):  # command buffers are recorded in the first ones
        peer.wait(peer())
    times, host = [], []
    for _ in range(count):
        begin = time.perf_counter()
        for _ in range(row):
            outputs = peer()
        given = time.perf_counter()
        peer.wait(outputs)
        times.append((time.perf_counter() - begin) * 1e6 / row)
        host.append((given - begin) * 1e6 / row)
    return {"device_us": times, "host_us": host}


def latencies_us(peer, seconds):
    times, end = [], time.perf_counter() + seconds
    while not times or time.perf_counter() < end:
        begin = time.perf_counter()
        peer.wait(peer())
        times.append((time.perf_counter() - begin) * 1e6)
    return times


def main():
    ways = {}
    out, sys.stdout = sys.stdout, sys.stderr  # whatever libraries print is no answer
    for line in sys.stdin:
        question = json.loads(line)
        try:
            if "model" in question:
                import jax
                answer = {"version": jax.__version__, "ways": question.get("ways", WAYS)}
                for name in answer["ways"]:
                    if name not in WAYS:
                        raise Refusal(f"no way is called {name!r}: {', '.join(WAYS)}")
                    if "answers" not in question:
                        raise Refusal("the question has no answers: the file with the inputs")
                    more = {k: question[k] for k in ("tolerance", "backend") if k in question}
                    ways[name] = Peer(question["model"], numpy.load(question["answers"]),
                                      question.get("precision", "keep"), **more)
                    answer["max_error"] = ways[name].max_error
                    answer["layouts"] = ways[name].layouts
            elif "round" in question:
                answer = {"latencies_us": latencies_us(ways[question["way"]], question["round"])}
            else:
                answer = device_us(ways[question["way"]])
        except Exception as error:  # the other side prints it
            kind = "" if isinstance(error, Refusal) else f"{type(error).__name__}: "
            message = f"JAX: {kind}{error}".splitlines()[0]
            answer = {"error": message, "hint": f"{sys.executable} -m pip install jax[cuda13]"}
        print(json.dumps(answer), file=out, flush=True)


if __name__ == "__main__":
    main()
