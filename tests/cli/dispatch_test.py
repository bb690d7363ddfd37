"""Which kernels of a graph may run beside which: --dispatch, --launch-order, --streams, --emit dispatch, --explain dispatch. What is compiled is
for a GPU that is not here; what a GPU is then given is counted by the driver of launches_test.py."""
import contextlib
import fcntl
import json
import re
import sqlite3
import subprocess
from collections import Counter

import pytest
from launches_test import gpu  # noqa: F401 (a fixture)

# Three branches of one, two and three products, which sums join.
BRANCHES = """graph "branches" {
  in %0 "x": f16[64,128]
  in %1 "y": f16[64,128]
  in %2 "z": f16[64,128]
  in %3 "w": f16[128,128]
  %4: f16[64,128] = MatMul(%0, %3)
  %5: f16[64,128] = MatMul(%1, %3)
  %6: f16[64,128] = MatMul(%5, %3)
  %7: f16[64,128] = Exp(%2)
  %8: f16[64,128] = MatMul(%7, %3)
  %9: f16[64,128] = MatMul(%8, %3)
  %10: f16[64,128] = MatMul(%9, %3)
  %11: f16[64,128] = Add(%4, %6)
  %12: f16[64,128] = Add(%11, %10)
  out %12 "sum"
}
"""


@pytest.fixture
def model(tmp_path):
    file = tmp_path / "branches.ir"
    file.write_text(BRANCHES)
    return file


@pytest.fixture
def compiled(obelisk, model, tmp_path):
    """dispatch.json of the model, compiled with some flags, and what compile says."""
    findings = {one["name"]: one for one in json.loads(obelisk("doctor", "--json").out)["findings"]}
    if not findings["nvrtc"]["ok"]:
        pytest.skip(f"no device compiler: {findings['nvrtc']['text']}")

    def make(*flags, granularity="op"):
        words = ("--target", "sm_90a", "--granularity", granularity, "--verify", "off", "--emit", "dispatch", "-d", "out", "--json")
        answer = obelisk("compile", model, *words, *flags, code=0).json
        return json.loads((tmp_path / "out" / "dispatch.json").read_text()), answer

    return make


def closure(kernels):
    """{kernel: all that it follows} by the edges."""
    before = {}
    for kernel in kernels:
        before[kernel["kernel"]] = set(kernel["predecessors"]).union(*(before[one] for one in kernel["predecessors"]))
    return before


@pytest.mark.parametrize("granularity", ["op", "stitch"])
def test_dispatch_json_is_a_list_of_kernels(compiled, granularity):
    kernels, answer = compiled("--dispatch", "opara", granularity=granularity)
    assert [kernel["position"] for kernel in kernels] == list(range(answer["launches"]))
    before = closure(kernels)  # fails where a predecessor does not come first
    for kernel in kernels:
        assert set(kernel) == {"kernel", "name", "position", "lane", "priority", "class", "demand", "predecessors", "early", "reason"}
        assert kernel["early"] is True
        assert kernel["class"] in ("compute", "memory") and kernel["reason"] and -5 <= kernel["priority"] <= 0
        demand = kernel["demand"]
        assert demand["threads"] >= 128 and demand["registers"] >= 16 and demand["blocks"] >= 1 and demand["nanos"] >= 1
    lanes = {}
    for kernel in kernels:  # a lane is a chain
        last = lanes.setdefault(kernel["lane"], kernel["kernel"])
        assert last == kernel["kernel"] or last in before[kernel["kernel"]]
        lanes[kernel["lane"]] = kernel["kernel"]
    assert len(lanes) == 3


def test_policies_differ_and_follow_the_same_dependencies(compiled):
    waves, _ = compiled()
    all_of = {"waves": closure(waves)}
    lanes = {}
    for policy in ("sequential", "nimble", "opara", "critical"):
        kernels, _ = compiled("--dispatch", policy)
        all_of[policy] = closure(kernels)
        lanes[policy] = len({kernel["lane"] for kernel in kernels})
    assert lanes["sequential"] == 1 and lanes["nimble"] == lanes["critical"] == 3 and lanes["opara"] >= 3
    count = len(waves)
    assert sum(map(len, all_of["sequential"].values())) == count * (count - 1) // 2
    for kernel, before in all_of["opara"].items():  # lanes of one partial order; waves and one lane ask for more
        assert before == all_of["nimble"][kernel] == all_of["critical"][kernel]
        assert before <= all_of["waves"][kernel] and before <= all_of["sequential"][kernel]
    assert all_of["opara"] != all_of["waves"]


def test_launch_order_and_streams(compiled):
    orders = {}
    for order in ("topological", "opara", "critical", "random:1", "random:2", "random:3"):
        kernels, _ = compiled("--dispatch", "nimble", "--launch-order", order)
        closure(kernels)
        orders[order] = [kernel["kernel"] for kernel in kernels]
    again, _ = compiled("--dispatch", "nimble", "--launch-order", "random:2")
    assert [kernel["kernel"] for kernel in again] == orders["random:2"]
    assert len({tuple(order) for order in orders.values()}) >= 3
    for streams in (1, 2):
        kernels, _ = compiled("--dispatch", "opara", "--streams", str(streams))
        assert len({kernel["lane"] for kernel in kernels}) == streams


