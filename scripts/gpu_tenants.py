#!/usr/bin/env python3
"""Several tenants on one GPU, each with weights and memory of its own: microseconds a round of one
answer each, all ways in one run, and whether the answers have the bits of those alone. And, with one
request of each tenant under way for some seconds, how far the quickest and the slowest tenant are apart.

    gpu_tenants.py --out FILE.json [--models resnet50,minilm] [--tenants 8] [--against-batch] [--budget 1500]

    serial    whole programs, one after the other (policy fifo)
    streams   whole programs, a stream each (policy streams)
    narrow    programs for a tenant's part of the SMs, side by side, a launch each (policy vliw);
              narrow:33 has programs for 33 SMs, of which as many run at once as there is room for
    shared    the same, in one launch where they begin together (super-kernels)
    batch     with --against-batch: one program for as many rows as there are tenants, which has one
              set of weights and the GPU to itself

Each way is a process of bench/tenants/tenants.cpp: obelisk::Server with one model a tenant. Networks
are exported by gpu_models.py, with as many seeds as --seeds (tenant k has the weights of seed k
modulo that, and a copy of its own of them on the GPU), and compiled once for each number of SMs;
inputs differ by tenant. Inputs lie in the GPU's memory, or with --inputs host in the host's, from
where each request copies them. `summary` in FILE has what is asked of many tenants: the GPU's memory,
how far their medians are apart (5 % at most is wanted), and how much longer an answer of each takes,
all sharing the GPU, than the batch (1.3 times at most is wanted).

--mixes 10000: in place of that, all --models are served at once by policy vliw, and that many mixes of
their requests at random are compared bit by bit with answers alone, while a tenant sends NaN, requests
are cancelled, models come and go, and one that wants more memory than the server may take is
refused (bench/tenants/mixes.cpp). Programs are for a quarter of the SMs (--mixes-sms) alone, since with several
widths the bits depend on what else runs. With --sanitizer memcheck the server runs under that tool of
compute-sanitizer; what it reports is a failure.

Works in the folder that scripts/pack.sh makes, and in a checkout with a build. A part that fails or
takes more than --timeout seconds is told and left out; what comes after --budget seconds is not
begun. The exit status counts failures. Rows go to --out after each way.
"""

import argparse
import concurrent.futures
import datetime
import json
import os
import pathlib
import re
import shutil
import subprocess
import sys
import time

import gpu_sanitize

HERE = pathlib.Path(__file__).resolve().parent
ROOT = HERE.parent
BIN = next((p for p in (ROOT / "bin", ROOT / "build/bin") if (p / "tenants").exists()), ROOT / "bin")
os.environ.setdefault("OBELISK_PYTHON", sys.executable)  # whose packages have the device compiler
# name: (network of gpu_models.py, granularity of the whole program, of the narrow one)
NETWORKS = {
    "resnet50": ("resnet50_b1", "stitch", "stitch"),
    "resnet18": ("resnet18_b1", "stitch", "stitch"),
    "googlenet": ("googlenet_b1", "stitch", "stitch"),
    "minilm": ("minilm_b1", "stitch", "stitch"),
    "bert-base": ("bert_b1", "stitch", "stitch"),
    "crnn": ("crnn_b1", "stitch", "mono"),
    "deepfm": ("deepfm_b1", "stitch", "stitch"),
    "mobilenet": ("mobilenet_b1", "stitch", "stitch"),
}
WAYS = ("serial", "streams", "narrow", "shared")
CLOSE, SLOW_DOWN = 1.05, 1.3  # wanted of the medians of tenants, and over the batch
BATCH = "batch"
EXPORT = """
import pathlib, sys, warnings
import numpy, torch
import gpu_models
name, what, folder, tenants = sys.argv[1], sys.argv[2], pathlib.Path(sys.argv[3]), int(sys.argv[4])
if what == "batch":
    module, inputs, names = gpu_models.make(name)
    torch.backends.mha.set_fastpath_enabled(False)
    with torch.no_grad(), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        torch.onnx.export(module, inputs, str(folder / "batch.part"), input_names=list(names), opset_version=17, dynamo=False,
                          do_constant_folding=True, dynamic_axes={port: {0: "batch"} for port in names})
elif what != "inputs":
    gpu_models.export(name, folder / f"{what}.part", int(what))
else:
    _, inputs, names = gpu_models.make(name)
    for tenant in range(tenants):
        torch.manual_seed(1000 + tenant)
        for value, port in zip(inputs, names):
            if value.is_floating_point():
                value = value + 0.1 * torch.randn_like(value)
            else:
                value = value.roll(tenant, -1)
            (folder / f"{tenant}.{port}.bin").write_bytes(numpy.ascontiguousarray(value.numpy()).tobytes())
if what != "inputs":
    (folder / f"{what}.part").rename(folder / f"{what}.onnx")
"""


