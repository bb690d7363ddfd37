"""Weights of more than 2 GB: in a file of their own, and inside the model file itself, which no
protobuf library reads. The files are sparse, so they cost no disk; only the last row is not zero,
and an answer must find it, without the weights being copied."""

import numpy as np
import pytest
from huge_shapes_test import run_measured
from onnx import TensorProto, helper

ROWS, WIDTH = 600_000_000, 1
BYTES = ROWS * WIDTH * 4
LAST = np.arange(1, WIDTH + 1, dtype=np.float32)
assert BYTES > 2**31


def varint(number):
    out = b""
    while number > 127:
        out, number = out + bytes([number & 127 | 128]), number >> 7
    return out + bytes([number])


def field(number, length):
    """The head of a length-delimited field."""
    return varint(number << 3 | 2) + varint(length)


def graph(weights):
    node = helper.make_node("Gather", ["table", "ids"], ["rows"], name="lookup")
    return helper.make_graph(
        [node],
        "large",
        [helper.make_tensor_value_info("ids", TensorProto.INT64, [3])],
        [helper.make_tensor_value_info("rows", TensorProto.FLOAT, [3, WIDTH])],
        weights,
    )


def write_sparse(path, head, tail=b""):
    with open(path, "wb") as out:
        out.write(head)
        out.seek(len(head) + BYTES - LAST.nbytes)
        out.write(LAST.tobytes() + tail)


def table():
    return TensorProto(name="table", dims=[ROWS, WIDTH], data_type=TensorProto.FLOAT)


def beside(folder):
    weights = table()
    weights.data_location = TensorProto.EXTERNAL
    for key, value in (("location", "table.bin"), ("offset", "64"), ("length", str(BYTES))):
        weights.external_data.add(key=key, value=value)
    model = helper.make_model(graph([weights]), opset_imports=[helper.make_opsetid("", 17)])
    (folder / "model.onnx").write_bytes(model.SerializeToString())
    write_sparse(folder / "table.bin", b"\1" * 64)


def inside(folder):
    model = helper.make_model(graph([]), opset_imports=[helper.make_opsetid("", 17)])
    inner = model.graph.SerializeToString()
    model.ClearField("graph")
    tensor = table().SerializeToString() + field(9, BYTES)          # TensorProto.raw_data
    weights = field(5, len(tensor) + BYTES) + tensor                # GraphProto.initializer
    whole = field(7, len(inner) + len(weights) + BYTES) + inner + weights  # ModelProto.graph
    # Weights that do not lie at a multiple of their alignment are copied; these do.
    model.producer_name = "x"
    missing = -(len(model.SerializeToString()) + len(whole)) % 64
    model.producer_name += "x" * missing
    write_sparse(folder / "model.onnx", model.SerializeToString() + whole)


@pytest.mark.parametrize("write", [beside, inside])
def test_more_than_two_gigabytes(program, environment, tmp_path, write):
    write(tmp_path)
    np.save(tmp_path / "ids.npy", np.array([0, ROWS - 1, -1]))
    words = ["run", "model.onnx", "--input", "ids=ids.npy", "--output-dir", "out"]
    code, error, seconds, peak = run_measured(program, environment, tmp_path, words)
    assert code == 0, error
    rows = np.load(tmp_path / "out" / "rows.npy")
    assert np.array_equal(rows, [np.zeros(WIDTH), LAST, LAST])
    # Mapped pages count when they are read; a copy would double it.
    assert peak < 1.5 * BYTES, f"{peak / 2**30:.1f} GB for {BYTES / 2**30:.1f} GB of weights"
    assert seconds < 60
