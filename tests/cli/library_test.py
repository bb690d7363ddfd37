"""The programs under examples/ that carry the library: one compiles, keeps the file, and answers
from several threads, and what goes wrong leaves as one line and the exit code of its kind; one
takes tensors of Python libraries in place."""

import os
import re
import subprocess
import sys

import numpy as np
import pytest
from conftest import ROOT

EMBED = ROOT / "build" / "bin" / "embed"
MANY = ROOT / "build" / "bin" / "many"
TENSORS = ROOT / "build" / "bin" / "libtensors.so"
sys.path.insert(0, str(ROOT / "examples" / "tensors"))


def embed(*words, cwd):
    done = subprocess.run(
        [str(EMBED), *map(str, words)],
        cwd=cwd,
        capture_output=True,
        text=True,
        timeout=300,
        env={**os.environ, "OBELISK_CACHE": str(cwd / "cache")},
    )
    return done.returncode, done.stdout, done.stderr


@pytest.mark.skipif(not EMBED.exists(), reason="built with the tests only")
def test_embedding_program(mlp, tmp_path):
    code, first, errors = embed(mlp, "rows=3", cwd=tmp_path)
    assert code == 0, errors
    assert (tmp_path / "mlp.onnx.obk").exists()
    code, again, errors = embed(mlp, cwd=tmp_path)  # now from the compiled file
    assert code == 0, errors
    assert sorted(first.splitlines()) == sorted(again.splitlines())
    assert len(first.splitlines()) == 3


@pytest.mark.skipif(not MANY.exists(), reason="built with the tests only")
def test_a_program_that_serves_several_models(mlp, tmp_path):
    """Requests of one model may share launches; each is counted once, whatever became of it."""
    words = [str(MANY), f"{mlp}:rows", "rate=300", "deadline_ms=500", "seconds=0.5"]
    environment = {**os.environ, "OBELISK_CACHE": str(tmp_path / "cache")}
    done = subprocess.run(words, capture_output=True, text=True, timeout=300, env=environment)
    assert done.returncode == 0, done.stderr
    counts = [int(number) for number in re.findall(r"(\d+) (?:answered|rejected|late)", done.stdout)]
    assert len(counts) == 3 and sum(counts) == 150 and counts[0] > 0, done.stdout
    assert (tmp_path / "cache" / "times.sqlite").exists()
    wrong = subprocess.run([*words[:1], f"{mlp}:columns"], capture_output=True, text=True, timeout=300, env=environment)
    assert wrong.returncode == 2 and "its dimensions: rows" in wrong.stderr, wrong.stderr


@pytest.mark.skipif(not EMBED.exists(), reason="built with the tests only")
def test_embedding_program_says_what_is_wrong(mlp, tmp_path):
    code, _, errors = embed(mlp, cwd=tmp_path)
    assert code == 1 and "rows" in errors
    code, _, errors = embed("nowhere.onnx", cwd=tmp_path)
    assert code in (1, 2) and "nowhere.onnx" in errors


@pytest.fixture
def tensors(tmp_path, monkeypatch):
    if not TENSORS.exists():
        pytest.skip("built with the tests only")
    import tensors
    monkeypatch.setenv("OBELISK_CACHE", str(tmp_path / "cache"))
    return tensors


def test_numpy_arrays_are_read_and_written_in_place(tensors, obelisk, mlp, tmp_path):
    network = tensors.Network(str(TENSORS), mlp, dimensions="rows=3")
    (_, name, element, shape), (_, made, _, made_shape) = network.ports
    x, y = np.zeros(shape, element), np.empty(made_shape, np.float32)
    network.bind("in", name, x)
    network.bind("out", made, y)
    for seed in (1, 2):
        x[...] = tensors.numbers(np.random.default_rng(seed), element, shape)
        network.run()
        np.savez(tmp_path / "x.npz", **{name: x})
        obelisk("run", mlp, "--target", "cpu", "--inputs", "x.npz", "--output-dir", "out", code=0)
        assert np.array_equal(y, np.load(tmp_path / "out" / f"{made}.npy")), seed


def test_what_is_no_tensor_for_a_port_is_told(tensors, mlp):
    network = tensors.Network(str(TENSORS), mlp, dimensions="rows=3")
    _, name, element, shape = network.ports[0]
    x = np.zeros(shape, element)
    for why, side, port, array in (
        ("it wants f32", "in", name, x.astype(np.float64)),
        ("the tensor has", "in", name, x[:2]),
        ("strides", "in", name, np.zeros((shape[0], 2 * shape[1]), element)[:, ::2]),
        ("no input 'elsewhere'", "in", "elsewhere", x),
        (f"no output '{name}'", "out", name, x),
    ):
        with pytest.raises(RuntimeError, match=why.replace("[", r"\[")):
            network.bind(side, port, array)
    with pytest.raises(RuntimeError, match="not NAME=EXTENT"):
        tensors.Network(str(TENSORS), mlp, dimensions="rows")
    with pytest.raises(RuntimeError, match="nowhere.onnx"):
        tensors.Network(str(TENSORS), "nowhere.onnx")
