"""The yardstick: ONNX Runtime's own kernels on the shapes of gemm_candidates and conv_candidates, from its profiler.

    python bench/micro/mlas.py [gemm|conv] [threads ...]      prints one line a shape: GFLOP/s, median of the node's own time

Needs the packages onnx, onnxruntime, numpy. Weights are constants, so that ONNX Runtime packs them ahead as in real models.
"""
import json
import os
import sys
import tempfile

import numpy as np
import onnx
import onnxruntime
from onnx import TensorProto, helper, numpy_helper

GEMMS = [(128, 384, 384), (128, 1536, 384), (128, 384, 1536), (128, 2304, 768), (128, 768, 768), (128, 3072, 768),
         (128, 768, 3072), (197, 2304, 768), (197, 768, 768), (197, 3072, 768), (197, 768, 3072), (1, 400, 624),
         (8, 400, 624), (39, 400, 624), (39, 400, 400), (512, 512, 512)]
# height (= width), channels in, channels out, kernel, stride, pad: ResNet-50, then GoogLeNet
CONVS = [(224, 3, 64, 7, 2, 3), (56, 64, 64, 1, 1, 0), (56, 64, 64, 3, 1, 1), (56, 64, 256, 1, 1, 0), (56, 256, 64, 1, 1, 0),
         (56, 256, 128, 1, 1, 0), (56, 128, 128, 3, 2, 1), (28, 128, 512, 1, 1, 0), (56, 256, 512, 1, 2, 0),
         (28, 512, 128, 1, 1, 0), (28, 128, 128, 3, 1, 1), (28, 256, 256, 3, 2, 1), (14, 256, 1024, 1, 1, 0),
         (14, 1024, 256, 1, 1, 0), (14, 256, 256, 3, 1, 1), (14, 512, 512, 3, 2, 1), (7, 512, 2048, 1, 1, 0),
         (7, 2048, 512, 1, 1, 0), (7, 512, 512, 3, 1, 1), (56, 64, 192, 3, 1, 1), (28, 192, 64, 1, 1, 0),
         (28, 96, 128, 3, 1, 1), (28, 16, 32, 5, 1, 2), (28, 256, 128, 1, 1, 0), (28, 32, 96, 5, 1, 2),
         (14, 480, 192, 1, 1, 0), (14, 96, 208, 3, 1, 1), (14, 16, 48, 5, 1, 2), (14, 512, 160, 1, 1, 0),
         (14, 160, 320, 3, 1, 1), (7, 832, 384, 1, 1, 0), (7, 192, 384, 3, 1, 1), (7, 48, 128, 5, 1, 2)]


def model_of(node, inputs, weights):
    tensors = [numpy_helper.from_array(value, name) for name, value in weights.items()]
    graph = helper.make_graph([node], "g", inputs, [helper.make_tensor_value_info("y", TensorProto.FLOAT, None)], tensors)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)
    return model.SerializeToString()


def measure(model, feeds, threads, kind, runs=60):
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = threads
    options.enable_profiling = True
    options.log_severity_level = 3
    options.profile_file_prefix = os.path.join(tempfile.mkdtemp(), "p")
    session = onnxruntime.InferenceSession(model, options, providers=["CPUExecutionProvider"])
    for _ in range(runs):
        session.run(None, feeds)
    with open(session.end_profiling()) as file:
        events = json.load(file)
    times = [e["dur"] for e in events if e.get("cat") == "Node" and e.get("args", {}).get("op_name") == kind]
    return float(np.median(times[len(times) // 4:])) * 1e-6


def main():
    what = sys.argv[1] if len(sys.argv) > 1 else "gemm"
    threads = [int(t) for t in sys.argv[2:]] or [1, 2]
    rng = np.random.default_rng(0)
    value = lambda *shape: rng.standard_normal(shape, dtype=np.float32)
    for count in threads:
        if what == "gemm":
            for m, n, k in GEMMS:
                x = helper.make_tensor_value_info("x", TensorProto.FLOAT, [m, k])
                model = model_of(helper.make_node("MatMul", ["x", "w"], ["y"]), [x], {"w": value(k, n)})
                seconds = measure(model, {"x": value(m, k)}, count, "MatMul")
                print(f"{m:4d} {n:5d} {k:5d}  {count}  mlas {2e-9 * m * n * k / seconds:7.1f}  {seconds * 1e6:.0f} us", flush=True)
        else:
            for size, cin, cout, kernel, stride, pad in CONVS:
                x = helper.make_tensor_value_info("x", TensorProto.FLOAT, [1, cin, size, size])
                node = helper.make_node("Conv", ["x", "w"], ["y"], strides=[stride] * 2, pads=[pad] * 4)
                model = model_of(node, [x], {"w": value(cout, cin, kernel, kernel)})
                seconds = measure(model, {"x": value(1, cin, size, size)}, count, "Conv")
                out = (size + 2 * pad - kernel) // stride + 1
                flops = 2e-9 * out * out * cout * cin * kernel * kernel
                print(f"{size:4d} {cin:5d} {cout:5d} k{kernel} s{stride}  {count}  mlas {flops / seconds:7.1f}  {seconds * 1e6:.0f} us", flush=True)


main()
