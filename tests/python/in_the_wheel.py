"""Run by wheel_test.py in an environment that has the wheel and nothing of the checkout."""
import os
import pathlib
import signal
import subprocess
import sys
import threading

import numpy as np
import obelisk
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

W = np.random.default_rng(0).standard_normal((8, 4), np.float32)


def network(nodes, inputs, outputs, weights=None):
    """inputs and outputs: {name: (element type, dims)}."""
    values = [[helper.make_tensor_value_info(name, kind, dims) for name, (kind, dims) in table.items()] for table in (inputs, outputs)]
    stored = [numpy_helper.from_array(array, name) for name, array in (weights or {}).items()]
    return helper.make_model(helper.make_graph(nodes, "test", *values, stored), opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


@pytest.fixture
def mlp():
    """relu(x · w), x [rows, 8] with rows symbolic."""
    nodes = [helper.make_node("MatMul", ["x", "w"], ["xw"]), helper.make_node("Relu", ["xw"], ["y"])]
    return network(nodes, {"x": (TensorProto.FLOAT, ["rows", 8])}, {"y": (TensorProto.FLOAT, ["rows", 4])}, {"w": W})


@pytest.fixture(autouse=True)
def own_cache(tmp_path_factory, monkeypatch):
    monkeypatch.setenv("OBELISK_CACHE", str(tmp_path_factory.getbasetemp() / "cache"))


def numbers(*shape):
    return np.random.default_rng(1).standard_normal(shape, np.float32)


def close(y, x):
    return np.allclose(y, np.maximum(x @ W, 0), atol=1e-5)


def test_it_is_the_wheel_that_is_tested():
    assert pathlib.Path(obelisk.__file__).is_relative_to(sys.prefix)
    assert (pathlib.Path(obelisk.__file__).parent / "py.typed").exists()
    said = subprocess.run([pathlib.Path(sys.prefix) / "bin" / "obelisk", "--version"], capture_output=True, text=True, check=True)
    assert said.stdout.strip() == obelisk.__version__


def test_a_path_bytes_and_a_proto_are_one_model(mlp, tmp_path):
    onnx.save(mlp, tmp_path / "m.onnx")
    x = numbers(3, 8)
    for source in (tmp_path / "m.onnx", str(tmp_path / "m.onnx"), mlp.SerializeToString(), mlp):
        model = obelisk.compile(source, target="cpu", shapes={"rows": 3})
        assert model.inputs == (("x", "f32", (3, 8)),) and model.outputs == (("y", "f32", (3, 4)),)
        assert model.target == "cpu" and model.gpu == -1 and model.verification["rows"] == "every row"
        assert close(model(x), x) and close(model(x=x), x)
    model.save(tmp_path / "m.obk")
    for compiled in (tmp_path / "m.obk", model.save()):
        for portable in (False, True):
            assert np.array_equal(obelisk.load(compiled, portable=portable)(x), model(x))


def test_a_program_for_each_shape_is_compiled_once(mlp):
    model = obelisk.compile(mlp, target="cpu", shapes={"rows": (1, 5)})
    assert model.inputs[0].shape == ("rows", 8) and model.programs == 0
    for rows in (1, 4, 5, 4, 1):
        x = numbers(rows, 8)
        assert close(model(x), x)
    assert model.programs == 3
    with pytest.raises(obelisk.UsageError, match="'rows' is 6 in input 'x', declared are 1 to 5"):
        model(numbers(6, 8))
    with pytest.raises(obelisk.UsageError, match="2 dimensions"):
        model(numbers(8))
    with pytest.raises(obelisk.UsageError, match="not all bound"):
        model.save()
    with pytest.raises(obelisk.UsageError, match="no symbolic dimension 'cols'"):
        obelisk.compile(mlp, shapes={"cols": (1, 2)})


def test_arrays_of_every_kind(mlp):
    model = obelisk.compile(mlp, target="cpu", shapes={"rows": 3})
    x = numbers(3, 16)[:, ::2]
    assert not x.flags.c_contiguous and close(model(x), x)
    frozen = numbers(3, 8)
    frozen.flags.writeable = False
    assert close(model(frozen), frozen)
    out = np.zeros((3, 4), np.float32)
    (made,) = model.run({"x": frozen}, {"y": out})
    assert made is out and close(out, frozen)
    with pytest.raises(obelisk.UsageError, match="wants f32"):
        model(frozen.astype(np.float64))
    with pytest.raises(obelisk.UsageError, match=r"wants the shape \[3,8\]"):
        model(numbers(2, 8))
    with pytest.raises(obelisk.UsageError, match="no array"):
        model(object())


def test_element_types(tmp_path):
    ml_dtypes = pytest.importorskip("ml_dtypes")
    kinds = {TensorProto.FLOAT16: np.float16, TensorProto.DOUBLE: np.float64, TensorProto.INT64: np.int64, TensorProto.UINT8: np.uint8,
             TensorProto.BOOL: np.bool_, TensorProto.BFLOAT16: ml_dtypes.bfloat16}
    for kind, dtype in kinds.items():
        model = obelisk.compile(network([helper.make_node("Identity", ["x"], ["y"])], {"x": (kind, [6])}, {"y": (kind, [6])}), target="cpu")
        x = np.arange(6).astype(dtype)
        assert model(x).dtype == x.dtype and np.array_equal(model(x), x), dtype


def test_a_session_is_shaped_like_onnx_runtimes(mlp):
    session = obelisk.InferenceSession(mlp.SerializeToString(), providers=["CPUExecutionProvider"])
    (given,), (made,) = session.get_inputs(), session.get_outputs()
    assert (given.name, given.type, given.shape) == ("x", "tensor(float)", ["rows", 8]) and made.name == "y"
    x = numbers(2, 8)
    for names in (None, ["y"]):
        (y,) = session.run(names, {"x": x})
        assert close(y, x)
    with pytest.raises(obelisk.UsageError, match="no output 'z'"):
        session.run(["z"], {"x": x})
    with pytest.raises(obelisk.UsageError, match="no array is given for input 'x'"):
        session.run(None, {})
    binding, out = session.io_binding(), np.zeros((2, 4), np.float32)
    binding.bind_cpu_input("x", x)
    binding.bind_output("y", out)
    session.run_with_iobinding(binding)
    assert close(out, x) and binding.copy_outputs_to_cpu()[0] is out


def test_a_provider_of_onnx_runtime(mlp):
    """More of it in onnxruntime_test.py, with libobelisk.so; here the module itself is the plug-in."""
    import obelisk.onnxruntime
    import onnxruntime
    device, = obelisk.onnxruntime.devices()
    assert device.ep_name == "ObeliskExecutionProvider"
    options = obelisk.onnxruntime.session_options(threads=2, verify=True)
    options.add_session_config_entry("session.record_ep_graph_assignment_info", "1")
    session = onnxruntime.InferenceSession(mlp.SerializeToString(), options, enable_fallback=0)
    part, = session.get_provider_graph_assignment_info()
    assert part.ep_name == "ObeliskExecutionProvider" and [node.op_type for node in part.get_nodes()] == ["MatMul", "Relu"]
    for rows in (2, 5, 2):
        x = numbers(rows, 8)
        assert close(session.run(["y"], {"x": x})[0], x)
    by_name = onnxruntime.InferenceSession(mlp.SerializeToString(), providers=["ObeliskExecutionProvider"])
    assert close(by_name.run(None, {"x": numbers(3, 8)})[0], numbers(3, 8))


def test_an_output_in_place_of_an_input():
    nodes = [helper.make_node("ScatterND", ["past", "at", "new"], ["present"], name="put")]
    kinds = {"past": (TensorProto.FLOAT, [8, 4]), "at": (TensorProto.INT64, [1, 1]), "new": (TensorProto.FLOAT, [1, 4])}
    model = network(nodes, kinds, {"present": (TensorProto.FLOAT, [8, 4])})
    step = obelisk.compile(model, target="cpu", in_place={"present": "past"})
    past, wanted = numbers(8, 4), numbers(8, 4)
    for row in range(3):
        feed = {"past": past, "at": np.array([[row]]), "new": np.full((1, 4), row, np.float32)}
        wanted[row] = row
        assert np.array_equal(step.run(feed)[0], wanted) and not np.array_equal(past, wanted)  # memory of its own
        assert step.run(feed, into={"present": past})[0] is past and np.array_equal(past, wanted)
    again = obelisk.load(step.save())
    feed["at"] = np.array([[7]])
    again.run(feed, into={"present": past})
    assert np.array_equal(past[7], feed["new"][0])
    for wrong, word in (({"present": "new"}, "is f32"), ({"present": "gone"}, "no input"), ({"gone": "past"}, "no output")):
        with pytest.raises(obelisk.UsageError, match=word):
            obelisk.compile(model, target="cpu", in_place=wrong)


def test_outputs_whose_size_data_decides():
    nodes = [helper.make_node("Relu", ["x"], ["y"]), helper.make_node("NonZero", ["y"], ["found"], name="end/find")]
    model = obelisk.compile(network(nodes, {"x": (TensorProto.FLOAT, [2, 3])}, {"y": (TensorProto.FLOAT, [2, 3]), "found": (TensorProto.INT64, [2, None])}),
                            target="cpu")
    assert [port.shape for port in model.outputs] == [(2, 3), (2, -1)]
    for x in (np.array([[1, -1, 0], [0, 2, 3]], np.float32), np.zeros((2, 3), np.float32)):
        y, found = model(x)
        assert np.array_equal(y, np.maximum(x, 0)) and np.array_equal(found, np.array(np.nonzero(y))) and found.dtype == np.int64
    with pytest.raises(obelisk.UsageError, match="depends on data"):
        model.run({"x": x}, into={"found": np.zeros((2, 3), np.int64)})
    with pytest.raises(obelisk.UnsupportedError, match="end/find"):
        model.save()


def test_errors_have_parts(tmp_path):
    strange = network([helper.make_node("Strange", ["x"], ["y"], name="odd/Strange", domain="com.example")],
                      {"x": (TensorProto.FLOAT, [4])}, {"y": (TensorProto.FLOAT, [None])})
    with pytest.raises(obelisk.UnsupportedError) as told:
        obelisk.compile(strange, target="cpu")
    error = told.value
    assert isinstance(error, obelisk.Error) and error.kind == "unsupported" and error.code == 3
    assert error.node == "odd/Strange" and "Strange" in error.message and error.message in str(error)
    with pytest.raises(obelisk.BadModelError):
        obelisk.compile(b"no model")
    with pytest.raises(obelisk.UsageError, match="gone.onnx"):
        obelisk.compile(tmp_path / "gone.onnx")
    with pytest.raises(obelisk.UsageError) as told:
        obelisk.compile(strange, precision="fp12")
    assert "bf16" in told.value.hint
    with pytest.raises(ValueError):  # as the standard library's kind, too
        obelisk.compile(42)


def test_many_threads_share_a_model(mlp):
    model, wrong = obelisk.compile(mlp, target="cpu"), []

    def work(seed):
        for turn in range(20):
            x = np.random.default_rng(seed * 100 + turn).standard_normal((1 + turn % 3, 8), np.float32)
            if not close(model(x), x):
                wrong.append(seed)

    threads = [threading.Thread(target=work, args=(seed,)) for seed in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong and model.programs == 3


def waiting_compiler(folder):
    """A compiler that begins, and goes on when there is a file `go`."""
    path = folder / "compiler"
    path.write_text(f"#!/bin/sh\ntouch '{folder}/begun'\nwhile [ ! -e '{folder}/go' ]; do sleep 0.02; done\nexec g++ \"$@\"\n")
    path.chmod(0o755)
    return str(path)


def test_others_go_on_while_a_model_is_compiled(mlp, tmp_path):
    # Whoever held the interpreter's lock would wait for ever.
    models = []
    compiler = waiting_compiler(tmp_path)
    thread = threading.Thread(target=lambda: models.append(obelisk.compile(mlp, target="cpu", shapes={"rows": 3}, compiler=compiler, cache="off")))
    thread.start()
    while not (tmp_path / "begun").exists():
        pass
    (tmp_path / "go").touch()
    thread.join()
    assert close(models[0](numbers(3, 8)), numbers(3, 8))


def test_ctrl_c_ends_a_compile(mlp, tmp_path):
    onnx.save(mlp, tmp_path / "m.onnx")
    text = ("import signal\nsignal.signal(signal.SIGINT, signal.default_int_handler)\n"  # a shell's background jobs ignore it
            f"import obelisk\ntry:\n  obelisk.compile({str(tmp_path / 'm.onnx')!r}, target='cpu', shapes={{'rows': 3}}, cache='off', "
            f"compiler={waiting_compiler(tmp_path)!r})\nexcept KeyboardInterrupt:\n  print('interrupted')\n")
    process = subprocess.Popen([sys.executable, "-I", "-c", text], stdout=subprocess.PIPE, text=True)
    while not (tmp_path / "begun").exists() and process.poll() is None:
        pass
    process.send_signal(signal.SIGINT)
    assert process.communicate(timeout=60)[0] == "interrupted\n"


def test_progress_is_told_and_what_it_throws_comes_out(mlp):
    steps = []
    obelisk.compile(mlp, target="cpu", shapes={"rows": 3}, progress=lambda step, done: steps.append((step, done)))
    assert steps and all(0 <= done <= 1 for _, done in steps)

    def refuse(step, done):
        raise LookupError(step)
    with pytest.raises(LookupError):
        obelisk.compile(mlp, target="cpu", shapes={"rows": 3}, progress=refuse)


def test_help_suffices():
    for name in ("target", "precision", "shapes", "verify", "progress", "cache"):
        assert name in obelisk.compile.__doc__
    assert os.environ["OBELISK_PYTHON"]
