"""What scripts/gpu_sanitize.py reads in the reports of compute-sanitizer. No GPU is wanted."""

import pathlib
import sys

import pytest
from conftest import ROOT

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[2] / "scripts"))
import gpu_sanitize  # noqa: E402

RECYCLED = """========= COMPUTE-SANITIZER
========= Error: Race reported between Write access at obk::bulk_copy(unsigned int)+0xeaf0 in ptx.cuh:138
=========     and Read access at obk::load_matrices(unsigned int (&)[4], unsigned int)+0xaca0 in ptx.cuh:209 [7936 hazards]
=========
"""
RACE = """========= Error: Race reported between Write access at foo(int)+0x3f0 in gemm_wgmma_pipelined.cuh:120
=========     and Read access at foo(int)+0x5a0 in gemm_wgmma_pipelined.cuh:130 [128 hazards]
=========
"""
SUMMARY = "========= RACECHECK SUMMARY: 2 hazards displayed (2 errors, 0 warnings)\n"


RING = "Gemm/Fixed.EqualsReferenceAndTheBitsOfAnyTile/f16"
STATEMENTS = [place for one in gpu_sanitize.UNDERSTOOD if isinstance(one, gpu_sanitize.Race) for place in one.places if place.statement]


def line(function, file):
    """Where the statement of an excuse stands today."""
    place, *_ = {one.statement: one for one in STATEMENTS if (one.function, one.file) == (function, file)}.values()
    return place.lines()[0]


def race(write, read):
    return (f"========= Error: Race reported between Write access at {write}\n"
            f"=========     and Read access at {read} [4300 hazards]\n=========\n" + SUMMARY)


def test_a_race_is_reported_and_what_is_understood_is_not():
    got = gpu_sanitize.judged("racecheck", RING, RECYCLED + RACE + SUMMARY, 0)
    assert got["summary"] == ["2 hazards displayed (2 errors, 0 warnings)"]
    (kind,) = got["reports"]
    assert "gemm_wgmma_pipelined.cuh:120" in kind and got["reports"][kind]["count"] == 1
    assert [each["count"] for each in got["understood"].values()] == [1]


def test_what_is_understood_of_one_case_is_a_report_of_another():
    for other in ("Tiles/Attention.Some", "Gemm/Fixed.Some/f16", "Types/Conv.EqualsTheDefinition/f32"):
        assert gpu_sanitize.judged("racecheck", other, RECYCLED + SUMMARY, 0)["reports"]
    assert gpu_sanitize.judged("memcheck", RING, RECYCLED + SUMMARY, 0)["reports"]


@pytest.mark.parametrize("write, read", [
    ("obk::bulk_copy_to_all(unsigned int)+0x10 in ptx.cuh:226", "obk::load_matrices(unsigned int)+0x20 in ptx.cuh:336"),
    ("obk::bulk_copy(unsigned int)+0x10 in ptx.cuh:217", "obk::load_matrices_transposed(unsigned int)+0x20 in ptx.cuh:350"),
    ("obk::bulk_copy(unsigned int)+0x10 in ring.cuh:130", "obk::load_matrices(unsigned int)+0x20 in ptx.cuh:336"),
    ("obk::store_shared8(unsigned int)+0x10 in ptx.cuh:300", "obk::load_matrices(unsigned int)+0x20 in ptx.cuh:336"),
])
def test_another_pair_of_places_is_a_report(write, read):
    assert gpu_sanitize.judged("racecheck", RING, race(write, read), 0)["reports"]


def test_the_order_of_the_places_says_nothing():
    turned = ("========= Error: Race reported between Read access at obk::load_matrices(unsigned int)+0xaca0 in ptx.cuh:209\n"
              "=========     and Write access at obk::bulk_copy(unsigned int)+0xeaf0 in ptx.cuh:138 [7936 hazards]\n=========\n")
    assert gpu_sanitize.judged("racecheck", RING, turned + SUMMARY, 0)["reports"] == {}
    wrong = turned.replace("Write access", "Read access")
    assert gpu_sanitize.judged("racecheck", RING, wrong + SUMMARY, 0)["reports"]


