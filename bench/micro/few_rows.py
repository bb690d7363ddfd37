"""Products by themselves on a GPU: what `obelisk profile` says of each, between two elementwise ops, as one kernel of a
graph. In fp32 those of one to eight rows (few), as recommenders' towers and classifiers at small batch have, and of more
(rows), as MLP-Mixers and transformers in fp32 have; in fp16 those whose k is no multiple of eight, as GEMMs (uneven) and as
1x1 convolutions of square images (pointwise).

    python bench/micro/few_rows.py build/bin/obelisk OUT.json [few] [rows] [uneven] [pointwise]

Of all kinds where none is named.
A row has rows, columns (N) and k (K), the tile, bytes of weights, and of its kernel in microseconds: the lower bound, what
was predicted and measured, and what the median task took; weights over the time measured in GB/s. Needs onnx and numpy.
"""
import pathlib
import sys
import tempfile

import numpy as np
import onnx
import profiled
from onnx import TensorProto, helper, numpy_helper

# rows, N, K
FEW_ROWS = [(rows, n, k) for n, k in ((400, 624), (1024, 1024), (1000, 2048), (4096, 1024), (1024, 4096), (4096, 4096), (42, 126))
            for rows in (1, 2, 4, 8)] + [(rows, 1024, 1024) for rows in (3, 5, 16)]
ROWS = [(49, 2048, 512), (49, 512, 2048), (16, 1024, 1024), (32, 1024, 1024), (64, 1024, 1024), (128, 1024, 1024), (64, 4096, 1024),
        (197, 768, 768), (197, 3072, 768), (197, 768, 3072), (512, 256, 49), (512, 49, 256)]
UNEVEN = [(rows, n, k) for n, k in ((128, 42), (256, 84), (64, 126), (32, 10)) for rows in (1, 8, 64, 256, 1024)]
# image's height and width, N, K
POINTWISE = [(165, 42, 42), (83, 42, 42), (83, 84, 84), (83, 42, 84), (42, 84, 84), (42, 168, 84), (42, 168, 168), (21, 336, 336)]


def write(folder, kind, rows, n, k):
    random = np.random.default_rng(rows + n + k)
    shape = [1, k, rows, rows] if kind == "conv" else [rows, k]
    out = [1, n, rows, rows] if kind == "conv" else [rows, n]
    weights = (random.standard_normal((n, k, 1, 1) if kind == "conv" else (k, n)) / np.sqrt(k)).astype(np.float32)
    bias = random.standard_normal(n).astype(np.float32)
    nodes = [
        helper.make_node("Tanh", ["x"], ["a"], name="before"),
        helper.make_node("Conv" if kind == "conv" else "Gemm", ["a", "w", "b"], ["c"], name="product"),
        helper.make_node("Relu", ["c"], ["y"], name="after"),
    ]
    graph = helper.make_graph(
        nodes, "product",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, shape)], [helper.make_tensor_value_info("y", TensorProto.FLOAT, out)],
        [numpy_helper.from_array(weights, "w"), numpy_helper.from_array(bias, "b")],
    )
    path = folder / f"{kind}_{rows}_{n}_{k}.onnx"
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=9), path)
    return path


def main():
    obelisk, out = pathlib.Path(sys.argv[1]).resolve(), pathlib.Path(sys.argv[2])
    wanted = sys.argv[3:]
    kinds = {"few": ("gemm", FEW_ROWS, "fp32"), "rows": ("gemm", ROWS, "fp32"), "uneven": ("gemm", UNEVEN, "fp16"),
             "pointwise": ("conv", POINTWISE, "fp16")}
    items = [(kind, *shape, precision) for name, (kind, shapes, precision) in kinds.items() if not wanted or name in wanted for shape in shapes]
    with tempfile.TemporaryDirectory() as folder:
        paths = {item: write(pathlib.Path(folder), *item[:4]) for item in items}

        def measure(item):
            kind, rows, n, k, precision = item
            row = {"kind": kind, "rows": rows * rows if kind == "conv" else rows, "n": n, "k": k, "precision": precision}
            row |= profiled.kernel(obelisk, paths[item], "product", precision, "stitch")
            row["weight_bytes"] = n * k * (4 if precision == "fp32" else 2)
            return row | {"weights_gb_s": round(row["weight_bytes"] / max(row["measured_us"], 1e-3) / 1e3, 1)}
        profiled.record("bench/micro/few_rows.py", items, measure, out)


if __name__ == "__main__":
    main()
