"""ONNX Runtime, with Obelisk as an execution provider beside its own (src/ort): libobelisk.so as its plug-in."""
import threading
from pathlib import Path

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import TensorProto, helper, numpy_helper

LIBRARY = Path(__file__).resolve().parents[2] / "build" / "lib" / "libobelisk.so"
OURS, THEIRS = "ObeliskExecutionProvider", "CPUExecutionProvider"
pytestmark = pytest.mark.skipif(not LIBRARY.exists(), reason="build/lib/libobelisk.so is not built")


@pytest.fixture(scope="module", autouse=True)
def plugin(tmp_path_factory):
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("OBELISK_CACHE", str(tmp_path_factory.mktemp("cache")))
        onnxruntime.register_execution_provider_library("Obelisk", str(LIBRARY))
        yield
        onnxruntime.unregister_execution_provider_library("Obelisk")


def devices():
    return [device for device in onnxruntime.get_ep_devices() if device.ep_name == OURS]


def session_of(model, options=None, **entries):
    wanted = onnxruntime.SessionOptions()
    wanted.add_provider_for_devices(devices(), {"threads": "2", **(options or {})})
    wanted.add_session_config_entry("session.record_ep_graph_assignment_info", "1")
    for name, value in entries.items():
        setattr(wanted, name, value)
    return onnxruntime.InferenceSession(model.SerializeToString(), wanted, enable_fallback=0)


def taken(session):
    """The ops that run here, a sorted list a group."""
    return sorted(sorted(node.op_type for node in part.get_nodes())
                  for part in session.get_provider_graph_assignment_info() if part.ep_name == OURS)


def left(session):
    return sorted(node.op_type for part in session.get_provider_graph_assignment_info() if part.ep_name != OURS for node in part.get_nodes())


def network(nodes, inputs, outputs, weights=(), opset=20):
    """Inputs and outputs: {name: (element type, shape)}; weights: {name: array}."""
    ports = [[helper.make_tensor_value_info(name, kind, shape) for name, (kind, shape) in way.items()] for way in (inputs, outputs)]
    graph = helper.make_graph(nodes, "network", *ports, [numpy_helper.from_array(value, name) for name, value in dict(weights).items()])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset), helper.make_opsetid("com.microsoft", 1)], ir_version=10)
    onnx.checker.check_model(model)
    return model


def same(model, feed, session=None, **options):
    """The session's outputs, compared with those of a session without the provider."""
    session = session or session_of(model, options)
    made = session.run(None, feed)
    wanted = onnxruntime.InferenceSession(model.SerializeToString(), providers=[THEIRS]).run(None, feed)
    for got, want in zip(made, wanted):
        assert got.dtype == want.dtype and got.shape == want.shape
        np.testing.assert_allclose(got, want, rtol=1e-4, atol=1e-5)
    return session


def numbers(*shape, dtype=np.float32, seed=0):
    return np.random.default_rng(seed).standard_normal(shape).astype(dtype)


FLOAT, INT64, STRING = TensorProto.FLOAT, TensorProto.INT64, TensorProto.STRING


def mlp(rows="rows"):
    nodes = [helper.make_node("Gemm", ["x", "w", "b"], ["h"], "first"), helper.make_node("Relu", ["h"], ["r"], "relu"),
             helper.make_node("MatMul", ["r", "v"], ["s"], "second"), helper.make_node("Softmax", ["s"], ["y"], "softmax", axis=-1)]
    return network(nodes, {"x": (FLOAT, [rows, 24])}, {"y": (FLOAT, [rows, 10])},
                   {"w": numbers(24, 48), "b": numbers(48, seed=1), "v": numbers(48, 10, seed=2)})


def test_a_device_is_offered():
    device, = devices()
    assert device.ep_vendor == "Obelisk" and device.device.type == onnxruntime.OrtHardwareDeviceType.CPU
    assert onnxruntime.__version__.startswith("1.31.")  # which docs/dependencies.md speaks of


def test_a_graph_that_is_all_ours():
    session = same(mlp(rows=4), {"x": numbers(4, 24)})
    assert taken(session) == [["Gemm", "MatMul", "Relu", "Softmax"]] and not left(session)
    assert session.get_providers() == [OURS, THEIRS]


