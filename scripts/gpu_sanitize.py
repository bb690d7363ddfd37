"""Device blocks under compute-sanitizer, for gpu.py sanitize: small cases of every block, each a process
of its own under each tool, several at once.

First the cases run without a tool and leave what they compiled in a folder, so that no tool waits
for a compiler (OBELISK_GPU_CUBINS: a folder that an earlier run has filled). What a tool reports is
an error unless it stands in UNDERSTOOD with its reason.
"""

import concurrent.futures
import os
import pathlib
import re
import shutil
import subprocess
import tempfile
import time

TOOLS = ("memcheck", "racecheck", "initcheck")
# Program, filter of its tests: a case or more of every block of kernels/cuda.
BLOCKS = (
    ("gpu_blocks_test", "Phases.BarrierUnderStreamingWeights"),
    ("gpu_blocks_test", "Signals.*"),
    ("gpu_blocks_test", "GangWords.*"),
    ("gpu_blocks_test", "Gemm.RingAcrossBarriers"),
    ("gpu_blocks_test", "Gemm/Tiles.*-*type2_pages2:*type3*"),
    ("gpu_blocks_test", "Gemm/Chain.*m1_n2048*:Gemm/Chain.*m128_n384*32x16*"),
    ("gpu_blocks_test", "Gemm/Fixed.*/f16"),
    ("gpu_blocks_test", "Tiles/Attention.EqualsReference/*-*_32_32:*_24_40:*f32_300*"),
    ("gpu_blocks_test", "Tiles/Attention.SplitsOfKeysJoin/f16_64_64"),
    ("gpu_blocks_test", "Types/Conv.*/f16:Types/Conv.*f32:Tiles/ConvFixed.*/0:Tiles/ConvPipelined.*:ConvGrid.*"),
    (
        "gpu_test",
        ":".join(
            f"Bodies/Programs.EqualInterpreter/{case}"
            for case in (
                "lstm_of_one_f32 lstm_gang_f16 squeeze_excite_images_f16 lstm_beyond_registers_f16 lstm_batch_bf16 "
                "gru_few_steps_f32 rnn_odd_f16 softmax_long_rows_f16 layer_norm_f32 transpose_add_f16 "
                "column_sum_f32 top_k_f32 long_scan_f32 scatter_f32 product_f16"
            ).split()
        ),
    ),
    ("gpu_test", "Types/Dataflow.*"),
    ("gpu_test", "Types/PipelinedGemm.*"),
    ("gpu_test", "Types/TallGemm.*"),
    ("gpu_test", "Types/AsyncRows.*"),
    ("batch_test", "Graphs/Dispatches.*"),
    ("instances_test", "*/encoder_mono:*/encoder_of_five_stitch:*/pictures_stitch:*/steps_mono:*/branches_stitch"),
)


class Place:
    """An access as a tool names it: what it does, in which function of which file. `statement`: the text that stands in its
    line, where the function has more accesses than this; without one the function is a single instruction."""

    def __init__(self, access, function, file, statement=None):
        self.access, self.function, self.file, self.statement = access, function, file, statement

    def is_named_by(self, text):
        found = ACCESS.search(text)
        if not found or found["access"] != self.access or found["file"] != self.file:
            return False
        mangled = "".join(f"{len(name)}{name}" for name in self.function.split("::")) + "E"
        if not re.search(rf"(?<![\w:]){self.function}(?![\w:])", found["function"]) and mangled not in found["function"]:
            return False
        return self.statement is None or int(found["line"]) in self.lines()

    def lines(self):
        """Where the statement stands; nowhere, so that nothing is excused, where the sources are not at hand."""
        return [number for path in sources().rglob(self.file)
                for number, text in enumerate(path.read_text().splitlines(), 1) if self.statement in text]


ACCESS = re.compile(r"(?P<access>Write|Read) access at (?P<function>.*?)\+0x[0-9a-f]+ in (?:\S*/)?(?P<file>\w+\.cuh):(?P<line>\d+)")


def sources():
    """The device code's: of the checkout, or of the folder that scripts/pack.sh makes."""
    here = pathlib.Path(__file__).resolve().parent.parent
    return next((f for f in (here / "src" / "kernels" / "cuda", here / "kernels") if f.is_dir()), here / "kernels")


