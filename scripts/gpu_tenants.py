#!/usr/bin/env python3
"""Several tenants on one GPU, each with weights and memory of its own: microseconds a round of one
answer each, all ways in one run, and whether the answers have the bits of those alone. And, with one
request of each tenant under way for some seconds, how far the quickest and the slowest tenant are apart.

    gpu_tenants.py --out FILE.json [--models resnet50,minilm] [--tenants 8] [--budget 1500]

    serial    whole programs, one after the other (policy fifo)
    streams   whole programs, a stream each (policy streams)
    narrow    programs for an eighth of the SMs, side by side, a launch each (policy vliw)
    shared    the same, in one launch where they begin together (super-kernels)

Each way is a process of bench/tenants/tenants.cpp: obelisk::Server with one model a tenant. Networks
are exported by gpu_models.py, with as many seeds as --seeds (tenant k has the weights of seed k
modulo that), and compiled once for each number of SMs; inputs differ by tenant. Inputs lie in the
GPU's memory, or with --inputs host in the host's, from where each request copies them.

Works in the folder that scripts/pack.sh makes, and in a checkout with a build. A part that fails or
takes more than --timeout seconds is told and left out; what comes after --budget seconds is not
begun. The exit status counts failures. Rows go to --out after each network.
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
}
WAYS = ("serial", "streams", "narrow", "shared")
EXPORT = """
import pathlib, sys
import numpy, torch
import gpu_models
name, seed, folder, tenants = sys.argv[1], int(sys.argv[2]), pathlib.Path(sys.argv[3]), int(sys.argv[4])
gpu_models.export(name, folder / f"{seed}.part", seed)
if seed == 0:
    _, inputs, names = gpu_models.make(name)
    for tenant in range(tenants):
        torch.manual_seed(1000 + tenant)
        for value, port in zip(inputs, names):
            if value.is_floating_point():
                value = value + 0.1 * torch.randn_like(value)
            else:
                value = value.roll(tenant, -1)
            (folder / f"{tenant}.{port}.bin").write_bytes(numpy.ascontiguousarray(value.numpy()).tobytes())
