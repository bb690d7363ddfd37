"""scripts/gpu_dispatch.py, in the folder that a pack is, with a program that answers as one on a GPU does, and what it reads of
a profiler. No GPU is wanted."""
import json
import os
import sys

import pytest
from conftest import ROOT

sys.path.insert(0, str(ROOT / "scripts"))
import gpu_dispatch  # noqa: E402

# A whole opara takes 80 where waves take 100; without priorities 90 of 100, without memory it is refused. Every process is a tenth
# slower than the one before.
PROGRAM = f"""#!{sys.executable}
import json, os, pathlib, sys
words = sys.argv[1:]
def after(flag):
    return words[words.index(flag) + 1]
with open(os.environ["ASKED"], "a") as log:
    log.write(" ".join(words) + "\\n")
model = pathlib.Path(words[1]).stem
if words[0] == "bench":
    off = after("--disable") if "--disable" in words else ""
    if off == "dispatch_memory":
        sys.exit("error: no memory")
    slow = 1.1 ** sum(line.startswith("bench") for line in open(os.environ["ASKED"]))
    us = {{"waves": 100, "sequential": 200, "opara": 90 if off == "dispatch_priorities" else 80}}
    print(json.dumps({{"granularities": [
        {{"granularity": after("--granularity"), "dispatch": name, "device_us": {{"median": slow * us[name]}}, "launches": 7,
          "workspace_bytes": 1000, "same_bits": name != os.environ.get("WRONG")}} for name in after("--dispatch").split(",")]}}))
elif words[0] == "compile" and "-d" in words:
    folder = pathlib.Path(after("-d"))
    folder.mkdir()
    (folder / "dispatch.json").write_text(json.dumps([
        {{"kernel": 0, "priority": -5, "predecessors": []}}, {{"kernel": 1, "priority": -4, "predecessors": []}}]))
elif words[0] == "profile" and "--trace" in words:
    spans = [("b", "memory", 20, 5.0), ("a", "compute", 2, 10.0)]
    pathlib.Path(after("--trace")).write_text(json.dumps({{"traceEvents": [
        {{"ph": "M", "pid": 1, "name": "process_name"}}, {{"ph": "X", "pid": 0, "ts": 0, "dur": 3, "name": "task", "cat": "phase 0"}},
        *({{"ph": "X", "pid": 1, "name": name, "cat": kind, "ts": at, "dur": us}} for name, kind, at, us in spans)]}}))
elif words[0] == "profile":
    turned = "--dispatch-from" in words
    if turned:
        assert [one["priority"] for one in json.loads(pathlib.Path(after("--dispatch-from")).read_text())] == [-4, -5]
    print(json.dumps({{"device_us": 5, "dispatch": {{"lanes": [{{"busy_us": 1}}], "priorities": {{
        "runs": 20, "pairs": 40, "obeyed": 10 if turned else 40, "ties": 0, "share": 0.25 if turned else 1.0, "heeded": not turned}}}}}}))
elif words[0] == "run":
    print("answers")
"""
NCU_LONG = """==PROF== Connected to process 4242
"ID","Process ID","Process Name","Host Name","Kernel Name","Context","Stream","Block Size","Grid Size","Device","CC","Section Name","Metric Name","Metric Unit","Metric Value"
"0","4242","obelisk","127.0.0.1","obk_kernel_0(ObkGrid)","1","7","(128, 1, 1)","(132, 1, 1)","0","9.0","Command line profiler metrics","dram__throughput.avg.pct_of_peak_sustained_elapsed","%","12.5"
"0","4242","obelisk","127.0.0.1","obk_kernel_0(ObkGrid)","1","7","(128, 1, 1)","(132, 1, 1)","0","9.0","Command line profiler metrics","gpu__time_duration.sum","nsecond","12,500"
"0","4242","obelisk","127.0.0.1","obk_kernel_0(ObkGrid)","1","7","(128, 1, 1)","(132, 1, 1)","0","9.0","Command line profiler metrics","sm__throughput.avg.pct_of_peak_sustained_elapsed","%","61.2"
"1","4242","obelisk","127.0.0.1","obk_kernel_1(ObkProgram)","1","7","(128, 1, 1)","(9, 1, 1)","0","9.0","Command line profiler metrics","dram__throughput.avg.pct_of_peak_sustained_elapsed","%","5"
"1","4242","obelisk","127.0.0.1","obk_kernel_1(ObkProgram)","1","7","(128, 1, 1)","(9, 1, 1)","0","9.0","Command line profiler metrics","gpu__time_duration.sum","us","4"
"1","4242","obelisk","127.0.0.1","obk_kernel_1(ObkProgram)","1","7","(128, 1, 1)","(9, 1, 1)","0","9.0","Command line profiler metrics","sm__throughput.avg.pct_of_peak_sustained_elapsed","%","9"
"""
NCU_RAW = """"ID","Process ID","Kernel Name","CC","dram__throughput.avg.pct_of_peak_sustained_elapsed","gpu__time_duration.sum","sm__throughput.avg.pct_of_peak_sustained_elapsed"
"","","","","%","us","%"
"0","4242","obk_kernel_0(ObkGrid)","9.0","12.5","12.5","61.2"
"1","4242","obk_kernel_1(ObkProgram)","9.0","5","4","9"
==PROF== Disconnected from process 4242
"""
KERNELS = [
    {"name": "obk_kernel_0", "nanos": 12500, "sm": 61.2, "memory": 12.5},
    {"name": "obk_kernel_1", "nanos": 4000, "sm": 9, "memory": 5},
]


