"""XLA as the other side: scripts/jax_peer.py against ONNX Runtime, and in scripts/gpu.py beside
PyTorch. NumPy stands in for JAX (stub/jax.py); where JAX itself is installed, it is compared too,
on the CPU. No GPU is wanted."""

import importlib.util
import os
from pathlib import Path

import gpu_sides
import jax_peer
import numpy as np
import onnx
import onnxruntime
import pytest
from conftest import random, save
from gpu_py_test import MODULE, PROGRAM
from onnx import helper

STUB = Path(__file__).resolve().parent / "stub"
KINDS = ["stub"] + ["jax"] * (importlib.util.find_spec("jax") is not None)


def whole(*numbers):
    return np.array(numbers, "int64")


def case(kind, *operands, outputs=1, **attributes):
    return kind, operands, outputs, attributes


IMAGE, ROWS = random(2, 4, 9, 8), random(5, 2, 6)
X, Y = random(2, 3, 4, 5), random(4, 5)[::-1].copy()
POSITIVE = np.abs(X) + 0.1
IDS, FEW = np.arange(-6, 6).reshape(3, 4), whole(3, 2, -2, 4)
LSTM = [random(2, 16, 6) / 2, random(2, 16, 4)[:, ::-1].copy() / 2, random(2, 32)]
STATES = [random(2, 2, 4), random(2, 2, 4)[::-1].copy()]
CASES = [
    *(case(kind, POSITIVE) for kind in ("Log", "Sqrt", "Reciprocal")),
    *(case(kind, X) for kind in ("Abs", "Exp", "Neg", "Tanh", "Relu", "Identity", "Erf")),
    case("Sigmoid", X),
    *(case(kind, X, Y) for kind in ("Add", "Sub", "Mul", "Div", "Greater", "Less")),
    case("Mul", X, np.array(0.3, "f4")), case("Div", IDS, FEW), case("Mod", IDS, FEW),
    case("Mod", IDS, FEW, fmod=1), case("Equal", IDS, FEW), case("Not", X > 0),
    case("Pow", X, np.array(2, "f4")), case("Pow", POSITIVE, np.array(0.3, "f4")),
    case("Pow", IDS, whole(3)), case("Where", X > 0, X, Y), case("Cast", X, to=7),
    case("Cast", IDS, to=1), case("ReduceSum", X, whole(1, -1)), case("ReduceSum", X, keepdims=0),
    case("ReduceSum", X, noop_with_empty_axes=1), case("ReduceSum", IDS, whole(0), keepdims=0),
    case("ReduceMean", X, axes=[-1, 0]), case("Softmax", X * 9, axis=1), case("Softmax", X),
    case("LogSoftmax", X * 9, axis=2),
    case("LayerNormalization", X, random(5), random(5)[::-1].copy()),
    case("LayerNormalization", X, random(4, 5), axis=-2, epsilon=0.1),
    case("BatchNormalization", IMAGE, *(np.abs(random(k, 4)[-1]) + 0.1 for k in (1, 2, 3, 4))),
    case("MatMul", X, random(5, 7)), case("Gemm", Y, random(7, 5), random(7), transB=1),
    case("Gemm", random(5, 4), random(5, 7), random(7), transA=1, alpha=0.5, beta=2.0),
    case("Conv", IMAGE, random(6, 4, 3, 2), random(6), strides=[2, 1], pads=[1, 0, 2, 1]),
    case("Conv", IMAGE, random(6, 2, 3, 3), group=2, dilations=[2, 2]),
    case("MaxPool", IMAGE, kernel_shape=[3, 2], strides=[2, 2], pads=[1, 0, 1, 0]),
    case("MaxPool", IMAGE, kernel_shape=[2, 2], strides=[3, 3], ceil_mode=1),
    case("MaxPool", IMAGE, kernel_shape=[3, 3], strides=[2, 2], pads=[1, 1, 1, 1], ceil_mode=1),
    case("AveragePool", IMAGE, kernel_shape=[3, 3], pads=[1, 1, 1, 1]),
    case("AveragePool", IMAGE, kernel_shape=[3, 3], pads=[1, 1, 1, 1], count_include_pad=1),
    case("AveragePool", IMAGE, kernel_shape=[3, 2], strides=[3, 3], ceil_mode=1),
    case("GlobalAveragePool", IMAGE),
    case("LSTM", ROWS, *LSTM, outputs=3, direction="bidirectional", hidden_size=4),
    case("LSTM", ROWS, *LSTM, None, *STATES, direction="bidirectional", hidden_size=4),
    case("LSTM", ROWS, *(t[:1] for t in LSTM), outputs=3, hidden_size=4),
    case("LSTM", ROWS, *(t[1:] for t in LSTM[:2]), direction="reverse", hidden_size=4),
    case("Reshape", X, whole(0, -1, 2)), case("Flatten", X, axis=2), case("Flatten", X, axis=-1),
    case("Transpose", X, perm=[2, 0, 3, 1]), case("Transpose", X), case("Squeeze", X[:1], whole(0)),
    case("Squeeze", X[:1, :1]), case("Unsqueeze", X, whole(-1, 1)),
    case("Expand", Y, whole(3, 1, 5)),
    case("Concat", X, X + 1, axis=-2), case("Concat", IDS, IDS, axis=0),
    case("Split", X, whole(1, 3), outputs=2, axis=2), case("Split", X, outputs=2, axis=2),
    case("Slice", X, whole(-1, 1), whole(-100, 2**60), whole(3, -2), whole(-2, 1)),
    case("Slice", X, whole(0), whole(-1)), case("Gather", X, whole(-1, 0), axis=2),
    case("Gather", X, np.array(-1), axis=1), case("Gather", IDS, FEW[:2] - 3),
    case("Shape", X, start=1), case("ConstantOfShape", FEW[[0, 1]]),
    case("ConstantOfShape", FEW[:1], value=helper.make_tensor("v", 7, [1], [5])),
]