def test_parts_of_a_dispatch_can_be_left_out(compiled):
    whole, _ = compiled("--dispatch", "opara")
    reasons = {"dispatch_classes": "; the least demand of those ready", "dispatch_demand": "; of its class ready first"}
    for off, reason in reasons.items():
        kernels, _ = compiled("--dispatch", "opara", "--disable", off)
        assert closure(kernels) == closure(whole) and all(reason in kernel["reason"] for kernel in kernels)
    kernels, _ = compiled("--dispatch", "opara", "--disable", "dispatch_priorities")
    assert not any(kernel["priority"] for kernel in kernels) and any(kernel["priority"] for kernel in whole)
    assert [one | {"priority": 0} for one in whole] == kernels


def chain_and_branches():
    """A chain of ten products, and beside it five products that only the end reads: where memory is bounded they wait for each other."""
    lines = ['graph "chain" {', *(f'  in %{k} "x{k}": f16[64,128]' for k in range(6)), '  in %6 "w": f16[128,128]', "  const %7: i64[1] = [-1]"]
    lines += [f"  %{k}: f16[64,128] = MatMul(%{k - 1 if k > 8 else 0}, %6)" for k in range(8, 18)]
    last = 17
    for branch, k in enumerate(range(18, 33, 3), start=1):
        lines += [f"  %{k}: f16[64,128] = MatMul(%{branch}, %6)", f"  %{k + 1}: f16[64,1] = ReduceMax(%{k}, %7) {{keepdims = 1}}",
                  f"  %{k + 2}: f16[64,128] = Add(%{last}, %{k + 1})"]
        last = k + 2
    return "\n".join([*lines, f'  out %{last} "z"', "}"])


def test_memory_is_bounded_by_edges_that_can_be_left_out(obelisk, tmp_path):
    (tmp_path / "chain.ir").write_text(chain_and_branches())
    words = ("compile", "chain.ir", "--target", "sm_90a", "--granularity", "op", "--verify", "off", "--dispatch", "opara", "--check-tables", "--json")
    arena = [obelisk(*words, *flags, "-o", "a.obk", code=0).json["workspace_bytes"] for flags in ((), ("--disable", "dispatch_memory"))]
    assert arena[0] < arena[1], arena


def test_auto_takes_waves_with_their_own_memory(obelisk, gpu, tmp_path):  # noqa: F811
    """Over the stub all dispatches take as long, so that waves stay: with the table that --dispatch waves has, not with memory (and its edges)
    that was planned for lanes."""
    (tmp_path / "chain.ir").write_text(chain_and_branches())
    words = ("compile", "chain.ir", "--target", "cuda", "--granularity", "op", "--verify", "off", "--check-tables", "--cache", "cache")
    for policy in ("waves", "auto", "opara"):
        said = obelisk(*words, "--dispatch", policy, "--explain", "dispatch", "--emit", "dispatch", "-d", policy, "-o", f"{policy}.obk", code=0)
        assert ("chosen: waves, measured" in said.out) == (policy == "auto")
    same = [(tmp_path / policy / "dispatch.json").read_text() for policy in ("waves", "auto", "opara")]
    files = [(tmp_path / f"{policy}.obk").read_bytes() for policy in ("waves", "auto", "opara")]
    assert same[0] == same[1] != same[2] and files[0] == files[1] != files[2]
    # What was written of it is read back.
    obelisk(*words, "--dispatch-from", "auto/dispatch.json", "--emit", "dispatch", "-d", "again", code=0)
    edges = [{one["kernel"]: one["predecessors"] for one in json.loads((tmp_path / folder / "dispatch.json").read_text())} for folder in ("auto", "again")]
    assert edges[0] == edges[1]


@pytest.mark.parametrize("policy", ["auto", "critical", "waves"])
def test_values_without_elements_have_an_order(obelisk, tmp_path, policy):
    """A batch of no rows: nobody who reads such a value follows who writes it, so each is ordered by memory."""
    (tmp_path / "none.ir").write_text("""graph "none" {
  in %0 "x": f32[0,24]
  in %1 "w": f32[24,48]
  in %2 "v": f32[48,10]
  %3: f32[0,48] = MatMul(%0, %1)
  %4: f32[0,48] = Relu(%3)
  %5: f32[48,10] = Softmax(%2) {axis = 1}
  %6: f32[0,10] = MatMul(%4, %5)
  %7: f32[0,10] = Softmax(%6) {axis = 1}
  out %7 "y"
}
""")
    obelisk("compile", "none.ir", "--target", "cpu", "--dispatch", policy, "--check-tables", "-o", "none.obk", code=0)


def test_waves_are_what_they_were(obelisk, model, compiled, tmp_path):
    tables = []
    for flags in ((), ("--dispatch", "waves")):
        obelisk("compile", model, "--target", "sm_90a", "--granularity", "op", "--verify", "off", "-o", "a.obk", *flags, code=0)
        tables.append((tmp_path / "a.obk").read_bytes())
    assert tables[0] == tables[1]