def test_the_provider_by_its_name():
    model = mlp(rows=4).SerializeToString()
    for providers in ([OURS], [(OURS, {"threads": "1"})], [OURS, THEIRS]):
        session = onnxruntime.InferenceSession(model, providers=providers)
        assert session.get_providers()[0] == OURS
        assert np.allclose(session.run(None, {"x": numbers(4, 24)})[0].sum(-1), 1)


def test_a_program_for_each_batch():
    session = session_of(mlp())
    assert not left(session)
    for rows in (1, 7, 64, 7):
        same(mlp(), {"x": numbers(rows, 24, seed=rows)}, session)


def test_no_rows_at_all():
    made, = session_of(mlp()).run(None, {"x": numbers(0, 24)})
    assert made.shape == (0, 10)


def test_what_is_refused_in_the_middle_runs_there():
    """Text in a network: no type of ours. What lies before and behind is two programs."""
    nodes = [helper.make_node("MatMul", ["x", "w"], ["h"], "before"), helper.make_node("Abs", ["h"], ["a"], "abs"),
             helper.make_node("Cast", ["a"], ["text"], "to_text", to=STRING), helper.make_node("Cast", ["text"], ["back"], "from_text", to=FLOAT),
             helper.make_node("Neg", ["a"], ["n"], "beside"), helper.make_node("Add", ["back", "n"], ["z"], "zero"),
             helper.make_node("Exp", ["z"], ["y"], "behind")]
    model = network(nodes, {"x": (FLOAT, ["rows", 8])}, {"y": (FLOAT, ["rows", 5])}, {"w": numbers(8, 5)})
    session = same(model, {"x": numbers(3, 8)})
    assert taken(session) == [["Abs", "MatMul", "Neg"], ["Add", "Exp"]] and left(session) == ["Cast", "Cast"]


def test_numbers_are_drawn_there():
    nodes = [helper.make_node("Relu", ["x"], ["r"]), helper.make_node("RandomNormalLike", ["r"], ["noise"]), helper.make_node("Add", ["r", "noise"], ["y"])]
    session = session_of(network(nodes, {"x": (FLOAT, [2000])}, {"y": (FLOAT, [2000])}))
    assert left(session) == ["RandomNormalLike"] and taken(session) == [["Add"], ["Relu"]]
    first, second = (session.run(None, {"x": np.zeros(2000, np.float32)})[0] for _ in range(2))
    assert not np.array_equal(first, second) and 0.8 < first.std() < 1.2


def test_sizes_that_data_decides_are_found_there():
    nodes = [helper.make_node("Relu", ["x"], ["r"]), helper.make_node("NonZero", ["r"], ["where"]), helper.make_node("Transpose", ["where"], ["y"]),
             helper.make_node("Exp", ["r"], ["z"])]
    model = network(nodes, {"x": (FLOAT, [6, 5])}, {"y": (INT64, ["found", 2]), "z": (FLOAT, [6, 5])})
    assert "NonZero" in left(same(model, {"x": numbers(6, 5)}))


def test_shapes_computed_in_the_graph():
    nodes = [helper.make_node("Shape", ["x"], ["shape"]), helper.make_node("Gather", ["shape", "zero"], ["rows"]),
             helper.make_node("Concat", ["rows", "rest"], ["wanted"], axis=0), helper.make_node("Reshape", ["x", "wanted"], ["split"]),
             helper.make_node("Transpose", ["split"], ["heads"], perm=[0, 2, 1]), helper.make_node("Softmax", ["heads"], ["y"])]
    model = network(nodes, {"x": (FLOAT, ["rows", 12])}, {"y": (FLOAT, ["rows", 4, 3])}, {"zero": np.array([0]), "rest": np.array([3, 4])})
    session = session_of(model)
    for rows in (2, 5):
        same(model, {"x": numbers(rows, 12)}, session)
    assert sum(map(len, taken(session))) + len(left(session)) >= 3 and "Softmax" in taken(session)[0]