def say(*words):
    print(*words, flush=True)


def call(words, seconds, **options):
    """(exit status, standard output, standard error); a command that hangs is ended."""
    try:
        done = subprocess.run([str(w) for w in words], capture_output=True, text=True, timeout=seconds, **options)
        return done.returncode, done.stdout, done.stderr
    except subprocess.TimeoutExpired:
        return 124, "", f"ended after {seconds:.0f} s"


def gpu():
    """What nvidia-smi says of the first GPU."""
    if not shutil.which("nvidia-smi"):
        return {"device": "none", "driver": ""}
    out = call(["nvidia-smi", "--query-gpu=name,driver_version", "--format=csv,noheader", "-i", "0"], 60)[1]
    name, _, driver = out.strip().partition(", ")
    return {"device": name, "driver": driver}


def commit():
    stamp = ROOT / "VERSION"
    if stamp.exists():
        return stamp.read_text().strip()
    return call(["git", "-C", ROOT, "rev-parse", "--short", "HEAD"], 20)[1].strip() if shutil.which("git") else "unknown"


def write_record(path, program, body):
    """Rows with when, where and how they were measured, as JSON; at once, so that nobody reads a part."""
    head = {"date": datetime.datetime.now(datetime.timezone.utc).strftime("%Y-%m-%d"), **gpu(), "commit": commit(),
            "command": " ".join([program, *sys.argv[1:]])}
    part = pathlib.Path(path + ".part")
    part.write_text(json.dumps(head | body, indent=1) + "\n")
    part.rename(path)


def count_sms():
    """Of the GPU; where none tells, those of an H100 or H200."""
    code, out, err = call([BIN / "obelisk", "doctor", "--json"], 120)
    for finding in json.loads(out)["findings"] if out.strip().startswith("{") else ():
        told = re.search(r"(\d+) (SMs|multiprocessors)", finding["text"])
        if finding["name"] == "gpu" and told:
            return int(told[1])
    return 132


