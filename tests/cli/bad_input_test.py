"""Files that lie, end early or reach outside their folder: refused with exit 2 and a reason, without
a crash, a hang or much memory; and what an interrupted compile leaves behind: nothing."""
import resource
import signal
import subprocess
import time

import numpy as np
import onnx
import pytest
from conftest import random, save
from onnx import TensorProto, helper

BAD_MODEL = 2
ROWS = ["--shape", "rows=3"]


def refused(result, *words):
    assert result.code == BAD_MODEL, result
    for word in words:
        assert word in result.err, result


@pytest.mark.parametrize("content", [b"", b"not a model", b"\x08", b"\xff" * 4096, b"\x3a\xff\xff\xff\xff\x0f"])
def test_not_a_model(obelisk, tmp_path, content):
    (tmp_path / "m.onnx").write_bytes(content)
    refused(obelisk("check", "m.onnx"), "m.onnx")


@pytest.mark.parametrize("share", [0.1, 0.5, 0.9, 0.999])
def test_truncated_model(obelisk, mlp, tmp_path, share):
    whole = mlp.read_bytes()
    (tmp_path / "cut.onnx").write_bytes(whole[:int(len(whole) * share)])
    refused(obelisk("check", "cut.onnx", *ROWS), "cut.onnx")


def test_cycle(obelisk, tmp_path):
    nodes = [helper.make_node("Add", ["x", "b"], ["a"], name="first"),
             helper.make_node("Relu", ["a"], ["b"], name="second")]
    model = save(tmp_path / "m.onnx", nodes, {"x": (TensorProto.FLOAT, [2])}, {"b": (TensorProto.FLOAT, [2])})
    result = obelisk("check", model)
    refused(result)
    assert "first" in result.err or "second" in result.err


def test_value_from_nowhere(obelisk, tmp_path):
    node = helper.make_node("Add", ["x", "ghost"], ["y"], name="n")
    model = save(tmp_path / "m.onnx", [node], {"x": (TensorProto.FLOAT, [2])}, {"y": (TensorProto.FLOAT, [2])})
    refused(obelisk("check", model), "ghost")


def test_weight_with_too_few_bytes(obelisk, tmp_path):
    node = helper.make_node("Add", ["x", "w"], ["y"], name="n")
    graph = helper.make_graph(
        [node], "g", [helper.make_tensor_value_info("x", TensorProto.FLOAT, [4])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, [4])],
        [onnx.TensorProto(name="w", data_type=TensorProto.FLOAT, dims=[4], raw_data=b"\0" * 7)])
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)]), tmp_path / "m.onnx")
    refused(obelisk("check", "m.onnx"), "w")


def test_shape_of_a_trillion_elements(obelisk, tmp_path):
    node = helper.make_node("Relu", ["x"], ["y"], name="n")
    big = [1000000, 1000000]
    model = save(tmp_path / "m.onnx", [node], {"x": (TensorProto.FLOAT, big)}, {"y": (TensorProto.FLOAT, big)})
    result = obelisk("run", model, "--seed", "1")
    assert result.code in (2, 3, 6) and result.err, result


def external(tmp_path, location, offset=None, length=None, folder="models"):
    """A model whose weight lies in another file, at whatever path the test wants to claim."""
    (tmp_path / folder).mkdir(exist_ok=True)
    weight = onnx.TensorProto(name="w", data_type=TensorProto.FLOAT, dims=[4],
                              data_location=TensorProto.EXTERNAL)
    for key, value in (("location", location), ("offset", offset), ("length", length)):
        if value is not None:
            weight.external_data.add(key=key, value=str(value))
    node = helper.make_node("Add", ["x", "w"], ["y"], name="n")
    graph = helper.make_graph([node], "g", [helper.make_tensor_value_info("x", TensorProto.FLOAT, [4])],
                              [helper.make_tensor_value_info("y", TensorProto.FLOAT, [4])], [weight])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    path = tmp_path / folder / "m.onnx"
    path.write_bytes(model.SerializeToString())
    return path


def test_external_data_is_read(obelisk, tmp_path):
    model = external(tmp_path, "weights.bin", 16, 16)
    np.arange(8, dtype=np.float32).tofile(tmp_path / "models" / "weights.bin")
    np.save(tmp_path / "x.npy", np.zeros(4, np.float32))
    obelisk("run", model, "--input", "x=x.npy", "--output-dir", ".", code=0)
    assert np.load(tmp_path / "y.npy").tolist() == [4, 5, 6, 7]


