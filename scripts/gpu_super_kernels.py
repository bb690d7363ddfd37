#!/usr/bin/env python3
"""Super-kernels beside cuBLAS: R products of one shape, with operands of their own, in one launch; and
fifty products of various shapes. Microseconds, TFLOP/s, errors, and the share of the roof.

    gpu_super_kernels.py --out FILE.json [--shapes vector,layer,square] [--precisions fp32,tf32,bf16] [--budget 900]

The shapes (rows x columns x depth) are those of the space-time paper's table 1: a recurrent layer's product of one row
and a matrix 512x512, a convolution's 256x128x1152, a square of 256. Of each, for R = 1 to 120:

    ours            one program, a MatMul with a batch dimension of R, both operands inputs
    weights         the same with constant weights (--weights-at)
    batched         torch.bmm, cuBLAS's batched product; batched_t: with its second operands stored transposed
    one_at_a_time   torch.mm R times, in one CUDA graph; streams: the same on 16 streams of the graph
    eager           torch.mm R times, launch by launch; eager_batched: torch.bmm
    together        R programs with weights of their own in one launch (bench/tenants/super_kernels.cpp), by the host's
                    clock, with launch and wait; beside it the same programs in turn, and a graph of torch.bmm by that clock

Mixed: one ONNX graph of fifty independent products of layers of known networks, in one kernel (mono) and as a graph of
kernels (stitch), beside torch.mm in one CUDA graph, on one stream and on 16.

Time is the device's: each way is a CUDA graph of a call for each set of operands, of which there are as many as take
twice the L2 cache together (128 at most), so that what one call read is gone when its set comes again; the graph's time
over its calls is a call's. Ways take turns, five each, and the median counts. The roof is the larger of what a copy says
of the bytes and a large product of the FLOPs, both measured first. Each answer is compared with a product in f64: the
largest error over the root mean square is 2e-5 at most in fp32, 1e-2 in tf32, 3e-2 in bf16.

--device cpu tries the script out: NumPy in PyTorch's place. Works in the folder that scripts/pack.sh makes, and in a
checkout with a build. A part that fails is told and left out, what --budget leaves no time for is counted; rows go to
--out as they come, the most telling R first. The exit status counts failures.
"""
import argparse
import concurrent.futures
import json
import math
import os
import pathlib
import random
import shutil
import statistics
import sys
import time

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

from gpu_tenants import BIN, ROOT, call, count_sms, say, write_record

sys.path.insert(0, str(ROOT / "examples/tensors"))
import tensors  # noqa: E402  (beside this script in the folder of pack.sh)

SHAPES = {"vector": (1, 512, 512), "layer": (256, 128, 1152), "square": (256, 256, 256)}  # rows, columns, depth
RUNS = [1, 2, 4, 8, 10, 16, 20, *range(24, 121, 8)]
TELLING = (1, 8, 32, 120, 2, 4, 16, 64)
TOLERANCE = {"fp32": 2e-5, "tf32": 1e-2, "bf16": 3e-2}
# Products of layers (rows x columns x depth): encoders, decoders, convolutions as products, recommenders.
LAYERS = [(128, 384, 384), (128, 1536, 384), (128, 384, 1536), (128, 768, 768), (128, 3072, 768), (128, 768, 3072), (196, 256, 1024),
          (196, 1024, 256), (784, 128, 512), (784, 512, 128), (49, 512, 2048), (49, 2048, 512), (196, 256, 2304), (784, 128, 1152),
          (3136, 64, 256), (1, 1000, 2048), (1, 400, 624), (1, 400, 400), (26, 1024, 512), (1, 2048, 2048), (8, 768, 768)]
MIXED = 50
TURNS = 5


def problems(count, seed=1):
    """The three shapes, then layers at random."""
    some = random.Random(seed)
    return (list(SHAPES.values()) + [some.choice(LAYERS) for _ in range(count)])[:count]


def flops(shape):
    rows, columns, depth = shape
    return 2 * rows * columns * depth


def numbers(shape, size):
    """Of both operands and the answer."""
    rows, columns, depth = shape
    return (rows * depth + depth * columns + rows * columns) * size


def onnx_type(precision):
    return TensorProto.BFLOAT16 if precision == "bf16" else TensorProto.FLOAT