def test_each_place_that_races_with_the_first_must_be_understood():
    three = RECYCLED.replace("hazards]\n", "hazards]\n=========     and Read access at obk::load_two_matrices(unsigned int)+0xbb0 in ptx.cuh:216 [12 hazards]\n")
    got = gpu_sanitize.judged("racecheck", RING, three + SUMMARY, 0)
    assert got["reports"] == {} and [each["count"] for each in got["understood"].values()] == [1]
    wrong = three.replace("load_two_matrices", "load_shared")
    assert gpu_sanitize.judged("racecheck", RING, wrong + SUMMARY, 0)["reports"]


def test_excuses_are_of_cases_and_statements_that_there_are():
    for place in STATEMENTS:
        assert len(place.lines()) == 1, f"'{place.statement}' stands {len(place.lines())} times in {place.file}"
    sources = "".join(path.read_text() for path in ROOT.glob("tests/gpu/*_test.cpp"))
    for one in gpu_sanitize.UNDERSTOOD:
        for test in one.tests or ():
            suite, name = next(part for part in test.split("/") if "." in part).split(".")
            assert f"({suite}, {name})" in sources, test


def test_words_to_a_gang_that_ends_when_it_has_them_are_understood_of_gangs_alone():
    text = """========= Potential invalid __shared__ write of size 8 bytes
=========     at obk::dsmem_address(unsigned int, int)+0x47e0 in ptx.cuh:76
=========     by thread (224,0,0) in block (0,0,0)
=========     Address 0x1001160 is located in a block that might have already exited
=========
"""
    of_gang = gpu_sanitize.judged("racecheck", "Bodies/Programs.EqualInterpreter/lstm_gang_f16", text + SUMMARY, 0)
    assert of_gang["reports"] == {} and len(of_gang["understood"]) == 1
    assert gpu_sanitize.judged("racecheck", "Types/PipelinedGemm.ClustersAddPartsInOrder/0", text + SUMMARY, 0)["reports"]
    posted = text.replace("dsmem_address(unsigned int, int)", "post_dsmem(unsigned int, unsigned long)")
    assert not gpu_sanitize.judged("racecheck", "Bodies/Programs.EqualInterpreter/lstm_beyond_registers_f16", posted + SUMMARY, 0)["reports"]


def test_words_that_are_polled_and_pages_that_are_given_back_are_understood_of_signals():
    given_back = race("obk::bulk_copy(unsigned int, const void *)+0xbe80 in ptx.cuh:217", "obk::load_shared_word(unsigned int)+0x8730 in ptx.cuh:361")
    told = f"obk::GridBarrier::wait(volatile int *, int)+0x8940 in barrier.cuh:{line('obk::GridBarrier::wait', 'barrier.cuh')}"
    polls = [place.lines()[0] for place in STATEMENTS if place.file == "ring.cuh"]
    polled = [race(told, f"$obk_program$_ZN3obk11ring_followEPVii+0xa100 in ring.cuh:{at}") for at in polls]
    now, looks = line("obk_program", "dataflow.cuh"), line("obk::issue_all_loads", "dataflow.cuh")
    task = race(f"obk_program+0x6d60 in dataflow.cuh:{now}", f"obk::issue_all_loads(const ObkProgram &, int)+0xb9e0 in dataflow.cuh:{looks}")
    cases = [("Signals.BroadcastWords", given_back), ("Signals.BroadcastWords", task), ("Types/Dataflow.EqualInterpreterInAllContexts/2", task)]
    for name, text in cases + [("Signals.IdleWavesOfFewRows", text) for text in polled]:
        understood = gpu_sanitize.judged("racecheck", name, text, 0)
        assert understood["reports"] == {} and len(understood["understood"]) == 1, text
        assert gpu_sanitize.judged("racecheck", "Signals.WordsOfOneKernel", text, 0)["reports"]
    beside = task.replace(f"dataflow.cuh:{now}", f"dataflow.cuh:{now + 1}")  # another statement of the same function
    assert gpu_sanitize.judged("racecheck", "Signals.BroadcastWords", beside, 0)["reports"]