def write(path, kind, operands, outputs, attributes, stored=False):
    """One node; its first operand comes from outside, unless it is `stored` as well."""
    names = [f"i{k}" if x is not None else "" for k, x in enumerate(operands)]
    made = [f"o{k}" for k in range(outputs)]
    first = {} if stored else {"i0": (helper.np_dtype_to_tensor_dtype(operands[0].dtype),
                                      operands[0].shape)}
    weights = {n: x for n, x in zip(names, operands) if n and n not in first}
    node = helper.make_node(kind, names, made, name=f"one/{kind}", **attributes)
    save(path, [node], first, dict.fromkeys(made, (1, None)), weights)
    model = onnx.load(path)  # outputs of whatever type they have
    bare = helper.make_graph([node], "g", model.graph.input, [], model.graph.initializer)
    types = onnx.shape_inference.infer_shapes(
        helper.make_model(bare, opset_imports=model.opset_import)).graph.value_info
    known = {t.name: t.type.tensor_type.elem_type for t in types}
    for port in model.graph.output:
        port.type.tensor_type.elem_type = known[port.name]
    onnx.save(model, path)
    return {name: operands[0] for name in first}


def answer(path, inputs, off=0.0):
    """The file that PyTorch's side would write, by ONNX Runtime."""
    outputs = onnxruntime.InferenceSession(path).run(None, inputs)
    file = path.with_suffix(".answers.npz")
    arrays = {f"{k}.in": x for k, x in enumerate(inputs.values())}
    arrays |= {f"{k}.out": x + off if off else x for k, x in enumerate(outputs)}
    np.savez(file, names=np.array([*inputs]), **arrays)
    return file


@pytest.fixture(scope="module", params=KINDS)
def ask(request, tmp_path_factory):
    """ask(model, answers, …) -> what jax_peer.py says; one process for all."""
    paths = {"PYTHONPATH": str(STUB)} if request.param == "stub" else {"JAX_PLATFORMS": "cpu"}
    environment, os.environ["OBELISK_GPU_TURN"] = dict(os.environ), ""
    os.environ.update(paths)
    try:
        log = open(tmp_path_factory.mktemp("log") / "log", "w")
        side = gpu_sides.Side(log, "jax")
    finally:
        os.environ.clear()
        os.environ.update(environment)
    def ask(model, answers, precision="fp32", **more):
        return side.ask({"model": str(model), "answers": str(answers), "precision": precision,
                         "ways": ["xla"], "backend": "cpu", **more}, 100)
    ask.side = side
    yield ask
    side.process.stdin.close()
    assert side.process.wait(20) == 0


def test_every_op_of_the_table_has_a_case():
    assert {kind for kind, *_ in CASES} == set(jax_peer.OPS)


@pytest.mark.parametrize("stored", [False, True], ids=["traced", "stored"])
@pytest.mark.parametrize("one", CASES, ids=[f"{k}-{c[0]}" for k, c in enumerate(CASES)])
def test_ops_answer_as_onnx_runtime_does(ask, tmp_path, one, stored):
    if one[0] == "ConstantOfShape":
        stored = True  # a shape must be known
    path = tmp_path / "one.onnx"
    inputs = write(path, *one, stored=stored)
    said = ask(path, answer(path, inputs))
    assert said["ways"] == ["xla"] and said["max_error"] < 2e-5, said
    with pytest.raises(RuntimeError, match="off by"):  # what is compared can differ
        ask(path, answer(path, inputs, off=1e4))