def constant(values, name, precision):
    """bf16 is rounded to nearest even."""
    if precision != "bf16":
        return numpy_helper.from_array(values, name)
    bits = values.view(np.uint32)
    half = ((bits + 0x7FFF + (bits >> 16 & 1)) >> 16).astype(np.uint16)
    return helper.make_tensor(name, TensorProto.BFLOAT16, values.shape, half.tobytes(), raw=True)


def weights_of(shape, seed):
    return np.random.default_rng(seed).standard_normal(shape, dtype=np.float32)


def rounded(values, precision):
    return ((values.view(np.uint32) + 0x7FFF + (values.view(np.uint32) >> 16 & 1)) >> 16 << 16).view(np.float32) if precision == "bf16" else values


def write_model(path, nodes, given, made, constants, precision):
    if path.exists():
        return
    ports = [[helper.make_tensor_value_info(name, onnx_type(precision), shape) for name, shape in side.items()] for side in (given, made)]
    graph = helper.make_graph(nodes, "products", *ports, constants)
    part = path.with_suffix(".part")
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8), part)
    part.rename(path)


def write_batch(path, shape, runs, precision, seed=None):
    """R products in one MatMul; with a seed the second operands are constants."""
    rows, columns, depth = shape
    given = {"a": [runs, rows, depth]} | ({"b": [runs, depth, columns]} if seed is None else {})
    constants = [] if seed is None else [constant(weights_of((runs, depth, columns), seed), "b", precision)]
    write_model(path, [helper.make_node("MatMul", ["a", "b"], ["c"])], given, {"c": [runs, rows, columns]}, constants, precision)


def write_one(path, shape, precision, seed):
    """One product with weights: a tenant's network."""
    rows, columns, depth = shape
    write_model(path, [helper.make_node("MatMul", ["a", "b"], ["c"])], {"a": [rows, depth]}, {"c": [rows, columns]},
                [constant(weights_of((depth, columns), seed), "b", precision)], precision)


def write_mixed(path, shapes, precision):
    write_model(path, [helper.make_node("MatMul", [f"a{k}", f"b{k}"], [f"c{k}"]) for k in range(len(shapes))],
                {f"a{k}": [rows, depth] for k, (rows, _, depth) in enumerate(shapes)},
                {f"c{k}": [rows, columns] for k, (rows, columns, _) in enumerate(shapes)},
                [constant(weights_of((depth, columns), k), f"b{k}", precision) for k, (_, columns, depth) in enumerate(shapes)], precision)


class Cpu:
    """NumPy's side, and its clock; enough to try everything out."""
    name, cache = "cpu", 1 << 20
    more_ways = ()

    def __init__(self, precision):
        if precision != "fp32":
            raise ValueError("--device cpu has fp32 alone")

    def random(self, shape, seed):
        return np.random.default_rng(seed).standard_normal(shape, dtype=np.float32)

    def empty(self, shape):
        return np.full(shape, np.nan, np.float32)

    def of(self, values):
        return values

    def batched(self, a, b, c):
        return lambda: np.matmul(a, b, out=c)

    def one(self, a, b, c):
        return lambda: np.matmul(a, b, out=c)

    def captured(self, calls, streams=1):
        def replay():
            for each in calls:
                each()
        return replay

    def run(self, network):
        network.run()

    def us(self, replay, least):
        replay()
        count, begun = 0, time.perf_counter()
        while count == 0 or time.perf_counter() - begun < least:
            replay()
            count += 1
        return (time.perf_counter() - begun) / count * 1e6

    host_us = us

    def error(self, a, b, c):
        wanted = np.matmul(a.astype(np.float64), b.astype(np.float64))
        return float(np.abs(wanted - c).max() / np.sqrt(np.mean(wanted**2)))

    def roof(self):
        a, b = self.random((256, 256), 1), self.random((256, 256), 2)
        c, to = self.empty((256, 256)), self.empty((1 << 20,))
        of = self.random((1 << 20,), 3)
        return 2 * of.nbytes / self.us(lambda: np.copyto(to, of), 0.01), flops((256, 256, 256)) / self.us(self.batched(a, b, c), 0.01)