def test_a_dispatch_is_read_back(obelisk, model, compiled, tmp_path):
    file = tmp_path / "kept.json"
    for flags in (("--dispatch", "opara"), ("--dispatch", "critical", "--streams", "2", "--launch-order", "random:4")):
        kernels, _ = compiled(*flags)
        written = (tmp_path / "out" / "dispatch.json").read_bytes()
        file.write_bytes(written)
        compiled("--dispatch-from", file)
        assert (tmp_path / "out" / "dispatch.json").read_bytes() == written
    kernels[1]["early"] = False  # those behind it start when its tiles are computed
    file.write_text(json.dumps(kernels))
    compiled("--dispatch-from", file)
    assert json.loads((tmp_path / "out" / "dispatch.json").read_text()) == kernels
    words = ("--target", "sm_90a", "--granularity", "op", "--verify", "off", "--to", "dispatch", "--dispatch-from", file)
    kernels[-1]["predecessors"] = []
    file.write_text(json.dumps(kernels))
    answer = obelisk("compile", model, *words, code=1)
    assert "no edges lead from kernel" in answer.err
    for text in ("{}", "[]", "[", '[{"kernel": 1}]', json.dumps(kernels[:-1]), json.dumps(kernels[::-1])):
        file.write_text(text)
        assert "dispatch" in obelisk("compile", model, *words, code=1).err


def test_explain_dispatch_tells_the_arena(obelisk, model):
    words = ("compile", model, "--target", "sm_90a", "--granularity", "op", "--verify", "off", "--explain", "dispatch")
    told = re.search(r"^arena (\S+ \S+); (\S+ \S+) if kernels ran one after another$", obelisk(*words, "--dispatch", "opara", code=0).out, re.MULTILINE)
    assert told and all(re.match(r"[\d.]+ (B|KiB|MiB)$", size) for size in told.groups())
    assert "one after another" not in obelisk(*words, code=0).out  # waves share bytes by waves


def test_explain_dispatch(obelisk, model, compiled):
    text = obelisk("compile", model, "--target", "sm_90a", "--granularity", "op", "--verify", "off", "--explain", "dispatch", "--dispatch", "auto", code=0).out
    assert "chosen: " in text and "by the prediction (us): waves " in text
    assert "work 0 follows nobody" in text and "(value)" in text


@pytest.mark.parametrize(
    "flags, said",
    [
        (("--target", "sm_90a", "--granularity", "mono", "--dispatch", "nimble", "--launch-order", "critical"), "whose dispatch is nimble alone"),
        (("--target", "sm_90a", "--granularity", "mono", "--dispatch", "opara", "--streams", "2"), "whose dispatch is opara alone"),
        (("--target", "cpu", "--dispatch", "waves", "--streams", "2"), "neither lanes nor an order"),
        (("--target", "sm_90a", "--granularity", "op", "--dispatch", "best"), "--dispatch"),
        (("--target", "sm_90a", "--granularity", "op", "--dispatch", "opara", "--launch-order", "random"), "there is no launch order 'random'"),
        (("--target", "sm_90a", "--granularity", "op", "--dispatch", "opara", "--search-seconds", "1"), "the dispatch opara is not searched for"),
        (("--target", "sm_90a", "--granularity", "op", "--dispatch", "waves", "--streams", "2"), "neither lanes nor an order"),
    ],
)
def test_what_cannot_be_is_refused(obelisk, model, flags, said):
    answer = obelisk("compile", model, "--to", "schedule", *flags)
    assert answer.code == 1 and said in answer.err


CPU = ("--target", "cpu", "--threads", "3", "--sms", "5", "--verify", "off")


@pytest.mark.parametrize("policy", ["sequential", "nimble", "opara", "critical", "auto"])
def test_works_on_a_cpu_are_dispatched_too(obelisk, model, tmp_path, policy):
    obelisk("compile", model, *CPU, "--dispatch", policy, "--emit", "dispatch", "-d", "out", "-o", "a.obk", "--check-tables", code=0)
    works = json.loads((tmp_path / "out" / "dispatch.json").read_text())
    before = closure(works)
    assert len(works) > 5 and all(work["demand"]["blocks"] >= 1 and work["demand"]["nanos"] >= 1 for work in works)
    if policy == "sequential":
        assert sum(map(len, before.values())) == len(works) * (len(works) - 1) // 2
    outputs = []
    for what in (("a.obk",), (model, "--dispatch", policy), (model, "--dispatch", "waves")):
        words = CPU if len(what) > 1 else ("--threads", "3", "--verify", "off")
        obelisk("run", *what, *words, "--seed", "1", "--output-dir", ".", code=0)
        outputs.append((tmp_path / "sum.npy").read_bytes())
    assert outputs[0] == outputs[1] == outputs[2]


