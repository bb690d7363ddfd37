#!/usr/bin/env python3
"""Adds up what the stages of scripts/test.sh left: NAME.status (exit code) and NAME.xml (JUnit).

A stage that failed without a failed case in its report, or with no report, counts as one failed.
The last line is `tests: N passed, N failed, N skipped`; skipped are the conformance cases that
tests/conformance/exceptions.txt lists by name.
"""
import sys
import xml.etree.ElementTree as ElementTree
from pathlib import Path


def read(report):
    """(passed, failed, skipped) of one JUnit file."""
    total = failed = skipped = 0
    for suite in ElementTree.parse(report).getroot().iter("testsuite"):
        total += int(suite.get("tests", 0))
        failed += int(suite.get("failures", 0)) + int(suite.get("errors", 0))
        skipped += int(suite.get("skipped", 0)) + int(suite.get("disabled", 0))
    return total - failed - skipped, failed, skipped


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
