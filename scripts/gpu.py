#!/usr/bin/env python3
"""Everything that wants a GPU, in one go: tests, networks, times beside PyTorch and XLA, as JSON.

    gpu.py tests [--jobs 8]                       every test program, in shards, and what they said
    gpu.py models                                 writes the networks as ONNX, weights random
    gpu.py run    [--models A,B] [--granularity mono]     answers against PyTorch in f32
    gpu.py bench  [--models A,B] [--granularity op,stitch,mono]     device time and latency
    gpu.py peers  [--models A,B] [--ways eager,graph,compile,max-autotune,xla]
    gpu.py auto   [--models A,B]                  what `auto` chose beside each granularity
    gpu.py dispatch [--models A,B] [--dispatches waves,opara] [--orders 20]     orders of a graph's kernels, in turn
    gpu.py ablation [--models A,B] [--granularity op]     the dispatch opara without each of its parts
    gpu.py priorities                             whether the GPU begins kernels in the order of their priorities
    gpu.py profiler [--models A,B]                kernels of `op` by their own time stamps and by ncu
    gpu.py profile [--models A,B] [--granularity mono]    a table per phase
    gpu.py launches [--models A,B] [--granularity mono]   what a run gives the GPU to do, as its profiling library counts
    gpu.py sanitize [--tools racecheck] [--jobs 8]        device blocks under compute-sanitizer
    gpu.py all                                    all of it, in this order
    gpu.py random [--seeds 1:10000] [--budget 540]        random graphs beside the interpreter (random_graphs_gpu), not part of all

Networks are exported, compiled and made ready for both sides in parallel (--jobs), and timed one at
a time: `gpu.py models run bench peers` is one run that has both sides at one commit. A network's
precision may stand behind its name: --models bert_b1,softmax_8192@fp32. Sides that are not ready
--timeout seconds after the first began are told as failures, and the others are timed.

Works in the folder that scripts/pack.sh makes, and in a checkout with a build. Each part goes on
after a failure and says what failed; the exit status counts failures. Results: --out FILE.json
(bench/results).
"""

import argparse
import concurrent.futures
import datetime
import functools
import json
import os
import pathlib
import re
import shutil
import statistics
import subprocess
import sys
import threading
import time

HERE = pathlib.Path(__file__).resolve().parent
os.environ.setdefault("OBELISK_PYTHON", sys.executable)  # whose packages have the device compiler
ROOT = HERE.parent
BIN = next(
    (p for p in (ROOT / "bin", ROOT / "build/bin") if (p / "obelisk").exists()), ROOT / "bin"
)
PARTS = ("tests", "models", "run", "bench", "peers", "auto", "profile", "launches", "sanitize")
OF_DISPATCH = ("ablation", "priorities", "profiler")
QUICK = ("eager", "graph", "copy")  # ways of PyTorch that share a process: nothing is compiled
XLA_JOBS = 3  # sides of XLA at once: one compiles, with all cores, the others load
ORDERS_BYTES = 40 << 30  # of workspaces of launch orders that are timed in turn by one process
TESTS = ("gpu_test", "gpu_blocks_test", "batch_test", "instances_test", "api_test")
A_RUN = re.compile(r"a run: (\d+) kernels, (\d+) copies, (\d+) fills")  # of tensors.py --count
TENSORS = """graph "tensors" {
  in %0 "x": f32[3,40,64]
  in %1 "keep": b1[3,40,1]
  in %2 "gain": f16[64]
  const %3: f32[] = 0
  %4: f32[3,40,64] = Where(%1, %0, %3)
  %5: f32[3,40,64] = Softmax(%4) {axis = -1}
  %6: f16[3,40,64] = Cast(%0) {to = 10}
  %7: f16[3,40,64] = Mul(%6, %2)
  out %5 "share"
  out %7 "scores"
}"""


def call(words, timeout, **options):
    """(exit status, standard output, standard error); a command that hangs is ended."""
    try:
        done = subprocess.run(
            [str(w) for w in words], capture_output=True, text=True, timeout=timeout, **options
        )
        return done.returncode, done.stdout, done.stderr
    except subprocess.TimeoutExpired as late:
        text = [
            t.decode(errors="replace") if isinstance(t, bytes) else t or ""
            for t in (late.stdout, late.stderr)
        ]
        return 124, text[0], text[1] + f"\nended after {timeout} s"