def test_a_dispatch_on_a_cpu_is_read_back(obelisk, model, tmp_path):
    words = ("compile", model, *CPU, "--emit", "dispatch", "-d", "out")
    obelisk(*words, "--dispatch", "nimble", "--launch-order", "random:3", "--streams", "2", code=0)
    file, written = tmp_path / "kept.json", (tmp_path / "out" / "dispatch.json").read_bytes()
    file.write_bytes(written)
    obelisk(*words, "--dispatch-from", file, code=0)
    assert (tmp_path / "out" / "dispatch.json").read_bytes() == written
    works = json.loads(written)
    works[-1]["predecessors"] = []
    file.write_text(json.dumps(works))
    assert "no edges lead from kernel" in obelisk(*words, "--dispatch-from", file, code=1).err


def test_auto_on_a_cpu_keeps_waves_where_works_are_tiny(obelisk, model, tmp_path):
    tiny = tmp_path / "tiny.ir"  # a wave of 40 works
    tiny.write_text("\n".join([
        'graph "tiny" {', *(f'  in %{k} "x{k}": f32[1,16]' for k in range(40)), '  in %40 "w": f32[16,16]',
        *(f"  %{41 + k}: f32[1,16] = MatMul(%{k}, %40)" for k in range(40)), *(f'  out %{41 + k} "y{k}"' for k in range(40)), "}\n"]))
    large = tmp_path / "large.ir"
    large.write_text(BRANCHES.replace("f16", "f32").replace("[64,128]", "[640,1024]").replace("[128,128]", "[1024,1024]"))
    for file, policy in ((tiny, "waves"), (large, "critical")):
        text = obelisk("compile", file, *CPU, "--explain", "dispatch", code=0).out
        assert f"dispatch {policy}" in text and re.search(rf"^chosen: {policy}: handing over \d+ works takes", text, re.MULTILINE), text


def test_bench_on_a_cpu_compares_dispatches(obelisk, model):
    words = ("bench", model, *CPU, "--dispatch", "waves,sequential,critical", "--seconds", "0.2", "--json")
    told = obelisk(*words, code=0).json["dispatches"]
    assert [one["dispatch"] for one in told] == ["waves", "sequential", "critical"]
    assert all(one["same_bits"] and one["latency_us"]["median"] > 0 and one["workspace_bytes"] > 0 for one in told)


def test_a_graph_has_the_edges_and_priorities_of_its_dispatch(obelisk, gpu, model, tmp_path, monkeypatch):  # noqa: F811
    monkeypatch.setitem(obelisk.environment, "STUB_DRIVER_EDGES", "1")
    words = ("--target", "cuda", "--granularity", "op", "--verify", "off")
    given = {}
    for policy in ("waves", "opara"):
        obelisk("compile", model, *words, "--dispatch", policy, "--emit", "dispatch", "-d", policy, code=0)
        kernels = json.loads((tmp_path / policy / "dispatch.json").read_text())
        gpu.write_text("")
        obelisk("run", model, *words, "--dispatch", policy, "--seed", "1", code=0)
        calls = Counter(gpu.read_text().splitlines())
        edges = sum(len(kernel["predecessors"]) for kernel in kernels)
        assert calls["edge 1"] == edges > 0
        priorities = Counter(f"priority {100 + kernel['priority']}" for kernel in kernels if kernel["priority"])
        assert {call: count for call, count in calls.items() if call.startswith("priority")} == priorities
        assert calls[f"graph {len(kernels)}"] > 0
        obelisk("compile", model, *words, "--dispatch", policy, "-o", f"{policy}.obk", code=0)  # a compiled file keeps it
        gpu.write_text("")
        obelisk("run", f"{policy}.obk", "--verify", "off", "--seed", "1", code=0)
        kept = Counter(gpu.read_text().splitlines())
        assert kept["edge 1"] == edges
        assert {call: count for call, count in kept.items() if call.startswith("priority")} == priorities
        given[policy] = edges, priorities
    assert given["opara"][0] != given["waves"][0] and given["opara"][1] and not given["waves"][1]


def test_bench_takes_several_dispatches_in_turn(obelisk, gpu, model):  # noqa: F811
    words = ("--target", "cuda", "--granularity", "op,mono", "--verify", "off", "--seconds", "0.02", "--json")
    orders = "random:1,random:2"
    answer = obelisk("bench", model, *words, "--dispatch", "waves,opara", "--launch-order", orders, code=0).json
    told = [(one["granularity"], one.get("dispatch"), one.get("same_bits")) for one in answer["granularities"]]
    assert told == [
        ("op", "waves", True), ("op", "opara random:1", True), ("op", "opara random:2", True), ("mono", None, None),
    ]
    assert len({one["launches"] for one in answer["granularities"][:3]}) == 1


def test_one_kernel_has_every_dispatch(obelisk, gpu, model):  # noqa: F811
    words = ("--target", "cuda", "--granularity", "mono", "--verify", "off", "--seconds", "0.02", "--json")
    answer = obelisk("bench", model, *words, "--dispatch", "waves,sequential,nimble,opara,critical,auto", code=0).json
    told = [(one["granularity"], one.get("dispatch"), one["launches"], one.get("same_bits")) for one in answer["granularities"]]
    assert told == [("mono", policy, 1, True) for policy in ("waves", "sequential", "nimble", "opara", "critical", "auto")]
    tables = {
        policy: obelisk("compile", model, *words[:4], "--dispatch", policy, "--to", "schedule", code=0).out
        for policy in ("waves", "sequential", "nimble", "opara", "critical", "auto")
    }
    assert tables["auto"] == tables["critical"] != tables["waves"] != tables["sequential"]
    said = obelisk("compile", model, *words[:4], "--dispatch", "auto", "--to", "schedule", "--explain", "schedule", code=0).out
    early, put_off = (float(us) for us in re.search(r"predicted: ([\d.]+) us with works as early as they may run, ([\d.]+) us with", said).groups())
    assert put_off < 0.98 * early