class Race:
    """Two places whose race is no error, in these tests, and why. The order in which a tool names them is of no meaning. A report names
    a place and one or more that race with it: each of them must be excused (reason)."""
    tool = "racecheck"

    def __init__(self, tests, first, second, why):
        self.tests, self.places, self.why = tests.split(), (first, second), why

    def excuses(self, lines):
        accesses = [line for line in lines if ACCESS.search(line)]
        return len(accesses) == 2 and any(
            a.is_named_by(accesses[0]) and b.is_named_by(accesses[1]) for a, b in (self.places, self.places[::-1]))

    @staticmethod
    def pairs(lines):
        """A report's races, each as a report of its own."""
        accesses = [line for line in lines if ACCESS.search(line)]
        return [[accesses[0], other] for other in accesses[1:]] or [lines]


class Report:
    """Another report, by its text."""

    def __init__(self, tool, tests, text, why):
        self.tool, self.tests, self.text, self.why = tool, tests and tests.split(), text, why

    def excuses(self, lines):
        return re.search(self.text, "\n".join(lines)) is not None


COPY = Place("Write", "obk::bulk_copy", "ptx.cuh")
GIVEN_BACK = ("a page is loaded anew when the first lane of each warp has given it back, after the warp met (__syncwarp): the tool "
              "follows that lane alone. Whether pages are given back too soon is shown by one_cta_gemm_late and its neighbours, whose copies "
              "come no sooner than they must")
GANGS = " ".join(f"Bodies/Programs.EqualInterpreter/{case}" for case in
                 "lstm_of_one_f32 lstm_gang_f16 lstm_beyond_registers_f16 lstm_batch_bf16 gru_few_steps_f32 rnn_odd_f16".split())
IN_A_CLUSTER = GANGS + " GangWords.OfAClusterAreRightWhileWeightsStream"
IN_DATAFLOW = "Signals.BroadcastWords " + " ".join(f"Types/Dataflow.EqualInterpreterInAllContexts/{k}" for k in range(4)) + " Types/FixedCache.EqualInterpreterWhereverTheNewRowIs/f16 Types/FixedCache.EqualInterpreterWhereverTheNewRowIs/bf16"
POLLED = ("a word that carries the number of its step is polled while another CTA writes it: 8 bytes at once, relaxed; the test checks "
          "every word")
TOLD = "the warp that loads pages polls the word by which the waiting thread tells that all have come: one word, and a barrier of the CTA behind it"
LOOKS = Place("Read", "obk::issue_all_loads", "dataflow.cuh", "waits <= task_now() ? most : kQuietPages")
UNDERSTOOD = (
    *(Race("Gemm.RingAcrossBarriers Gemm/Fixed.EqualsReferenceAndTheBitsOfAnyTile/f16 Types/Conv.EqualsTheDefinition/f16 "
           "Tiles/ConvPipelined.HasTheBitsOfAnyShape/0 Tiles/ConvPipelined.HasTheBitsOfAnyShape/1 "
           "Networks/Instances.HaveTheBitsOfThoseAlone/encoder_mono",
           COPY, Place("Read", read, "ptx.cuh"), GIVEN_BACK) for read in ("obk::load_matrices", "obk::load_two_matrices")),
    Race("Signals.BroadcastWords", COPY, Place("Read", "obk::load_shared_word", "ptx.cuh"), GIVEN_BACK),
    Race(IN_DATAFLOW, Place("Write", "obk_program", "dataflow.cuh", "task_now() = at;"), LOOKS,
         "the warp that loads pages looks which task runs while that changes: a hint of how many pages may be in flight, one word"),
    Race(IN_DATAFLOW, Place("Write", "obk_program", "dataflow.cuh", "task_now() = -1,"), LOOKS,
         "a named barrier of all warps (meet_all) stands between this write and the first read"),
    *(Race("Signals.IdleWavesOfFewRows", Place("Write", "obk::GridBarrier::wait", "barrier.cuh", "*left = wave;"),
           Place("Read", "obk::ring_follow", "ring.cuh", poll), TOLD) for poll in ("&& *left < wave)", "if (*left >= wave) break;")),
    *(Race(IN_A_CLUSTER, Place("Write", write, "ptx.cuh"), Place("Read", "obk::poll_dsmem", "ptx.cuh"), POLLED)
      for write in ("obk::post_dsmem", "obk::dsmem_address")),  # an address that is the store's own, in one line of the report
    Report("racecheck", GANGS,
           r"Potential invalid __shared__ write of size 8 bytes\nat obk::(dsmem_address|post_dsmem)\(.* in (?:\S*/)?ptx\.cuh:\d+\n(.*\n)*Address \S+ is located "
           r"in a block that might have already exited",
           "a member of a gang ends after it has seen every word of the last exchange, so after all that others write to it: the "
           "tool knows barriers alone, and there is none at the end"),
    Report("memcheck", None, r"CUDA_ERROR_INVALID_VALUE .* on CUDA API call to cuPointerGetAttribute\b",
           "asked whether memory of the caller is the device's: the answer is no"),
)
# Programs in turns under a tool are slower than their watchdog would wait.
SMALL = {"OBELISK_GPU_FEW": "1", "OBELISK_GPU_RUNS": "2", "OBELISK_GPU_PHASES": "10", "OBELISK_GPU_STEPS": "4",
         "OBELISK_LINEINFO": "1", "OBELISK_WATCHDOG_CLOCKS": "1000000000000",
         "NV_COMPUTE_SANITIZER_MAX_RACECHECK_HAZARDS": "4000000"}
