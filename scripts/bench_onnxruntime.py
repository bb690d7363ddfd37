#!/usr/bin/env python3
"""ONNX Runtime's side of `obelisk bench`: a JSON document a line, in and out, until input ends.

in   {"model": PATH, "threads": N, "inputs": [{"name", "type", "file"}]}   out  {"version"}
in   {"round": SECONDS}
out  {"latencies_us": [...]}
out  {"error", "hint"}   instead, when something went wrong

Inputs and outputs are bound once, so that a round times no copies and no allocation of NumPy's.
"""

import json
import os
import sys
import time

# TensorProto's
BITS = {"bf16": 16, "f8e4m3fn": 17, "f8e4m3fnuz": 18, "f8e5m2": 19, "f8e5m2fnuz": 20}


def load(request):
    import numpy as np
    import onnxruntime as ort

    def value(one):
        array = np.load(one["file"])
        if one["type"] in BITS:
            plain = array.view(f"u{array.dtype.itemsize}")
            return ort.OrtValue.ortvalue_from_numpy_with_onnx_type(plain, BITS[one["type"]])
        return ort.OrtValue.ortvalue_from_numpy(array)

    options = ort.SessionOptions()
    options.log_severity_level = 3
    options.intra_op_num_threads = request["threads"]
    options.inter_op_num_threads = 1
    feeds = {one["name"]: value(one) for one in request["inputs"]}
    cpu = ["CPUExecutionProvider"]

    # The other side was compiled for these shapes: say them here, too.
    plain = ort.SessionOptions()
    plain.log_severity_level = 3
    plain.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
    asked = ort.InferenceSession(request["model"], plain, providers=cpu).get_inputs()
    for port in asked:
        if port.name not in feeds:
            raise ValueError(f"input '{port.name}' is not given")
        for dim, size in zip(port.shape, feeds[port.name].shape()):
            if isinstance(dim, str):
                options.add_free_dimension_override_by_name(dim, size)

    session = ort.InferenceSession(request["model"], options, providers=cpu)
    binding = session.io_binding()
    for port in session.get_inputs():
        binding.bind_ortvalue_input(port.name, feeds[port.name])
    for port in session.get_outputs():
        binding.bind_output(port.name, "cpu")
    session.run_with_iobinding(binding)
    for port, answer in zip(session.get_outputs(), binding.get_outputs()):
        binding.bind_ortvalue_output(port.name, answer)
    return lambda: session.run_with_iobinding(binding), {"version": ort.__version__}


def measure(run, seconds):
    clock = time.perf_counter_ns
    latencies = []
    end = clock() + int(seconds * 1e9)
    while True:
        start = clock()
        run()
        now = clock()
        latencies.append((now - start) / 1000)
        if now >= end:
            return {"latencies_us": latencies}


def main():
    out = os.fdopen(os.dup(1), "w")  # what a library prints must not come between
    os.dup2(2, 1)
    run = None
    for line in sys.stdin:
        request = json.loads(line)
        try:
            if "model" in request:
                run, answer = load(request)
            else:
                answer = measure(run, request["round"])
        except ImportError as error:
            answer = {
                "error": f"{sys.executable} lacks a package: {error}",
                "hint": "scripts/setup.sh, or OBELISK_PYTHON=PATH of one that has onnxruntime",
            }
        except Exception as error:  # whatever it is, the other side has to hear of it
            answer = {"error": "ONNX Runtime: " + str(error).split("\n")[0]}
        print(json.dumps(answer), file=out, flush=True)


if __name__ == "__main__":
    try:
        main()
    except KeyboardInterrupt:
        sys.exit(130)
