#!/usr/bin/env python3
"""Runs the backend tests of onnx through their own runner, with `obelisk` as the backend.

Case lists, inputs, expected answers and tolerances are onnx.backend.test's. A case that does not
pass stands in tests/conformance/exceptions.txt as `case-name: reason`, sorted. The exit is 1 when
the answers and that file disagree: an unlisted case fails, a listed one passes or does not exist.

  scripts/conformance.sh                     all groups, 2 processes
  scripts/conformance.sh --only 'test_conv'  cases whose name matches; others keep their lines
  scripts/conformance.sh --bless             rewrite the file from what happened
  scripts/conformance.sh --engine reference  the op table's slow reference instead of compiled code;
                                             listed cases may pass here, the file is left as it is
  scripts/conformance.sh --target cuda --granularity mono     on a GPU: what does not pass there but
                                             on the CPU stands in
                                             tests/conformance/exceptions_cuda.txt
"""

import argparse
import concurrent.futures
import os
import re
import sys
import time
import unittest
from collections import defaultdict
from pathlib import Path
from xml.sax.saxutils import quoteattr

sys.path.insert(0, str(Path(__file__).parent))
import obelisk_backend  # noqa: E402
from obelisk_backend import Failure, ObeliskBackend, Program  # noqa: E402

os.environ.setdefault("OBELISK_PYTHON", sys.executable)  # whose packages have the device compiler
ROOT = Path(__file__).resolve().parent.parent
EXCEPTIONS = ROOT / "tests" / "conformance" / "exceptions.txt"
CUDA_EXCEPTIONS = EXCEPTIONS.with_name("exceptions_cuda.txt")
GROUPS = {"OnnxBackendNodeModelTest": "node", "OnnxBackendSimpleModelTest": "simple",
          "OnnxBackendPyTorchConvertedModelTest": "pytorch-converted",
          "OnnxBackendPyTorchOperatorModelTest": "pytorch-operator",
          "OnnxBackendRealModelTest": "light models"}
SECONDS = defaultdict(lambda: 30, {"light models": 300})
REASON_LENGTH = 140
HEADER = """\
# The backend tests of onnx that do not pass{on}, and why: `case-name: reason`, sorted.
# scripts/conformance.sh fails when a case changes without this file; --bless rewrites it.
"""

_suites = {}


def suites():
    """{group: TestCase class of onnx's own runner}; built once a process."""
    if not _suites:
        from onnx.backend.test import BackendTest
        for name, suite in BackendTest(ObeliskBackend, __name__).test_cases.items():
            _suites[GROUPS[name]] = suite
    return _suites


def cases():
    """[(group, case name)] in the order of GROUPS; a name is without its device suffix."""
    listed = []
    for group in GROUPS.values():
        names = sorted(name for name in dir(suites()[group]) if name.endswith("_cpu"))
        listed += [(group, name.removesuffix("_cpu")) for name in names]
    return listed


def short(error):
    """One line for the exceptions file: no paths, no times, no values that change from run to
    run."""
    if isinstance(error, Failure):
        text = str(error)
    elif isinstance(error, AssertionError):
        lines = [line.strip() for line in str(error).splitlines() if line.strip()]
        kept = [
            line
            for line in lines
            if re.match(r"(Output \d|Max (abs|rel)|Mismatched|dtype|Items)", line)
        ]
        text = "wrong answer: " + "; ".join(kept[:2] or lines[:1] or ["no message"])
    else:
        text = f"{type(error).__name__}: {error}"
    text = re.sub(r"\S*/obelisk-[A-Za-z0-9_]+/", "", " ".join(text.split()))
    return text if len(text) <= REASON_LENGTH else text[:REASON_LENGTH - 1].rstrip() + "…"


def run_case(group, name, flags):
    """(group, name, None when passed else the reason, seconds)."""
    ObeliskBackend.program = Program(flags=flags, timeout=SECONDS[group], batch=True)
    start = time.monotonic()
    suite = suites()[group](f"{name}_cpu")
    try:
        getattr(suite, f"{name}_cpu")()
        reason = None
    except Exception as error:  # whatever a case raises is that case's reason
        reason = f"skipped: {error}" if isinstance(error, unittest.SkipTest) else short(error)
    return group, name, reason, time.monotonic() - start


def read_exceptions(path):
    listed = {}
    if path.exists():
        for number, line in enumerate(path.read_text().splitlines(), 1):
            if line.strip() and not line.startswith("#"):
                name, separator, reason = line.partition(": ")
                if not separator or not reason.strip():
                    sys.exit(f"{path}:{number}: wanted 'case-name: reason', got '{line}'")
                if name in listed:
                    sys.exit(f"{path}:{number}: {name} is listed twice")
                listed[name] = reason.strip()
    return listed


def write_exceptions(path, listed, on=""):
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_suffix(".partial")
    partial.write_text(
        HEADER.format(on=on) + "".join(f"{name}: {listed[name]}\n" for name in sorted(listed))
    )
    partial.replace(path)