FULL = "Warning: Maximum number of hazards reached"  # each poll of a word that another thread writes counts as one


def find_tool():
    return shutil.which("compute-sanitizer") or shutil.which(
        "compute-sanitizer", path="/usr/local/cuda/bin:/usr/local/cuda/compute-sanitizer"
    )


def cases(folder, pattern=""):
    """(program, test), those of the filters that the programs have and whose name has the pattern."""
    found = []
    for program, wanted in BLOCKS:
        if not (folder / program).exists():
            continue
        listed = subprocess.run(
            [folder / program, "--gtest_list_tests", f"--gtest_filter={wanted}"],
            capture_output=True, text=True, timeout=60,
        ).stdout
        suite = ""
        for line in listed.splitlines():
            name = line.split("#")[0].rstrip()
            if name.endswith(".") and not name.startswith(" "):
                suite = name
            elif name.startswith("  ") and "DISABLED" not in name:
                found.append((program, suite + name.strip()))
    return [each for each in found if re.search(pattern, each[1])]


def run_case(folder, tool, program, test, environment, timeout, deadline=float("inf")):
    left = deadline - time.monotonic()
    if left < 1:  # a report, so that nobody takes it for clean
        return {"tool": tool or "none", "test": test, "exit": 0, "seconds": 0, "summary": [],
                "reports": {"not run: the time was up": {"count": 1, "first": []}}, "understood": {}}
    timeout = min(timeout, left)
    words = [folder / program, f"--gtest_filter={test}", "--gtest_brief=1"]
    if tool:
        words = [find_tool(), "--tool", tool, "--print-limit", "200", "--target-processes", "all", *words]
    start = time.monotonic()
    try:
        done = subprocess.run([str(w) for w in words], capture_output=True, text=True,
                              timeout=timeout, env=environment)
        code, text = done.returncode, done.stdout + done.stderr
    except subprocess.TimeoutExpired as late:
        text = "".join(t.decode(errors="replace") if isinstance(t, bytes) else t or ""
                       for t in (late.stdout, late.stderr))
        code = 124
    return {"tool": tool or "none", "test": test, "exit": code,
            "seconds": round(time.monotonic() - start, 1), **judged(tool, test, text, code)}


def reason(tool, test, lines):
    """Why a report is no error, or nothing."""
    def known(part):
        return next((one.why for one in UNDERSTOOD
                     if one.tool == tool and (one.tests is None or test in one.tests) and one.excuses(part)), None)
    whys = [known(pair) for pair in Race.pairs(lines)]
    return known(lines) or (whys[0] if all(whys) else None)


