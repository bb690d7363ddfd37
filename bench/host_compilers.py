#!/usr/bin/env python3
"""Bodies for a CPU by several host compilers: seconds to compile, and how long a run takes.

in   host_compilers.py NAME=PROGRAM NAME=PROGRAM … --model FILE,DIM=SIZE,… (several); PROGRAM may be ziglang's zig
out  bench/results/host_compilers.json and a table

Compilers take turns, so that what else the machine does meets all of them. Compiling is cold (an empty object cache; the compiler's own
caches are warm but in `first_s`, for zig, which builds its C runtime once for a user), verification off, the least of the rounds; a run is
the least median of `obelisk bench` in the rounds, one thread.
"""
import argparse
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT / "scripts"), str(ROOT / "bench")]
from obelisk_backend import Program  # noqa: E402
from record import write  # noqa: E402


def version(path):
    words = [path, "c++"] if Path(path).name == "zig" else [path]
    return subprocess.run([*words, "--version"], capture_output=True, text=True, check=True).stdout.splitlines()[0]


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("compilers", nargs="+", metavar="NAME=PROGRAM")
    parser.add_argument("--model", action="append", required=True, metavar="FILE,DIM=SIZE,…")
    parser.add_argument("--rounds", type=int, default=3)
    given = parser.parse_args()
    compilers = dict(each.split("=", 1) for each in given.compilers)
    program = Program(ROOT / "build" / "bin" / "obelisk", timeout=300)
    first = {}
    with tempfile.TemporaryDirectory(prefix="obelisk-host-") as folder:
        source = Path(folder) / "empty.cpp"
        source.write_text("extern \"C\" double one(double x) { return __builtin_exp(x); }\n")
        for name, path in compilers.items():
            if Path(path).name == "zig":
                begin = time.perf_counter()
                subprocess.run([path, "c++", "-nostdlib++", "-O3", "-shared", "-fPIC", source, "-o", source.with_suffix(".so"), "-lm"], check=True,
                               env={**os.environ, "ZIG_GLOBAL_CACHE_DIR": f"{folder}/zig"})
                first[name] = round(time.perf_counter() - begin, 1)
    rows = []
    for model in given.model:
        file, *shape = model.split(",")
        flags = [flag for each in shape for flag in ("--shape", each)]
        row = {"model": Path(file).name, "shape": shape, "compilers": {name: {} for name in compilers}}
        rows.append(row)
        for _ in range(given.rounds):
            for name, path in compilers.items():
                with tempfile.TemporaryDirectory(prefix="obelisk-host-") as folder:
                    output = Path(folder) / "model.obk"
                    begin = time.perf_counter()
                    made = program("compile", file, "-o", output, "--compiler", path, "--cache", f"{folder}/cache", "--verify", "off", *flags)
                    seconds = time.perf_counter() - begin
                    run = program("bench", output, "--threads", "1")["latency_us"]["median"]
                here = row["compilers"][name]
                here["bodies"] = made["bodies_compiled"]
                here["compile_s"] = round(min(seconds, here.get("compile_s", 1e9)), 2)
                here["run_us"] = round(min(run, here.get("run_us", 1e12)), 1)
        print(row["model"], " ".join(f"{name}: {each['compile_s']} s, {each['run_us']} us" for name, each in row["compilers"].items()))
    print(write("host_compilers", {"versions": {name: version(path) for name, path in compilers.items()}, "first_s": first, "rounds": given.rounds,
                                   "rows": rows}, ROOT / "bench" / "results" / "host_compilers.json"))


if __name__ == "__main__":
    main()
