#!/usr/bin/env python3
"""Goodput of eight networks on one GPU: the highest rate, in requests per second of all of them together, at which 99 %
are answered before their deadlines, by policy, on the same compiled programs.

    gpu_goodput.py --out FILE.json [--budget 330] [--arrivals poisson,burst:1.5,burst:2,azure] [--factors 5,3,10,2]

Runs bench/tenants/goodput.cpp (what is measured, and how, stands there). Networks are exported by gpu_models.py, with a
batch that the server chooses; programs of all batches and widths are compiled in parallel first, into a cache that the
servers then read. What tells most comes first: for each kind of arrivals and each factor of deadlines all policies.
Rows go to --out after each policy; behind each factor's policies comes a point of each in overload. What --budget seconds leave no time for is counted as left out, and is no failure;
the exit status counts failures. --inputs device: inputs lie in the GPU's memory, and no requests are joined.

Works in the folder that scripts/pack.sh makes, and in a checkout with a build. A network that lies as WORK/NAME.onnx is
taken as it is.
"""
import argparse
import concurrent.futures
import json
import os
import pathlib
import subprocess
import sys
import threading
import time

from gpu_tenants import BIN, HERE, call, count_sms, say, write_record

# name: network of gpu_models.py. The order is that of the power law of `azure`.
NETWORKS = {
    "resnet50": "resnet50_b1",
    "minilm": "minilm_b1",
    "deepfm": "deepfm_b1",
    "mobilenet": "mobilenet_b1",
    "bert-base": "bert_b1",
    "crnn": "crnn_b1",
    "googlenet": "googlenet_b1",
    "resnet18": "resnet18_b1",
}
POLICIES = "vliw,batch,edf,streams,fifo,time"
EXPORT = """
import pathlib, sys, warnings
import numpy, torch
import gpu_models
name, network, folder = sys.argv[1], sys.argv[2], pathlib.Path(sys.argv[3])
module, inputs, names = gpu_models.make(network)
class BatchFirst(torch.nn.Module):
    def __init__(self, inner):
        super().__init__()
        self.inner = inner
    def forward(self, *x):
        return self.inner(*x).transpose(0, 1)
if network.startswith("crnn"):  # whose answers have their steps first: they could not be joined
    module = BatchFirst(module).eval()
for value, port in zip(inputs, names):
    (folder / f"{name}.{port}.bin").write_bytes(numpy.ascontiguousarray(value.numpy()).tobytes())
torch.backends.mha.set_fastpath_enabled(False)
with torch.no_grad(), warnings.catch_warnings():
    warnings.simplefilter("ignore")
    torch.onnx.export(module, inputs, str(folder / f"{name}.part"), input_names=list(names), opset_version=17, dynamo=False,
                      do_constant_folding=True, dynamic_axes={port: {0: "batch"} for port in names})
(folder / f"{name}.part").rename(folder / f"{name}.onnx")
"""


