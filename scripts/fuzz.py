#!/usr/bin/env python3
"""Runs the fuzzers that scripts/fuzz.sh built, and writes down how far each got.

A corpus begins with those of the kept cases and seeds that show something new, so that a run is not
spent on reading much of the same; it grows under build/fuzz/corpus from run to run.
A crash, an input that takes a minute, or one that takes 2 GB ends a run; it is then a find. So is one
that took ten seconds, if it takes as long once more after the run: others may have had the cores.
"""

import argparse
import concurrent.futures
import datetime
import json
import os
import re
import shutil
import subprocess
import sys
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
TARGETS = ("onnx", "ir", "npy", "npz", "obk")
LONGEST = {"onnx": 8192, "ir": 8192, "npy": 4096, "npz": 4096, "obk": 8192}
SLOW = 10  # seconds
# Allocators answer what is too large with an error, as the product's do, and the error is what is
# tested.
SANITIZERS = {
    "ASAN_OPTIONS": "allocator_may_return_null=1:detect_leaks=1",
    "UBSAN_OPTIONS": "print_stacktrace=1",
}


def call(target, log, *words):
    """The fuzzer's exit; what it says goes to build/fuzz/LOG."""
    folder = ROOT / "build" / "fuzz"
    limits = ["-timeout=60", f"-report_slow_units={SLOW}", "-rss_limit_mb=2048", f"-max_len={LONGEST[target]}",
              f"-artifact_prefix={folder}/found/{target}-"]
    with open(folder / log, "w") as out:
        return subprocess.run(
            [str(word) for word in (folder / "bin" / f"{target}_fuzz", *words, *limits)],
            stdin=subprocess.DEVNULL,
            stdout=out,
            stderr=out,
            env={**os.environ, **SANITIZERS},
            cwd=folder,
        ).returncode


def is_slow(target, file):
    start = time.monotonic()
    call(target, f"{target}.slow.log", file)
    return time.monotonic() - start >= SLOW


def fuzz(target, seconds):
    folder = ROOT / "build" / "fuzz"
    corpus, found = folder / "corpus" / target, folder / "found"
    corpus.mkdir(parents=True, exist_ok=True)
    found.mkdir(exist_ok=True)
    before = set(found.glob(f"{target}-*"))
    status = 0
    if not any(corpus.iterdir()):
        status = call(target, f"{target}.merge.log", "-merge=1", corpus, folder / "seeds" / target,
                      ROOT / "tests" / "fuzz" / "corpus" / target)
    words = [corpus, f"-max_total_time={seconds}", "-print_final_stats=1"]
    dictionary = ROOT / "tests" / "fuzz" / f"{target}.dict"
    if dictionary.exists():
        words.append(f"-dict={dictionary}")
    start = time.monotonic()
    status = call(target, f"{target}.log", *words) or status
    text = (folder / f"{target}.log").read_text(errors="replace")
    last = (re.findall(r"cov: (\d+) ft: (\d+) corp: (\d+)", text) or [(0, 0, 0)])[-1]
    runs = re.search(r"number_of_executed_units:\s+(\d+)", text)
    for file in set(found.glob(f"{target}-slow-unit-*")) - before:
        if not is_slow(target, file):
            file.unlink()
    peak = re.search(r"peak_rss_mb:\s+(\d+)", text)
    return {
        "target": target,
        "seconds": round(time.monotonic() - start),
        "executions": int(runs[1]) if runs else 0,
        "edges": int(last[0]),
        "features": int(last[1]),
        "corpus": int(last[2]),
        "peak_rss_mb": int(peak[1]) if peak else 0,
        "exit": status,
        "found": sorted(path.name for path in set(found.glob(f"{target}-*")) - before),
    }


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument(
        "targets", nargs="*", default=TARGETS, help=f"of {', '.join(TARGETS)}; all without"
    )
    parser.add_argument("--seconds", type=int, default=600)
    parser.add_argument("--jobs", type=int, default=2)
    arguments = parser.parse_args()
    for target in arguments.targets:
        if target not in TARGETS:
            parser.error(f"there is no target '{target}'")
    commit = ""
    if shutil.which("git"):
        words = ["git", "rev-parse", "--short=8", "HEAD"]
        commit = subprocess.run(words, cwd=ROOT, capture_output=True, text=True).stdout.strip()
    results = ROOT / "build" / "fuzz" / "results.json"
    rows = json.loads(results.read_text())["targets"] if results.exists() else []
    bad = []
    with concurrent.futures.ThreadPoolExecutor(arguments.jobs) as pool:
        for done in concurrent.futures.as_completed(
            [pool.submit(fuzz, each, arguments.seconds) for each in arguments.targets]
        ):
            row = {**done.result(), "date": datetime.date.today().isoformat(), "commit": commit}
            rows = [other for other in rows if other["target"] != row["target"]] + [row]
            print(
                f"{row['target']:6}{row['seconds']:6} s {row['executions']:10} executions "
                f"{row['edges']:7} edges "
                f"{row['corpus']:6} cases {row['peak_rss_mb']:6} MB  "
                f"{' '.join(row['found']) or 'nothing found'}",
                flush=True,
            )
            if row["exit"] or row["found"]:
                bad.append(row["target"])
    command = "scripts/fuzz.sh --seconds " + str(arguments.seconds)
    results.write_text(
        json.dumps(
            {"command": command, "targets": sorted(rows, key=lambda row: row["target"])}, indent=1
        )
        + "\n"
    )
    print(f"fuzz: {', '.join(sorted(bad))} broke; see build/fuzz/*.log" if bad else
          f"fuzz: {len(arguments.targets)} targets, nothing found")
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main())
