"""Files that lie, end early or reach outside their folder: refused with exit 2 and a reason,
without a crash, a hang or much memory; and what an interrupted compile leaves behind: nothing."""

import os
import resource
import signal
import subprocess
import time
from pathlib import Path

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


@pytest.mark.parametrize(
    "content", [b"", b"not a model", b"\x08", b"\xff" * 4096, b"\x3a\xff\xff\xff\xff\x0f"]
)
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
    model = save(
        tmp_path / "m.onnx", nodes, {"x": (TensorProto.FLOAT, [2])}, {"b": (TensorProto.FLOAT, [2])}
    )
    result = obelisk("check", model)
    refused(result)
    assert "first" in result.err or "second" in result.err


def test_value_from_nowhere(obelisk, tmp_path):
    node = helper.make_node("Add", ["x", "ghost"], ["y"], name="n")
    model = save(
        tmp_path / "m.onnx",
        [node],
        {"x": (TensorProto.FLOAT, [2])},
        {"y": (TensorProto.FLOAT, [2])},
    )
    refused(obelisk("check", model), "ghost")


def test_weight_with_too_few_bytes(obelisk, tmp_path):
    node = helper.make_node("Add", ["x", "w"], ["y"], name="n")
    graph = helper.make_graph(
        [node], "g", [helper.make_tensor_value_info("x", TensorProto.FLOAT, [4])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, [4])],
        [onnx.TensorProto(name="w", data_type=TensorProto.FLOAT, dims=[4], raw_data=b"\0" * 7)])
    onnx.save(
        helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)]), tmp_path / "m.onnx"
    )
    refused(obelisk("check", "m.onnx"), "w")


def test_shape_of_a_trillion_elements(obelisk, tmp_path):
    node = helper.make_node("Relu", ["x"], ["y"], name="n")
    big = [1000000, 1000000]
    model = save(
        tmp_path / "m.onnx",
        [node],
        {"x": (TensorProto.FLOAT, big)},
        {"y": (TensorProto.FLOAT, big)},
    )
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
    graph = helper.make_graph(
        [node],
        "g",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, [4])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, [4])],
        [weight],
    )
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


@pytest.mark.parametrize(
    "location", ["../secret.bin", "sub/../../secret.bin", "ABSOLUTE", "link.bin", ""]
)
def test_external_data_cannot_leave_the_folder(obelisk, tmp_path, location):
    secret = tmp_path / "secret.bin"
    np.arange(4, dtype=np.float32).tofile(secret)
    model = external(tmp_path, str(secret) if location == "ABSOLUTE" else location)
    (tmp_path / "models" / "sub").mkdir()
    (tmp_path / "models" / "link.bin").symlink_to(secret)
    refused(obelisk("check", model), "w")


@pytest.mark.parametrize(
    "offset, length", [(0, 999), (999, 16), (-4, 16), (0, 12), (2**63, 16), ("x", 16)]
)
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


@pytest.mark.parametrize(
    "sent, seen", [(signal.SIGINT, 130), (signal.SIGTERM, 130), (signal.SIGKILL, -9)]
)
def test_interrupted_compile_leaves_no_half_file(
    program, environment, need, deep, tmp_path, sent, seen
):
    """Signals at growing times, or as soon as a body is being compiled, until one lands inside the
    compile; nothing may be left where the user writes, and nothing in the folder of temporary
    files: of a killed program by the end of the next.
    """
    need("compile")
    temporary = tmp_path / "temporary"
    temporary.mkdir()
    command = [str(program), "compile", str(deep), "-o", str(tmp_path / "deep.obk")]
    exits, met = [], False
    for delay in (0.05, 0.1, 0.2, 0.4, 0.8, 60):
        for file in tmp_path.glob("*.obk*"):
            file.unlink()
        before = sorted(tmp_path.iterdir())
        variables = {**environment, "TMPDIR": str(temporary),
                     "XDG_CACHE_HOME": str(tmp_path.parent / f"{tmp_path.name}-cache-{delay}")}
        process = subprocess.Popen(
            command,
            env=variables,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
        )
        deadline = time.monotonic() + delay
        while time.monotonic() < deadline and process.poll() is None:
            if met := any(temporary.iterdir()):
                break
            time.sleep(0.005)
        process.send_signal(sent)
        process.communicate(timeout=120)
        exits.append(process.returncode)
        if process.returncode != 0:
            assert sorted(tmp_path.iterdir()) == before
        if sent != signal.SIGKILL:
            assert not any(temporary.iterdir())
        if process.returncode == seen and met:
            break
    assert seen in exits, f"exits at growing times: {exits}"
    assert met, "no signal came while bodies were compiled"
    deadline = time.monotonic() + 60  # the compilers of a killed program end in their own time
    while any(temporary.iterdir()) and time.monotonic() < deadline:
        assert (
            subprocess.run(
                command,
                env={**variables, "XDG_CACHE_HOME": str(tmp_path / "empty")},
                stdin=subprocess.DEVNULL,
                capture_output=True,
                timeout=120,
            ).returncode
            == 0
        )
    assert not any(temporary.iterdir())


def written_by(process, folder, besides):
    """How many bytes a running process has in the file of `folder` that it writes; none before it
    opens one."""
    files = Path(f"/proc/{process.pid}/fd")
    try:
        for link in files.iterdir():
            target = os.readlink(link)
            if target.startswith(str(folder)) and target not in map(str, besides):
                return link.stat().st_size
    except OSError:
        pass  # closed since it was listed
    return None


