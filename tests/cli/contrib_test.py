"""Attention as ONNX Runtime's optimisers and model builders write it (com.microsoft), beside ONNX
Runtime."""

import numpy as np
import onnx
import onnxruntime
import pytest
from obelisk_backend import write_npz
from onnx import TensorProto, helper

KINDS = {np.dtype(np.float32): TensorProto.FLOAT, np.dtype(np.int32): TensorProto.INT32}


def same_as_onnxruntime(obelisk, tmp_path, op, inputs, outputs, constants=(), **attributes):
    """inputs: {name: array}, "" where one is left out. Every output has to agree."""
    names = ["" if name.startswith("no ") else name for name in inputs]
    while not names[-1]:
        names.pop()
    given = {name: array for name, array in inputs.items() if name in names}
    node = helper.make_node(op, names, outputs, name="node", domain="com.microsoft", **attributes)
    graph = helper.make_graph(
        [node], "g", [helper.make_tensor_value_info(name, KINDS[array.dtype], array.shape)
                      for name, array in given.items() if name not in constants],
        [helper.make_tensor_value_info(name, TensorProto.FLOAT, None) for name in outputs],
        [onnx.numpy_helper.from_array(given[name], name) for name in constants])
    model = helper.make_model(graph, ir_version=8, opset_imports=[
        helper.make_opsetid("", 17), helper.make_opsetid("com.microsoft", 1)])
    onnx.save(model, tmp_path / "m.onnx")
    given = {name: array for name, array in given.items() if name not in constants}
    session = onnxruntime.InferenceSession(
        str(tmp_path / "m.onnx"), providers=["CPUExecutionProvider"]
    )
    wanted = session.run(None, given)
    write_npz(tmp_path / "in.npz", given)
    obelisk("run", "m.onnx", "--inputs", "in.npz", "--output-dir", "out", code=0)
    for name, array in zip(outputs, wanted):
        got = np.load(tmp_path / "out" / f"{name}.npy")
        assert got.shape == array.shape, name
        np.testing.assert_allclose(got, array, rtol=2e-5, atol=2e-5, err_msg=name)


def random(*dims, seed=0):
    return np.random.default_rng(seed + sum(dims)).standard_normal(dims, dtype=np.float32)


@pytest.mark.parametrize("causal", [0, 1])
@pytest.mark.parametrize("extra", ["nothing", "bias", "padding", "added", "past"])
def test_multi_head_attention(obelisk, tmp_path, extra, causal):
    batch, length, heads, size = 2, 5, 3, 4
    columns = heads * size
    inputs = {name: random(batch, length, columns, seed=k) for k, name in enumerate("qkv")}
    inputs["bias" if extra == "bias" else "no bias"] = random(3 * columns)
    inputs["padding" if extra == "padding" else "no padding"] = np.array(
        [[1, 1, 1, 1, 0], [1, 1, 1, 0, 0]], np.int32
    )
    inputs["added" if extra == "added" else "no added"] = random(batch, heads, length, length)
    outputs = ["y"]
    if extra == "past":
        inputs |= {
            "past_k": random(batch, heads, 2, size),
            "past_v": random(batch, heads, 2, size, seed=9),
        }
        outputs += ["present_k", "present_v"]
    same_as_onnxruntime(obelisk, tmp_path, "MultiHeadAttention", inputs, outputs, num_heads=heads,
                        unidirectional=causal, scale=0.4)


def test_multi_head_attention_across(obelisk, tmp_path):
    inputs = {"q": random(2, 3, 8), "k": random(2, 6, 8), "v": random(2, 6, 12)}
    same_as_onnxruntime(obelisk, tmp_path, "MultiHeadAttention", inputs, ["y"], num_heads=2)


# batch, new tokens, length of the caches that are given, total lengths by sentence
STEPS = {
    "prompt": (2, 4, 0, [4, 4]),
    "prompt into a buffer": (2, 4, 9, [4, 4]),
    "one grows": (1, 1, 5, [6]),
    "one in a buffer": (1, 1, 9, [6]),
    "each at its own": (2, 1, 9, [6, 4]),
    "several": (1, 3, 5, [8]),
}


@pytest.mark.parametrize("rotary", [0, 1])
@pytest.mark.parametrize("packed", [False, True])
@pytest.mark.parametrize("step", STEPS)
def test_group_query_attention(obelisk, tmp_path, step, packed, rotary):
    batch, length, past, totals = STEPS[step]
    heads, kv_heads, size = 4, 2, 16
    whole = random(batch, length, (heads + 2 * kv_heads) * size)
    if packed:
        inputs = {"q": whole, "no k": None, "no v": None}
    else:
        parts = np.split(whole, [heads * size, (heads + kv_heads) * size], axis=2)
        inputs = dict(zip("qkv", map(np.ascontiguousarray, parts)))
    caches = [random(batch, kv_heads, past, size, seed=k) for k in (1, 2)]
    for cache in caches:  # what stands behind a sentence's own rows says nothing
        for row, total in enumerate(totals):
            cache[row, :, total - length:] = 0
    inputs |= {"past_k": caches[0], "past_v": caches[1], "lengths": np.array(totals, np.int32) - 1,
               "longest": np.array(max(totals), np.int32)}
    if rotary:
        angles = np.outer(np.arange(16), 10.0 ** -np.arange(size // 2)).astype(np.float32)
        inputs |= {"cos": np.cos(angles), "sin": np.sin(angles)}
    same_as_onnxruntime(
        obelisk,
        tmp_path,
        "GroupQueryAttention",
        inputs,
        ["y", "present_k", "present_v"],
        constants=["longest"],
        num_heads=heads,
        kv_num_heads=kv_heads,
        do_rotary=rotary,
    )


def test_group_query_attention_with_a_window(obelisk, tmp_path):
    inputs = {
        "q": random(1, 6, 32),
        "k": random(1, 6, 16),
        "v": random(1, 6, 16, seed=3),
        "past_k": random(1, 1, 0, 16),
        "past_v": random(1, 1, 0, 16),
        "lengths": np.array([5], np.int32),
        "longest": np.array(6, np.int32),
    }
    same_as_onnxruntime(
        obelisk,
        tmp_path,
        "GroupQueryAttention",
        inputs,
        ["y", "present_k", "present_v"],
        constants=["longest"],
        num_heads=2,
        kv_num_heads=1,
        local_window_size=3,
    )


def test_a_total_length_that_only_an_input_says(obelisk, tmp_path):
    """Its value decides shapes, so it is bound by the input, as for every such input."""
    inputs = {
        "q": random(1, 1, 32),
        "k": random(1, 1, 16),
        "v": random(1, 1, 16, seed=3),
        "past_k": random(1, 1, 3, 16),
        "past_v": random(1, 1, 3, 16),
        "lengths": np.array([3], np.int32),
        "longest": np.array(4, np.int32),
    }
    same_as_onnxruntime(
        obelisk,
        tmp_path,
        "GroupQueryAttention",
        inputs,
        ["y", "present_k", "present_v"],
        num_heads=2,
        kv_num_heads=1,
    )
