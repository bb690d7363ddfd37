#!/usr/bin/env python3
"""Adds up what the stages of scripts/test.sh left: NAME.status (exit code) and NAME.xml (JUnit).

A GoogleTest program of ctest's counts as its cases, which its output sums up: so a case that is
skipped on a machine without a GPU is a skipped case, and not a part of a program that passed. A
program that ends badly counts as one failure at least; a stage that failed without a failed case in
its report, or with no report, as one failed case. The last line is
`tests: N passed, N failed, N skipped`. Skipped are cases that this machine cannot run, and
conformance cases that tests/conformance/exceptions.txt lists by name.
"""
import re
import sys
import xml.etree.ElementTree as ElementTree
from pathlib import Path


def cases(output):
    """(passed, failed, skipped) of a GoogleTest program by the end of its output, or None."""
    def number(word, what):
        found = re.findall(rf"^\[ +{word} +\] (\d+) tests?{what}", output, re.MULTILINE)
        return int(found[-1]) if found else 0

    if not re.search(r"^\[=+\] \d+ tests? from \d+ test suites? ran\.", output, re.MULTILINE):
        return None
    return number("PASSED", r"\."), number("FAILED", ", listed"), number("SKIPPED", ", listed")


def read(report):
    """(passed, failed, skipped) of one JUnit file."""
    sums = [0, 0, 0]
    for suite in ElementTree.parse(report).getroot().iter("testsuite"):
        total = int(suite.get("tests", 0))
        failed = int(suite.get("failures", 0)) + int(suite.get("errors", 0))
        skipped = int(suite.get("skipped", 0)) + int(suite.get("disabled", 0))
        counts = [total - failed - skipped, failed, skipped]
        for test in suite.iter("testcase"):
            inside = cases(test.findtext("system-out") or "")
            if inside is None or test.get("status") not in ("run", "fail"):
                continue  # no program of ctest's, or none of GoogleTest
            bad = test.get("status") == "fail"
            counts = [before + more for before, more in zip(counts, inside)]
            counts[1 if bad else 0] -= 1
            counts[1] += bad and not inside[1]
        sums = [before + more for before, more in zip(sums, counts)]
    return tuple(sums)


def main():
    folder = Path(sys.argv[1])
    sums = [0, 0, 0]
    bad = []
    for status_file in sorted(folder.glob("*.status")):
        status = int(status_file.read_text())
        report = status_file.with_suffix(".xml")
        if report.exists():
            counts = list(read(report))
        else:
            counts = [int(status == 0), 0, 0]
        if status and not counts[1]:
            counts[1] = 1
        if counts[1]:
            bad.append(status_file.stem)
        sums = [before + count for before, count in zip(sums, counts)]
        print(
            f"{status_file.stem:12} {counts[0]:6} passed {counts[1]:6} failed {counts[2]:6} skipped"
        )
    passed, failed, skipped = sums
    print(f"failed: {', '.join(bad)}" if bad else "all tests passed")
    print(f"tests: {passed} passed, {failed} failed, {skipped} skipped")
    return 1 if failed or not passed else 0


if __name__ == "__main__":
    sys.exit(main())