@pytest.mark.parametrize("location", ["../secret.bin", "sub/../../secret.bin", "ABSOLUTE", "link.bin", ""])
def test_external_data_cannot_leave_the_folder(obelisk, tmp_path, location):
    secret = tmp_path / "secret.bin"
    np.arange(4, dtype=np.float32).tofile(secret)
    model = external(tmp_path, str(secret) if location == "ABSOLUTE" else location)
    (tmp_path / "models" / "sub").mkdir()
    (tmp_path / "models" / "link.bin").symlink_to(secret)
    refused(obelisk("check", model), "w")


@pytest.mark.parametrize("offset, length", [(0, 999), (999, 16), (-4, 16), (0, 12), (2**63, 16), ("x", 16)])
def test_external_data_that_lies_about_its_place(obelisk, tmp_path, offset, length):
    model = external(tmp_path, "weights.bin", offset, length)
    np.arange(4, dtype=np.float32).tofile(tmp_path / "models" / "weights.bin")
    refused(obelisk("check", model), "w")


@pytest.fixture
def compiled(obelisk, mlp, tmp_path):
    obelisk("compile", mlp, "-o", "good.obk", *ROWS, code=0)
    return (tmp_path / "good.obk").read_bytes()


@pytest.mark.parametrize("share", [0.0, 0.01, 0.5, 0.99])
def test_truncated_compiled_file(obelisk, compiled, tmp_path, share):
    (tmp_path / "cut.obk").write_bytes(compiled[:int(len(compiled) * share)])
    refused(obelisk("run", "cut.obk", "--seed", "1"), "cut.obk")


@pytest.mark.parametrize("share", [0.0, 0.3, 0.6, 0.95])
def test_flipped_byte_in_a_compiled_file(obelisk, compiled, tmp_path, share):
    broken = bytearray(compiled)
    place = int(len(broken) * share)
    # A byte that carries something: padding between sections is not covered by a checksum.
    while place + 1 < len(broken) and broken[place] == 0:
        place += 1
    broken[place] ^= 0x40
    (tmp_path / "bad.obk").write_bytes(broken)
    refused(obelisk("run", "bad.obk", "--seed", "1"), "bad.obk")


def test_interrupted_compile_leaves_no_half_file(program, environment, need, deep, tmp_path):
    """Interrupts at growing times until one lands inside the compile; nothing may ever be left."""
    need("compile")
    seen = []
    for delay in (0.05, 0.1, 0.2, 0.4, 0.8):
        for file in tmp_path.glob("*.obk*"):
            file.unlink()
        before = sorted(tmp_path.iterdir())
        cache = tmp_path.parent / f"{tmp_path.name}-cache-{delay}"
        process = subprocess.Popen([str(program), "compile", str(deep), "-o", str(tmp_path / "deep.obk")],
                                   env={**environment, "XDG_CACHE_HOME": str(cache)},
                                   stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
        time.sleep(delay)
        process.send_signal(signal.SIGINT)
        process.communicate(timeout=120)
        seen.append(process.returncode)
        if process.returncode != 0:
            assert sorted(tmp_path.iterdir()) == before
        if process.returncode == 130:
            break
    assert 130 in seen, f"exits at growing times: {seen}"


def test_full_disk_is_an_error(program, environment, need, tmp_path):
    """A limit on file sizes stands for the full disk: 8 MB of weights do not fit into 4 MB."""
    need("compile")
    node = helper.make_node("MatMul", ["x", "w"], ["y"], name="n")
    model = save(tmp_path / "wide.onnx", [node], {"x": (TensorProto.FLOAT, [1, 2048])},
                 {"y": (TensorProto.FLOAT, [1, 1024])}, {"w": random(2048, 1024)})
    before = sorted(tmp_path.iterdir())
    command = [str(program), "compile", str(model), "-o", str(tmp_path / "wide.obk")]
    # Python ignores SIGXFSZ; restore_signals=False lets the program inherit that, so a write fails instead.
    process = subprocess.run(command, env=environment, stdin=subprocess.DEVNULL, capture_output=True,
                             text=True, timeout=120, restore_signals=False,
                             preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (4 << 20,) * 2))
    assert process.returncode > 0 and process.stderr, process
    assert sorted(tmp_path.iterdir()) == before
    after = subprocess.run(command, env=environment, stdin=subprocess.DEVNULL, capture_output=True,
                           text=True, timeout=120)
    assert after.returncode == 0, f"the cache broke: {after.stderr}"


def test_random_is_not_all_zero():
    assert random(4).any()  # the models above would accept any answer otherwise