(folder / f"{seed}.part").rename(folder / f"{seed}.onnx")
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
        self.rows = []
        self.sms = options.sms or count_sms()

    def left(self, most=None):
        """Seconds that a part may take."""
        return max(1.0, min(most or self.options.timeout, self.options.budget - (time.monotonic() - self.begun)))

    def over(self):
        return time.monotonic() - self.begun > self.options.budget

    def fail(self, what, why):
        self.failures.append(what)
        say(f"FAILED {what}: {why.strip()[-1500:]}")

    def prepare(self, name):
        """Networks, inputs and programs of both widths; what went wrong, or nothing."""
        network, whole, narrow = NETWORKS[name]
        folder = self.work / name
        folder.mkdir(parents=True, exist_ok=True)
        for seed in range(self.options.seeds):
            if not (folder / f"{seed}.onnx").exists():
                words = [sys.executable, "-c", EXPORT, network, seed, folder, self.options.tenants]
                code, _, err = call(words, self.left(), cwd=HERE, env=os.environ | {"OMP_NUM_THREADS": "2"})
                if code != 0:
                    return f"export: {err or code}"
            for sms, granularity in ((self.sms, whole), (self.narrow(), narrow)):
                made = folder / f"{seed}.{sms}.obk"
                if made.exists():
                    continue
                words = [BIN / "obelisk", "compile", folder / f"{seed}.onnx", "-o", made, "--target", self.options.target,
                         "--sms", sms, "--precision", self.options.precision, "--verify", "off"]
                words += ["--granularity", granularity] if self.options.target != "cpu" else []
                code, _, err = call(words, self.left())
                if code != 0:
                    return f"compile for {sms} SMs: {err or code}"
        return ""

    def narrow(self):
        return max(1, self.sms // self.options.tenants)

    def measure(self, name, way):
        sms = self.narrow() if way in ("narrow", "shared") else self.sms
        policy = {"serial": "fifo", "streams": "streams"}.get(way, "vliw")
        folder = self.work / name
        words = [BIN / "tenants", *(folder / f"{seed}.{sms}.obk" for seed in range(self.options.seeds)),
                 "--inputs", folder, "--tenants", self.options.tenants, "--policy", policy,
                 "--target", self.options.target, "--seconds", self.options.seconds]
        words += ["--widths", sms] if self.options.target != "cpu" else ["--workers", self.sms]
        words += ["--instances"] if way == "shared" else []
        words += ["--on-device"] if self.options.inputs == "device" and self.options.target != "cpu" else []
        code, out, err = call(words, self.left())
        if not out.strip().startswith("{"):
            return self.fail(f"{name} {way}", err or f"exit {code}")
        row = {"model": name, "way": way, "sms": sms, **json.loads(out)}
        self.rows.append(row)
        if code != 0:
            self.fail(f"{name} {way}", f"answers have other bits than alone: {row['answers_that_differ']} in {row['rounds']} rounds, {row['moved_by_nan']} beside a tenant with NaN")
        say(f"{name:10} {way:8} {sms:4} SMs   round {row['round_us']:8.1f} us   back to back {row['back_to_back_us']:8.1f} us   one alone {row['alone_us']:7.1f} us   one under way each {row['closed']['per_s']:9.0f}/s, slowest median {row['closed']['median_ratio']:.3f} of the quickest, {row['memory']['models_mib']:.0f} MiB")

    def write(self):
        if not self.options.out:
            return
        body = {
            "precision": self.options.precision,
            "what": "microseconds a round of one answer of each tenant, through the server, host time included: round_us waits for all answers before the next round, back_to_back_us has three requests of each tenant under way; alone_us is one answer while nobody else asks; closed: each tenant has one request under way for some seconds, median_ratio is the slowest tenant's median over the quickest's, answers_ratio the most answers of a tenant over the fewest; memory in MiB",
            "rows": self.rows, "failures": self.failures,
        }
        write_record(self.options.out, "gpu_tenants.py", body)

    def all(self):
        names = self.options.models.split(",")
        with concurrent.futures.ThreadPoolExecutor(self.options.jobs) as pool:
            made = {name: pool.submit(self.prepare, name) for name in names}
            concurrent.futures.wait(made.values())  # what is timed has the machine to itself
        for name in names:
            why = made[name].result() if not made[name].exception() else str(made[name].exception())
            if why:
                self.fail(name, why)
                continue
            for way in self.options.ways.split(","):
                if self.over():
                    self.fail(f"{name} {way}", f"not begun: {self.options.budget:.0f} s are over")
                else:
                    self.measure(name, way)
            self.write()
        self.write()
        say(f"{len(self.failures)} failures")
        return min(len(self.failures), 100)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--models", default=",".join(NETWORKS))
    parser.add_argument("--ways", default=",".join(WAYS))
    parser.add_argument("--tenants", type=int, default=8)
    parser.add_argument("--seeds", type=int, default=2, help="different sets of weights")
    parser.add_argument("--precision", default="fp16")
    parser.add_argument("--inputs", choices=("device", "host"), default="device")
    parser.add_argument("--target", default="cuda", help="or cuda:N, or cpu to try the script out")
    parser.add_argument("--sms", type=int, default=0, help="of the machine; 0: as many as the GPU has")
    parser.add_argument("--seconds", type=float, default=2, help="that each way is timed")
    parser.add_argument("--timeout", type=float, default=280, help="seconds of one export, compilation or measurement")
    parser.add_argument("--budget", type=float, default=1500, help="seconds of everything")
    parser.add_argument("--jobs", type=int, default=8, help="networks that are made ready at once")
    parser.add_argument("--work", default=os.environ.get("TMPDIR", "/tmp") + "/obelisk-tenants")
    parser.add_argument("--out", help="a JSON file for the rows")
    options = parser.parse_args()
    unknown = set(options.models.split(",")) - set(NETWORKS) | set(options.ways.split(",")) - set(WAYS)
    if unknown:
        parser.error(f"there is no {', '.join(sorted(unknown))}; networks: {', '.join(NETWORKS)}; ways: {', '.join(WAYS)}")
    return Run(options).all()


if __name__ == "__main__":
    sys.exit(main())
