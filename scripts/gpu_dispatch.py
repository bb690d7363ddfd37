"""What the parts of a dispatch are worth, whether a GPU heeds priorities, and kernel times beside a profiler's: gpu.py ablation, priorities, profiler.

Each function takes gpu.py's Session. What fails is told and left out.
"""

import csv
import io
import json
import pathlib
import shutil
import statistics
import subprocess

SWITCHES = ("dispatch_classes", "dispatch_demand", "dispatch_priorities", "dispatch_memory")
METRICS = {
    "gpu__time_duration.sum": "nanos",
    "sm__throughput.avg.pct_of_peak_sustained_elapsed": "sm",
    "dram__throughput.avg.pct_of_peak_sustained_elapsed": "memory",
}
NANOS = {"ns": 1, "nsecond": 1, "us": 1e3, "usecond": 1e3, "ms": 1e6, "msecond": 1e6, "s": 1e9, "second": 1e9}
LONG_NANOS = 10_000  # kernels from which on what a launch adds to a duration is little


def keep(session, part, rows):
    """The rows so far, also in --out: they are kept where the time ends early."""
    session.result[part] = rows
    if session.options.out:
        pathlib.Path(session.options.out).write_text(json.dumps(session.result, indent=1) + "\n")


def graphs(session):
    """(model, granularity) of all that are graphs of kernels."""
    wanted = [one for one in ("op", "stitch") if one in session.options.granularity.split(",")]
    return [(name, granularity) for name in session.models if session.onnx(name).exists() for granularity in wanted]


# ---- ablation ----
def ablation(session):
    """opara whole, without each of its parts, and whole again, in a process each. waves and sequential run in turn
    with it in every process, so that a time over that of waves does not hold what the clocks did meanwhile."""
    rows = []
    session.prepare()
    for name, granularity in graphs(session):
        row = {"model": name, "granularity": granularity, "rounds": []}
        for off in ("", *SWITCHES, ""):
            words = ("--disable", off) if off else ()
            code, out, err = session.obelisk(
                "bench", session.onnx(name), *session.target(name, granularity), "--dispatch", "waves,sequential,opara",
                *words, "--verify", "off", "--seconds", session.options.seconds, "--json", timeout=session.options.timeout,
            )
            if code != 0:
                session.fail(f"ablation {name} {granularity} without {off or 'nothing'}", err)
                continue
            told = {one["dispatch"]: one for one in json.loads(out)["granularities"]}
            if not all(one["same_bits"] for one in told.values()):
                session.fail(f"ablation {name} {granularity} without {off or 'nothing'}", "other bits")
            row["launches"] = told["opara"]["launches"]
            row["rounds"].append({
                "without": off, "arena_bytes": told["opara"]["workspace_bytes"],
                "device_us": {dispatch: one["device_us"]["median"] for dispatch, one in told.items()},
            })
        if not row["rounds"]:
            continue
        row |= worth(row["rounds"])
        rows.append(row)
        keep(session, "ablation", rows)
        say(session, f"ablation {name:20} {granularity:7}", ", ".join(
            f"without {off} {share:.3f}" for off, share in row.get("time_without", {}).items()))


def worth(rounds):
    """Times without a part over those of the whole, both over waves of the same process; and how far the whole's two runs are apart."""
    over = [(one["without"], one["device_us"]["opara"] / one["device_us"]["waves"]) for one in rounds]
    whole = [share for off, share in over if not off]
    if not whole:
        return {}
    base = statistics.fmean(whole)
    return {
        "over_waves": base, "drift": max(whole) / min(whole) - 1,
        "time_without": {off: share / base for off, share in over if off},
    }


def say(session, what, text):
    print(f"{what}: {text}", flush=True)


# ---- priorities ----
ROWS, WIDTH, STEPS = 8192, 1024, 8
APART = ("--disable", "merge_gates")  # which makes one product of two that read the same


def branches_onnx(file, kind):
    """Two branches of products that fill a GPU each: `apart`, side by side from the inputs on, the second one longer; `joined`, one
    product each between a sum and the next, so that two kernels become ready at once STEPS times."""
    import numpy
    import onnx
    from onnx import TensorProto, helper, numpy_helper

    random = numpy.random.default_rng(1)
    weights = [
        numpy_helper.from_array((random.standard_normal((WIDTH, WIDTH)) / WIDTH**0.5).astype("float16"), f"w{k}")
        for k in range(2)
    ]
    nodes, at = [], ["x0", "x1"] if kind == "apart" else ["x0", "x0"]

    def add(op, inputs):
        nodes.append(helper.make_node(op, inputs, [f"v{len(nodes)}"]))
        return nodes[-1].output[0]

    for _ in range(STEPS):
        at = [add("MatMul", [at[k], f"w{k}"]) for k in range(2)]
        if kind == "joined":
            at = [add("Add", at)] * 2
    if kind == "apart":
        at[1] = add("MatMul", [at[1], "w1"])
        at = [add("Add", at)]
    ports = [helper.make_tensor_value_info(name, TensorProto.FLOAT16, (ROWS, WIDTH)) for name in ("x0", "x1", at[0])]
    inputs = ports[:2] if kind == "apart" else ports[:1]
    graph = helper.make_graph(nodes, kind, inputs, ports[2:], weights)
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)], ir_version=10), file)