def write_junit(path, results, listed):
    """The counts for scripts/tally.py, and a report that other tools can read."""
    rows, failures, skipped = [], 0, 0
    for group, name, reason, seconds in results:
        inner = ""
        if reason and name in listed:
            skipped += 1
            inner = f"<skipped message={quoteattr(reason)}/>"
        elif reason or name in listed:
            failures += 1
            inner = f"<failure message={quoteattr(reason or 'listed, but passes')}/>"
        rows.append(
            f'<testcase classname="{group}" name="{name}" time="{seconds:.3f}">{inner}</testcase>\n'
        )
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f'<testsuite name="conformance" tests="{len(results)}" failures="{failures}" '
                    f'errors="0" skipped="{skipped}">\n{"".join(rows)}</testsuite>\n')


def run_all(wanted, flags, jobs):
    results = []
    shown = time.monotonic()
    with concurrent.futures.ProcessPoolExecutor(jobs) as pool:
        # The light models take longest: first, so that no process waits for the other at the end.
        order = sorted(wanted, key=lambda case: case[0] != "light models")
        waiting = [pool.submit(run_case, group, name, flags) for group, name in order]
        for done in concurrent.futures.as_completed(waiting):
            results.append(done.result())
            if time.monotonic() - shown > 20:
                shown = time.monotonic()
                print(f"  {len(results)} of {len(wanted)} cases", flush=True)
    return sorted(results)


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--only", metavar="REGEX", help="cases whose name matches")
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--bless", action="store_true", help="rewrite the exceptions file")
    parser.add_argument("--engine", choices=("compiled", "reference"), default="compiled")
    parser.add_argument("--exceptions", type=Path, default=EXCEPTIONS)
    parser.add_argument("--target", default="", help="e.g. cuda; none: the CPU")
    parser.add_argument("--granularity", default="", help="of a GPU's program")
    parser.add_argument("--junit", type=Path, metavar="FILE")
    parser.add_argument(
        "--slowest", type=int, default=0, metavar="N", help="print the N slowest cases"
    )
    arguments = parser.parse_args()
    reference = arguments.engine == "reference"
    if reference and arguments.bless:
        parser.error("the file is about compiled code: --bless does not go with --engine reference")
    program = Path(obelisk_backend.Program().path)
    if not program.exists():
        sys.exit(f"conformance: {program} is not there; run scripts/build.sh")
    # The runner keeps the light models' data under this folder, by default in the home folder.
    os.environ["ONNX_MODELS"] = str(ROOT / "build" / "conformance" / "models")

    every = cases()
    names = {name for _, name in every}
    wanted = [case for case in every if not arguments.only or re.search(arguments.only, case[1])]
    listed = read_exceptions(arguments.exceptions)
    on_cpu, flags = {}, []
    if reference:
        flags = ["--target", "reference"]
    elif arguments.target:
        on_cpu, flags = listed, ["--target", arguments.target]
        listed = {**listed, **read_exceptions(CUDA_EXCEPTIONS)}
        if arguments.granularity:
            flags += ["--granularity", arguments.granularity]
    start = time.monotonic()
    results = run_all(wanted, flags, arguments.jobs)

    if arguments.bless:
        ran = {name for _, name in wanted}
        kept = {
            name: reason for name, reason in listed.items() if name in names and name not in ran
        }
        fresh = {name: reason for _, name, reason, _ in results if reason}
        listed = {**kept, **fresh}
        if arguments.target:
            more = {name: reason for name, reason in listed.items() if name not in on_cpu}
            write_exceptions(CUDA_EXCEPTIONS, more, " on a GPU though they pass on a CPU")
        else:
            write_exceptions(arguments.exceptions, listed)

    wrong = []
    print(f"{'group':20}{'passed':>8} / {'failed':>6} / {'listed':>6}")
    for group in GROUPS.values():
        rows = [(name, reason) for kind, name, reason, _ in results if kind == group]
        failed = [(name, reason) for name, reason in rows if reason and name not in listed]
        surprises = [(name, "passes, but stands in the file") for name, reason in rows
                     if not reason and name in listed and not reference]
        wrong += failed + surprises
        passed = sum(not reason for _, reason in rows)
        print(f"{group:20}{passed:8} / {len(failed):6} / {len(rows) - passed - len(failed):6}")
    wrong += [
        (name, "stands in the file, but onnx has no such case")
        for name in listed
        if name not in names
    ]
    for name, reason in sorted(wrong):
        print(f"  {name}: {reason}")
    for _, name, _, seconds in sorted(results, key=lambda row: -row[3])[:arguments.slowest]:
        print(f"  {seconds:6.1f} s  {name}")
    if arguments.junit:
        write_junit(arguments.junit, results, listed)
    passed = sum(not reason for _, _, reason, _ in results)
    seconds = time.monotonic() - start
    verdict = f"{len(wrong)} changed without the file" if wrong else "as the file says"
    print(f"conformance: {passed} of {len(results)} pass, {verdict} ({seconds:.0f} s)")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
