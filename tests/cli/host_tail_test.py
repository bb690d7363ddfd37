"""Nodes whose shapes depend on data run on the host, after the program."""
import numpy as np
import onnx
import pytest
from conftest import random, save
from onnx import TensorProto, helper, numpy_helper
from onnx.reference import ReferenceEvaluator

F, I = TensorProto.FLOAT, TensorProto.INT64


def number(name, value, dtype):
    return numpy_helper.from_array(np.array(value, dtype), name)


def same_as_the_standard(obelisk, tmp_path, model, feeds, *words):
    """Answers of `run` beside those of onnx's own evaluator, in the model's order."""
    np.savez(tmp_path / "in.npz", **feeds)
    answer = obelisk("run", model, "--inputs", "in.npz", "--output-dir", "out", *words, "--json", code=0).json
    loaded = onnx.load(model)
    wanted = ReferenceEvaluator(loaded).run(None, feeds)
    assert [each["name"] for each in answer["outputs"]] == [each.name for each in loaded.graph.output]
    for each, want in zip(answer["outputs"], wanted):
        got = np.load(tmp_path / each["file"])
        assert list(got.shape) == each["shape"] == list(np.shape(want)), each["name"]
        np.testing.assert_allclose(got.astype(np.float64), np.asarray(want, np.float64), rtol=1e-4, atol=1e-5)
    return answer


@pytest.fixture
def detector(tmp_path):
    """A head of products, boxes and scores, non-maximum suppression, and the boxes that it keeps."""
    nodes = [
        helper.make_node("MatMul", ["x", "w"], ["features"], name="body/product"),
        helper.make_node("Relu", ["features"], ["active"], name="body/relu"),
        helper.make_node("MatMul", ["active", "to_boxes"], ["corners"], name="head/boxes"),
        helper.make_node("MatMul", ["active", "to_scores"], ["logits"], name="head/scores"),
        helper.make_node("Sigmoid", ["logits"], ["likely"], name="head/sigmoid"),
        helper.make_node("Transpose", ["likely"], ["scores"], name="head/transpose", perm=[0, 2, 1]),
        helper.make_node("Constant", [], ["most"], name="head/most", value=number("", [5], np.int64)),
        helper.make_node("NonMaxSuppression", ["corners", "scores", "most", "overlap", "least"], ["kept"], name="end/nms"),
        helper.make_node("Gather", ["kept", "third"], ["which"], name="end/which", axis=1),
        helper.make_node("Gather", ["corners", "which"], ["chosen"], name="end/gather", axis=1),
    ]
    weights = {"w": random(8, 16), "to_boxes": random(16, 4), "to_scores": random(16, 3),
               "overlap": np.array([0.5], np.float32), "least": np.array([0.3], np.float32), "third": np.array(2, np.int64)}
    return save(tmp_path / "detector.onnx", nodes, {"x": (F, [1, 20, 8])},
                {"kept": (I, ["n", 3]), "scores": (F, [1, 3, 20]), "chosen": (F, [1, "n", 4])}, weights)


def test_a_detector_ends_on_the_host(obelisk, detector, tmp_path):
    for scale in (1, 0):  # of zeros nothing is found, or all that is alike
        feeds = {"x": random(1, 20, 8) * np.float32(scale)}
        answer = same_as_the_standard(obelisk, tmp_path, detector, feeds, "--target", "cpu")
    assert "NonMaxSuppression 'end/nms': the output size depends on data" in answer["host"]
    assert answer["host"].startswith("4 nodes run on the host")  # two that follow, and a constant
    assert answer["verified"]["rows"] == "every row"  # of the program
    same_as_the_standard(obelisk, tmp_path, detector, feeds, "--target", "reference")


def test_it_is_said_before_anything_runs(obelisk, detector):
    report = obelisk("check", detector, "--json", code=0).json
    assert report["ok"] and report["unsupported"] == [] and "end/nms" in report["host"]
    assert [each["shape"] for each in report["outputs"]] == [[-1, 3], [1, 3, 20], [1, -1, 4]]
    assert "nodes run on the host, after the program" in obelisk("check", detector, code=0).out
    explained = obelisk("compile", detector, "--explain", "import", "--target", "cpu", "--verify", "off", code=0)
    assert "end/nms" in explained.out
    assert "end/nms" in obelisk("run", detector, "--seed", "1", "--target", "cpu", code=0).out