def test_bench_launches_each_order_as_if_it_were_compiled_alone(obelisk, gpu, model, monkeypatch):  # noqa: F811
    monkeypatch.setitem(obelisk.environment, "STUB_DRIVER_EDGES", "1")
    words = (model, "--target", "cuda", "--granularity", "op", "--verify", "off", "--seconds", "0.02")

    def nodes(orders):  # edges and priorities of the nodes of all graphs, in the order in which they were added
        gpu.write_text("")
        obelisk("bench", *words, "--dispatch", "opara", "--launch-order", orders, code=0)
        return "".join(re.findall(r"^(?:edge|priority).*\n", gpu.read_text(), re.MULTILINE))

    alone = [nodes(f"random:{seed}") for seed in (1, 3)]
    assert alone[0] != alone[1]
    assert nodes("random:1,random:3") == "".join(alone)


def test_only_bench_takes_several_dispatches(obelisk, model):
    for flags in (("--dispatch", "waves,opara"), ("--dispatch", "opara", "--launch-order", "random:1,random:2")):
        answer = obelisk("run", model, "--target", "sm_90a", "--granularity", "op", *flags)
        assert answer.code == 1 and f"only bench takes several of {flags[-2]}" in answer.err


def explained(answer):
    return next(line for line in answer.out.splitlines() if line.startswith("chosen: "))


def test_auto_measures_where_a_gpu_is_and_keeps_what_it_found(obelisk, gpu, model, tmp_path, monkeypatch):  # noqa: F811
    words = ("--target", "cuda", "--granularity", "op", "--verify", "off", "--cache", "cache")
    ask = ("compile", model, *words, "--dispatch", "auto", "--explain", "dispatch")
    edges = {}
    for policy in ("waves", "sequential", "nimble", "opara", "critical"):
        obelisk("compile", model, *words, "--dispatch", policy, "--emit", "dispatch", "-d", policy, code=0)
        edges[policy] = sum(len(one["predecessors"]) for one in json.loads((tmp_path / policy / "dispatch.json").read_text()))

    def launches():
        return sum(line.startswith("graph ") for line in gpu.read_text().splitlines())

    # All as quick: waves stay.
    gpu.write_text("")
    said = explained(obelisk(*ask, code=0))
    assert said.startswith("chosen: waves, measured (us): waves ") and launches() > 100
    # What was measured is found again, and only with the same driver.
    gpu.write_text("")
    assert explained(obelisk(*ask, code=0)) == said.replace("measured", "measured before") and launches() == 0
    monkeypatch.setitem(obelisk.environment, "STUB_DRIVER_VERSION", "13010")
    monkeypatch.setitem(obelisk.environment, "STUB_DRIVER_SLOW_EDGES", "1")
    said = explained(obelisk(*ask, code=0))
    times = dict(one.split() for one in said.split("(us): ")[1].split(", "))
    assert {policy: float(us) for policy, us in times.items() if ":" not in policy} == {
        policy: pytest.approx(100 * (1 + 0.1 * count), abs=0.11) for policy, count in edges.items()
    }
    assert edges[said.split()[1].rstrip(",").partition(":")[0]] == min(edges.values()) < edges["waves"]
    # Other lanes are another measurement.
    gpu.write_text("")
    assert "measured (us)" in explained(obelisk(*ask, "--streams", "2", code=0)) and launches() > 100
    # So are other rules.
    for off in ("dispatch_classes", "dispatch_demand", "dispatch_priorities", "dispatch_early"):
        gpu.write_text("")
        assert "measured (us)" in explained(obelisk(*ask, "--disable", off, code=0)) and launches() > 100
        gpu.write_text("")
        assert "measured before (us)" in explained(obelisk(*ask, "--disable", off, code=0)) and launches() == 0


def test_processes_do_not_time_programs_at_once(obelisk, program, gpu, model, tmp_path, monkeypatch):  # noqa: F811
    monkeypatch.setitem(obelisk.environment, "TMPDIR", str(tmp_path))
    monkeypatch.setitem(obelisk.environment, "OBELISK_LOG", "info")
    words = ("compile", model, "--target", "cuda", "--granularity", "op", "--verify", "off", "--dispatch", "auto", "-o", "a.obk")
    obelisk(*words, "--cache", "first", code=0)
    name, = tmp_path.glob("obelisk-timing-*.lock")

    def launches():
        return sum(line.startswith("graph ") for line in gpu.read_text().splitlines())

    gpu.write_text("")
    with open(name) as other:
        fcntl.flock(other, fcntl.LOCK_EX)
        waits = subprocess.Popen([program, *words, "--cache", "second"], cwd=tmp_path, env=obelisk.environment, stdout=subprocess.DEVNULL,
                                 stderr=subprocess.PIPE, text=True)
        assert any("waits for others" in line for line in waits.stderr) and launches() == 0
    waits.communicate(timeout=100)  # the lock is gone with the file
    assert waits.returncode == 0 and launches() > 100