@pytest.fixture
def gpu_py(pack):
    for name in "ab":
        (pack.folder / "work" / f"{name}.onnx").touch()

    def run(*words, **more):
        return pack.gpu_py(PROGRAM, *words, **more)

    run.folder = pack.folder
    return run


def test_ablation_leaves_out_one_part_at_a_time(gpu_py):
    done, result = gpu_py("ablation", "--granularity", "mono,op")
    assert done.returncode == 2 and "no memory" in done.stdout  # of each model one part; the others are there
    assert [(row["model"], row["granularity"]) for row in result["ablation"]] == [("a", "op"), ("b", "op")]
    row = result["ablation"][0]
    assert [one["without"] for one in row["rounds"]] == ["", "dispatch_classes", "dispatch_demand", "dispatch_priorities", ""]
    # Over waves of the same process, so that machines that become slower change nothing.
    assert row["time_without"] == pytest.approx({"dispatch_classes": 1, "dispatch_demand": 1, "dispatch_priorities": 9 / 8})
    assert row["over_waves"] == pytest.approx(0.8) and row["drift"] == pytest.approx(0, abs=1e-9)
    asked = [line for line in (gpu_py.folder / "asked").read_text().splitlines() if line.startswith("bench")]
    assert sum("a.onnx" in line for line in asked) == 6 and all("--dispatch waves,sequential,opara" in line for line in asked)


def test_ablation_of_other_bits_is_a_failure(gpu_py):
    done, _ = gpu_py("ablation", "--granularity", "op", WRONG="opara")
    assert done.returncode > 2 and "other bits" in done.stdout


def test_drift_is_told():
    def told(without, opara):
        return {"without": without, "device_us": {"opara": opara, "waves": 100}}

    worth = gpu_dispatch.worth([told("", 80), told("dispatch_demand", 84), told("", 88)])
    assert worth["drift"] == pytest.approx(0.1) and worth["time_without"] == {"dispatch_demand": pytest.approx(1)}
    assert gpu_dispatch.worth([told("dispatch_demand", 84)]) == {}


def test_priorities_are_also_reversed(gpu_py):
    pytest.importorskip("onnx")
    done, result = gpu_py("priorities")
    assert done.returncode == 0, done.stdout + done.stderr
    rows = {(row["branches"], row["dispatch"]): row for row in result["priorities"]}
    assert set(rows) == {(kind, dispatch) for kind in ("joined", "apart") for dispatch in ("critical", "opara")}
    for row in rows.values():
        assert row["as_planned"]["share"] == 1 and row["reversed"]["share"] == 0.25
    assert "joined  critical  reversed  : 25.0 % of 40 pairs in their order" in done.stdout