def judged(tool, test, text, code):
    """What a tool's text says: counts, and the first of each kind of report that is not understood."""
    reports, understood = {}, {}
    for block in re.split(r"\n=========\s*\n", text):
        lines = [l[9:].strip() for l in block.splitlines() if l.startswith("=========")]
        lines = [l for l in lines if l and not l.startswith(("COMPUTE-SANITIZER", "RACECHECK SUMMARY",
                                                             "ERROR SUMMARY", "Target application"))]
        if not lines:
            continue
        where = next((re.search(r"\bin (\S+\.cuh?:\d+)", l) for l in lines if " in " in l), None)
        kind = re.sub(r"0x[0-9a-f]+|\(\d+,\d+,\d+\)|\d+ hazards?|\b\d{3,}\b", "#", lines[0])
        key = kind + (" " + where[1] if where else "")
        why = reason(tool, test, lines)
        to = understood if why else reports
        to.setdefault(why or key, {"count": 0, "first": lines[:14]})["count"] += 1
    summary = re.findall(r"(?:ERROR|RACECHECK) SUMMARY: (.*)", text)
    failed = "FAILED" in text or code not in (0,) and not summary
    told = int((re.findall(r"\d+", summary[-1]) or [0])[0]) if summary else 0
    if told and not reports and not understood:
        reports["the tool counts reports that were not read"] = {"count": told, "first": text[-1500:].splitlines()}
    if code == 124:
        reports["ended: it ran too long"] = {"count": 1, "first": text[-600:].splitlines()}
    elif failed:
        reports["the test failed"] = {"count": 1, "first": text[-1500:].splitlines()}
    return {"summary": summary[-1:] or [], "reports": reports, "understood": understood}


def sanitize(folder, tools, jobs, timeout, say, seconds=float("inf"), pattern=""):
    """Rows by tool and test, of tests whose name has the pattern. What is not begun in `seconds`, or does not end in them, is told as such."""
    deadline = time.monotonic() + seconds
    folder = pathlib.Path(folder)
    if not find_tool():
        raise RuntimeError("compute-sanitizer is not found: it is part of the CUDA toolkit")
    tests = cases(folder, pattern)
    if not tests:
        programs = ", ".join(sorted({program for program, _ in BLOCKS}))
        of = f" whose name has '{pattern}'" if pattern else ""
        raise RuntimeError(f"no test of {programs} in {folder}{of}: build them, or run this in the "
                           "folder that scripts/pack.sh makes")
    rows = []
    with tempfile.TemporaryDirectory() as fresh:
        kept = os.environ.get("OBELISK_GPU_CUBINS", fresh)
        filled = any(pathlib.Path(kept).iterdir())
        environment = dict(os.environ, **SMALL, OBELISK_GPU_CUBINS=kept)
        with concurrent.futures.ThreadPoolExecutor(jobs) as pool:
            def all_of(pairs):
                start = time.monotonic()
                made = [pool.submit(run_case, folder, tool, *test, environment, timeout, deadline)
                        for tool, test in pairs]
                for each in made:
                    rows.append(each.result())
                return time.monotonic() - start
            if not filled:
                seconds = all_of([(None, test) for test in tests])
                say(f"sanitize none       {len(tests)} tests in {seconds:.0f} s")
            alone = {row["test"]: row["seconds"] for row in rows}
            longest = sorted(tests, key=lambda test: -alone.get(test[1], 0))
            slow = sorted(tools, key=lambda tool: tool != "racecheck")
            seconds = all_of([(tool, test) for tool in slow for test in longest])
        programs = {test: program for program, test in tests}
        for k, row in enumerate(rows):  # beside others a program polls for longer than alone
            if any(kind.startswith(FULL) for kind in row["reports"]) and time.monotonic() + row["seconds"] < deadline:
                rows[k] = run_case(folder, row["tool"], programs[row["test"]], row["test"], environment, timeout, deadline)
    for tool in tools:
        mine = [r for r in rows if r["tool"] == tool]
        bad = [r for r in mine if r["reports"]]
        known = sum(len(r["understood"]) > 0 for r in mine)
        say(f"sanitize {tool:10} {len(mine)} tests, {len(bad)} with reports"
            + (f", {known} with reports that are understood" if known else ""))
    say(f"sanitize {seconds:.0f} s, {jobs} at once")
    return rows


def failures(rows):
    for row in rows:
        for kind, report in row["reports"].items():
            yield f"{row['tool']} {row['test']}: {kind} ({report['count']})", "\n".join(report["first"])
