#!/usr/bin/env python3
"""Everything that wants a GPU, in one go: tests, networks, measurements beside PyTorch, as JSON.

    gpu.py tests                                  every test program, and what it said
    gpu.py models                                 writes the networks as ONNX, weights random
    gpu.py run    [--models A,B] [--granularity mono]     answers against PyTorch in f32
    gpu.py bench  [--models A,B] [--granularity op,stitch,mono]     device time and latency
    gpu.py peers  [--models A,B] [--ways eager,graph,compile]
    gpu.py profile [--models A,B] [--granularity mono]    a table per phase
    gpu.py sanitize [--tools racecheck] [--jobs 8]        device blocks under compute-sanitizer
    gpu.py all                                    all of it, in this order

Works in the folder that scripts/pack.sh makes, and in a checkout with a build. Each part goes on
after a failure and says what failed; the exit status counts failures. Results: --out FILE.json
(bench/results).
"""

import argparse
import datetime
import json
import os
import pathlib
import re
import shutil
import statistics
import subprocess
import sys

HERE = pathlib.Path(__file__).resolve().parent
ROOT = HERE.parent
BIN = next(
    (p for p in (ROOT / "bin", ROOT / "build/bin") if (p / "obelisk").exists()), ROOT / "bin"
)
PARTS = ("tests", "models", "run", "bench", "peers", "profile", "sanitize")
TESTS = ("gpu_test", "gpu_blocks_test")


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
        self.models = options.models.split(",")
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

    def obelisk(self, *words, timeout=300):
        return call([BIN / "obelisk", *words], timeout)

    # ---- parts ----
    def tests(self):
        rows = []
        for name in TESTS:
            if not (BIN / name).exists():
                continue
            code, out, err = call([BIN / name, *self.options.gtest], self.options.timeout)
            counts = {}
            for word in ("PASSED", "SKIPPED", "FAILED"):
                found = re.search(rf"\[\s+{word}\s+\] (\d+) test", out)
                counts[word.lower()] = int(found[1]) if found else 0
            measured = [json.loads(line) for line in out.splitlines() if line.startswith('{"')]
            rows.append({"program": name, "exit": code, **counts, "measured": measured})
            say(f"tests  {name}: {counts}")
            if code != 0:
                lines = [l for l in out.splitlines() if re.search(r"Failure|FAILED|error|^  ", l)]
                self.fail(name, f"exit {code}\n" + "\n".join(lines[-40:]) + "\n" + err[-800:])
        self.result["tests"] = rows

    def write_models(self):
        sys.path.insert(0, str(HERE))
        import gpu_models
        for name in self.models:
            if self.onnx(name).exists():
                continue
            try:
                say(f"models {name}: {gpu_models.export(name, self.onnx(name)) / 1e6:.0f} MB")
            except Exception as error:
                self.fail(f"export {name}", f"{type(error).__name__}: {error}")

    def run(self):
        """Answers beside those of the module in f32 on the GPU."""
        sys.path.insert(0, str(HERE))
        import gpu_models
        import numpy
        import torch
        rows = []
        for name in self.models:
            if not self.onnx(name).exists():
                continue
            module, inputs, names = gpu_models.make(name)
            torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = False
            with torch.inference_mode():
                wanted = module.cuda()(*(t.cuda() for t in inputs))
            wanted = [
                t.float().cpu().numpy()
                for t in (wanted if isinstance(wanted, tuple) else (wanted,))
            ]
            arrays = self.work / f"{name}.npz"
            numpy.savez(arrays, **{n: t.numpy() for n, t in zip(names, inputs)})
            for granularity in self.options.granularity.split(","):
                folder = self.work / "answers"
                shutil.rmtree(folder, ignore_errors=True)
                code, out, err = self.obelisk(
                    "run",
                    self.onnx(name),
                    "--inputs",
                    arrays,
                    "--target",
                    "cuda",
                    "--granularity",
                    granularity,
                    "--precision",
                    self.options.precision,
                    "--output-dir",
                    folder,
                    "--json",
                    *self.options.flags,
                )
                row = {"model": name, "granularity": granularity, "ok": False}
                rows.append(row)
                if code != 0:
                    row["error"] = err.strip()[:600]
                    self.fail(f"run {name} {granularity}", err)
                    continue
                answer = json.loads(out)
                errors = []
                for port, reference in zip(answer["outputs"], wanted):
                    got = numpy.load(port["file"]).astype(numpy.float64)
                    scale = numpy.sqrt(numpy.mean(reference.astype(numpy.float64) ** 2)) + 1e-12
                    errors.append(
                        float(numpy.max(numpy.abs(got - reference)) / scale)
                        if numpy.isfinite(got).all()
                        else float("inf")
                    )
                row.update(
                    ok=max(errors) < self.options.tolerance,
                    max_error=max(errors),
                    latency_us=answer["latency_us"],
                )
                say(
                    f"run    {name:16} {granularity:7} max error {max(errors):.2e} of the "
                    f"output's rms, {answer['latency_us']:.1f} us"
                )
                if not row["ok"]:
                    self.fail(f"run {name} {granularity}", f"max error {max(errors)}")
        self.result["answers"] = rows

    def bench(self):
        rows = []
        for name in self.models:
            if not self.onnx(name).exists():
                continue
            for granularity in self.options.granularity.split(","):
                code, out, err = self.obelisk(
                    "bench",
                    self.onnx(name),
                    "--target",
                    "cuda",
                    "--granularity",
                    granularity,
                    "--precision",
                    self.options.precision,
                    "--seconds",
                    self.options.seconds,
                    "--json",
                    *self.options.flags,
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
        sys.path.insert(0, str(HERE))
        import gpu_models
        import torch
        import torch_peer
        rows = []
        for name in self.models:
            try:
                module, inputs, _ = gpu_models.make(name)
                peer = torch_peer.Peer(module, inputs, self.options.precision)
            except Exception as error:
                self.fail(f"peer {name}", str(error))
                continue
            for way in self.options.ways.split(","):
                try:
                    times = sorted(torch_peer.device_us(peer.way(way)))
                except Exception as error:
                    rows.append({"model": name, "way": way, "error": str(error)[:300]})
                    self.fail(f"peer {name} {way}", str(error))
                    continue
                rows.append(
                    {
                        "model": name,
                        "way": way,
                        "device_us": {"median": statistics.median(times), "p99": times[-1]},
                    }
                )
                say(f"peers  {name:16} {way:13} device {statistics.median(times):8.1f} us")
            del peer
            torch.cuda.empty_cache()
        self.result["pytorch"] = {"version": torch.__version__, "rows": rows}

    def profile(self):
        rows = []
        for name in self.models:
            if not self.onnx(name).exists():
                continue
            for granularity in self.options.granularity.split(","):
                code, out, err = self.obelisk(
                    "profile",
                    self.onnx(name),
                    "--target",
                    "cuda",
                    "--granularity",
                    granularity,
                    "--precision",
                    self.options.precision,
                    "--json",
                    *self.options.flags,
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

    def sanitize(self):
        sys.path.insert(0, str(HERE))
        import gpu_sanitize
        rows = gpu_sanitize.sanitize(
            BIN, self.options.tools.split(","), self.options.jobs, self.options.timeout, say
        )
        for what, why in gpu_sanitize.failures(rows):
            self.fail(what, why)
        self.result["sanitize"] = rows


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("parts", nargs="+", choices=(*PARTS, "all"))
    parser.add_argument(
        "--models", default="minilm_b1,bert_b1,resnet18_b1,resnet50_b1,vit_b1,deepfm_b1"
    )
    parser.add_argument("--granularity", default="mono,stitch,op")
    parser.add_argument("--precision", default="fp16")
    parser.add_argument("--ways", default="eager,graph,compile")
    parser.add_argument("--seconds", type=float, default=1)
    parser.add_argument(
        "--tolerance", type=float, default=0.05, help="of the output's root mean square"
    )
    parser.add_argument("--timeout", type=int, default=300, help="of a test program, in seconds")
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
    parser.add_argument("--jobs", type=int, default=8, help="processes at once")
    parser.add_argument("--work", default=os.environ.get("TMPDIR", "/tmp") + "/obelisk-gpu")
    parser.add_argument("--out", help="a JSON file for the results")
    session = Session(parser.parse_args())
    for part in PARTS if "all" in session.options.parts else session.options.parts:
        try:
            {
                "tests": session.tests,
                "models": session.write_models,
                "run": session.run,
                "bench": session.bench,
                "peers": session.peers,
                "profile": session.profile,
                "sanitize": session.sanitize,
            }[part]()
        except Exception as error:
            self_error = f"{type(error).__name__}: {error}"
            session.fail(part, self_error)
        if session.options.out:  # after each part, so that an interrupted run leaves something
            pathlib.Path(session.options.out).write_text(
                json.dumps(session.result, indent=1) + "\n"
            )
    say(f"{len(session.failures)} failures" + "".join(f"\n  {f}" for f in session.failures))
    return min(len(session.failures), 100)


if __name__ == "__main__":
    sys.exit(main())