def test_images_and_weights_of_many_types():
    nodes = [helper.make_node("Conv", ["x", "k", "kb"], ["c"], strides=[2, 2], pads=[1, 1, 1, 1]), helper.make_node("Relu", ["c"], ["r"]),
             helper.make_node("Resize", ["r", "", "", "sizes"], ["big"], mode="nearest"), helper.make_node("GlobalAveragePool", ["big"], ["mean"]),
             helper.make_node("Flatten", ["mean"], ["flat"]), helper.make_node("Gather", ["flat", "order"], ["picked"], axis=1),
             helper.make_node("Where", ["mask", "picked", "small"], ["y"])]
    weights = {"k": numbers(16, 3, 3, 3), "kb": numbers(16), "sizes": np.array([2, 16, 40, 40]), "order": np.array([5, 0, 15, 2]),
               "mask": np.array([True, False, True, True]), "small": np.float32(-9).reshape(())}
    model = network(nodes, {"x": (FLOAT, [2, 3, 32, 32])}, {"y": (FLOAT, [2, 4])}, weights)
    assert not left(same(model, {"x": numbers(2, 3, 32, 32)}))


def test_attributes_arrive():
    """Integers, floats, lists, strings and tensors."""
    nodes = [helper.make_node("Pad", ["x", "pads"], ["p"], mode="reflect"), helper.make_node("LeakyRelu", ["p"], ["l"], alpha=0.3),
             helper.make_node("Transpose", ["l"], ["t"], perm=[1, 0]), helper.make_node("ConstantOfShape", ["s"], ["c"], value=numpy_helper.from_array(np.array([2.5], np.float32))),
             helper.make_node("LSTM", ["t3", "W", "R"], ["Y", "", ""], hidden_size=2, activations=["Sigmoid", "Tanh", "Relu"], direction="forward"),
             helper.make_node("Unsqueeze", ["t", "axis"], ["t3"]), helper.make_node("Add", ["t", "c"], ["z"])]
    order = [0, 1, 2, 5, 4, 3, 6]
    weights = {"pads": np.array([1, 0, 1, 0]), "s": np.array([1]), "axis": np.array([1]), "W": numbers(1, 8, 5), "R": numbers(1, 8, 2)}
    model = network([nodes[n] for n in order], {"x": (FLOAT, [3, 4])}, {"Y": (FLOAT, [4, 1, 1, 2]), "z": (FLOAT, [4, 5])}, weights)
    wanted = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    session = same(model, {"x": numbers(3, 4)}, session_of(model, graph_optimization_level=wanted))
    assert not left(session)


def test_a_loop_stays_there_and_its_body_is_ours():
    """How many dimensions a loop's result has ONNX Runtime does not say: what reads it stays there, too."""
    body = helper.make_graph(
        [helper.make_node("MatMul", ["state", "w"], ["next"]), helper.make_node("Identity", ["go"], ["on"])], "body",
        [helper.make_tensor_value_info(name, kind, shape) for name, kind, shape in (("n", INT64, []), ("go", TensorProto.BOOL, []), ("state", FLOAT, [4, 4]))],
        [helper.make_tensor_value_info(name, kind, shape) for name, kind, shape in (("on", TensorProto.BOOL, []), ("next", FLOAT, [4, 4]))])
    nodes = [helper.make_node("Relu", ["x"], ["r"]), helper.make_node("Loop", ["times", "", "r"], ["last"], body=body), helper.make_node("Exp", ["last"], ["y"])]
    model = network(nodes, {"x": (FLOAT, [4, 4]), "times": (INT64, [])}, {"y": (FLOAT, [4, 4])}, {"w": 0.1 * numbers(4, 4)})
    session = same(model, {"x": numbers(4, 4), "times": np.array(3)})
    assert taken(session) == [["Identity", "MatMul"], ["Relu"]] and left(session) == ["Exp", "Loop"]


def test_inner_graphs_may_use_the_same_names():
    """Two loops whose bodies differ in a weight alone."""
    def loop(source, to, factor):
        body = helper.make_graph(
            [helper.make_node("Mul", ["state", "f"], ["scaled"]), helper.make_node("Tanh", ["scaled"], ["next"]), helper.make_node("Identity", ["go"], ["on"])], "body",
            [helper.make_tensor_value_info(name, kind, shape) for name, kind, shape in (("n", INT64, []), ("go", TensorProto.BOOL, []), ("state", FLOAT, [4, 4]))],
            [helper.make_tensor_value_info(name, kind, shape) for name, kind, shape in (("on", TensorProto.BOOL, []), ("next", FLOAT, [4, 4]))],
            [numpy_helper.from_array(np.full((4, 4), factor, np.float32), "f")])
        return helper.make_node("Loop", ["times", "", source], [to], body=body)

    model = network([loop("x", "a", 0.5), loop("x", "b", 2.0), helper.make_node("Sub", ["a", "b"], ["y"])],
                    {"x": (FLOAT, [4, 4]), "times": (INT64, [])}, {"y": (FLOAT, [4, 4])})
    session = same(model, {"x": numbers(4, 4), "times": np.array(2)})
    assert sum(part.count("Mul") for part in taken(session)) == 2