class Gpu:
    """PyTorch's side, and the device's clock."""
    name = "cuda"
    more_ways = ("batched_t", "streams", "eager", "eager_batched")

    def __init__(self, precision):
        import torch
        self.torch = torch
        torch.backends.cuda.matmul.allow_tf32 = precision == "tf32"
        self.type = torch.bfloat16 if precision == "bf16" else torch.float32
        self.cache = getattr(torch.cuda.get_device_properties(0), "L2_cache_size", 50 << 20)
        self.side = [torch.cuda.Stream() for _ in range(16)]
        self.main = torch.cuda.Stream()

    def random(self, shape, seed):
        generator = self.torch.Generator("cuda").manual_seed(seed)
        return self.torch.randn(shape, device="cuda", generator=generator).to(self.type)

    def empty(self, shape):
        return self.torch.full(shape, math.nan, device="cuda", dtype=self.type)

    def of(self, values):
        return self.torch.from_numpy(values).cuda().to(self.type)

    def batched(self, a, b, c):
        return lambda: self.torch.bmm(a, b, out=c)

    def one(self, a, b, c):
        return lambda: self.torch.mm(a, b, out=c)

    def captured(self, calls, streams=1):
        """All of them as one launch. With several streams each is a list, whose calls stand side by side."""
        torch = self.torch

        def all_of_them():
            for each in calls:
                if streams == 1:
                    each()
                    continue
                begun = torch.cuda.Event()
                begun.record()
                for k, stream in enumerate(self.side[:streams]):
                    with torch.cuda.stream(stream):
                        stream.wait_event(begun)
                        for one in each[k::streams]:
                            one()
                for stream in self.side[:streams]:
                    torch.cuda.current_stream().wait_stream(stream)
        with torch.cuda.stream(self.main), torch.inference_mode():
            all_of_them()
        torch.cuda.synchronize()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.stream(self.main), torch.inference_mode():
            graph.capture_begin(capture_error_mode="relaxed")  # torch.cuda.graph() would collect garbage each time
            try:
                all_of_them()
            finally:
                graph.capture_end()
        return graph.replay

    def run(self, network):
        network.run_on(self.torch.cuda.current_stream().cuda_stream)

    def us(self, replay, least):
        torch = self.torch
        def timed(count):
            begun, ended = (torch.cuda.Event(enable_timing=True) for _ in range(2))
            begun.record()
            for _ in range(count):
                replay()
            ended.record()
            ended.synchronize()
            return begun.elapsed_time(ended) * 1000 / count
        replay()
        return timed(max(1, min(1000, int(least * 1e6 / max(timed(2), 1)))))

    def host_us(self, replay, least):
        """With the launch and the wait."""
        took, begun = [], time.perf_counter()
        while len(took) < 20 or time.perf_counter() - begun < least:
            start = time.perf_counter()
            replay()
            self.torch.cuda.synchronize()
            took.append(time.perf_counter() - start)
        return statistics.median(took) * 1e6

    def error(self, a, b, c):
        wanted = self.torch.matmul(a.double(), b.double())
        return float((wanted - c.double()).abs().max() / wanted.square().mean().sqrt())

    def roof(self):
        torch = self.torch
        of = torch.zeros(256 << 20, dtype=torch.uint8, device="cuda")
        to = torch.empty_like(of)
        copied = 2 * of.numel() / min(self.us(lambda: to.copy_(of), 0.05) for _ in range(3))
        a, b = self.random((8192, 8192), 1), self.random((8192, 8192), 2)
        c = self.empty((8192, 8192))
        return copied, flops((8192, 8192, 8192)) / min(self.us(self.one(a, b, c), 0.05) for _ in range(3))


class Made:
    """A tensor's capsule, made before a capture: making it may look at streams."""

    def __init__(self, tensor):
        self.tensor = tensor
        self.capsule = tensor.__dlpack__() if isinstance(tensor, np.ndarray) else tensor.__dlpack__(stream=-1)

    def __dlpack__(self):
        return self.capsule