def tried_by_auto(said):
    return [one.split()[0] for one in said.split("(us): ")[1].split(", ")]


def as_if_measured(cache, times):
    with contextlib.closing(sqlite3.connect(cache / "kernels.sqlite")) as kept, kept:
        for name, us in times.items():
            assert kept.execute("UPDATE dispatches SET us = ? WHERE dispatch = ?", (us, name)).rowcount == 1


AUTO = ("--target", "cuda", "--granularity", "stitch", "--verify", "off", "--cache", "cache", "--dispatch", "auto", "--explain", "dispatch",
        "--emit", "dispatch", "-d", "out")
LANES = ("nimble", "opara", "critical")


def test_auto_tries_fewer_kernels_that_start_early(obelisk, gpu, model, tmp_path):  # noqa: F811
    words = ("compile", model, *AUTO, "--disable", "dispatch_priorities")
    tried = tried_by_auto(explained(obelisk(*words, code=0)))
    with_lanes = next(name for name in tried if name.endswith(":0"))[:-2]
    assert [name for name in tried if ":" in name] == [f"{with_lanes}:{room}" for room in ("0", "0.125", "0.5")]
    # As if they had taken so long; another policy is the quickest of those in which all start early.
    times = {"waves": 100, "sequential": 300, "nimble": 90, "opara": 90, "critical": 90, f"{with_lanes}:0": 60, f"{with_lanes}:0.125": 70, f"{with_lanes}:0.5": 80}
    times["opara" if with_lanes != "opara" else "nimble"] = 85
    as_if_measured(tmp_path / "cache", times)
    assert explained(obelisk(*words, code=0)).startswith(f"chosen: {with_lanes}:0, measured before (us): waves 100.0, ")
    kernels = json.loads((tmp_path / "out" / "dispatch.json").read_text())
    followed = {before for kernel in kernels for before in kernel["predecessors"]}
    assert {kernel["kernel"]: kernel["early"] for kernel in kernels} == {kernel["kernel"]: kernel["kernel"] not in followed for kernel in kernels}
    said = explained(obelisk(*words, "--disable", "dispatch_early", code=0))
    assert "measured (us)" in said and ":0" not in said


def test_auto_tries_lanes_without_priorities(obelisk, gpu, model, tmp_path):  # noqa: F811
    words = ("compile", model, *AUTO)
    tried = tried_by_auto(explained(obelisk(*words, code=0)))
    assert {f"{policy}:no-priorities" for policy in LANES} < set(tried)
    quickest = next(name for name in tried if ":0.125" in name).replace(":0.125", "")
    assert {name for name in tried if ":0" in name} == {quickest.replace(":", f":{room}:") if ":" in quickest else f"{quickest}:{room}" for room in ("0", "0.125", "0.5")}
    as_if_measured(tmp_path / "cache", {name: {"waves": 100, "opara:no-priorities": 50}.get(name, 90) for name in tried})
    assert explained(obelisk(*words, code=0)).startswith("chosen: opara:no-priorities, measured before (us): ")
    kernels = json.loads((tmp_path / "out" / "dispatch.json").read_text())
    assert {kernel["priority"] for kernel in kernels} == {0} and len({kernel["lane"] for kernel in kernels}) > 1
    as_if_measured(tmp_path / "cache", {"opara": 40})
    assert explained(obelisk(*words, code=0)).startswith("chosen: opara, measured before (us): ")
    assert len({kernel["priority"] for kernel in json.loads((tmp_path / "out" / "dispatch.json").read_text())}) > 1


def test_auto_tries_fewer_lanes(obelisk, gpu, tmp_path):  # noqa: F811
    branches = range(2, 22)
    wide = "".join(f"  %{k}: f16[64,128] = MatMul(%0, %1)\n  %{k + 20}: f16[64,128] = MatMul(%{k}, %1)\n" for k in branches)
    outs = "".join(f'  out %{k + 20} "y{k}"\n' for k in branches)
    (tmp_path / "wide.ir").write_text(f'graph "wide" {{\n  in %0 "x": f16[64,128]\n  in %1 "w": f16[128,128]\n{wide}{outs}}}\n')
    words = ("compile", "wide.ir", *AUTO, "--disable", "dispatch_priorities")
    tried = tried_by_auto(explained(obelisk(*words, code=0)))
    fewer = {name for name in tried if "-lanes" in name}
    policy = min(fewer).split(":")[0]
    assert policy in LANES and {name.split(":")[1] for name in fewer} == {"8-lanes", "12-lanes", "16-lanes"} and all(name.startswith(policy) for name in fewer)
    as_if_measured(tmp_path / "cache", {name: 50 if name == f"{policy}:8-lanes" else 90 for name in [*tried, f"{policy}:8-lanes"]})
    assert explained(obelisk(*words, code=0)).startswith(f"chosen: {policy}:8-lanes, measured before (us): ")
    kernels = json.loads((tmp_path / "out" / "dispatch.json").read_text())
    assert len({kernel["lane"] for kernel in kernels}) == 8
    assert "-lanes" not in explained(obelisk(*words, "--streams", "12", code=0))


