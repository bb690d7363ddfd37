#!/usr/bin/env python3
"""The CPU speed table: obelisk beside ONNX Runtime, fp32, both in alternating rounds of one go.

in   the networks of scripts/zoo.py (build/zoo; MiniLM with trained weights if scripts/demo.sh wrote it)
out  bench/results/cpu-DATE.json: device, date, commit, command, versions, and the program's own
     JSON of each network; a table with each speedup and the geometric mean on standard output

Nothing else should run on the machine meanwhile; a row that the program calls noisy is marked `~`.
"""
import argparse
import math
import sys
from pathlib import Path

import onnxruntime

ROOT = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT / "scripts"), str(ROOT / "bench")]
from obelisk_backend import Failure, Program  # noqa: E402
from record import write  # noqa: E402

#        row            files, best first                                           shape
TABLE = {
    "MiniLM": (["demo/minilm.onnx", "zoo/minilm.torchscript.onnx"], dict(batch=1, sequence=128)),
    "BERT-base": (["zoo/bert-base.torchscript.onnx"], dict(batch=1, sequence=128)),
    "ViT-B/16": (["zoo/vit-b16.torchscript.onnx"], dict(batch=1)),
    "ResNet-50": (["zoo/resnet50.torchscript.onnx"], dict(batch=1, height=224, width=224)),
    "GoogLeNet": (["zoo/googlenet.torchscript.onnx"], dict(batch=1)),
    "DeepFM": (["zoo/deepfm.torchscript.onnx"], dict(batch=1)),
    "CRNN": (["zoo/crnn.torchscript.onnx"], dict(batch=1, width=100)),
}
EACH_AT_LEAST, MEAN_AT_LEAST = 0.6, 0.85  # the goal, as shares of ONNX Runtime's speed


def find(files, folder):
    for file in files:
        if (folder / file).exists():
            return folder / file
    return None


def measure(row, program, arguments):
    files, shape = TABLE[row]
    model = find(files, arguments.models)
    if model is None:
        return {"error": f"{files[-1]} is not in {arguments.models}; scripts/zoo.sh writes it"}
    flags = [flag for dim, size in shape.items() for flag in ("--shape", f"{dim}={size}")]
    flags += ["--threads", arguments.threads, "--against", "onnxruntime", "--seconds", arguments.seconds]
    try:
        report = program("bench", model, *flags)
    except Failure as error:
        return {"error": str(error)}
    return {"model": model.name, "shape": shape, **report}


def show(results):
    print(f"{'network':12}{'shape':38}{'obelisk':>11}{'ORT':>11}{'speedup':>9}")
    speedups = []
    for row, report in results.items():
        if "error" in report:
            print(f"{row:12}{report['error'][:80]}")
            continue
        shape = " ".join(f"{dim}={size}" for dim, size in report["shape"].items())
        other = report["against"][0]
        speedups.append(other["speedup"])
        mark = "~" if report["noisy"] else " "
        low = "  too slow" if other["speedup"] < EACH_AT_LEAST else ""
        print(f"{row:12}{shape:38}{report['latency_us']['median'] / 1000:8.2f} ms"
              f"{other['latency_us']['median'] / 1000:8.2f} ms{other['speedup']:8.2f}{mark}{low}")
    mean = math.exp(sum(map(math.log, speedups)) / len(speedups)) if speedups else 0.0
    return mean, len(speedups)


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("rows", nargs="*", help=f"rows of the table (all without): {', '.join(TABLE)}")
    parser.add_argument("--threads", default="2")
    parser.add_argument("--seconds", default="10", help="of each network")
    parser.add_argument("--models", type=Path, default=ROOT / "build", help="folder with zoo/ and demo/")
    parser.add_argument("--output", type=Path, help="instead of bench/results/cpu-DATE.json")
    parser.add_argument("--note", help="kept with the numbers: what else the machine was doing")
    parser.add_argument("--no-write", action="store_true", help="only print the table")
    arguments = parser.parse_args()
    for row in arguments.rows:
        if row not in TABLE:
            parser.error(f"no row '{row}'; there are {', '.join(TABLE)}")
    program = Program(timeout=900)
    results = {row: measure(row, program, arguments) for row in arguments.rows or TABLE}
    mean, count = show(results)

    if not arguments.no_write:
        print("wrote", write("cpu", {
            "versions": {"onnxruntime": onnxruntime.__version__}, "threads": int(arguments.threads),
            "precision": "fp32", **({"note": arguments.note} if arguments.note else {}),
            "geometric_mean_speedup": round(mean, 4), "results": results,
        }, arguments.output))
    reached = count == len(results) and mean >= MEAN_AT_LEAST and all(
        report["against"][0]["speedup"] >= EACH_AT_LEAST for report in results.values())
    print(f"bench: geometric mean {mean:.2f}x of ONNX Runtime over {count} of {len(results)} networks; "
          f"goal {MEAN_AT_LEAST}x, none under {EACH_AT_LEAST}x: {'reached' if reached else 'not reached'}")
    return 0 if count == len(results) else 1


if __name__ == "__main__":
    sys.exit(main())