def test_killed_while_the_file_is_written(program, environment, tmp_path):
    """64 MB of weights take a while to write; whenever the program is killed, its file is whole or
    not there."""
    node = helper.make_node("MatMul", ["x", "w"], ["y"], name="n")
    model = save(tmp_path / "wide.onnx", [node], {"x": (TensorProto.FLOAT, [1, 4096])},
                 {"y": (TensorProto.FLOAT, [1, 4096])}, {"w": random(4096, 4096)})
    before = sorted(tmp_path.iterdir())
    made = tmp_path / "wide.obk"
    command = [str(program), "compile", str(model), "-o", str(made), "--verify", "off"]
    silent = {"env": environment, "stdin": subprocess.DEVNULL, "stdout": subprocess.DEVNULL,
              "stderr": subprocess.DEVNULL}
    subprocess.run(command, check=True, timeout=120, **silent)
    whole = made.read_bytes()
    for part in (0, 0.1, 0.5, 0.9):
        # The program may be done before it is killed; then it starts again.
        for _ in range(50):
            made.unlink(missing_ok=True)
            process = subprocess.Popen(command, **silent)
            while process.poll() is None:
                size = written_by(process, tmp_path, before)
                if size is not None and size >= part * len(whole):
                    process.kill()
                    break
            killed = process.wait(timeout=120) == -signal.SIGKILL
            left = [file for file in sorted(tmp_path.iterdir()) if file not in before]
            assert left in ([], [made])
            assert not left or made.read_bytes() == whole
            if killed:
                break
        assert killed, f"never caught while it wrote, {part} of the file"


def test_full_disk_is_an_error(program, environment, need, tmp_path):
    """A limit on file sizes stands for the full disk: 8 MB of weights do not fit into 4 MB."""
    need("compile")
    node = helper.make_node("MatMul", ["x", "w"], ["y"], name="n")
    model = save(tmp_path / "wide.onnx", [node], {"x": (TensorProto.FLOAT, [1, 2048])},
                 {"y": (TensorProto.FLOAT, [1, 1024])}, {"w": random(2048, 1024)})
    before = sorted(tmp_path.iterdir())
    command = [str(program), "compile", str(model), "-o", str(tmp_path / "wide.obk")]
    # Python ignores SIGXFSZ; restore_signals=False lets the program inherit that, so a write fails
    # instead.
    process = subprocess.run(
        command,
        env=environment,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=120,
        restore_signals=False,
        preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (4 << 20,) * 2),
    )
    assert process.returncode > 0 and process.stderr, process
    assert sorted(tmp_path.iterdir()) == before
    after = subprocess.run(command, env=environment, stdin=subprocess.DEVNULL, capture_output=True,
                           text=True, timeout=120)
    assert after.returncode == 0, f"the cache broke: {after.stderr}"


def on_a_small_disk(folder, size, *lines):
    """Runs a shell script with `folder` on a disk of this size: (exit, output). Only root may make
    one."""
    script = f"mount -t tmpfs -o size={size} none '{folder}' && " + "\n".join(lines)
    process = subprocess.run(
        ["unshare", "--mount", "sh", "-c", script],
        stdin=subprocess.DEVNULL,
        text=True,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        timeout=120,
    )
    if "unshare" in process.stdout or "mount:" in process.stdout:
        pytest.skip(f"no small disk can be mounted here: {process.stdout.strip()}")
    return process.returncode, process.stdout


def test_small_disk_gives_an_error_and_keeps_the_old_file(program, environment, tmp_path):
    node = helper.make_node("MatMul", ["x", "w"], ["y"], name="n")
    model = save(tmp_path / "wide.onnx", [node], {"x": (TensorProto.FLOAT, [1, 2048])},
                 {"y": (TensorProto.FLOAT, [1, 1024])}, {"w": random(2048, 1024)})
    disk = tmp_path / "disk"
    disk.mkdir()
    cache = environment["XDG_CACHE_HOME"]
    code, out = on_a_small_disk(
        disk,
        "2m",
        f"export XDG_CACHE_HOME='{cache}'",
        f"echo old >'{disk}/m.obk'",
        f"'{program}' compile '{model}' -o '{disk}/m.obk'",
        "code=$?",
        f"ls -A '{disk}' && cat '{disk}/m.obk' && exit $code",
    )
    assert code == 1 and "no space left" in out, out
    assert out.endswith("m.obk\nold\n"), out


def test_small_disk_does_not_break_the_cache(program, environment, mlp, tmp_path):
    disk = tmp_path / "disk"
    disk.mkdir()
    compile_to = (
        f"'{program}' compile '{mlp}' --shape rows=3 --cache '{disk}/cache' -o '{tmp_path}/"
    )
    code, out = on_a_small_disk(
        disk, "8k", f"{compile_to}full.obk' || exit 9", f"ls -A '{disk}/cache'; echo '--'",
        f"mount -o remount,size=8m '{disk}'", f"{compile_to}roomy.obk' && ls -A '{disk}/cache'")
    assert code == 0, out
    on_full, _, on_roomy = out.partition("--\n")
    assert "not cached" in on_full and ".so\n" not in on_full, out
    assert ".so\n" in on_roomy and "not cached" not in on_roomy, out
    assert (tmp_path / "full.obk").read_bytes() == (tmp_path / "roomy.obk").read_bytes()


def test_random_is_not_all_zero():
    assert random(4).any()  # the models above would accept any answer otherwise