def test_what_leads_waves_by_chance_is_not_taken(obelisk, gpu, model, monkeypatch):  # noqa: F811
    """As many graphs as are timed before waves and what leads them are timed again are the slower the more edges they have, later ones are not."""
    for name in ("STUB_DRIVER_SLOW_EDGES", "STUB_DRIVER_READY"):
        monkeypatch.setitem(obelisk.environment, name, "1")
    ask = ("compile", model, "--target", "cuda", "--granularity", "op", "--verify", "off", "--dispatch", "auto", "--explain", "dispatch")
    gpu.write_text("")
    said = explained(obelisk(*ask, "--cache", "one", code=0))
    ready = re.findall(r"^ready (\d+)", gpu.read_text(), re.MULTILINE)
    waves, leader = map(int, ready[-2:])
    assert not said.startswith("chosen: waves") and leader < waves
    monkeypatch.setitem(obelisk.environment, "STUB_DRIVER_SLOW_FIRST", str(len(ready) - 2))
    said = explained(obelisk(*ask, "--cache", "two", code=0))
    times = dict(one.split() for one in said.split("(us): ")[1].split(", "))
    assert said.startswith("chosen: waves, measured (us): waves 100.0")
    assert sorted(times.values(), key=float)[:2] == ["100.0", "100.0"] and max(map(float, times.values())) > 100


def test_a_search_finds_what_takes_less_and_is_kept(obelisk, gpu, model, tmp_path, monkeypatch):  # noqa: F811
    monkeypatch.setitem(obelisk.environment, "STUB_DRIVER_FAST_FAR", "1")
    words = ("--target", "cuda", "--granularity", "op", "--verify", "off", "--cache", "cache", "--dispatch", "auto", "--streams", "3")

    def chosen(*flags):
        gpu.write_text("")
        answer = obelisk("compile", model, *words, "--explain", "dispatch", "--emit", "dispatch", "-d", "out", *flags, code=0)
        said = explained(answer)
        times = {name: float(us) for name, us in (one.split() for one in said.split("(us): ")[1].split(", "))}
        kernels = json.loads((tmp_path / "out" / "dispatch.json").read_text())
        closure(kernels)
        assert len({kernel["lane"] for kernel in kernels}) <= 3
        return said.split()[1].rstrip(","), times, kernels, gpu.read_text().count("graph ")

    policy, times, kernels, _ = chosen()
    assert "search" not in times
    found, searched, better, launches = chosen("--search-seconds", "2")
    assert found == "search" and launches > 100
    assert searched["search"] < 0.99 * min(times.values())
    assert better != kernels
    # Later runs with --dispatch auto reuse it; asking for no more seconds does not search again.
    for flags in ((), ("--search-seconds", "1")):
        assert chosen(*flags) == ("search", searched, better, 0)


def test_a_search_tries_kernels_for_fewer_multiprocessors(obelisk, gpu, model, tmp_path):  # noqa: F811
    """Over the stub all are as quick, so that those for all of them stay; then as if others had been quicker."""
    model.write_text(BRANCHES.replace("[64,128]", "[640,1024]").replace("[128,128]", "[1024,1024]"))

    def compiled(*flags):
        gpu.write_text("")
        answer = obelisk("compile", model, *AUTO, *flags, "-o", "out.obk", code=0)
        said = next((line for line in answer.out.splitlines() if line.startswith("kernels for ")), "")
        return said, json.loads((tmp_path / "out" / "dispatch.json").read_text()), gpu.read_text().count("graph ")

    plain, whole, _ = compiled()
    assert plain == "" and max(kernel["demand"]["blocks"] for kernel in whole) > 66
    said, _, _ = compiled("--search-seconds", "0.001")  # begins one
    assert re.fullmatch(r"kernels for 132 of 132 multiprocessors, measured \(us by how many\): 132 [\d.]+, 88 [\d.]+", said)
    said, kernels, launches = compiled("--search-seconds", "10")  # and the other
    assert re.fullmatch(r"kernels for 132 of 132 multiprocessors, measured \(us by how many\): 132 [\d.]+, 88 [\d.]+, 66 [\d.]+", said)
    assert [kernel["demand"]["blocks"] for kernel in kernels] == [kernel["demand"]["blocks"] for kernel in whole] and launches > 100
    as_if_measured(tmp_path / "cache", {"132 SMs": 100, "88 SMs": 98, "66 SMs": 97})
    said, kernels, launches = compiled()  # kept, without seconds too
    assert said.startswith("kernels for 66 of 132 multiprocessors, measured (us by how many): 132 100.0, 88 98.0, 66 97.0") and launches == 0
    assert obelisk("inspect", "out.obk", "--json", code=0).json["sms"] == 66
    for_half = compiled("--sms", "66")
    assert for_half == ("", kernels, 0) and max(kernel["demand"]["blocks"] for kernel in kernels) <= 66
    as_if_measured(tmp_path / "cache", {"88 SMs": 99.5, "66 SMs": 99.1})
    assert compiled()[0].startswith("kernels for 132 of 132 ") and compiled("--disable", "fewer_sms")[0] == ""


