"""How much of its time a chain of kernels hides behind another: GEMMs, copies, softmaxes and depthwise convolutions, each beside each.

    python bench/micro/overlap.py build/bin/obelisk OUT.json [--pairs gemm+copy,copy+copy] [--ways stitch,mono,streams] [--seconds 1]

Chains A, B and a graph with A beside B, of inputs of their own, are written as ONNX. Each chain is measured alone first, and gets as many
steps as make it about as long as the chain of GEMMs. Ways: `stitch`, as branches of a graph of kernels, a kernel a step, one after another
(`sequential`), and by the dispatches `opara` and `critical`; `op`, the same with a kernel an op: a softmax is several of them, and a copy;
`mono`, inside one kernel; `streams`, as two graphs of a kernel a step on streams of their own (the program `streams` beside obelisk).
A row has the times alone, a and b, that of both, and `overlap`, (a + b - both) / min(a, b): 0 where both take as long as one after another, 1
where the shorter one costs nothing. Rows are written as they come; what fails is told and left out. --target cpu: the same on a CPU, for
trying the script, with small shapes (--small). Needs onnx and numpy.
"""
import argparse
import concurrent.futures
import datetime
import itertools
import json
import math
import pathlib
import subprocess
import sys
import tempfile

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

KINDS = ("gemm", "copy", "softmax", "depthwise")
DISPATCHES = ("sequential", "opara", "critical")
GRAPHS = ("stitch", "op")
FIRST, MOST = 4, 64  # steps of a chain when it is first measured, and at most