class Run:
    def __init__(self, options):
        self.options, self.begun, self.failures = options, time.monotonic(), []
        self.work = pathlib.Path(options.work)
        self.rows, self.mixed = [], []
        self.sms = options.sms or count_sms()

    def left(self, most=None):
        """Seconds that a part may take."""
        return max(1.0, min(most or self.options.timeout, self.options.budget - (time.monotonic() - self.begun)))

    def over(self):
        return time.monotonic() - self.begun > self.options.budget

    def fail(self, what, why):
        self.failures.append(what)
        say(f"FAILED {what}: {why.strip()[-1500:]}")

    def export(self, name, what):
        """A network by its seed, the one of the batch, or the inputs of all tenants."""
        folder = self.work / name
        if what == "inputs":
            made = [list(folder.glob(f"{tenant}.*.bin")) for tenant in range(self.options.tenants)]
            # Incomplete files there are left alone: another process may be writing them.
            if all(made) or (made[0] and not (folder / "exported").exists()):
                return ""
        elif (folder / f"{what}.onnx").exists():
            return ""
        (folder / "exported").touch()
        words = [sys.executable, "-c", EXPORT, NETWORKS[name][0], what, folder, self.options.tenants]
        code, _, err = call(words, self.left(), cwd=HERE, env=os.environ | {"OMP_NUM_THREADS": "2"})
        return "" if code == 0 else f"export: {err or code}"

    def compile(self, name, what, sms):
        made, folder = self.program(name, what, sms), self.work / name
        if made.exists():
            return ""
        words = [BIN / "obelisk", "compile", folder / f"{what}.onnx", "-o", made, "--target", self.options.target,
                 "--sms", sms, "--precision", self.options.precision, "--verify", "off"]
        if self.options.target != "cpu":  # kernels in the order that a server's own programs have them
            words += ["--granularity", NETWORKS[name][1 if sms == self.sms else 2]]
            words += ["--dispatch", "waves"] if words[-1] != "mono" else []
        words += ["--shape", f"batch={self.options.tenants}"] if what == BATCH else []
        code, _, err = call(words, self.left())
        return "" if code == 0 else f"compile {what} for {sms} SMs: {err or code}"

    def program(self, name, what, sms):
        return self.work / name / (f"{what}.{self.options.tenants}.{sms}.obk" if what == BATCH else f"{what}.{sms}.obk")

    def prepare(self, name):
        """Networks, inputs and programs of all widths; what went wrong, or nothing."""
        (self.work / name).mkdir(parents=True, exist_ok=True)
        seeds = [str(seed) for seed in range(self.options.seeds)]
        wanted = seeds + [BATCH] * self.options.against_batch
        widths = [self.mixes_sms()] if self.options.mixes else sorted({self.width(way) for way in self.options.ways.split(",")})
        with concurrent.futures.ThreadPoolExecutor(len(wanted) * len(widths) + 1) as pool:
            def first(whys):
                return next((why for why in whys if why), "")
            if why := first(pool.map(lambda what: self.export(name, what), [*wanted, "inputs"])):
                return why
            # The first of each width makes the code of all: the others have it from the cache.
            programs = [[(seed, width) for width in widths] for seed in seeds]
            programs[0] += [(BATCH, self.sms)] * self.options.against_batch
            for some in programs[0], sum(programs[1:], []):
                if why := first(pool.map(lambda one: self.compile(name, *one), some)):
                    return why
        return self.join_inputs(name) if self.options.against_batch else ""

    def join_inputs(self, name):
        """Those of all tenants as those of the batch."""
        folder, joined = self.work / name, self.work / name / f"batch{self.options.tenants}"
        joined.mkdir(exist_ok=True)
        for port in (file.name.removeprefix("0.") for file in folder.glob("0.*.bin")):
            parts = [folder / f"{tenant}.{port}" for tenant in range(self.options.tenants)]
            absent = [part for part in parts if not part.exists()]
            if absent:
                return f"{absent[0]} is not there"
            (joined / f"0.{port}").write_bytes(b"".join(part.read_bytes() for part in parts))
        return ""

    def width(self, way):
        """SMs that the programs of a way are made for."""
        kind, _, sms = way.partition(":")
        if sms:
            return int(sms)
        return max(1, self.sms // self.options.tenants) if kind in ("narrow", "shared") else self.sms

    def measure(self, name, way):
        sms, kind = self.width(way), way.partition(":")[0]
        policy = {"serial": "fifo", BATCH: "fifo", "streams": "streams"}.get(kind, "vliw")
        folder, tenants = self.work / name, 1 if way == BATCH else self.options.tenants
        if way == BATCH:
            programs, inputs = [self.program(name, BATCH, sms)], folder / f"batch{self.options.tenants}"
        else:
            programs, inputs = [self.program(name, seed, sms) for seed in range(self.options.seeds)], folder
        words = [BIN / "tenants", *programs, "--inputs", inputs, "--tenants", tenants, "--policy", policy,
                 "--target", self.options.target, "--seconds", self.options.seconds]
        words += ["--widths", sms] if self.options.target != "cpu" else ["--workers", self.sms]
        words += ["--instances"] if kind == "shared" else []
        words += ["--on-device"] if self.options.inputs == "device" and self.options.target != "cpu" else []
        code, out, err = call(words, self.left())
        if not out.strip().startswith("{"):
            return self.fail(f"{name} {way}", err or f"exit {code}")
        row = {"model": name, "way": way, "sms": sms, **json.loads(out)}
        self.rows.append(row)
        if code != 0:
            self.fail(f"{name} {way}", f"answers have other bits than alone: {row['answers_that_differ']} in {row['rounds']} rounds, {row['moved_by_nan']} beside a tenant with NaN")
        say(f"{name:10} {way:8} {sms:4} SMs   round {row['round_us']:8.1f} us   back to back {row['back_to_back_us']:8.1f} us   one alone {row['alone_us']:7.1f} us   one under way each {row['closed']['per_s']:9.0f}/s, slowest median {row['closed']['median_ratio']:.3f} of the quickest, {row['memory']['models_mib']:.0f} MiB")

    def mixes_sms(self):
        return self.options.mixes_sms or max(1, self.sms // 4)

    def large(self):
        """A network whose workspace is beyond what the server is limited to: 64 MiB on a CPU, 6 GiB of a GPU."""
        import onnx
        from onnx import TensorProto, helper
        path, rows = self.work / "large.onnx", 4096 if self.options.target == "cpu" else 65536
        ports = {name: helper.make_tensor_value_info(name, TensorProto.FLOAT, shape) for name, shape in (("x", [rows, 1]), ("y", [1, rows]), ("z", [rows, 1]))}
        nodes = [helper.make_node("MatMul", ["x", "y"], ["all"]), helper.make_node("MatMul", ["all", "x"], ["z"])]
        graph = helper.make_graph(nodes, "large", [ports["x"], ports["y"]], [ports["z"]])
        onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8), path)
        return path

    def mix(self, names):
        """Mixes of all of them, with and without launches that are shared."""
        for shared in (False, True):
            what = "mixes, launches shared" if shared else "mixes"
            if self.over():
                self.fail(what, f"not begun: {self.options.budget:.0f} s are over")
                continue
            words = [BIN / "tenants", "mixes", *(f"{name}={self.program(name, '0', self.mixes_sms())}" for name in names),
                     "--inputs", self.work, "--mixes", self.options.mixes, "--target", self.options.target, "--large", self.large(), "--seed", self.options.seed,
                     "--memory-limit", 64 if self.options.target == "cpu" else 6144]
            words += ["--width", self.mixes_sms(), "--precision", self.options.precision] if self.options.target != "cpu" else ["--workers", self.sms]
            words += ["--instances"] if shared else []
            log = self.work / "sanitizer.txt"
            if self.options.sanitizer:
                words = [gpu_sanitize.find_tool() or "compute-sanitizer", "--tool", self.options.sanitizer, "--print-limit", "200", "--log-file", log, *words]
            code, out, err = call(words, self.left())
            if not out.strip().startswith("{"):
                self.fail(what, err or f"exit {code}")
                continue
            row = {"shared": shared, **json.loads(out)}
            self.mixed.append(row)
            if self.options.sanitizer:
                row["sanitizer"] = {"tool": self.options.sanitizer, **gpu_sanitize.judged(self.options.sanitizer, "mixes", log.read_text(), code)}
                if row["sanitizer"]["reports"] or not row["sanitizer"]["summary"]:
                    self.fail(what, f"{self.options.sanitizer}: {row['sanitizer']['summary']} {list(row['sanitizer']['reports'])[:3]}")
            if code != 0:
                self.fail(what, f"{row['differ']} answers have other bits than alone, {row['wrong']} requests ended as they must not ({row['first_wrong']}), the large model was refused {row['large_refused']} times")
            say(f"{row['mixes']} {what} of {row['models']} models ({row['mode']}): {row['requests']} requests, {row['answered']} answered, {row['beside_others']} beside others, {row['of_nan']} of NaN, {row['cancelled']} cancelled, {row['late_or_refused']} late or refused, {row['guests']} models came and went, {row['differ']} differ, {row['wrong']} wrong, {row['seconds']:.1f} s; too large: {row['large_reason']}")
            self.write()

    def summary(self):
        """Of each model and way, what is asked of many tenants."""
        out = []
        for row in self.rows:
            if row["way"] == BATCH:
                continue
            closed, memory = row["closed"], row["memory"]
            one = {"model": row["model"], "way": row["way"], "sms": row["sms"], "tenants": row["tenants"], "load_s": row["load_s"],
                   "gpu_mib": memory["gpu_mib"], "gpu_mib_of_tenants": memory["gpu_mib_of_tenants"], "models_mib": memory["models_mib"],
                   "per_s": closed["per_s"], "median_us_fastest": closed["median_us_fastest"], "median_us_slowest": closed["median_us_slowest"],
                   "median_ratio": closed["median_ratio"], "close": closed["median_ratio"] <= CLOSE}
            batches = [other["closed"]["median_us_fastest"] for other in self.rows if other["model"] == row["model"] and other["way"] == BATCH]
            if batches:
                alone = min(batches)  # before and behind the other ways
                slow = closed["median_us_slowest"] / alone
                one |= {"batch_us": alone, "slow_down": round(slow, 3), "rate_of_batch": round(closed["per_s"] * alone / 1e6 / row["tenants"], 3),
                        "slow_down_is_wanted": slow <= SLOW_DOWN}
            out.append(one)
        return out

    def write(self):
        if not self.options.out:
            return
        body = {
            "precision": self.options.precision,
            "what": "microseconds a round of one answer of each tenant, through the server, host time included: round_us waits for all answers before the next round, back_to_back_us has three requests of each tenant under way; alone_us is one answer while nobody else asks; closed: each tenant has one request under way for some seconds, median_ratio is the slowest tenant's median over the quickest's, answers_ratio the most answers of a tenant over the fewest; memory in MiB",
            "summary_is": f"of closed: close where median_ratio is {CLOSE} at most; gpu_mib_of_tenants is what the GPU has taken more since before they were loaded; slow_down is the slowest tenant's median over batch_us, the median of one answer of the program of as many rows while nobody else asks, and wanted to be {SLOW_DOWN} at most; rate_of_batch is the answers per second over those of the batch",
            "summary": self.summary(), "mixes": self.mixed, "rows": self.rows, "failures": self.failures,
        }
        write_record(self.options.out, "gpu_tenants.py", body)

    def all(self):
        names = self.options.models.split(",")
        with concurrent.futures.ThreadPoolExecutor(self.options.jobs) as pool:
            made = {name: pool.submit(self.prepare, name) for name in names}
            concurrent.futures.wait(made.values())  # what is timed has the machine to itself
        if self.options.mixes:
            for name in names:
                if why := str(made[name].exception() or made[name].result()):
                    self.fail(name, why)
            there = [name for name in names if not (made[name].exception() or made[name].result())]
            if there:
                self.mix(there)
            names = []
        for name in names:
            why = made[name].result() if not made[name].exception() else str(made[name].exception())
            if why:
                self.fail(name, why)
                continue
            around = [BATCH] * self.options.against_batch  # first and last, as clocks change
            for way in [*around, *self.options.ways.split(","), *around]:
                if self.over():
                    self.fail(f"{name} {way}", f"not begun: {self.options.budget:.0f} s are over")
                else:
                    self.measure(name, way)
                self.write()
        self.write()
        for one in self.summary():
            memory = f"{one['gpu_mib_of_tenants']:.0f} MiB of the GPU" if one["gpu_mib_of_tenants"] is not None else f"{one['models_mib']:.0f} MiB"
            against = f", {one['slow_down']:.2f} times the batch's {one['batch_us']:.0f} us" if "batch_us" in one else ""
            say(f"{one['model']:10} {one['way']:10} {one['tenants']} tenants: {memory}, {one['per_s']:.0f}/s, medians {one['median_us_fastest']:.1f} to {one['median_us_slowest']:.1f} us ({one['median_ratio']:.3f}){against}")
        say(f"{len(self.failures)} failures")
        return min(len(self.failures), 100)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--models", default=",".join(NETWORKS))
    parser.add_argument("--ways", default=",".join(WAYS), help="narrow:33, shared:33: with programs for so many SMs")
    parser.add_argument("--against-batch", action="store_true", help="also one program for as many rows as there are tenants")
    parser.add_argument("--tenants", type=int, default=8)
    parser.add_argument("--seeds", type=int, default=2, help="different sets of weights")
    parser.add_argument("--precision", default="fp16")
    parser.add_argument("--inputs", choices=("device", "host"), default="device")
    parser.add_argument("--mixes", type=int, default=0, help="of requests of all models at random, in place of the ways")
    parser.add_argument("--mixes-sms", type=int, default=0, help="that their programs are made for; 0: a quarter")
    parser.add_argument("--seed", type=int, default=1, help="of the mixes")
    parser.add_argument("--sanitizer", default="", metavar="TOOL", help="of compute-sanitizer, that mixes run under: memcheck, racecheck")
    parser.add_argument("--target", default="cuda", help="or cuda:N, or cpu to try the script out")
    parser.add_argument("--sms", type=int, default=0, help="of the machine; 0: as many as the GPU has")
    parser.add_argument("--seconds", type=float, default=2, help="that each way is timed")
    parser.add_argument("--timeout", type=float, default=280, help="seconds of one export, compilation or measurement")
    parser.add_argument("--budget", type=float, default=1500, help="seconds of everything")
    parser.add_argument("--jobs", type=int, default=8, help="networks that are made ready at once")
    parser.add_argument("--work", default=os.environ.get("TMPDIR", "/tmp") + "/obelisk-tenants")
    parser.add_argument("--out", help="a JSON file for the rows")
    options = parser.parse_args()
    kinds = {re.sub(r"^(narrow|shared):[1-9][0-9]*$", r"\1", way) for way in options.ways.split(",")}
    unknown = set(options.models.split(",")) - set(NETWORKS) | kinds - set(WAYS)
    if unknown:
        parser.error(f"there is no {', '.join(sorted(unknown))}; networks: {', '.join(NETWORKS)}; ways: {', '.join(WAYS)}")
    return Run(options).all()


if __name__ == "__main__":
    sys.exit(main())
