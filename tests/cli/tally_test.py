"""How scripts/tally.py counts what the stages of scripts/test.sh left."""
import subprocess
import sys
from xml.sax.saxutils import escape

from conftest import ROOT

RAN = "[==========] 9 tests from 2 test suites ran. (88 ms total)\n"
SKIPPED = "[  SKIPPED ] 4 tests, listed below:\n[  SKIPPED ] Contexts.One\n"
FAILED = "[  FAILED  ] 2 tests, listed below:\n[  FAILED  ] Bodies.One\n"


def ctest(*programs):
    """A report of ctest: (whether the program passed, its output) each."""
    failures = sum(not passed for passed, _ in programs)
    rows = ""
    for k, (passed, output) in enumerate(programs):
        how = ("run", "") if passed else ("fail", '<failure message="Failed"/>')
        rows += f'<testcase name="p{k}" status="{how[0]}">{how[1]}<system-out>{escape(output)}</system-out></testcase>'
    return f'<testsuite tests="{len(programs)}" failures="{failures}" disabled="0" skipped="0">{rows}</testsuite>'


def tally(folder, **stages):
    """The last line, of stages by name: (exit status, report or None)."""
    for name, (status, report) in stages.items():
        (folder / f"{name}.status").write_text(str(status))
        (folder / f"{name}.xml").unlink(missing_ok=True)
        if report:
            (folder / f"{name}.xml").write_text(report)
    done = subprocess.run([sys.executable, ROOT / "scripts" / "tally.py", folder], capture_output=True, text=True)
    assert (done.returncode == 0) == (" 0 failed" in done.stdout.splitlines()[-1]), done.stdout + done.stderr
    return done.stdout.splitlines()[-1]


def test_skipped_cases_of_a_program_are_skipped(tmp_path):
    gpu = RAN + "[  PASSED  ] 5 tests.\n" + SKIPPED
    assert tally(tmp_path, ctest=(0, ctest((True, gpu), (True, "")))) == "tests: 6 passed, 0 failed, 4 skipped"
    one = RAN + "[  PASSED  ] 1 test.\n[  SKIPPED ] 1 test, listed below:\n"
    assert tally(tmp_path, ctest=(0, ctest((True, one)))) == "tests: 1 passed, 0 failed, 1 skipped"


def test_failed_cases_and_programs_that_end_badly_are_failures(tmp_path):
    failed = RAN + "[  PASSED  ] 3 tests.\n" + SKIPPED + FAILED
    assert tally(tmp_path, ctest=(8, ctest((False, failed)))) == "tests: 3 passed, 2 failed, 4 skipped"
    late = RAN + "[  PASSED  ] 9 tests.\nDouble free\n"  # after its last case
    assert tally(tmp_path, ctest=(8, ctest((False, late)))) == "tests: 9 passed, 1 failed, 0 skipped"
    assert tally(tmp_path, ctest=(8, ctest((False, "[ RUN      ] Bodies.One\n")))) == "tests: 0 passed, 1 failed, 0 skipped"


def test_a_process_of_a_tests_own_is_not_counted(tmp_path):
    quoted = "  | [==========] 1 test from 1 test suite ran.\n  | [  PASSED  ] 1 test.\n"
    assert tally(tmp_path, ctest=(0, ctest((True, quoted)))) == "tests: 1 passed, 0 failed, 0 skipped"


def test_a_stage_without_a_report_is_one_case(tmp_path):
    assert tally(tmp_path, rooms=(0, None), zoo=(1, None)) == "tests: 1 passed, 1 failed, 0 skipped"


def test_reports_of_pytest_are_as_they_were(tmp_path):
    report = ('<testsuites><testsuite tests="4" failures="1" errors="0" skipped="1">'
              '<testcase name="a"/><testcase name="b"><failure/></testcase></testsuite></testsuites>')
    assert tally(tmp_path, pytest=(1, report)) == "tests: 2 passed, 1 failed, 1 skipped"