def reversed_priorities(kernels):
    """The same order and edges; of the kernels that become ready at once the last now has the highest priority."""
    groups = {}
    for kernel in kernels:
        groups.setdefault(tuple(sorted(kernel["predecessors"])), []).append(kernel)
    turned = {}
    for group in groups.values():
        levels = sorted(kernel["priority"] for kernel in group)
        for kernel in group:
            turned[kernel["kernel"]] = levels[len(levels) - 1 - levels.index(kernel["priority"])]
    return [kernel | {"priority": turned[kernel["kernel"]]} for kernel in kernels]


def priorities(session):
    """Which of two kernels that become ready at once begins first: with a dispatch's priorities, and with these reversed while
    the order of the graph's nodes stays, which tells a priority that acts from a GPU that takes nodes as they come."""
    rows = []
    for kind in ("joined", "apart"):
        file = session.work / f"branches_{kind}.onnx"
        branches_onnx(file, kind)
        target = ("--target", "cuda", "--granularity", "op", "--precision", "keep", *APART, *session.options.flags)
        for dispatch in ("critical", "opara"):
            row = {"branches": kind, "dispatch": dispatch}
            folder = session.work / f"branches_{kind}.{dispatch}"
            code, _, err = session.obelisk("compile", file, *target, "--dispatch", dispatch, "--verify", "off", "--emit", "dispatch", "-d", folder)
            given = folder / "reversed.json"
            if code == 0:
                given.write_text(json.dumps(reversed_priorities(json.loads((folder / "dispatch.json").read_text()))))
            else:
                session.fail(f"priorities {kind} {dispatch} reversed", err)
            for what, words in (("as_planned", ("--dispatch", dispatch)), ("reversed", ("--dispatch-from", given))):
                if what == "reversed" and not given.exists():
                    continue
                code, out, err = session.obelisk("profile", file, *target, *words, "--json")
                if code != 0:
                    session.fail(f"priorities {kind} {dispatch} {what}", err)
                    continue
                answer = json.loads(out)
                row[what] = answer["dispatch"]["priorities"] | {
                    "device_us": answer["device_us"], "busy_us": [lane["busy_us"] for lane in answer["dispatch"]["lanes"]]
                }
                told = row[what]
                share = "no pair" if told["share"] is None else f"{100 * told['share']:.1f} % of {told['pairs']} pairs"
                say(session, f"priorities {kind:7} {dispatch:9} {what:10}", f"{share} in their order, {told['ties']} ties")
            rows.append(row)
            keep(session, "priorities", rows)


# ---- profiler ----
def read_ncu(text):
    """Kernels in the order in which they ran, [{"name", "nanos", "sm", "memory"}], of ncu --csv: a line for each metric of each kernel,
    or with --page raw a line for each kernel below one of units."""
    lines = text.splitlines()
    begin = next((k for k, line in enumerate(lines) if line.startswith('"ID"')), None)
    if begin is None:
        raise ValueError("no table: " + text.strip()[-400:])
    table = csv.DictReader(io.StringIO("\n".join(line for line in lines[begin:] if line.startswith('"'))))

    def number(value, metric, unit):
        value = float(value.replace(",", ""))
        return value * NANOS[unit] if METRICS[metric] == "nanos" else value

    kernels, units = {}, {}
    for row in table:
        if "Metric Name" in table.fieldnames:
            kernel = kernels.setdefault(int(row["ID"]), {"name": row["Kernel Name"]})
            metric = row["Metric Name"]
            if metric in METRICS and row["Metric Value"]:
                kernel[METRICS[metric]] = number(row["Metric Value"], metric, row["Metric Unit"])
        elif not row["ID"]:
            units = row
        else:
            kernel = kernels.setdefault(int(row["ID"]), {"name": row["Kernel Name"]})
            for metric in METRICS:
                if row.get(metric):
                    kernel[METRICS[metric]] = number(row[metric], metric, units.get(metric))
    wanted = {"name", *METRICS.values()}
    found = [kernels[k] for k in sorted(kernels)]
    return [{**kernel, "name": kernel["name"].partition("(")[0]} for kernel in found if wanted <= set(kernel)]