def test_half_precision_inputs_and_integers():
    half = TensorProto.FLOAT16
    nodes = [helper.make_node("MatMul", ["x", "w"], ["h"]), helper.make_node("Cast", ["h"], ["f"], to=FLOAT), helper.make_node("TopK", ["f", "k"], ["y", "at"])]
    model = network(nodes, {"x": (half, [3, 16])}, {"y": (FLOAT, [3, 2]), "at": (INT64, [3, 2])}, {"w": numbers(16, 32, dtype=np.float16), "k": np.array([2])})
    session = session_of(model)
    y, at = session.run(None, {"x": numbers(3, 16, dtype=np.float16)})
    wanted = numbers(3, 16, dtype=np.float16).astype(np.float32) @ numbers(16, 32, dtype=np.float16).astype(np.float32)
    assert np.abs(y - np.sort(wanted)[:, :-3:-1]).max() < 0.02 and at.dtype == np.int64 and not left(session)


def test_inputs_are_used_where_they_are_and_as_they_lie():
    """A view that is not aligned, and one with strides."""
    session = session_of(mlp())
    raw = np.zeros(5 * 24 * 4 + 1, np.uint8)
    crooked = raw[1:].view(np.float32).reshape(5, 24)
    crooked[:] = numbers(5, 24)
    same(mlp(), {"x": crooked}, session)
    same(mlp(), {"x": numbers(24, 5).T}, session)


def test_threads_and_sessions():
    """One session in four threads and a session in each, at several shapes: all as alone."""
    shared = session_of(mlp())
    sessions = [shared, shared, shared, session_of(mlp()), session_of(mlp())]
    wanted = onnxruntime.InferenceSession(mlp().SerializeToString(), providers=[THEIRS])
    wrong = []

    def work(place, session):
        try:
            for turn in range(30):
                x = numbers(1 + (place + turn) % 3, 24, seed=100 * place + turn)
                if not np.allclose(session.run(None, {"x": x})[0], wanted.run(None, {"x": x})[0], atol=1e-5):
                    wrong.append((place, turn))
        except Exception as error:  # noqa: BLE001
            wrong.append(error)

    threads = [threading.Thread(target=work, args=each) for each in enumerate(sessions)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong


def test_options_that_are_none():
    for options, words in (({"speed": "high"}, ["no option 'speed'", "precision, search_seconds, target"]), ({"threads": "many"}, ["'threads' is 'many'"]),
                           ({"precision": "fp13"}, ["no precision 'fp13'"]), ({"target": "cuda:99"}, ["Obelisk"])):
        with pytest.raises(Exception) as thrown:
            session_of(mlp(rows=2), options)
        assert all(word in str(thrown.value) for word in words), str(thrown.value)
    with pytest.raises(Exception, match="ep.context_enable"):
        wanted = onnxruntime.SessionOptions()
        wanted.add_provider_for_devices(devices(), {})
        wanted.add_session_config_entry("ep.context_enable", "1")
        onnxruntime.InferenceSession(mlp(rows=2).SerializeToString(), wanted, enable_fallback=0)


def test_shapes_that_do_not_fit_are_an_error_of_the_run():
    model = network([helper.make_node("Abs", ["a"], ["c"]), helper.make_node("Add", ["c", "b"], ["y"], "sum")],
                    {"a": (FLOAT, ["n"]), "b": (FLOAT, ["m"])}, {"y": (FLOAT, ["k"])})
    session = session_of(model)
    assert taken(session) == [["Abs", "Add"]]
    for _ in range(2):
        with pytest.raises(Exception) as thrown:
            session.run(None, {"a": numbers(3), "b": numbers(4)})
        assert "Obelisk" in str(thrown.value) and "'sum'" in str(thrown.value)
    same(model, {"a": numbers(3), "b": numbers(3)}, session)


def test_registered_again():
    onnxruntime.unregister_execution_provider_library("Obelisk")
    assert not devices()
    onnxruntime.register_execution_provider_library("Obelisk", str(LIBRARY))
    same(mlp(rows=3), {"x": numbers(3, 24)})