def test_what_has_no_place_for_a_tail_refuses_it_as_ever(obelisk, detector):
    for words in (["compile", detector, "-o", "m.obk"], ["bench", detector, "--seconds", "0.1"], ["verify", detector]):
        assert "end/nms" in obelisk(*words, "--target", "cpu", code=3).err


@pytest.mark.parametrize("op, outputs, attributes", [
    ("NonZero", {"found": (I, [2, None])}, {}),
    ("Unique", {"values": (F, [None]), "first": (I, [None]), "inverse": (I, [None]), "counts": (I, [None])}, {"sorted": 1})])
def test_ops_of_data(obelisk, tmp_path, op, outputs, attributes):
    nodes = [helper.make_node("Relu", ["x"], ["active"], name="relu"), helper.make_node(op, ["active"], list(outputs), name="last", **attributes)]
    model = save(tmp_path / "m.onnx", nodes, {"x": (F, [4, 6])}, outputs)
    same_as_the_standard(obelisk, tmp_path, model, {"x": random(4, 6)}, "--target", "cpu")
    same_as_the_standard(obelisk, tmp_path, model, {"x": -np.abs(random(4, 6))}, "--target", "cpu")


def test_alone_and_of_an_input_itself(obelisk, tmp_path):
    """The whole network is tail; an output that is an input passes by."""
    nodes = [helper.make_node("NonZero", ["x"], ["found"], name="find"), helper.make_node("Identity", ["x"], ["same"], name="same")]
    model = save(tmp_path / "m.onnx", nodes, {"x": (F, [5])}, {"found": (I, [1, None]), "same": (F, [5])})
    same_as_the_standard(obelisk, tmp_path, model, {"x": np.array([0, 1, 0, 2, 0], np.float32)}, "--target", "cpu")


def test_control_flow_by_data(obelisk, tmp_path):
    """An If by a sum, and a Loop until a sum is large: either branch, any number of turns."""
    branch = {
        name: helper.make_graph([helper.make_node(op, ["sums"], [f"{name}_out"])], name, [],
                                [helper.make_tensor_value_info(f"{name}_out", F, None)])
        for name, op in (("then", "Exp"), ("else", "Neg"))}
    turn = helper.make_graph(
        [helper.make_node("Add", ["before", "before"], ["after"]), helper.make_node("ReduceMax", ["after"], ["largest"], keepdims=0),
         helper.make_node("Less", ["largest", "limit"], ["more"])],
        "turn", [helper.make_tensor_value_info("k", I, []), helper.make_tensor_value_info("going", TensorProto.BOOL, []),
                 helper.make_tensor_value_info("before", F, [1, 3])],
        [helper.make_tensor_value_info("more", TensorProto.BOOL, []), helper.make_tensor_value_info("after", F, [1, 3])])
    nodes = [
        helper.make_node("MatMul", ["x", "w"], ["sums"], name="product"),
        helper.make_node("ReduceMax", ["sums"], ["most"], name="most", keepdims=0),
        helper.make_node("Greater", ["most", "zero"], ["positive"], name="positive"),
        helper.make_node("If", ["positive"], ["y"], name="choice", then_branch=branch["then"], else_branch=branch["else"]),
        helper.make_node("Abs", ["sums"], ["sizes"], name="sizes"),
        helper.make_node("Loop", ["", "positive", "sizes"], ["z"], name="turns", body=turn),
    ]
    weights = {"w": random(4, 3), "zero": np.array(0, np.float32), "limit": np.array(50, np.float32)}
    model = save(tmp_path / "m.onnx", nodes, {"x": (F, [1, 4])}, {"y": (F, [1, 3]), "z": (F, [1, 3])}, weights)
    x = random(1, 4)
    hosts = {same_as_the_standard(obelisk, tmp_path, model, {"x": each}, "--target", "cpu")["host"] for each in (x, -x, x * 100)}
    assert len(hosts) == 1 and "If 'choice'" in hosts.pop()


def test_strings_stay_refused_by_name(obelisk, tmp_path):
    nodes = [helper.make_node("NonZero", ["x"], ["found"], name="find"),
             helper.make_node("StringNormalizer", ["names"], ["plain"], name="plain")]
    model = save(tmp_path / "m.onnx", nodes, {"x": (F, [5]), "names": (TensorProto.STRING, [2])},
                 {"found": (I, [1, None]), "plain": (TensorProto.STRING, [2])})
    assert "string" in obelisk("run", model, "--seed", "1", "--target", "cpu", code=3).err.lower()