def read_trace(trace):
    """[{"name", "class", "nanos"}] of `obelisk profile --trace`, in the order in which the kernels of one lane began."""
    spans = [event for event in trace["traceEvents"] if event.get("ph") == "X" and event["pid"] == 1]
    spans.sort(key=lambda event: event["ts"])
    return [{"name": event["name"], "class": event["cat"], "nanos": 1e3 * event["dur"]} for event in spans]


def share_of(values, share):
    return sorted(values)[min(int(share * len(values)), len(values) - 1)]


def compared(ours, theirs):
    """Of the same kernels in the same order."""
    pairs = [(a, b) for a, b in zip(ours, theirs) if a["nanos"] > 0 and b["nanos"] > 0]
    ratios = [a["nanos"] / b["nanos"] for a, b in pairs]
    long = [a["nanos"] / b["nanos"] for a, b in pairs if b["nanos"] >= LONG_NANOS]
    classes = [(a, b, "compute" if b["sm"] > b["memory"] else "memory") for a, b in pairs]
    alike = [(b["nanos"], a["class"] == theirs_class) for a, b, theirs_class in classes]
    total = sum(nanos for nanos, _ in alike)
    other = sorted(((b["nanos"], a, b, c) for a, b, c in classes if a["class"] != c), key=lambda one: -one[0])
    return {
        "kernels": len(pairs),
        "ratio": {"median": statistics.median(ratios), "p10": share_of(ratios, 0.1), "p90": share_of(ratios, 0.9)},
        "long_kernels": len(long), "long_ratio_median": statistics.median(long) if long else None,
        "obelisk_us": sum(a["nanos"] for a, _ in pairs) / 1e3, "ncu_us": total / 1e3,
        "classes_alike_of_time": sum(nanos for nanos, same in alike if same) / total,
        "classes_alike": sum(same for _, same in alike) / len(alike),
        "largest_of_other_class": [
            {"name": a["name"], "obelisk": a["class"], "ncu": c, "us": nanos / 1e3, "sm_percent": b["sm"], "memory_percent": b["memory"]}
            for nanos, a, b, c in other[:8]
        ],
    }


def profiler(session):
    """Each kernel of a graph in one lane, by its own time stamps and by NVIDIA's profiler: durations and classes."""
    rows = []
    if not shutil.which("ncu"):
        return session.fail("profiler", "ncu is not here")
    session.prepare()
    for name in session.models:
        if not session.onnx(name).exists():
            continue
        try:
            rows.append({"model": name, **profiled(session, name)})
        except (ValueError, KeyError, OSError, RuntimeError, subprocess.TimeoutExpired) as error:
            session.fail(f"profiler {name}", f"{type(error).__name__}: {error}")
            continue
        keep(session, "profiler", rows)
        row = rows[-1]
        say(session, f"profiler {name:20}", f"{row['kernels']} kernels, durations {row['ratio']['median']:.3f} of ncu's (median), "
            f"classes alike for {100 * row['classes_alike_of_time']:.1f} % of the time")


def profiled(session, name):
    words = (session.onnx(name), *session.target(name, "op"), "--dispatch", "sequential")
    trace = session.work / f"{name}.trace.json"
    code, _, err = session.obelisk("profile", *words, "--trace", trace)
    if code != 0:
        raise RuntimeError(err.strip()[-800:])
    ours = read_trace(json.loads(trace.read_text()))
    if not ours:
        raise ValueError("one kernel, or kernels that record nothing")
    # Clocks and caches as they are: the stamps are of kernels that follow one another.
    ncu = ("ncu", "--csv", "--graph-profiling", "node", "--clock-control", "none", "--cache-control", "none", "--print-units", "base",
           "--kernel-name", "regex:^obk_", "--metrics", ",".join(METRICS))
    code, out, err = session.obelisk("run", *words, "--verify", "off", under=ncu, timeout=session.options.timeout)
    if code != 0:
        raise RuntimeError(f"ncu ended with {code}: {(out[-600:] + err[-600:]).strip()}")
    theirs = read_ncu(out)
    if len(theirs) < len(ours) or len(theirs) % len(ours):
        raise ValueError(f"ncu saw {len(theirs)} kernels, a run has {len(ours)}")
    return {"runs_of_ncu": len(theirs) // len(ours), **compared(ours, theirs[-len(ours):])}