@pytest.mark.parametrize("kind, ready", [("joined", gpu_dispatch.STEPS), ("apart", 1)])
def test_branches_become_ready_at_once(obelisk, tmp_path, kind, ready):
    findings = {one["name"]: one for one in json.loads(obelisk("doctor", "--json").out)["findings"]}
    if not findings["nvrtc"]["ok"]:
        pytest.skip(f"no device compiler: {findings['nvrtc']['text']}")
    gpu_dispatch.branches_onnx(tmp_path / "branches.onnx", kind)
    words = ("branches.onnx", "--target", "sm_90a", "--granularity", "op", "--verify", "off", *gpu_dispatch.APART)
    obelisk("compile", *words, "--dispatch", "critical", "--emit", "dispatch", "-d", "out", code=0)
    kernels = json.loads((tmp_path / "out" / "dispatch.json").read_text())
    groups = {}
    for kernel in kernels:
        assert kernel["demand"]["blocks"] >= 132 or kernel["kernel"] == len(kernels) - 1
        groups.setdefault(tuple(sorted(kernel["predecessors"])), []).append(kernel["priority"])
    pairs = [levels for levels in groups.values() if len(levels) == 2 and levels[0] < levels[1]]
    assert len(pairs) == ready
    turned = gpu_dispatch.reversed_priorities(kernels)
    assert sum(a["priority"] != b["priority"] for a, b in zip(kernels, turned)) == 2 * ready
    (tmp_path / "turned.json").write_text(json.dumps(turned))
    obelisk("compile", *words, "--dispatch-from", "turned.json", "--emit", "dispatch", "-d", "again", code=0)
    again = json.loads((tmp_path / "again" / "dispatch.json").read_text())
    assert [kernel["priority"] for kernel in again] == [kernel["priority"] for kernel in turned]


@pytest.mark.parametrize("text", [NCU_LONG, NCU_RAW])
def test_what_ncu_writes_is_read(text):
    assert gpu_dispatch.read_ncu(text) == KERNELS


def test_what_is_no_table_of_ncu_is_told():
    with pytest.raises(ValueError, match="ERR_NVGPUCTRPERM"):
        gpu_dispatch.read_ncu("==ERROR== ERR_NVGPUCTRPERM\n")
    lacks = "\n".join(line for line in NCU_LONG.splitlines() if '"1","4242"' not in line or "sm__" not in line)
    assert gpu_dispatch.read_ncu(lacks) == KERNELS[:1]  # a kernel with a metric less is none


def test_durations_and_classes_are_compared():
    ours = [{"name": "a", "class": "compute", "nanos": 10000}, {"name": "b", "class": "memory", "nanos": 5000}]
    told = gpu_dispatch.compared(ours, KERNELS)
    assert told["ratio"]["median"] == pytest.approx((0.8 + 1.25) / 2) and told["long_ratio_median"] == pytest.approx(0.8)
    assert told["classes_alike_of_time"] == pytest.approx(12.5 / 16.5) and told["classes_alike"] == 0.5
    assert told["largest_of_other_class"] == [
        {"name": "b", "obelisk": "memory", "ncu": "compute", "us": 4, "sm_percent": 9, "memory_percent": 5}
    ]


def test_profiler_runs_the_program_under_ncu(gpu_py):
    tools = gpu_py.folder / "tools"
    tools.mkdir()
    (tools / "ncu").write_text(f"#!{sys.executable}\nimport os, sys\n"
                               "assert 'gpu__time_duration.sum,sm__throughput' in sys.argv[sys.argv.index('--metrics') + 1]\n"
                               "at = next(k for k, word in enumerate(sys.argv) if word.endswith('bin/obelisk'))\n"
                               "assert sys.argv[at + 1] == 'run' and 'sequential' in sys.argv\n"
                               f"print('''{NCU_LONG}''' if 'a.onnx' in ' '.join(sys.argv) else 'ERR_NVGPUCTRPERM')\n")
    (tools / "ncu").chmod(0o755)

    done, result = gpu_py("profiler", PATH=f"{tools}:{os.environ['PATH']}")
    assert done.returncode == 1 and "ERR_NVGPUCTRPERM" in done.stdout  # of b; a is there
    (row,) = result["profiler"]
    assert row["model"] == "a" and row["kernels"] == 2 and row["runs_of_ncu"] == 1
    assert row["obelisk_us"] == pytest.approx(15) and row["ncu_us"] == pytest.approx(16.5)


def test_without_ncu_the_profiler_part_fails(gpu_py):
    done, result = gpu_py("profiler", PATH="/nowhere")
    assert done.returncode == 1 and "ncu is not here" in done.stdout
