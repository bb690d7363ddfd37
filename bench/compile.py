#!/usr/bin/env python3
"""What compiling costs: cold and warm seconds, peak memory, and the seconds to open the result.

in   BERT-base as scripts/zoo.sh writes it, or the files given
out  bench/results/compile-DATE.json and a table

Cold is with an empty object cache, warm is the same command again, the median of five, since writing
the result costs what the disk is busy with; both with verification off. Peak memory is the program's
own, as a multiple of the model file. That cold compiled every body and warm none is checked. Opening is what a run of the .obk spends before it computes:
wall clock of `obelisk inspect` on it, the best of five.
"""
import argparse
import os
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT / "scripts"), str(ROOT / "bench")]
from obelisk_backend import Failure, Program  # noqa: E402
from record import write  # noqa: E402

GOALS = {"cold_s": 10.0, "warm_s": 1.0, "open_s": 0.05, "memory_ratio": 3.0}
GPU_GOALS = {**GOALS, "cold_s": 4.0, "warm_s": 0.5}  # BERT-base in one kernel, on 16 cores
SHAPE = dict(batch=1, sequence=128)


def timed(call):
    start = time.perf_counter()
    answer = call()
    return time.perf_counter() - start, answer


def measure(model, shape, program, words=()):
    flags = [*words] + [flag for dim, size in shape.items() for flag in ("--shape", f"{dim}={size}")]
    with tempfile.TemporaryDirectory(prefix="obelisk-bench-") as folder:
        os.environ["OBELISK_CACHE"] = str(Path(folder) / "cache")
        output = Path(folder) / "model.obk"
        command = ["compile", model, "-o", output, "--verify", "off", *flags]
        cold, report = timed(lambda: program(*command))
        warm, again = sorted((timed(lambda: program(*command)) for _ in range(5)), key=lambda each: each[0])[2]
        if report["bodies_cached"] or again["bodies_compiled"]:
            sys.exit(f"compile: {report['bodies_cached']} bodies were there when cold, {again['bodies_compiled']} not when warm")
        opened = min(timed(lambda: program("inspect", output))[0] for _ in range(5))
        size = model.stat().st_size
        return {
            "model": model.name, "shape": shape, "file_bytes": size, "output_bytes": output.stat().st_size,
            "cold_s": round(cold, 3), "warm_s": round(warm, 3), "open_s": round(opened, 4),
            "memory_ratio": round(report["peak_rss_bytes"] / size, 2),
            "cold": report, "warm": again,
        }


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("models", nargs="*", type=Path,
                        default=[ROOT / "build" / "zoo" / "bert-base.torchscript.onnx"])
    parser.add_argument("--shape", action="append", metavar="DIM=SIZE", help="batch=1 sequence=128 without; an empty one where the model has no dimension to set")
    parser.add_argument("--words", default="", metavar="FLAGS",
                        help='of obelisk compile, as "--target cuda --precision fp16 --granularity mono"')
    parser.add_argument("--output", type=Path)
    parser.add_argument("--no-write", action="store_true")
    arguments = parser.parse_args()
    pairs = [pair for pair in arguments.shape or [] if pair]
    shape = dict(pair.split("=") for pair in pairs) if arguments.shape is not None else SHAPE
    words = arguments.words.split()
    goals = GPU_GOALS if any(word.startswith(("cuda", "sm_")) for word in words) else GOALS
    results = []
    for model in arguments.models:
        try:
            results.append(measure(model, shape, Program(timeout=600), words))
        except Failure as error:
            sys.exit(f"compile: {model}: {error}")
    print(f"{'model':34}" + "".join(f"{key:>14}" for key in goals))
    for row in results:
        print(f"{row['model']:34}" + "".join(f"{row[key]:14}" for key in goals))
    if not arguments.no_write:
        print("wrote", write("compile", {"goals": goals, "words": words, "results": results}, arguments.output))
    missed = sorted({key for row in results for key in goals if row[key] > goals[key]})
    print(f"compile: {'over the goal: ' + ', '.join(missed) if missed else 'within all goals'}")


if __name__ == "__main__":
    main()