class Run:
    def __init__(self, options):
        self.options, self.begun, self.failures = options, time.monotonic(), []
        self.work = pathlib.Path(options.work)
        self.work.mkdir(parents=True, exist_ok=True)
        self.rows, self.together, self.mixed, self.roofs, self.left_out = [], [], [], {}, 0
        self.on_cpu = options.device == "cpu"
        self.shapes = options.shapes.split(",")
        self.precisions = options.precisions.split(",")
        self.runs = sorted({int(word) for word in options.runs.split(",")}, key=lambda r: (TELLING.index(r) if r in TELLING else len(TELLING), r))
        self.weights_at = [int(word) for word in options.weights_at.split(",") if word]
        self.together_at = [int(word) for word in options.together_at.split(",") if word]
        self.environment = os.environ | {"OBELISK_CACHE": str(self.work / "cache"), "OMP_NUM_THREADS": "2"}
        self.sms = options.sms or (2 if self.on_cpu else count_sms())
        self.programs = {}  # name: a future of what went wrong
        self.device = None

    def left(self, most=None):
        return max(1.0, min(most or self.options.timeout, self.options.budget - (time.monotonic() - self.begun)))

    def over(self):
        return time.monotonic() - self.begun > self.options.budget

    def fail(self, what, why):
        self.failures.append(f"{what}: {str(why).strip()[-300:]}")
        say(f"FAILED {what}: {str(why).strip()[-1500:]}")

    # ---- what is compiled ----

    def compile(self, name, precision, granularity, dispatch="waves"):
        made = self.work / f"{name}.obk"
        if made.exists():
            return ""
        if self.over():
            return "not begun: the budget is over"
        words = [BIN / "obelisk", "compile", self.work / f"{name.removesuffix('.' + granularity)}.onnx", "-o", made, "--target", self.options.target,
                 "--sms", self.sms, "--precision", "keep" if precision == "bf16" else precision, "--verify", "off"]
        words += ["--granularity", granularity, *(["--dispatch", dispatch] if granularity == "stitch" else [])] if not self.on_cpu else []
        code, _, err = call(words, self.left(), env=self.environment)
        return "" if code == 0 else f"compile: {err or code}"

    def choose_dispatch(self, precision):
        """The order and lanes of the mixed graph are measured, so now that nothing else uses the GPU."""
        name = f"mixed{self.options.mixed}.stitch.{precision}.stitch"
        if self.programs[name]:
            return
        (self.work / f"{name}.obk").unlink()
        if why := self.compile(name, precision, "stitch", "auto"):
            self.programs[name] = why
            self.fail(f"{name}, dispatch", why)

    def compile_together(self, shape, precision, runs):
        """The code of programs that share launches, into the cache."""
        if self.over():
            return "not begun: the budget is over"
        words = self.together_words(shape, precision, [runs])
        code, _, err = call([*words, "--compile-only"], self.left(), env=self.environment)
        return "" if code == 0 else f"compile: {err or code}"

    def together_words(self, shape, precision, runs):
        models = [self.work / f"one.{shape}.{precision}.{seed}.onnx" for seed in range(2)]
        return [BIN / "tenants", "super-kernels", *models, "--runs", ",".join(map(str, runs)), "--target", self.options.target, "--sms", self.options.together_sms,
                "--precision", "keep" if precision == "bf16" else precision, "--granularity", "stitch", "--seconds", self.options.seconds, "--programs", self.options.programs]

    def prepare(self):
        """All models and programs, in parallel: those that take longest, then the first cases."""
        pool = concurrent.futures.ThreadPoolExecutor(self.options.jobs)
        def later(name, precision, granularity, write, *how):
            path = self.work / f"{name}.onnx"
            def make():
                write(path, *how)
                return self.compile(f"{name}.{granularity}", precision, granularity)
            self.programs[f"{name}.{granularity}"] = pool.submit(make)
        shapes = problems(self.options.mixed)
        for precision in self.precisions if self.options.mixed else ():
            for granularity in ("mono", "stitch"):
                # One model, but a file for each, as they are written at once.
                later(f"mixed{len(shapes)}.{granularity}.{precision}", precision, granularity, write_mixed, shapes, precision)
        for runs in self.runs:
            for shape in self.shapes:
                for precision in self.precisions:
                    later(f"{shape}.{precision}.{runs}", precision, "stitch", write_batch, SHAPES[shape], runs, precision)
                    if runs in self.weights_at:
                        later(f"{shape}.{precision}.{runs}.weights", precision, "stitch", write_batch, SHAPES[shape], runs, precision, runs)
        for shape in self.shapes if self.together_at else ():
            for precision in self.precisions:
                for seed in range(2):
                    write_one(self.work / f"one.{shape}.{precision}.{seed}.onnx", SHAPES[shape], precision, seed)
                for runs in self.together_at:
                    self.programs[f"together.{shape}.{precision}.{runs}"] = pool.submit(self.compile_together, shape, precision, runs)
        concurrent.futures.wait(self.programs.values())
        pool.shutdown()
        for name, future in self.programs.items():
            why = future.exception() or future.result()
            if why:
                self.fail(name, why)
            self.programs[name] = why
        for precision in self.precisions if self.options.mixed and not self.on_cpu else ():
            self.choose_dispatch(precision)
        say(f"{time.monotonic() - self.begun:6.1f} s  {sum(not why for why in self.programs.values())} of {len(self.programs)} programs are there")

    def open(self, name):
        if self.programs[name]:
            raise RuntimeError(f"{name} was not compiled")
        return tensors.Network(str(BIN / "libtensors.so"), self.work / f"{name}.obk", self.options.target)

    # ---- what is measured ----

    def in_turns(self, ways):
        """{way: microseconds of a call}: the median of some turns. `ways`: replay, calls in it."""
        took = {way: [] for way in ways}
        for _ in range(TURNS):
            for way, (replay, count) in ways.items():
                took[way].append(self.device.us(replay, self.options.seconds / 20) / count)
        return {way: statistics.median(times) for way, times in took.items()}

    def calls_of(self, networks, sets):
        """A call for each set of tensors by port; networks take turns. What a capture must not do is done first."""
        made = [{(side, name): Made(tensor) for (side, name), tensor in one.items()} for one in sets]
        def run(network, one):
            for (side, name), tensor in one.items():
                network.bind(side, name, tensor)
            self.device.run(network)
        return [lambda network=networks[k % len(networks)], one=one: run(network, one) for k, one in enumerate(made)]

    def sets_for(self, size):
        return max(1, min(128, math.ceil(2 * self.device.cache / size)))

    def case(self, shape_name, precision, runs):
        shape, device = SHAPES[shape_name], self.device
        rows, columns, depth = shape
        size = numbers(shape, 2 if precision == "bf16" else 4) * runs
        sets = self.sets_for(size)
        a = [device.random((runs, rows, depth), 3 * k + 1) for k in range(sets)]
        b = [device.random((runs, depth, columns), 3 * k + 2) for k in range(sets)]
        outs, ways, kept, told = {}, {}, [], []

        def add(way, make, calls=sets, streams=1, graph=True):
            """Errors leave a way out, not the others."""
            try:
                outs[way] = [device.empty((runs, rows, columns)) for _ in range(sets)]
                made = make(outs[way])
                replay = device.captured(made, streams) if graph else (lambda: [each() for each in made])
                replay()
                ways[way] = (replay, calls)
            except Exception as error:
                told.append(way)
                self.fail(f"{shape_name} {precision} {runs} {way}", error)

        def ours(c):
            kept.append(self.open(f"{shape_name}.{precision}.{runs}.stitch"))
            return self.calls_of(kept[-1:], [{("in", "a"): a[k], ("in", "b"): b[k], ("out", "c"): c[k]} for k in range(sets)])
        def weights(c):
            networks = [self.open(f"{shape_name}.{precision}.{runs}.weights.stitch") for _ in range(min(sets, 64))]
            kept.extend(networks)
            return self.calls_of(networks, [{("in", "a"): a[k], ("out", "c"): c[k]} for k in range(sets)])
        def singles(c):
            return [[device.one(a[k][r], b[k][r], c[k][r]) for r in range(runs)] for k in range(sets)]
        add("ours", ours)
        add("batched", lambda c: [device.batched(a[k], b[k], c[k]) for k in range(sets)])
        add("one_at_a_time", lambda c: sum(singles(c), []))
        if runs in self.weights_at:
            add("weights", weights)
        if device.more_ways:
            transposed = [each.transpose(1, 2).contiguous().transpose(1, 2) for each in b]
            add("batched_t", lambda c: [device.batched(a[k], transposed[k], c[k]) for k in range(sets)])
            if runs > 1:
                add("streams", singles, streams=min(16, runs))
            add("eager", lambda c: sum(singles(c), []), graph=False)
            add("eager_batched", lambda c: [device.batched(a[k], b[k], c[k]) for k in range(sets)], graph=False)
        us = self.in_turns(ways)
        errors = {}
        for way in ways:
            b_of = [device.of(weights_of((runs, depth, columns), runs))] * sets if way == "weights" else b
            errors[way] = max(device.error(a[k], b_of[k], outs[way][k]) for k in {0, sets - 1})
            if not errors[way] <= TOLERANCE[precision]:
                self.fail(f"{shape_name} {precision} {runs} {way}", f"error {errors[way]:.2g}, {TOLERANCE[precision]:.2g} is allowed")
        bytes_per_us, flops_per_us = self.roofs[precision]["bytes_per_us"], self.roofs[precision]["flops_per_us"]
        roof = max(size / bytes_per_us, runs * flops(shape) / flops_per_us)
        row = {"shape": shape_name, "rows": rows, "columns": columns, "depth": depth, "precision": precision, "runs": runs, "sets": sets, "bytes": size,
               "us": {way: round(value, 3) for way, value in us.items()},
               "tflops": {way: round(runs * flops(shape) / value / 1e6, 3) for way, value in us.items()},
               "errors": {way: float(f"{value:.3g}") for way, value in errors.items()}, "roof_us": round(roof, 3)}
        if "ours" in us:
            best = min((us[way] for way in ("batched", "batched_t") if way in us), default=None)
            row["share_of_roof"] = round(roof / us["ours"], 3)
            row["over_batched"] = round(best / us["ours"], 3) if best else None
            row["over_one_at_a_time"] = round(us["one_at_a_time"] / us["ours"], 3) if "one_at_a_time" in us else None
            row["over_streams"] = round(us["streams"] / us["ours"], 3) if "streams" in us else None
        self.rows.append(row)
        say(f"{time.monotonic() - self.begun:6.1f} s  {shape_name:7} {precision} {runs:4}   " + "  ".join(f"{way} {value:.2f}" for way, value in us.items()) + f"   roof {roof:.2f} us")

    def measure_together(self, shape_name, precision):
        """R programs in one launch, by the host's clock."""
        runs = [r for r in self.together_at if not self.programs[f"together.{shape_name}.{precision}.{r}"]]
        if not runs:
            return
        shape, answers = SHAPES[shape_name], self.work / f"answers.{shape_name}.{precision}"
        rows, columns, depth = shape
        shutil.rmtree(answers, ignore_errors=True)
        code, out, err = call([*self.together_words(shape_name, precision, runs), "--answers", answers], self.left(), env=self.environment)
        lines = [json.loads(line) for line in out.splitlines() if line.startswith("{")]
        if code != 0 or len(lines) < len(runs):
            self.fail(f"together {shape_name} {precision}", next((line["error"] for line in lines if "error" in line), err or f"exit {code}: {out[-300:]}"))
        def numbers_of(file):
            if precision != "bf16":
                return np.fromfile(file, np.float32)
            return (np.fromfile(file, np.uint16).astype(np.uint32) << 16).view(np.float32)
        b = [rounded(weights_of((depth, columns), seed), precision).astype(np.float64) for seed in range(2)]
        for line in lines:
            if "error" in line:
                continue
            error, count = 0.0, line["runs"]
            for k in range(count):
                a = numbers_of(answers / f"{count}.{k}.a.bin").reshape(rows, depth)
                wanted = a.astype(np.float64) @ b[k % 2]
                c = numbers_of(answers / f"{count}.{k}.c.bin").reshape(rows, columns)
                error = max(error, float(np.abs(wanted - c).max() / np.sqrt(np.mean(wanted**2))))
            a, b_all = self.device.random((count, rows, depth), 1), self.device.random((count, depth, columns), 2)
            c = self.device.empty((count, rows, columns))
            batched = self.device.host_us(self.device.captured([self.device.batched(a, b_all, c)]), self.options.seconds / 4)
            row = {"shape": shape_name, "precision": precision, **line, "error": float(f"{error:.3g}"), "batched_graph_us": round(batched, 2),
                   "over_one_by_one": round(line["one_by_one_us"] / line["together_us"], 3), "over_batched": round(batched / line["together_us"], 3)}
            self.together.append(row)
            if not error <= TOLERANCE[precision]:
                self.fail(f"together {shape_name} {precision} {count}", f"error {error:.2g}, {TOLERANCE[precision]:.2g} is allowed")
            say(f"{time.monotonic() - self.begun:6.1f} s  {shape_name:7} {precision} {count:4} programs together {line['together_us']:.1f} us, in turn {line['one_by_one_us']:.1f}, a graph of torch.bmm {batched:.1f}, launch and wait included")

    def measure_mixed(self, precision):
        device, shapes = self.device, problems(self.options.mixed)
        element = 2 if precision == "bf16" else 4
        size = sum(numbers(shape, element) for shape in shapes)
        sets = max(2, min(8, self.sets_for(size)))
        a = [[device.random((rows, depth), 100 * s + k) for k, (rows, _, depth) in enumerate(shapes)] for s in range(sets)]
        b = [[device.of(weights_of((depth, columns), k)) for k, (_, columns, depth) in enumerate(shapes)] for s in range(sets)]
        ways, outs, kept = {}, {}, []

        def add(way, make, streams=1):
            try:
                outs[way] = [[device.empty((rows, columns)) for rows, columns, _ in shapes] for _ in range(sets)]
                replay = device.captured(make(outs[way]), streams)
                replay()
                ways[way] = (replay, sets)
            except Exception as error:
                self.fail(f"mixed {precision} {way}", error)

        def ours(granularity):
            def make(c):
                networks = [self.open(f"mixed{len(shapes)}.{granularity}.{precision}.{granularity}") for _ in range(sets)]
                kept.extend(networks)
                return self.calls_of(networks, [{("in", f"a{k}"): a[s][k] for k in range(len(shapes))} | {("out", f"c{k}"): c[s][k] for k in range(len(shapes))} for s in range(sets)])
            return make
        def singles(c):
            return [[device.one(a[s][k], b[s][k], c[s][k]) for k in range(len(shapes))] for s in range(sets)]
        add("mono", ours("mono"))
        add("stitch", ours("stitch"))
        add("one_at_a_time", lambda c: sum(singles(c), []))
        if device.more_ways:
            add("streams", singles, streams=16)
        us = self.in_turns(ways)
        errors = {way: max(device.error(a[s][k], b[s][k], outs[way][s][k]) for s in {0, sets - 1} for k in range(len(shapes))) for way in ways}
        for way, error in errors.items():
            if not error <= TOLERANCE[precision]:
                self.fail(f"mixed {precision} {way}", f"error {error:.2g}, {TOLERANCE[precision]:.2g} is allowed")
        work = sum(map(flops, shapes))
        roof = max(size / self.roofs[precision]["bytes_per_us"], work / self.roofs[precision]["flops_per_us"])
        row = {"precision": precision, "products": len(shapes), "sets": sets, "bytes": size, "flops": work, "us": {way: round(value, 2) for way, value in us.items()},
               "tflops": {way: round(work / value / 1e6, 3) for way, value in us.items()}, "errors": {way: float(f"{value:.3g}") for way, value in errors.items()},
               "roof_us": round(roof, 2), "share_of_roof": {way: round(roof / value, 3) for way, value in us.items()}}
        theirs = min((us[way] for way in ("one_at_a_time", "streams") if way in us), default=None)
        for way in ("mono", "stitch"):
            if way in us and theirs:
                row[f"{way}_over_torch"] = round(theirs / us[way], 3)
        self.mixed.append(row)
        say(f"{time.monotonic() - self.begun:6.1f} s  mixed of {len(shapes)} {precision}   " + "  ".join(f"{way} {value:.1f}" for way, value in us.items()) + f"   roof {roof:.1f} us")

    # ---- what is told ----

    def summary(self):
        """Geometric means over R from 2 on, and the largest fall of TFLOP/s from one R to the next, in steps of 8."""
        out = []
        for shape in self.shapes:
            for precision in self.precisions:
                rows = sorted((row for row in self.rows if row["shape"] == shape and row["precision"] == precision), key=lambda row: row["runs"])
                one = {"shape": shape, "precision": precision}
                for name in ("over_batched", "over_one_at_a_time", "over_streams", "share_of_roof"):
                    values = [row[name] for row in rows if row["runs"] >= 2 and row.get(name)]
                    one[name] = round(statistics.geometric_mean(values), 3) if values else None
                one["saw_tooth"] = {way: largest_fall([(row["runs"], row["tflops"][way]) for row in rows if way in row["tflops"]], self.options.step) for way in ("ours", "batched")}
                if rows:
                    out.append(one)
        return out

    def write(self):
        if not self.options.out:
            return
        body = {
            "what": "microseconds of a call of R products, operands and answers in the GPU's memory and not in its L2 cache (sets of operands in rotation); over_...: how many times as long the others take (batched: the quicker of both forms of torch.bmm); share_of_roof: roof_us over ours. together: by the host's clock, launch and wait included, programs made for the GPU's SMs over R. saw_tooth: the largest fall of TFLOP/s from one R to the next in steps of 8",
            "tolerance": TOLERANCE, "roofs": self.roofs, "summary": self.summary(), "mixed": self.mixed, "together": self.together, "rows": self.rows,
            "left_out": self.left_out, "seconds": round(time.monotonic() - self.begun, 1), "failures": self.failures,
        }
        write_record(self.options.out, "gpu_super_kernels.py", body)

    def all(self):
        self.prepare()
        devices = {}
        for precision in self.precisions:
            try:
                devices[precision] = (Cpu if self.on_cpu else Gpu)(precision)
                bytes_per_us, flops_per_us = devices[precision].roof()
                self.roofs[precision] = {"bytes_per_us": round(bytes_per_us), "flops_per_us": round(flops_per_us), "l2_bytes": devices[precision].cache}
            except Exception as error:
                self.fail(precision, error)
        cases = [(self.case, shape, precision, runs) for runs in self.runs for shape in self.shapes for precision in self.precisions]
        first = len([runs for runs in self.runs if runs in TELLING]) * len(self.shapes) * len(self.precisions)
        aside = [(self.measure_mixed, precision) for precision in self.precisions if self.options.mixed]
        aside += [(self.measure_together, shape, precision) for shape in self.shapes for precision in self.precisions if self.together_at]
        for part, *how in cases[:first] + aside + cases[first:]:
            precision = how[-1] if part != self.case else how[1]
            if self.over():
                self.left_out += 1
                continue
            if precision not in self.roofs:
                continue
            self.device = devices[precision]
            if not self.on_cpu:
                self.device.torch.backends.cuda.matmul.allow_tf32 = precision == "tf32"
            try:
                part(*how)
            except Exception as error:
                self.fail(" ".join(map(str, [part.__name__, *how])), f"{type(error).__name__}: {error}")
            self.write()
        self.write()
        for one in self.summary():
            say(json.dumps(one))
        say(f"{len(self.failures)} failures, {self.left_out} parts left out")
        return min(len(self.failures), 100)