def network(path):
    """Attention over words, with shapes that are computed from shapes, as exporters write them."""
    nodes = [
        ("Gather", "table ids", "words", {}), ("Shape", "words", "size", {}),
        ("Gather", "size one", "length", {}), ("Unsqueeze", "length zero", "lengths", {}),
        ("Cast", "lengths", "wide", {"to": 1}), ("Sqrt", "wide", "root", {}),
        ("Concat", "two lengths heads", "parted", {"axis": 0}),
        ("LayerNormalization", "words gain shift", "normed", {}),
        ("MatMul", "normed product", "queries", {}), ("Reshape", "queries parted", "rows", {}),
        ("Transpose", "rows", "left", {"perm": [0, 2, 1, 3]}),
        ("Transpose", "rows", "right", {"perm": [0, 2, 3, 1]}),
        ("MatMul", "left right", "scores", {}), ("Div", "scores root", "scaled", {}),
        ("Softmax", "scaled", "shares", {}), ("MatMul", "shares left", "mixed", {}),
        ("Transpose", "mixed", "back", {"perm": [0, 2, 1, 3]}),
        ("Reshape", "back flat", "joined", {}),
        ("Add", "joined words", "sum", {}), ("Pow", "sum square", "squares", {}),
        ("ReduceMean", "squares", "mean", {"axes": [-1]}), ("Add", "mean tiny", "safe", {}),
        ("Sqrt", "safe", "rms", {}), ("Div", "sum rms", "y", {}),
    ]
    weights = {
        "table": random(50, 24), "gain": random(24), "shift": random(24), "one": np.array(1),
        "product": random(24, 24) / 5, "zero": whole(0), "two": whole(2), "heads": whole(4, 6),
        "flat": whole(0, -1, 24), "square": np.array(2, "f4"), "tiny": np.array(1e-5, "f4"),
    }
    made = [helper.make_node(kind, i.split(), [o], name=f"n/{o}", **more)
            for kind, i, o, more in nodes]
    save(path, made, {"ids": (7, [2, 5])}, {"y": (1, None)}, weights)
    return {"ids": np.arange(10).reshape(2, 5)}


@pytest.mark.parametrize("precision, least, most", [
    ("fp32", 0, 2e-6), ("keep", 0, 2e-6), ("fp16", 1e-4, 1e-2), ("bf16", 1e-3, 5e-2)])
def test_a_network_in_each_precision(ask, tmp_path, precision, least, most):
    path = tmp_path / "network.onnx"
    said = ask(path, answer(path, network(path)), precision)
    assert least < said["max_error"] < most  # 16 bits round, and do so where they should
    assert said["layouts"] == ("row-major" if said["version"] == "0-stub" else "auto")
    timed = ask.side.ask({"way": "xla"}, 60)
    assert len(timed["device_us"]) == len(timed["host_us"]) == 20
    assert 0 < min(timed["host_us"]) and all(
        host <= us for host, us in zip(timed["host_us"], timed["device_us"]))
    assert min(ask.side.ask({"way": "xla", "round": 0.05}, 60)["latencies_us"]) > 0


def test_weights_are_arguments_and_shapes_are_constants(tmp_path):
    path = tmp_path / "network.onnx"
    network(path)
    graph = jax_peer.Graph(onnx.load(path), jax=None, dtype=np.dtype("f2"))
    assert {n: w.dtype.name for n, w in graph.weights.items()} == dict.fromkeys(
        ("table", "gain", "shift", "product"), "float16")
    assert graph.known["heads"].dtype == "int64" and graph.known["tiny"].dtype == "float32"
    assert graph.inputs == ["ids"] and graph.outputs == ["y"]


def test_what_cannot_be_done_is_refused_by_name(ask, tmp_path, unsupported):
    def refusal(kind, *operands, **attributes):
        path = tmp_path / "refused.onnx"
        inputs = write(path, kind, operands, 1, attributes)
        with pytest.raises(RuntimeError) as error:
            ask(path, answer(path, inputs))
        return str(error.value)
    assert "LSTM 'one/LSTM' has the attribute clip" in refusal(
        "LSTM", ROWS, *(t[:1] for t in LSTM), hidden_size=4, clip=1.0)
    unknown = refusal("ConstantOfShape", whole(2, 3))
    assert "has a shape computed from the inputs' values" in unknown
    assert "auto_pad" in refusal("Conv", IMAGE, random(6, 4, 3, 3), auto_pad="SAME_UPPER")
    file = tmp_path / "x.npz"
    np.savez(file, names=["x"], **{"0.in": random(4), "0.out": random(4)})
    with pytest.raises(RuntimeError, match="no rule for NonZero of node 'find/NonZero'.*Conv"):
        ask(unsupported, file)
    with pytest.raises(RuntimeError, match="no input 'x': they have z"):
        np.savez(file, names=["z"], **{"0.in": random(4), "0.out": random(4)})
        write(tmp_path / "relu.onnx", "Relu", (random(4),), 1, {})
        model = onnx.load(tmp_path / "relu.onnx")
        model.graph.input[0].name = model.graph.node[0].input[0] = "x"
        onnx.save(model, tmp_path / "relu.onnx")
        ask(tmp_path / "relu.onnx", file)
    with pytest.raises(RuntimeError, match="no way is called 'quick'"):
        ask(unsupported, file, ways=["quick"])