def say(*words):
    print(*words, flush=True)


class Session:
    def __init__(self, options):
        self.options, self.failures = options, []
        self.work = pathlib.Path(options.work)
        self.work.mkdir(parents=True, exist_ok=True)
        self.models, self.precisions, self.sides, self.ready = [], {}, {}, False
        self.exported = {}
        for entry in options.models.split(","):
            name, _, precision = entry.partition("@")
            if name in self.models:
                sys.exit(f"gpu.py: {name} is named twice, and a run has one precision of a network; run again for the other one")
            self.models.append(name)
            self.precisions[name] = precision or options.precision
        self.result = {
            "date": datetime.datetime.now(datetime.timezone.utc).strftime("%Y-%m-%d"),
            "commit": self.commit(),
            "command": "gpu.py " + " ".join(sys.argv[1:]),
            "precision": options.precision,
            **self.machine(),
        }

    @staticmethod
    def commit():
        stamp = ROOT / "VERSION"
        if stamp.exists():
            return stamp.read_text().strip()
        if not shutil.which("git"):
            return "unknown"
        return call(["git", "-C", ROOT, "rev-parse", "--short", "HEAD"], 20)[1].strip()

    @staticmethod
    def machine():
        if not shutil.which("nvidia-smi"):
            return {"device": "none", "driver": ""}
        out = call(["nvidia-smi", "--query-gpu=name,driver_version", "--format=csv,noheader"], 60)[
            1
        ]
        name, _, driver = out.strip().partition(", ")
        return {"device": name, "driver": driver}

    def fail(self, what, why):
        self.failures.append(what)
        say(f"FAILED {what}: {why.strip()[-1500:]}")

    def onnx(self, name):
        return self.work / f"{name}.onnx"

    def obelisk(self, *words, timeout=300, under=()):
        return call([*under, BIN / "obelisk", *words], timeout)

    # ---- parts ----
    def tests(self):
        """Each program in as many shards as there are jobs, all of a program's at once."""
        rows = []
        for name in TESTS:
            if not (BIN / name).exists():
                continue
            begin = time.monotonic()
            done = self.in_parallel(lambda shard: self.shard(name, shard), range(self.options.jobs))
            row = {"program": name, "exit": next((code for code, _, _ in done if code != 0), 0)}
            for word in ("passed", "skipped", "failed"):
                found = (re.search(rf"^\[\s+{word.upper()}\s+\] (\d+) test", out, re.M) for _, out, _ in done)
                row[word] = sum(int(number[1]) for number in found if number)
            lines = [line for _, out, _ in done for line in out.splitlines()]
            row["measured"] = [json.loads(line) for line in lines if line.startswith('{"')]
            row["seconds"] = round(time.monotonic() - begin)
            rows.append(row)
            say(f"tests  {name}: " + ", ".join(f"{k} {row[k]}" for k in ("passed", "skipped", "failed", "seconds")))
            for code, out, err in done:
                if code != 0:
                    told = [l for l in out.splitlines() if re.search(r"Failure|FAILED|error|^  ", l)]
                    self.fail(name, f"exit {code}\n" + "\n".join(told[-40:]) + "\n" + err[-800:])
        if not any(row["passed"] for row in rows):
            self.fail("tests", "not one passed")
        self.result["tests"] = rows
        if (BIN / "libtensors.so").exists():
            self.result["tensors"] = self.tensors()

    def shard(self, name, shard):
        shards = {"GTEST_TOTAL_SHARDS": str(self.options.jobs), "GTEST_SHARD_INDEX": str(shard)}
        return call([BIN / name, *self.options.gtest], self.options.timeout, env=os.environ | shards)

    def tensors(self):
        """PyTorch's tensors in place, on its stream, beside NumPy's on the CPU."""
        import numpy
        script = self.tensors_script()
        network, answers = self.work / "tensors.ir", {}
        network.write_text(TENSORS)
        for target in ("cpu", "cuda"):
            kept = self.work / f"tensors.{target}.npz"
            words = (sys.executable, script, BIN / "libtensors.so", network)
            code, out, err = call([*words, "--target", target, "--save", kept], self.options.timeout)
            if code != 0:
                self.fail(f"tensors {target}", err)
                return {"exit": code}
            answers[target] = numpy.load(kept)
        gaps = {
            name: float(abs(answers["cuda"][name].astype(float) - answers["cpu"][name]).max())
            for name in ("scores", "share")
        }
        say(f"tests  tensors of PyTorch: largest difference from the CPU {gaps}")
        _, out, err = call([*words, "--target", "cuda", "--count"], self.options.timeout)
        found = A_RUN.search(out)
        if not found or int(found[1]) == 0 or found[2] != "0" or found[3] != "0":
            self.fail("tensors", f"a run wants kernels alone: {found[0] if found else err}")
        if not all(gap <= 2e-3 for gap in gaps.values()):  # of numbers up to 1, one of them in 16 bits
            self.fail("tensors", f"PyTorch's tensors and the CPU disagree: {gaps}")
        return {"largest_difference": gaps, "a_run": found[0] if found else ""}

    @staticmethod
    def tensors_script():
        return next(p for p in (HERE / "tensors.py", ROOT / "examples/tensors/tensors.py") if p.exists())

    def launches(self):
        """A run of a network on PyTorch's tensors is its kernels, as many as `compile` told, with no copy and no fill beside."""
        rows = []
        if not (BIN / "libtensors.so").exists():
            return self.fail("launches", f"{BIN}/libtensors.so is not there: scripts/pack.sh makes it")
        for name in self.models:
            for granularity in self.options.granularity.split(",") if self.onnx(name).exists() else ():
                made = self.work / f"{name}.{granularity}.obk"
                code, out, err = self.obelisk("compile", self.onnx(name), "-o", made, *self.target(name, granularity), "--verify", "off", "--json")
                if code != 0:
                    self.fail(f"launches {name} {granularity}", err)
                    continue
                told = json.loads(out)["launches"]
                words = (sys.executable, self.tensors_script(), BIN / "libtensors.so", made, "--target", "cuda", "--count")
                _, out, err = call(words, self.options.timeout)
                made.unlink()
                found = A_RUN.search(out)
                rows.append({"model": name, "granularity": granularity, "launches": told, "a_run": found[0] if found else ""})
                say(f"launches {name:16} {granularity:7} {told} told, {found[0] if found else 'nothing counted'}")
                if not found or [int(number) for number in found.groups()] != [told, 0, 0]:
                    self.fail(f"launches {name} {granularity}", f"told are {told} kernels; {found[0] if found else err}")
        self.result["launches"] = rows

    def in_parallel(self, work, items):
        """work(item) for each, by --jobs threads; answers in the order of the items."""
        with concurrent.futures.ThreadPoolExecutor(self.options.jobs) as pool:
            return list(pool.map(work, items))

    def export(self, name):
        """The network as ONNX, by a process of its own; what went wrong, or nothing."""
        if self.onnx(name).exists():
            return ""
        code = "import sys, pathlib, gpu_models\n"
        code += "print(gpu_models.export(sys.argv[1], pathlib.Path(sys.argv[2])))"
        part = self.onnx(name).with_suffix(".part")
        done, out, err = call(
            [sys.executable, "-c", code, name, part], 280, cwd=HERE,
            env=os.environ | {"OMP_NUM_THREADS": "2"},
        )
        if done == 0:
            part.rename(self.onnx(name))
            say(f"models {name}: {int(out) / 1e6:.0f} MB")
        return "" if done == 0 else err[-800:] or f"exit {done}"

    def write_models(self):
        self.exported = {name: threading.Event() for name in self.models}
        self.start_sides()
        def work(name):
            try:
                return self.export(name)
            finally:
                self.exported[name].set()
        for name, why in zip(self.models, self.in_parallel(work, self.models)):
            if why:
                self.fail(f"export {name}", why)

    def target(self, name, granularity):
        return ("--target", "cuda", "--granularity", granularity, "--precision",
                self.precisions[name], *self.options.flags)

    def start_sides(self):
        """PyTorch's sides begin to get ready, and XLA's, in the background: what is quick first,
        each compiler in a process of its own, so that a late one takes no other along."""
        if self.sides or not {"run", "peers"} & set(self.parts):
            return
        import gpu_sides
        log = open(self.work / "peers.log", "w")
        ways = self.options.ways.split(",") if "peers" in self.parts else []
        torch = gpu_sides.Sides(self.options.jobs, self.options.timeout, log)
        xla = gpu_sides.Sides(XLA_JOBS, self.options.timeout, log, helper="jax")
        self.sides = {"PyTorch": torch, "JAX": xla}
        quick = [way for way in ways if way in QUICK]
        compared = "run" in self.parts or "xla" in ways
        for name in self.models:
            kept = self.work / f"{name}.answers.npz" if compared else None
            if quick or kept:
                torch.start(name, self.onnx(name), self.precisions[name], quick, answers=kept)
        for way in ways:
            for name in self.models:
                if way in QUICK:
                    continue
                how = (f"{name} {way}", self.onnx(name), self.precisions[name], [way])
                if way == "xla":
                    xla.start(*how, before=lambda n=name: self.before_xla(n),
                              answers=self.work / f"{name}.answers.npz",
                              tolerance=self.options.tolerance)
                else:
                    more = {"TORCHINDUCTOR_COMPILE_THREADS": "4"} if way == "max-autotune" else {}
                    torch.start(*how, settings=more)

    def before_xla(self, name):
        """The ONNX file is there, and what its outputs are compared with."""
        if name in self.exported:
            self.exported[name].wait(self.sides["JAX"].left())
        self.sides["PyTorch"].settle(name)
        for file, writer in ((self.onnx(name), "gpu.py models"),
                             (self.work / f"{name}.answers.npz", "PyTorch's side")):
            if not file.exists():
                raise FileNotFoundError(f"{file} is not there: {writer} writes it")

    def side_of(self, name, way):
        """(whose sides, the side's name among them)"""
        sides = self.sides["JAX" if way == "xla" else "PyTorch"]
        return sides, name if way in QUICK else f"{name} {way}"

    def prepare(self):
        """Machine code in the cache, and PyTorch's sides, all at once: nothing is timed here."""
        if self.ready:
            return
        self.ready = True
        self.start_sides()
        def compile(which):
            name, granularity = which
            if self.onnx(name).exists():
                self.obelisk("compile", self.onnx(name), *self.target(name, granularity),
                             "--verify", "off", "--to", "load")
        self.in_parallel(compile, [
            (name, granularity) for name in self.models
            for granularity in self.options.granularity.split(",")
        ])
        for who, sides in self.sides.items():
            sides.wait()
            for name, why in sides.errors.items():
                self.fail(f"{who} {name}", why)

    def run(self):
        """Answers beside those of the module in f32 on the GPU."""
        import numpy
        self.prepare()
        def one(which):
            name, granularity = which
            kept = self.work / f"{name}.answers.npz"
            row = {"model": name, "granularity": granularity, "ok": False}
            if name in self.sides["PyTorch"].errors and not kept.exists():
                return row | {"error": "PyTorch gave no answers"}
            both = numpy.load(kept)
            arrays = self.work / f"{name}.{granularity}.npz"
            numpy.savez(arrays, **{str(n): both[f"{k}.in"] for k, n in enumerate(both["names"])})
            folder = self.work / f"answers.{name}.{granularity}"
            shutil.rmtree(folder, ignore_errors=True)
            code, out, err = self.obelisk(
                "run", self.onnx(name), "--inputs", arrays, *self.target(name, granularity),
                "--output-dir", folder, "--json",
            )
            if code != 0:
                return row | {"error": err.strip()[:600]}
            errors = []
            for k, port in enumerate(json.loads(out)["outputs"]):
                reference = both[f"{k}.out"].astype(numpy.float64)
                got = numpy.load(port["file"]).astype(numpy.float64)
                scale = numpy.sqrt(numpy.mean(reference**2)) + 1e-12
                finite = numpy.isfinite(got).all()
                errors.append(
                    float(numpy.max(numpy.abs(got - reference)) / scale) if finite else 1e30
                )
            shutil.rmtree(folder, ignore_errors=True)
            arrays.unlink()
            row |= {"max_error": max(errors), "moved": float(both["moved"].min())}
            if row["max_error"] < self.options.tolerance and not row["max_error"] <= row["moved"] / 2:
                return row | {"error": f"max error {row['max_error']:.2e}, where other inputs move PyTorch's answers by {row['moved']:.2e} of their size, "
                              "says little: give the network weights that let its inputs through (gpu_models.py)"}
            return row | {"ok": row["max_error"] < self.options.tolerance}
        rows = self.in_parallel(one, [
            (name, granularity) for name in self.models if self.onnx(name).exists()
            for granularity in self.options.granularity.split(",")
        ])
        for row in rows:
            what = f"run {row['model']} {row['granularity']}"
            if "max_error" in row:
                say(f"run    {row['model']:16} {row['granularity']:7} max error "
                    f"{row['max_error']:.2e} of the output's rms")
            if not row["ok"]:
                self.fail(what, row.get("error") or f"max error {row['max_error']}")
        self.result["answers"] = rows

    def bench(self):
        rows = []
        self.prepare()
        for name in self.models:
            if not self.onnx(name).exists():
                continue
            for granularity in self.options.granularity.split(","):
                code, out, err = self.obelisk(
                    "bench",
                    self.onnx(name),
                    *self.target(name, granularity),
                    "--seconds",
                    self.options.seconds,
                    "--json",
                )
                if code != 0:
                    rows.append(
                        {"model": name, "granularity": granularity, "error": err.strip()[:600]}
                    )
                    self.fail(f"bench {name} {granularity}", err)
                    continue
                answer = json.loads(out)
                row = {
                    "model": name,
                    **{
                        k: answer[k]
                        for k in (
                            "granularity",
                            "device_us",
                            "latency_us",
                            "launches",
                            "phases",
                            "bytes_streamed",
                            "roof_share",
                        )
                        if k in answer
                    },
                }
                rows.append(row)
                say(
                    f"bench  {name:16} {granularity:7} device "
                    f"{row['device_us']['median']:8.1f} us  host "
                    f"{row['latency_us']['median']:8.1f} us  "
                    f"{row['launches']} launches {row['phases']} phases"
                )
        self.result["obelisk"] = rows

    def peers(self):
        rows = {"PyTorch": [], "JAX": []}
        self.prepare()
        for name in self.models:
            for way in self.options.ways.split(","):
                sides, side = self.side_of(name, way)
                row = {"model": name, "way": way}
                rows["JAX" if way == "xla" else "PyTorch"].append(row)
                if side in sides.errors:  # prepare() has said so
                    row["error"] = sides.errors[side][:300]
                    continue
                ready = sides.sides[side]
                if way not in ready.ways:
                    row["error"] = f"not in {ready.who} {ready.version}"
                    continue
                row["version"] = ready.version
                row |= {k: ready.made[k] for k in ("max_error", "layouts") if k in ready.made}
                try:
                    said = sides.measure(side, way)
                except (RuntimeError, TimeoutError) as error:
                    row["error"] = str(error)[:300]
                    self.fail(f"peer {name} {way}", str(error))
                    continue
                times = sorted(said["device_us"])
                row["device_us"] = {"median": statistics.median(times), "p99": times[-1]}
                if "host_us" in said:
                    row["host_us"] = {"median": statistics.median(said["host_us"])}
                say(f"peers  {name:16} {way:13} device {row['device_us']['median']:8.1f} us")
        for key, who in (("pytorch", "PyTorch"), ("xla", "JAX")):
            if rows[who]:
                versions = {row["version"] for row in rows[who] if "version" in row}
                self.result[key] = {"version": ", ".join(sorted(versions)), "rows": rows[who]}

    def close(self):
        for sides in self.sides.values():
            sides.close()

    def auto(self):
        """The choice is measured anew: none of the three may be quicker beyond noise."""
        rows = []
        self.prepare()
        for name in self.models:
            if not self.onnx(name).exists():
                continue
            code, out, err = self.obelisk(
                "bench", self.onnx(name), *self.target(name, "auto,mono,stitch,op"), "--seconds",
                self.options.seconds, "--json",
            )
            if code != 0:
                self.fail(f"auto {name}", err)
                continue
            chosen, *others = json.loads(out)["granularities"]
            row = {"model": name, "chosen": chosen["granularity"],
                   "device_us": chosen["device_us"]["median"],
                   "beside": {o["granularity"]: o["device_us"]["median"] for o in others}}
            rows.append(row)
            say(f"auto   {name:16} chose {row['chosen']:7} {row['device_us']:8.1f} us, beside "
                + ", ".join(f"{g} {us:.1f}" for g, us in row["beside"].items()))
            least = min(row["beside"].values())
            if row["device_us"] > least * (1 + self.options.noise):
                self.fail(f"auto {name}", f"chose {row['chosen']}, {row['device_us']:.1f} us, "
                          f"where one takes {least:.1f}")
        self.result["auto"] = rows

    def dispatch(self):
        """Which kernels of a graph run beside which: each dispatch in turn, and random launch orders
        of the lanes of opara; answers have the same bits in all."""
        rows = []
        self.prepare()
        for name in self.models:
            if not self.onnx(name).exists():
                continue
            for granularity in ("op", "stitch", "mono"):
                if granularity not in self.options.granularity.split(","):
                    continue
                kinds = [("--dispatch", self.options.dispatches)]
                row = {"model": name, "granularity": granularity, "precision": self.precisions[name],
                       "device_us": {}}
                for words in kinds:
                    code, out, err = self.obelisk(
                        "bench", self.onnx(name), *self.target(name, granularity), *words, "--verify",
                        "off", "--seconds", self.options.seconds, "--json",
                    )
                    if code != 0:
                        self.fail(f"dispatch {name} {granularity}", err)
                        continue
                    for one in json.loads(out)["granularities"]:
                        if not one["same_bits"]:
                            self.fail(f"dispatch {name} {granularity}", f"{one['dispatch']} gives other bits")
                        random = "random" in one["dispatch"]
                        if random:
                            row.setdefault("random_orders_us", []).append(one["device_us"]["median"])
                        elif words is kinds[0]:
                            row["device_us"][one["dispatch"]] = one["device_us"]["median"]
                            row.setdefault("arena_bytes", {})[one["dispatch"]] = one["workspace_bytes"]
                            row["launches"] = one["launches"]
                    if words is kinds[0] and row["device_us"] and self.options.orders and granularity != "mono":
                        at_once = max(1, ORDERS_BYTES // max(1, *row["arena_bytes"].values()))
                        seeds = [f"random:{seed}" for seed in range(1, self.options.orders + 1)]
                        for first in range(0, len(seeds), at_once):
                            kinds.append(("--dispatch", "waves,opara", "--launch-order",
                                          ",".join(seeds[first:first + at_once])))
                if row["device_us"]:
                    rows.append(row)
                    say(f"dispatch {name:20} {granularity:7} {row['launches']:4} kernels: "
                        + ", ".join(f"{d} {us:.1f}" for d, us in row["device_us"].items())
                        + (" random {:.1f} to {:.1f}".format(min(r), max(r)) if (r := row.get("random_orders_us")) else ""))
                    self.result["dispatch"] = rows
                    if self.options.out:  # kept where the time ends early
                        pathlib.Path(self.options.out).write_text(json.dumps(self.result, indent=1) + "\n")

    def profile(self):
        rows = []
        for name in self.models:
            if not self.onnx(name).exists():
                continue
            for granularity in self.options.granularity.split(","):
                code, out, err = self.obelisk(
                    "profile", self.onnx(name), *self.target(name, granularity), "--json"
                )
                if code != 0:
                    self.fail(f"profile {name} {granularity}", err)
                    continue
                answer = json.loads(out)
                rows.append({"model": name, **answer})
                say(
                    f"profile {name} {granularity}: {answer['device_us']:.1f} us, "
                    f"{answer['exposed_us_per_phase']:.2f} us exposed a phase"
                )
        self.result["profile"] = rows

    def of_dispatch(self, part):
        """A part that stands in gpu_dispatch.py; not part of all."""
        sys.path.insert(0, str(HERE))
        import gpu_dispatch
        getattr(gpu_dispatch, part)(self)

    def random(self):
        """Seeds FROM:COUNT, until they are done or --budget seconds are over."""
        first, _, count = self.options.seeds.partition(":")
        seconds = min(self.options.budget, 540)
        words = [BIN / "random_graphs_gpu", "--from", first, "--count", count or 1000, "--steps", self.options.steps,
                 "--granularity", "stitch,mono", "--seconds", seconds]
        code, out, err = call(words, seconds + 120)
        lines = out.splitlines()
        wrong = [line for line in lines if line.startswith("FAILED")]
        said = next((line for line in reversed(lines) if line.startswith("seeds ")), "")
        self.result["random"] = {"command": " ".join(str(w) for w in words[1:]), "exit": code, "said": said, "failed": wrong[:200]}
        say("random " + (said or f"exit {code}"))
        if code != 0 or not said:
            self.fail("random", "\n".join(wrong[:40]) or err or "no summary")

    def sanitize(self):
        sys.path.insert(0, str(HERE))
        import gpu_sanitize
        rows = gpu_sanitize.sanitize(
            BIN, self.options.tools.split(","), self.options.jobs, self.options.timeout, say,
            self.options.budget, self.options.cases,
        )
        for what, why in gpu_sanitize.failures(rows):
            self.fail(what, why)
        self.result["sanitize"] = rows


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("parts", nargs="+", choices=(*PARTS, "dispatch", *OF_DISPATCH, "random", "all"))
    parser.add_argument(
        "--models", default="minilm_b1,bert_b1,resnet18_b1,resnet50_b1,vit_b1,deepfm_b1"
    )
    parser.add_argument("--granularity", default="mono,stitch,op")
    parser.add_argument("--precision", default="fp16")
    parser.add_argument(
        "--ways", default="eager,graph,compile", help="of eager, graph, compile, max-autotune, xla; copy: as many bytes from one place to another"
    )
    parser.add_argument("--seconds", type=float, default=1)
    parser.add_argument(
        "--tolerance", type=float, default=0.05, help="of the output's root mean square"
    )
    parser.add_argument("--dispatches", default="waves,sequential,nimble,opara,critical,auto", help="of dispatch")
    parser.add_argument("--orders", type=int, default=0, help="of dispatch: random launch orders")
    parser.add_argument("--noise", type=float, default=0.05, help="share that auto may lose")
    parser.add_argument(
        "--timeout", type=int, default=300,
        help="of a test program, and of all sides together to get ready, in seconds",
    )
    parser.add_argument(
        "--gtest",
        action="append",
        default=[],
        help="a flag for test programs, e.g. --gtest=--gtest_filter=*softmax*",
    )
    parser.add_argument(
        "--flags", action="append", default=[], help="a flag for obelisk, e.g. --flags=--watchdog"
    )
    parser.add_argument("--tools", default="memcheck,racecheck,initcheck")
    parser.add_argument("--cases", default="", help="of sanitize: tests whose name has this pattern")
    parser.add_argument(
        "--budget", type=float, default=float("inf"), help="seconds of sanitize, or of random; the rest is told"
    )
    parser.add_argument("--seeds", default="1:1000", help="of random: FROM:COUNT")
    parser.add_argument("--steps", type=int, default=40, help="of random: steps of a graph at most")
    parser.add_argument("--jobs", type=int, default=8, help="processes at once")
    parser.add_argument("--work", default=os.environ.get("TMPDIR", "/tmp") + "/obelisk-gpu")
    parser.add_argument("--out", help="a JSON file for the results")
    session = Session(parser.parse_args())
    session.parts = PARTS if "all" in session.options.parts else session.options.parts
    for part in session.parts:
        try:
            {
                "tests": session.tests,
                "models": session.write_models,
                "run": session.run,
                "bench": session.bench,
                "peers": session.peers,
                "auto": session.auto,
                "dispatch": session.dispatch,
                "profile": session.profile,
                "launches": session.launches,
                "sanitize": session.sanitize,
                "random": session.random,
                **{one: functools.partial(session.of_dispatch, one) for one in OF_DISPATCH},
            }[part]()
        except Exception as error:
            self_error = f"{type(error).__name__}: {error}"
            session.fail(part, self_error)
        if session.options.out:  # after each part, so that an interrupted run leaves something
            pathlib.Path(session.options.out).write_text(
                json.dumps(session.result, indent=1) + "\n"
            )
    session.close()
    say(f"{len(session.failures)} failures" + "".join(f"\n  {f}" for f in session.failures))
    return min(len(session.failures), 100)


if __name__ == "__main__":
    sys.exit(main())