def largest_fall(points, step):
    """Of what is a multiple of `step`: {from, to, fall}, the share of TFLOP/s that is lost; nothing where it never falls."""
    points = [point for point in points if point[0] % step == 0]
    falls = [{"from": before[0], "to": after[0], "fall": round(1 - after[1] / before[1], 4)} for before, after in zip(points, points[1:]) if after[1] < before[1]]
    return max(falls, key=lambda one: one["fall"], default=None)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--shapes", default=",".join(SHAPES))
    parser.add_argument("--precisions", default="fp32,tf32,bf16")
    parser.add_argument("--runs", default=",".join(map(str, RUNS)), help="R")
    parser.add_argument("--weights-at", default="1,8,32,120", help="R of which there are also programs with constant weights; empty: none")
    parser.add_argument("--together-at", default="2,8,32,120", help="R of programs in one launch; empty: none")
    parser.add_argument("--together-sms", type=int, default=0, help="that those are made for; 0: the GPU's over R")
    parser.add_argument("--programs", type=int, default=128, help="that are loaded at most, to be run together in rotation")
    parser.add_argument("--mixed", type=int, default=MIXED, help="products of various shapes; 0: none")
    parser.add_argument("--step", type=int, default=8, help="of R, for the saw-tooth")
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda")
    parser.add_argument("--sms", type=int, default=0, help="of the machine; 0: as many as the GPU has")
    parser.add_argument("--seconds", type=float, default=0.1, help="that a way is timed: a twentieth of it in each of five turns")
    parser.add_argument("--timeout", type=float, default=200, help="seconds of one compilation")
    parser.add_argument("--budget", type=float, default=900, help="seconds of everything")
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1, help="compilations at once")
    parser.add_argument("--work", default=os.environ.get("TMPDIR", "/tmp") + "/obelisk-super-kernels")
    parser.add_argument("--out", help="a JSON file for the rows")
    options = parser.parse_args()
    options.target = options.device
    wrong = set(options.shapes.split(",")) - set(SHAPES) | set(options.precisions.split(",")) - set(TOLERANCE)
    if wrong:
        parser.error(f"there is no {', '.join(sorted(wrong))}; shapes: {', '.join(SHAPES)}; precisions: {', '.join(TOLERANCE)}")
    return Run(options).all()


if __name__ == "__main__":
    sys.exit(main())