class Run:
    def __init__(self, options):
        self.options, self.begun, self.failures = options, time.monotonic(), []
        self.work = pathlib.Path(options.work)
        self.work.mkdir(parents=True, exist_ok=True)
        self.on_cpu = options.target == "cpu"
        self.environment = os.environ | {"OBELISK_CACHE": str(self.work / "cache"), "OMP_NUM_THREADS": "2"}
        self.max_batch = 1 if options.inputs == "device" else options.max_batch
        self.widths = []
        if not self.on_cpu:
            sms = options.sms or count_sms()
            self.widths = [int(w) for w in options.widths.split(",") if w] or [sms // part for part in (1, 2, 4, 8)]
        self.lines = {kind: [] for kind in ("machine", "model", "serial", "point", "cell", "overload", "end")}
        self.prepared_s = None

    def left(self):
        return max(1.0, self.options.budget - (time.monotonic() - self.begun))

    def fail(self, what, why):
        self.failures.append(what)
        say(f"FAILED {what}: {why.strip()[-1500:]}")

    def export(self, name):
        if (self.work / f"{name}.onnx").exists():
            return ""
        words = [sys.executable, "-c", EXPORT, name, NETWORKS[name], self.work]
        code, _, err = call(words, min(self.left(), self.options.timeout), cwd=HERE, env=self.environment)
        return "" if code == 0 else f"export: {err or code}"

    def compile(self, name, width, batch):
        """Into the cache; the file itself is not wanted."""
        made = self.work / f"{name}.{width}.{batch}.obk"
        words = [BIN / "obelisk", "compile", self.work / f"{name}.onnx", "-o", made, "--target", self.options.target,
                 "--sms", width, "--granularity", "stitch", "--precision", self.options.precision, "--verify", "off",
                 "--shape", f"batch={batch}"]
        code, _, err = call(words, min(self.left(), self.options.timeout), env=self.environment)
        made.unlink(missing_ok=True)
        return "" if code == 0 else f"compile for {width} SMs, batch {batch}: {err or code}"

    def prepare(self, names):
        """The networks that can be served."""
        batches = sorted({min(1 << k, self.max_batch) for k in range(self.max_batch.bit_length() + 1)})
        with concurrent.futures.ThreadPoolExecutor(self.options.jobs) as pool:
            exports = {name: pool.submit(self.export, name) for name in names}
            works = {}
            for name in names:
                if why := exports[name].result():
                    self.fail(name, why)
                    continue
                # A CPU's few bodies are compiled by the server as quickly.
                works[name] = [] if self.on_cpu else [pool.submit(self.compile, name, width, batch) for width in self.widths for batch in batches]
            for name in list(works):
                if why := next((why for each in works[name] if (why := each.result())), ""):
                    self.fail(name, why)
                    del works[name]
        self.prepared_s = round(time.monotonic() - self.begun, 1)
        say(f"{self.prepared_s:6.1f} s  {len(works)} networks are exported and compiled")
        return list(works)

    def measure(self, names):
        options = self.options
        words = [BIN / "goodput", *(f"{name}={self.work / (name + '.onnx')}" for name in names), "--target", options.target,
                 "--precision", options.precision, "--batch-dimension", "batch", "--max-batch", self.max_batch,
                 "--policies", options.policies, "--arrivals", options.arrivals, "--factors", options.factors,
                 "--share", options.share, "--seconds", options.seconds, "--warm", options.warm, "--tolerance", options.tolerance,
                 "--submitters", options.submitters, "--seed", options.seed, "--points", options.points,
                 "--budget", max(1.0, self.left() - 5), "--overload", options.overload]
        if all(list(self.work.glob(f"{name}.*.bin")) for name in names):
            words += ["--inputs", self.work]
        words += ["--workers", options.workers] if self.on_cpu else ["--widths", ",".join(map(str, self.widths))]
        words += ["--requests", options.requests] if options.requests else []
        words += ["--on-device"] if options.inputs == "device" and not self.on_cpu else []
        words += ["--pinned"] if options.inputs == "pinned" and not self.on_cpu else []
        words += ["--rates", options.rates] if options.rates else []
        program = subprocess.Popen([str(word) for word in words], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=self.environment)
        watch = threading.Timer(self.left() + 45, program.kill)
        watch.start()
        told = []

        def progress():
            for line in program.stderr:
                told.append(line)
                say(line.rstrip())
        reader = threading.Thread(target=progress)
        reader.start()
        for line in program.stdout:
            row = json.loads(line)
            kind = row.pop("kind")
            self.lines[kind].append(row)
            if kind == "cell":
                self.write()
        code = program.wait()
        watch.cancel()
        reader.join()
        if not self.lines["end"]:
            self.fail("goodput", f"ended by {code}: " + "".join(told[-3:]))
        elif code != 0:
            self.fail("counts", f"{self.lines['end'][0]['counts_that_differ']} points where the server counts other answers than the client")

    def write(self):
        if not self.options.out:
            return
        end = self.lines["end"][0] if self.lines["end"] else None
        body = {
            "precision": self.options.precision, "inputs": self.options.inputs,
            "what": f"rates in requests per second of all models together; each model's share of the rate is inversely proportional to its solo_us (the median round trip of one answer while nobody else asks, by the widest program, microseconds), so that each is the same load; of azure a power law comes on top. A deadline is solo_us times factor and counts from the time of arrival. cells: the highest rate at which {self.options.share:.0%} are in time, by bisection to {self.options.tolerance:.0%}; serial_rate: the rate at which one answer after the other would take all the time. points: in_time is by the client's clock, in_time_by_record by the server's; delivery_us is the client's time less the server's; a point is valid where at most 1 % of the requests were submitted later than after a tenth of their time; one that was cut ended when too many had missed. overload: each policy at {self.options.overload:g} times the highest rate that any of them reached; of_admitted is the share in time of what was not refused",
            "seed": self.options.seed, "seconds_a_point": self.options.seconds, "max_batch": self.max_batch, "widths": self.widths,
            "prepared_s": self.prepared_s, "machine": next(iter(self.lines["machine"]), None), "models": self.lines["model"],
            "serial_rate": next((row["rate"] for row in self.lines["serial"]), None),
            "cells": self.lines["cell"], "overload": self.lines["overload"], "points": self.lines["point"], "end": end, "failures": self.failures,
        }
        write_record(self.options.out, "gpu_goodput.py", body)

    def all(self):
        names = self.prepare(self.options.models.split(","))
        if names:
            self.measure(names)
        self.write()
        say(f"{len(self.failures)} failures")
        return min(len(self.failures), 100)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--models", default=",".join(NETWORKS))
    parser.add_argument("--policies", default=POLICIES, help="what differs from a server's defaults may follow: vliw:overlap=8:keep_warm=200 (goodput.cpp)")
    parser.add_argument("--rates", default="", help="points of these rates for each policy, in place of the search for the highest")
    parser.add_argument("--arrivals", default="poisson,burst:1.5,burst:2,azure", help="burst:SIGMA, of the logarithm of gaps")
    parser.add_argument("--factors", default="5,3,10,2", help="of deadlines, over the solo time")
    parser.add_argument("--share", type=float, default=0.99, help="that is to be in time")
    parser.add_argument("--seconds", type=float, default=1.5, help="of a point")
    parser.add_argument("--warm", type=float, default=0.2, help="seconds before each point that are not counted")
    parser.add_argument("--tolerance", type=float, default=0.05, help="of the rate")
    parser.add_argument("--overload", type=float, default=1.2, help="of the highest rate of any policy: a point of each policy more; 0: none")
    parser.add_argument("--points", type=int, default=14, help="most rates that are tried for a policy")
    parser.add_argument("--max-batch", type=int, default=4)
    parser.add_argument("--inputs", choices=("host", "pinned", "device"), default="host", help="where inputs lie; pinned: page-locked, taken from there without a copy on the host")
    parser.add_argument("--precision", default="fp16")
    parser.add_argument("--target", default="cuda", help="or cuda:N, or cpu")
    parser.add_argument("--sms", type=int, default=0, help="of the machine; 0: as many as the GPU has")
    parser.add_argument("--widths", default="", help="SMs that programs are made for; empty: all, a half, a quarter, an eighth")
    parser.add_argument("--workers", type=int, default=0, help="of a CPU")
    parser.add_argument("--submitters", type=int, default=2 if (os.cpu_count() or 1) >= 8 else 1, help="threads that submit")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--timeout", type=float, default=150, help="seconds of one export or compilation")
    parser.add_argument("--budget", type=float, default=330, help="seconds of everything")
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1, help="exports and compilations at once")
    parser.add_argument("--work", default=os.environ.get("TMPDIR", "/tmp") + "/obelisk-goodput")
    parser.add_argument("--requests", help="a CSV file with a line a request of each point: what became of it, and why")
    parser.add_argument("--out", help="a JSON file for the rows")
    options = parser.parse_args()
    missing = [name for name in options.models.split(",") if name not in NETWORKS and not (pathlib.Path(options.work) / f"{name}.onnx").exists()]
    if missing:
        parser.error(f"there is no {', '.join(missing)}; networks: {', '.join(NETWORKS)}")
    return Run(options).all()


if __name__ == "__main__":
    sys.exit(main())