def shape_of(kind, small):
    shapes = {"gemm": (2048, 2048), "copy": (8192, 2048), "softmax": (4096, 2048), "depthwise": (8, 256, 56, 56)}
    return tuple(max(2, extent // 16) for extent in shapes[kind]) if small else shapes[kind]


class Branches:
    """A graph of chains side by side."""

    def __init__(self, small):
        self.small, self.nodes, self.weights, self.inputs, self.outputs = small, [], [], [], []

    def add(self, op, inputs, **attributes):
        self.nodes.append(helper.make_node(op, inputs, [f"v{len(self.nodes)}"], **attributes))
        return self.nodes[-1].output[0]

    def weight(self, values):
        self.weights.append(numpy_helper.from_array(values, f"w{len(self.weights)}"))
        return self.weights[-1].name

    def chain(self, kind, count):
        shape, at = shape_of(kind, self.small), f"x{len(self.inputs)}"
        random = np.random.default_rng(len(self.inputs) + 1)
        self.inputs.append(helper.make_tensor_value_info(at, TensorProto.FLOAT16, shape))
        if kind == "gemm":  # one weight for all, so that it stays in the second-level cache
            weight = self.weight((random.standard_normal(shape[1:] * 2) / math.sqrt(shape[1])).astype(np.float16))
        elif kind == "depthwise":
            weight = self.weight((random.standard_normal((shape[1], 1, 3, 3)) / 3).astype(np.float16))
        elif kind == "softmax":
            rows = [self.weight(np.array(dims)) for dims in (shape, (shape[0] // 2, 2 * shape[1]))]
        elif kind == "copy":
            half, end, axis, zero = (self.weight(np.array([value])) for value in (shape[0] // 2, shape[0], 0, 0))
        for step in range(count):
            if kind == "gemm":
                at = self.add("MatMul", [at, weight])
            elif kind == "softmax":  # of rows of one length and of twice that in turn, so that none becomes a part of another's kernel
                at = self.add("Softmax", [self.add("Reshape", [at, rows[step % 2]])], axis=-1)
            elif kind == "depthwise":
                at = self.add("Conv", [at, weight], group=shape[1], kernel_shape=[3, 3], pads=[1] * 4)
            else:  # what lies half the rows on is added, so that none becomes a part of another's kernel
                moved = [self.add("Slice", [at, half, end, axis]), self.add("Slice", [at, zero, half, axis])]
                at = self.add("Add", [at, self.add("Concat", moved, axis=0)])
        if kind == "softmax":
            at = self.add("Reshape", [at, rows[0]])
        self.outputs.append(helper.make_tensor_value_info(at, TensorProto.FLOAT16, shape))

    def write(self, path):
        graph = helper.make_graph(self.nodes, path.stem, self.inputs, self.outputs, self.weights)
        onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=9), path)
        return path


class Probe:
    def __init__(self, options, folder):
        self.options, self.folder = options, pathlib.Path(folder)
        self.lengths, self.alone = {}, {}  # by way and kind
        self.rows, self.failed = [], []

    def graph(self, *chains):
        """The file of (kind, kernels) side by side."""
        path = self.folder / ("_".join(f"{kind}{count}" for kind, count in chains) + ".onnx")
        if not path.exists():
            branches = Branches(self.options.small)
            for chain in chains:
                branches.chain(*chain)
            branches.write(path)
        return path

    def call(self, *words):
        done = subprocess.run([str(word) for word in words], capture_output=True, text=True, timeout=self.options.timeout)
        if done.returncode != 0:
            raise RuntimeError(f"{' '.join(map(str, words))}: {done.stderr.strip()[-600:] or done.returncode}")
        return json.loads(done.stdout)

    def bench(self, path, way, dispatches):
        """Microseconds by dispatch, and the number of kernels."""
        words = ["--target", self.options.target, "--precision", "keep", "--verify", "off", "--seconds", self.options.seconds, "--json"]
        if self.options.target != "cpu":
            words += ["--granularity", way] + (["--dispatch", ",".join(dispatches)] if way in GRAPHS else [])
        answer = self.call(self.options.obelisk, "bench", path, *words)
        told = answer.get("granularities") or [answer]
        if len(told) == 1:
            dispatches = dispatches[:1]
        times = [one["device_us"] if "device_us" in one else one["latency_us"] for one in told]
        return {dispatch: time["median"] for dispatch, time in zip(dispatches, times)}, told[0].get("launches", 1)

    def warm(self, way, graphs):
        """Machine code in the cache, of all at once: nothing is timed here."""
        if self.options.target == "cpu":
            return

        def compile(path):
            try:
                self.call(self.options.obelisk, "compile", path, "--target", self.options.target, "--granularity", way, "--precision", "keep",
                          "--verify", "off", "--to", "load", "--json")
            except (RuntimeError, ValueError, subprocess.TimeoutExpired):
                pass  # it is told where it is measured

        with concurrent.futures.ThreadPoolExecutor(8) as pool:
            list(pool.map(compile, {self.graph(*chains): None for chains in graphs}))

    def time_alone(self, way, kind, count):
        us, launches = self.bench(self.graph((kind, count)), way, ["sequential"])
        return us["sequential"], launches

    def settle(self, way):
        """Lengths of the chains, so that all take about as long, and their times."""
        counts, kinds = {}, [kind for kind in KINDS if any(kind in pair for pair in self.options.pairs)]
        self.warm(way, [[(kind, count)] for kind in kinds for count in (FIRST, 2 * FIRST)])
        for kind in kinds:
            try:
                short, _ = self.time_alone(way, kind, FIRST)
                long, _ = self.time_alone(way, kind, 2 * FIRST)
                step = (long - short) / FIRST  # without what is paid once
                counts[kind] = (short, max(step, short / FIRST / 10))
            except (RuntimeError, ValueError, KeyError, subprocess.TimeoutExpired) as error:
                self.tell(f"{kind} alone, {way}", error)
        if not counts:
            return
        short, step = counts.get("gemm", max(counts.values(), key=lambda one: one[1]))
        aim = short + step * FIRST
        for kind, (short, step) in counts.items():
            count = min(max(round(FIRST + (aim - short) / step), 2), MOST)
            try:
                us, launches = self.time_alone(way, kind, count)
            except (RuntimeError, ValueError, KeyError, subprocess.TimeoutExpired) as error:
                self.tell(f"{kind} alone, {way}", error)
                continue
            self.lengths[way, kind], self.alone[way, kind] = count, us
            print(f"{way:8} {kind:10} {count:3} steps, {launches:3} kernels, {us:9.1f} us alone", flush=True)

    def pair(self, way, a, b):
        lengths = "stitch" if way == "streams" else way
        if (lengths, a) not in self.lengths or (lengths, b) not in self.lengths:
            return
        chains = [(kind, self.lengths[lengths, kind]) for kind in (a, b)]
        row = {"a": a, "b": b, "steps": [count for _, count in chains]}
        if way == "streams":
            told = self.call(self.options.streams, *(self.graph(chain) for chain in chains), "--target", self.options.target)
            if not told["same_bits"]:
                raise ValueError("answers side by side have other bits")
            self.keep(row, "streams", told["a_us"], told["b_us"], told["both_us"])
            return
        both, launches = self.bench(self.graph(*chains), way, DISPATCHES if way in GRAPHS else ("mono",))
        for dispatch, us in both.items():
            self.keep(row | {"kernels": launches}, f"{way} {dispatch}" if way in GRAPHS else way,
                      self.alone[way, a], self.alone[way, b], us)

    def keep(self, row, way, a_us, b_us, both_us):
        row = row | {"way": way, "a_us": a_us, "b_us": b_us, "both_us": both_us, "overlap": (a_us + b_us - both_us) / min(a_us, b_us)}
        self.rows.append(row)
        print(f"{way:14} {row['a'] + '+' + row['b']:21} {a_us:9.1f} and {b_us:9.1f} us, both {both_us:9.1f} us, overlap {row['overlap']:6.3f}", flush=True)
        self.write()

    def tell(self, what, error):
        self.failed.append(what)
        print(f"FAILED {what}: {error}", file=sys.stderr, flush=True)
        self.write()

    def write(self):
        alone = [{"way": way, "kind": kind, "steps": self.lengths[way, kind], "us": us} for (way, kind), us in self.alone.items()]
        body = {"device": device(), "date": str(datetime.date.today()), "command": " ".join(["bench/micro/overlap.py", *sys.argv[1:]]),
                "shapes": {kind: shape_of(kind, self.options.small) for kind in KINDS}, "alone": alone, "rows": self.rows, "failed": self.failed}
        self.options.out.write_text(json.dumps(body, indent=1) + "\n")

    def measure(self):
        ways = self.options.ways
        for way in (*GRAPHS, "mono"):
            if way in ways or (way == "stitch" and "streams" in ways):
                self.settle(way)
        for way in ways:
            self.warm(way, [[(kind, self.lengths[way, kind]) for kind in pair] for pair in self.options.pairs
                            if all((way, kind) in self.lengths for kind in pair)])
        for way, (a, b) in itertools.product(ways, self.options.pairs):
            try:
                self.pair(way, a, b)
            except (RuntimeError, ValueError, KeyError, OSError, subprocess.TimeoutExpired) as error:
                self.tell(f"{a} beside {b}, {way}", error)
        self.write()
        return min(len(self.failed), 100)


def device():
    try:
        said = subprocess.run(["nvidia-smi", "--query-gpu=name,driver_version", "--format=csv,noheader"], capture_output=True, text=True)
        return said.stdout.strip().splitlines()[0]
    except (OSError, IndexError):
        return "none"


def pairs(text):
    found = [tuple(one.split("+")) for one in text.split(",")]
    if not all(len(one) == 2 and set(one) <= set(KINDS) for one in found):
        raise argparse.ArgumentTypeError(f"pairs of {', '.join(KINDS)}, such as gemm+copy")
    return found


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("obelisk", type=lambda word: pathlib.Path(word).resolve())
    parser.add_argument("out", type=pathlib.Path)
    parser.add_argument("--pairs", type=pairs, default=list(itertools.combinations_with_replacement(KINDS, 2)))
    parser.add_argument("--ways", type=lambda text: text.split(","), default=["stitch", "mono", "streams"], help="of stitch, op, mono, streams")
    parser.add_argument("--streams", help="the program; otherwise beside obelisk")
    parser.add_argument("--target", default="cuda")
    parser.add_argument("--small", action="store_true", help="shapes for a try on a CPU")
    parser.add_argument("--seconds", type=float, default=0.5, help="of each measurement")
    parser.add_argument("--timeout", type=float, default=180, help="of each process, in seconds")
    options = parser.parse_args()
    options.streams = options.streams or options.obelisk.parent / "streams"
    with tempfile.TemporaryDirectory() as folder:
        return Probe(options, folder).measure()


if __name__ == "__main__":
    sys.exit(main())
