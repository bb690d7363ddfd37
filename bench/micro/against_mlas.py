"""Our tiles beside MLAS, ONNX Runtime's own kernels, on the shapes that networks use.

    python bench/micro/against_mlas.py build/bin/bench_kernels [gemm|conv] [--threads 1 2] [--rounds 5]

For each shape both sides are measured in turns, several rounds; a round's number is that of its fastest
run, for the machine may be shared; the line holds the medians over the rounds and of their ratios. MLAS is timed by ONNX
Runtime's profiler: the node's own time, weights constant (packed ahead), convolutions in its blocked
layout without the reordering of input and output. Needs onnx, onnxruntime, numpy.
"""
import argparse
import json
import os
import statistics
import subprocess
import tempfile

import numpy as np
import onnxruntime
from onnx import TensorProto, helper, numpy_helper

# M, N, K: MiniLM, BERT-base, ViT-B/16, DeepFM
GEMMS = [(128, 384, 384), (128, 1536, 384), (128, 384, 1536), (128, 2304, 768), (128, 768, 768),
         (128, 3072, 768), (128, 768, 3072), (197, 2304, 768), (197, 768, 768), (197, 3072, 768),
         (197, 768, 3072), (1, 400, 624), (8, 400, 624), (39, 400, 624), (39, 400, 400)]
# height and width, channels in, channels out, kernel, stride, pad: ResNet-50, then GoogLeNet
CONVS = [(224, 3, 64, 7, 2, 3), (56, 64, 64, 1, 1, 0), (56, 64, 64, 3, 1, 1), (56, 64, 256, 1, 1, 0),
         (56, 256, 64, 1, 1, 0), (56, 256, 128, 1, 1, 0), (56, 128, 128, 3, 2, 1),
         (28, 128, 512, 1, 1, 0), (56, 256, 512, 1, 2, 0), (28, 512, 128, 1, 1, 0),
         (28, 128, 128, 3, 1, 1), (28, 256, 256, 3, 2, 1), (14, 256, 1024, 1, 1, 0),
         (14, 1024, 256, 1, 1, 0), (14, 256, 256, 3, 1, 1), (14, 512, 512, 3, 2, 1),
         (7, 512, 2048, 1, 1, 0), (7, 2048, 512, 1, 1, 0), (7, 512, 512, 3, 1, 1),
         (56, 64, 192, 3, 1, 1), (28, 192, 64, 1, 1, 0), (28, 96, 128, 3, 1, 1), (28, 16, 32, 5, 1, 2),
         (28, 256, 128, 1, 1, 0), (28, 32, 96, 5, 1, 2), (14, 480, 192, 1, 1, 0),
         (14, 96, 208, 3, 1, 1), (14, 16, 48, 5, 1, 2), (14, 512, 160, 1, 1, 0),
         (14, 160, 320, 3, 1, 1), (7, 832, 384, 1, 1, 0), (7, 192, 384, 3, 1, 1), (7, 48, 128, 5, 1, 2)]
SECONDS = 0.06  # of one side in one round


def random_values(*shape):
    return np.random.default_rng(0).standard_normal(shape, dtype=np.float32)


def model_of(node, shape, weights):
    x = helper.make_tensor_value_info("x", TensorProto.FLOAT, shape)
    y = helper.make_tensor_value_info("y", TensorProto.FLOAT, None)
    graph = helper.make_graph([node], "g", [x], [y], [numpy_helper.from_array(weights, "w")])
    opsets = [helper.make_opsetid("", 17)]
    return helper.make_model(graph, opset_imports=opsets, ir_version=9).SerializeToString()


def problem(kind, shape):
    """-> model, shape of its input, flops"""
    if kind == "gemm":
        m, n, k = shape
        node = helper.make_node("MatMul", ["x", "w"], ["y"])
        return model_of(node, [m, k], random_values(k, n)), [m, k], 2.0 * m * n * k
    size, cin, cout, kernel, stride, pad = shape
    node = helper.make_node("Conv", ["x", "w"], ["y"], strides=[stride] * 2, pads=[pad] * 4)
    out = (size + 2 * pad - kernel) // stride + 1
    flops = 2.0 * out * out * cout * cin * kernel * kernel
    return model_of(node, [1, cin, size, size], random_values(cout, cin, kernel, kernel)), \
        [1, cin, size, size], flops


def mlas(kind, shape, threads):
    model, x_shape, flops = problem(kind, shape)
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = threads
    options.enable_profiling = True
    options.log_severity_level = 3
    with tempfile.TemporaryDirectory() as folder:
        options.profile_file_prefix = os.path.join(folder, "profile")
        session = onnxruntime.InferenceSession(model, options, providers=["CPUExecutionProvider"])
        feeds = {"x": random_values(*x_shape)}
        for _ in range(max(8, int(SECONDS / (flops / 80e9 * threads)))):
            session.run(None, feeds)
        with open(session.end_profiling()) as file:
            events = json.load(file)
    names = {"gemm": "MatMul", "conv": "Conv"}
    times = [event["dur"] for event in events
             if event.get("cat") == "Node" and event["args"].get("op_name") == names[kind]]
    return flops / min(times) * 1e-3


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("program")
    parser.add_argument("kind", nargs="?", default="gemm", choices=["gemm", "conv"])
    parser.add_argument("--threads", type=int, nargs="+", default=[1, 2])
    parser.add_argument("--rounds", type=int, default=5)
    arguments = parser.parse_args()
    ours = subprocess.Popen([arguments.program], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    all_ratios = {}
    for threads in arguments.threads:
        for shape in GEMMS if arguments.kind == "gemm" else CONVS:
            rows = []
            for _ in range(arguments.rounds):
                words = [arguments.kind, threads, SECONDS, *shape]
                ours.stdin.write(" ".join(map(str, words)) + "\n")
                ours.stdin.flush()
                own = float(ours.stdout.readline())
                rows.append((own, mlas(arguments.kind, shape, threads)))
            ratio = statistics.median(a / b for a, b in rows)
            all_ratios.setdefault(threads, []).append(ratio)
            print(f"{' '.join(map(str, shape)):24} threads {threads}   ours "
                  f"{statistics.median(a for a, _ in rows):6.1f}   mlas "
                  f"{statistics.median(b for _, b in rows):6.1f} GFLOP/s   ratio {ratio:.2f}", flush=True)
    for threads, ratios in all_ratios.items():
        mean = statistics.geometric_mean(ratios)
        print(f"threads {threads}: geometric mean {mean:.2f}, least {min(ratios):.2f}")
    ours.stdin.close()
    ours.wait()


main()