def test_a_search_by_prediction(compiled):
    plain, _ = compiled("--dispatch", "auto")
    found, _ = compiled("--dispatch", "auto", "--search-seconds", "30")
    assert compiled("--dispatch", "auto", "--search-seconds", "30")[0] == found
    closure(found)
    assert {kernel["kernel"] for kernel in found} == {kernel["kernel"] for kernel in plain}


def test_profile_has_a_row_for_each_lane(obelisk, gpu, model, tmp_path):  # noqa: F811
    words = ("--target", "cuda", "--granularity", "op", "--trace", "t.json", "--json")
    for policy, lanes in (("waves", 3), ("opara", 3), ("sequential", 1)):
        answer = obelisk("profile", model, *words, "--dispatch", policy, code=0).json
        rows = answer["dispatch"]["lanes"]
        assert len(rows) == lanes and sum(row["kernels"] for row in rows) == 9
        told = {"lanes", "measured_us", "critical_us", "sm_busy_share", "overlap_us"}
        assert set(answer["dispatch"]) == (told if policy == "waves" else told | {"priorities"})
        events = json.loads((tmp_path / "t.json").read_text())["traceEvents"]
        named = [event["args"]["name"] for event in events if event["name"] == "thread_name" and event["pid"] == 1]
        assert named == [f"lane {k}" for k in range(lanes)]
        assert sum(event["ph"] == "X" and event["pid"] == 1 for event in events) == sum(row["kernels"] for row in rows)
    alone = obelisk("profile", model, "--target", "cuda", "--granularity", "mono", "--json", code=0).json
    assert "dispatch" not in alone


def test_profile_tells_whether_priorities_act(obelisk, gpu, model):  # noqa: F811
    """Over the stub all kernels begin at once: each pair is a tie in each run."""
    words = ("profile", model, "--target", "cuda", "--granularity", "op")
    told = obelisk(*words, "--dispatch", "opara", "--json", code=0).json["dispatch"]["priorities"]
    ties = told.pop("ties")
    assert told == {"runs": 20, "pairs": 0, "obeyed": 0, "share": None, "heeded": None}
    assert ties >= 20 and ties % 20 == 0
    assert f"priorities: all {ties} pairs began at the same time\n" in obelisk(*words, "--dispatch", "opara", code=0).out
    for flags in (("--dispatch", "sequential"), ("--dispatch", "waves"), ("--dispatch", "opara", "--disable", "dispatch_priorities")):
        assert "priorities" not in obelisk(*words, *flags, code=0).out


def test_without_a_word_a_graph_is_measured_where_the_gpu_is(obelisk, gpu, model, tmp_path, monkeypatch):  # noqa: F811
    words = ("--target", "cuda", "--verify", "off", "--cache", "cache", "--explain", "dispatch")
    monkeypatch.setitem(obelisk.environment, "STUB_DRIVER_SLOW_EDGES", "1")
    said = explained(obelisk("compile", model, *words, "--granularity", "op", code=0))
    assert ", measured (us): waves " in said and not said.startswith("chosen: waves")
    # Where every kernel follows another nothing is measured.
    chain = tmp_path / "chain.ir"
    chain.write_text("""graph "chain" {
  in %0 "x": f16[64,128]
  in %1 "w": f16[128,128]
  %2: f16[64,128] = MatMul(%0, %1)
  %3: f16[64,128] = MatMul(%2, %1)
  out %3 "y"
}
""")
    assert "every kernel follows the one before it" in explained(obelisk("compile", chain, *words, "--granularity", "op", code=0))


def test_without_a_word_a_graph_has_waves_where_no_gpu_is(obelisk, model):
    said = obelisk("compile", model, "--target", "sm_90a", "--granularity", "op", "--verify", "off", "--explain", "dispatch", code=0).out
    assert "dispatch waves" in said and "measured" not in said


def test_memory_that_lasts_from_run_to_run_is_nobody_elses(obelisk, tmp_path):
    """The steps of a recurrent layer have signals in memory that they clear behind themselves: what runs before it may not lie there."""
    network = tmp_path / "steps.ir"
    network.write_text("""graph "steps" {
  in %0 "x": f16[1,9,96]
  in %1 "w": f16[1,512,96]
  in %2 "r": f16[1,512,128]
  %3: f16[9,1,96] = Transpose(%0) {perm = [1, 0, 2]}
  %4: f16[9,1,1,128] = LSTM(%3, %1, %2) {hidden_size = 128}
  %5: f16[1,9,1,128] = Transpose(%4) {perm = [2, 0, 1, 3]}
  out %5 "y"
}
""")
    for policy in ("waves", "critical", "opara"):
        obelisk("compile", network, "--target", "sm_90a", "--granularity", "op", "--dispatch", policy, "--to", "schedule", code=0)