# ---- in scripts/gpu.py ----
@pytest.fixture
def gpu_py(pack, tmp_path):
    """gpu.py in the folder that a pack is, with stubs of PyTorch and JAX."""
    for name in ("a", "b"):  # the module of MODULE
        node = helper.make_node("ReduceSum", ["x", "axes"], ["y"], keepdims=0)
        save(tmp_path / "work" / f"{name}.onnx", [node], {"x": (1, [3, 8])}, {"y": (1, [3])},
             {"axes": whole(1)})
        (tmp_path / "work" / f"{name}.torch.py").write_text(MODULE)
    def run(*words, **more):
        more = {"OBELISK_GPU_TURN": str(tmp_path / "turn"), "STUB_JAX_LOG": str(tmp_path / "log"), **more}
        return pack.gpu_py(PROGRAM, *words, "--granularity", "mono", **more)
    run.folder = tmp_path
    return run


def test_xla_stands_beside_pytorch_in_one_run(gpu_py):
    done, result = gpu_py("run", "bench", "peers", "--ways", "eager,xla,compile")
    assert done.returncode == 0, done.stdout + done.stderr
    assert [(r["model"], r["way"]) for r in result["pytorch"]["rows"]] == [
        (m, w) for m in "ab" for w in ("eager", "compile")
    ]
    assert [(r["model"], r["way"]) for r in result["xla"]["rows"]] == [("a", "xla"), ("b", "xla")]
    for row in result["xla"]["rows"]:
        assert row["version"] == "0-stub" and row["max_error"] == 0
        assert row["layouts"] == "row-major"  # the stub knows no others
        assert row["device_us"]["median"] >= row["host_us"]["median"] > 0
    # Both compiled with the GPU to themselves.
    assert (gpu_py.folder / "log").read_text() == "compiled alone: True\n" * 2


def test_xla_alone_still_has_pytorchs_answers_beside_it(gpu_py):
    (gpu_py.folder / "work" / "b.torch.py").write_text(MODULE.replace("x.sum(1)", "x.sum(1) + 2"))
    done, result = gpu_py("peers", "--ways", "xla")
    right, wrong = result["xla"]["rows"]
    assert right["max_error"] == 0 and right["device_us"]["median"] > 0
    assert "off by 0.2 of their root mean square, less than 0.05 is wanted" in wrong["error"]
    assert "device_us" not in wrong and "pytorch" not in result
    assert done.returncode == 1 and "FAILED JAX b xla" in done.stdout


@pytest.mark.parametrize("late", ["xla", "compile"])
def test_a_late_side_is_told_and_loses_no_other(gpu_py, late):
    if late == "compile":
        (gpu_py.folder / "work" / "a.torch.py").write_text(
            MODULE + "import time\ntorch.compile = lambda *module, **mode: time.sleep(99)\n")
    seconds = {"STUB_JAX_SECONDS": "99"} if late == "xla" else {}
    done, result = gpu_py("peers", "--ways", "eager,compile,xla", "--timeout", "12", **seconds)
    rows = {(r["model"], r["way"]): r for r in result["pytorch"]["rows"] + result["xla"]["rows"]}
    lost = {key for key, row in rows.items() if "error" in row}
    wanted = {("a", "xla"), ("b", "xla")} if late == "xla" else {("a", "compile")}
    assert lost == wanted, done.stdout
    for key in lost:
        assert "more than 12 s" in rows[key]["error"] and "device_us" not in rows[key]
    assert len(rows) == 6 and all("device_us" in rows[k] for k in rows.keys() - lost)
    assert done.returncode == len(lost)
    who = "JAX" if late == "xla" else "PyTorch"
    assert all(f"FAILED {who} {model} {way}" in done.stdout for model, way in lost)


def test_a_way_that_a_pytorch_lacks_is_told_too(gpu_py):
    done, result = gpu_py("peers", "--ways", "eager,max-autotune")
    errors = [row.get("error") for row in result["pytorch"]["rows"]]
    assert errors == [None, "not in PyTorch 0-stub"] * 2 and done.returncode == 0
    assert "xla" not in result


def test_without_a_gpu_jax_says_so(gpu_py):
    done, result = gpu_py("peers", "--ways", "eager,xla", STUB_JAX_NO_GPU="1")
    assert done.returncode == 2 and "device_us" in result["pytorch"]["rows"][0]
    assert all("Unknown backend gpu" in row["error"] for row in result["xla"]["rows"])
