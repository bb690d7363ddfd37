#!/usr/bin/env python3
"""Works on a CPU with barriers between waves beside those that begin when they may: latencies in turns, in one process.

in   ONNX files of scripts/gpu_models.py (export), one a network
out  a table, and with --out FILE.json device, date, commit, command, and of each network for each dispatch the median and the
     least of all rounds' medians and minima, the ratio of medians round by round, and the workspace

--busy N: meanwhile N other processes compute, as on a machine that is not ours alone.
"""
import argparse
import statistics
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT / "scripts"), str(ROOT / "bench")]
from obelisk_backend import Program  # noqa: E402
from record import write  # noqa: E402


def measure(program, model, arguments):
    """{dispatch: {median_us, min_us, workspace_bytes}, ratio: its quartiles}, over all rounds."""
    dispatches = arguments.dispatch.split(",")
    rounds = []
    for _ in range(arguments.rounds):
        report = program("bench", model, "--target", "cpu", "--verify", "off", "--dispatch", arguments.dispatch,
                         "--threads", arguments.threads, "--seconds", arguments.seconds)
        if not all(one["same_bits"] for one in report["dispatches"]):
            raise SystemExit(f"{model}: other bits")
        rounds.append({one["dispatch"]: one for one in report["dispatches"]})
    told = {}
    for dispatch in dispatches:
        each = [one[dispatch] for one in rounds]
        told[dispatch] = {
            "median_us": round(statistics.median(one["latency_us"]["median"] for one in each), 1),
            "min_us": round(min(one["latency_us"]["min"] for one in each), 1),
            "workspace_bytes": each[0]["workspace_bytes"],
        }
        ratios = sorted(one[dispatches[0]]["latency_us"]["median"] / one[dispatch]["latency_us"]["median"] for one in rounds)
        told[dispatch]["faster"] = [round(ratios[0], 3), round(statistics.median(ratios), 3), round(ratios[-1], 3)]
    return told


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("models", nargs="+", type=Path)
    parser.add_argument("--obelisk", type=Path, default=ROOT / "build" / "bin" / "obelisk")
    parser.add_argument("--dispatch", default="waves,critical", help="the first is what others are compared with")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=6, help="of a round of all dispatches")
    parser.add_argument("--busy", type=int, default=0)
    parser.add_argument("--out", type=Path)
    arguments = parser.parse_args()
    program = Program(arguments.obelisk, timeout=300)
    others = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(arguments.busy)]
    results = {}
    try:
        for model in arguments.models:
            results[model.stem] = measure(program, model, arguments)
            for dispatch, one in results[model.stem].items():
                print(f"{model.stem:20}{dispatch:12}{one['median_us']:>12.1f} us, least {one['min_us']:>10.1f}"
                      f"{one['workspace_bytes'] / 2**20:>8.2f} MiB, {' '.join(map(str, one['faster']))} times as fast", flush=True)
    finally:
        for other in others:
            other.kill()
    if arguments.out:
        write("cpu_dispatch", {"threads": arguments.threads, "busy": arguments.busy, "rounds": arguments.rounds,
                               "networks": results}, arguments.out)


if __name__ == "__main__":
    main()
