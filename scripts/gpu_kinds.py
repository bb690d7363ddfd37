#!/usr/bin/env python3
"""Works of four kinds in one kernel: a GEMM, a convolution, a softmax and an elementwise op that do not depend on one
another, in 16 bits, compiled as one network with --granularity mono. With critical all are in one wave.

    gpu_kinds.py [--dispatches critical,waves] [--out FILE.json]

Rows, one a dispatch: `at_once`, the share of the time from the first task to the last in which tasks of so many kinds
are under way, by the time stamps of `obelisk profile --trace`; `sms`, how many multiprocessors had tasks of each kind;
`together_us` of the kernel, and `alone_us` of a kernel of each op alone, device microseconds.

Works in the folder that scripts/pack.sh makes, and in a checkout with a build.
"""
import argparse
import collections
import json
import os
import pathlib
import sys

import numpy as np

from gpu_tenants import BIN, call, say, write_record

KINDS = ("gemm", "conv", "softmax", "elementwise")


def network(kinds, path):
    """The ops as branches of one ONNX model, each with an input and an output of its own."""
    import onnx
    from onnx import TensorProto, helper, numpy_helper

    random = np.random.default_rng(1)
    nodes, inputs, outputs, weights = [], [], [], []

    def weight(name, *shape):
        values = random.standard_normal(shape) / np.sqrt(np.prod(shape[1:]))
        weights.append(numpy_helper.from_array(values.astype(np.float16), name))
        return name

    def port(into, name, *shape):
        into.append(helper.make_tensor_value_info(name, TensorProto.FLOAT16, shape))
        return name

    # What comes before each op but the last takes a wave of its own, so that they are in the second one.
    for kind in kinds:
        x, y = f"{kind}.x", f"{kind}.y"
        if kind == "gemm":
            nodes.append(helper.make_node("Tanh", [port(inputs, x, 256, 1024)], ["a"]))
            nodes.append(helper.make_node("MatMul", ["a", weight("b", 1024, 1024)], [port(outputs, y, 256, 1024)], name=kind))
        elif kind == "conv":
            nodes.append(helper.make_node("Transpose", [port(inputs, x, 2, 56, 56, 64)], ["planes"], perm=[0, 3, 1, 2]))
            nodes.append(helper.make_node("Conv", ["planes", weight("k", 64, 64, 3, 3)], ["sums"], name=kind, pads=[1, 1, 1, 1]))
            nodes.append(helper.make_node("Transpose", ["sums"], [port(outputs, y, 2, 56, 56, 64)], perm=[0, 2, 3, 1]))
        elif kind == "softmax":
            nodes.append(helper.make_node("MatMul", [port(inputs, x, 1024, 64), weight("few", 64, 1024)], ["scores"]))
            nodes.append(helper.make_node("Softmax", ["scores"], [port(outputs, y, 1024, 1024)], name=kind, axis=1))
        else:
            nodes.append(helper.make_node("Tanh", [port(inputs, x, 1024, 1024)], [port(outputs, y, 1024, 1024)], name=kind))
    graph = helper.make_graph(nodes, "kinds", inputs, outputs, weights)
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8), path)


def kinds_of(trace):
    """(the share of the time in which so many kinds are under way, multiprocessors by kind) of a trace's tasks."""
    lanes = {event["pid"] for event in trace["traceEvents"] if event["ph"] == "M" and event["name"] == "process_name" and event["args"]["name"] == "lanes"}
    tasks = [event for event in trace["traceEvents"] if event["ph"] == "X" and event["pid"] not in lanes]
    changes, sms = [], collections.defaultdict(set)
    for task in tasks:
        kind = next((kind for kind in KINDS if kind in task["name"]), None)
        if kind is None:
            continue
        sms[kind].add(task["tid"])
        changes += [(task["ts"], 1, kind), (task["ts"] + task["dur"], -1, kind)]
    under_way, spent, before = collections.Counter(), collections.Counter(), None
    for at, step, kind in sorted(changes):
        if before is not None:
            spent[sum(count > 0 for count in under_way.values())] += at - before
        under_way[kind] += step
        before = at
    total = sum(spent.values()) or 1
    return {count: round(time / total, 3) for count, time in sorted(spent.items())}, {kind: len(on) for kind, on in sorted(sms.items())}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--dispatches", default="critical,waves")
    parser.add_argument("--target", default="cuda")
    parser.add_argument("--seconds", type=float, default=0.1)
    parser.add_argument("--timeout", type=float, default=200)
    parser.add_argument("--work", default=os.environ.get("TMPDIR", "/tmp") + "/obelisk-kinds")
    parser.add_argument("--out", help="a JSON file for the rows")
    options = parser.parse_args()
    work = pathlib.Path(options.work)
    work.mkdir(parents=True, exist_ok=True)

    def obelisk(verb, path, *words):
        how = ["--target", options.target, "--granularity", "mono"]
        code, out, err = call([BIN / "obelisk", verb, path, *how, *words], options.timeout)
        if code != 0:
            sys.exit(f"gpu_kinds.py: {verb}: {(err or out).strip()[-600:]}")
        return json.loads(out) if "--json" in words else out

    def device_us(path, *words):
        return round(obelisk("bench", path, *words, "--verify", "off", "--seconds", options.seconds, "--json")["device_us"]["median"], 2)

    network(KINDS, work / "all.onnx")
    obelisk("verify", work / "all.onnx")
    alone = {}
    for kind in KINDS:
        network([kind], work / f"{kind}.onnx")
        alone[kind] = device_us(work / f"{kind}.onnx")
    rows = []
    for dispatch in options.dispatches.split(","):
        trace = work / f"{dispatch}.json"
        obelisk("profile", work / "all.onnx", "--dispatch", dispatch, "--trace", trace)
        at_once, sms = kinds_of(json.loads(trace.read_text()))
        rows.append({"dispatch": dispatch, "at_once": at_once, "sms": sms, "together_us": device_us(work / "all.onnx", "--dispatch", dispatch), "alone_us": alone})
        say(json.dumps(rows[-1]))
    if options.out:
        write_record(options.out, "gpu_kinds.py", {"rows": rows})
    return 0


if __name__ == "__main__":
    sys.exit(main())