def test_a_clean_run_has_no_reports_and_a_failed_or_late_one_has():
    clean = "========= COMPUTE-SANITIZER\n[  PASSED  ] 1 test.\n========= ERROR SUMMARY: 0 errors\n"
    assert gpu_sanitize.judged("memcheck", "Gemm.Some", clean, 0)["reports"] == {}
    assert gpu_sanitize.judged("memcheck", "Gemm.Some", "[  FAILED  ] Gemm.Some\n", 1)["reports"]
    assert gpu_sanitize.judged("memcheck", "Gemm.Some", clean, 124)["reports"]


def test_what_the_tool_counts_and_nobody_read_is_a_report():
    text = "========= COMPUTE-SANITIZER\n========= ERROR SUMMARY: 3 errors\n"
    assert gpu_sanitize.judged("memcheck", "Gemm.Some", text, 0)["reports"]


def test_a_folder_without_test_programs_is_no_clean_run(tmp_path, monkeypatch):
    monkeypatch.setattr(gpu_sanitize, "find_tool", lambda: "compute-sanitizer")
    with pytest.raises(RuntimeError, match="no test of batch_test, gpu_blocks_test"):
        gpu_sanitize.sanitize(tmp_path, ["memcheck"], 1, 1, print)


def test_cases_are_those_whose_name_has_the_pattern(tmp_path, monkeypatch):
    program = tmp_path / "gpu_test"
    program.write_text("#!/bin/sh\nprintf 'Types/PipelinedGemm.\n  Clusters/0\n  Norms/0\n'\n")
    program.chmod(0o755)
    monkeypatch.setattr(gpu_sanitize, "BLOCKS", (("gpu_test", "Types/PipelinedGemm.*"),))
    assert gpu_sanitize.cases(tmp_path, "Norms") == [("gpu_test", "Types/PipelinedGemm.Norms/0")]
    assert len(gpu_sanitize.cases(tmp_path)) == 2
    monkeypatch.setattr(gpu_sanitize, "find_tool", lambda: "compute-sanitizer")
    with pytest.raises(RuntimeError, match="whose name has 'Other'"):
        gpu_sanitize.sanitize(tmp_path, ["memcheck"], 1, 1, print, pattern="Other")


def test_what_there_was_no_time_for_is_told(tmp_path, monkeypatch):
    program = tmp_path / "gpu_blocks_test"
    program.write_text("#!/bin/sh\nprintf 'Gemm.\\n  RingAcrossBarriers\\n'\n")
    program.chmod(0o755)
    monkeypatch.setattr(gpu_sanitize, "find_tool", lambda: "compute-sanitizer")
    rows = gpu_sanitize.sanitize(tmp_path, ["memcheck"], 1, 1, lambda *_: None, seconds=0)
    assert any("not run" in kind for row in rows for kind in row["reports"])
    assert list(gpu_sanitize.failures(rows))


def test_a_case_with_more_hazards_than_the_tool_keeps_runs_again_alone(tmp_path, monkeypatch):
    ran = []
    def run_case(folder, tool, program, test, environment, timeout, deadline):
        ran.append((tool, test))
        full = (tool, test) == ("racecheck", "Signals.A") and ran.count(ran[-1]) == 1
        told = "Warning: Maximum number of hazards reached. Environment variable NV_COMPUTE_SANITIZER_MAX_RACECHECK_HAZARDS can be used to increase this count."
        text = f"========= {told}\n" if full else "========= RACECHECK SUMMARY: 0 hazards displayed\n"
        return {"tool": tool or "none", "test": test, "exit": 0, "seconds": 1.0, **gpu_sanitize.judged(tool, test, text, 0)}
    monkeypatch.setattr(gpu_sanitize, "find_tool", lambda: "compute-sanitizer")
    monkeypatch.setattr(gpu_sanitize, "cases", lambda *_: [("p", "Signals.A"), ("p", "Signals.B")])
    monkeypatch.setattr(gpu_sanitize, "run_case", run_case)
    rows = gpu_sanitize.sanitize(tmp_path, ["racecheck"], 1, 1, lambda *_: None)
    assert ran.count(("racecheck", "Signals.A")) == 2 and ran.count(("racecheck", "Signals.B")) == 1
    assert [row["reports"] for row in rows] == [{}, {}, {}, {}]


def test_every_understood_report_has_a_reason():
    for one in gpu_sanitize.UNDERSTOOD:
        assert one.tool in gpu_sanitize.TOOLS and one.tests != [] and len(one.why) > 20
