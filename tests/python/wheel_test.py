"""The wheel in dist/ (scripts/wheel.sh), in an environment of its own that knows nothing of the checkout."""
import os
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

HERE = Path(__file__).resolve().parent
WHEELS = sorted((HERE.parents[1] / "dist").glob("obelisk-*.whl"))
pytestmark = pytest.mark.skipif(not WHEELS, reason="there is no wheel in dist/: scripts/wheel.sh builds it")


def call(*words, **options):
    done = subprocess.run([str(word) for word in words], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=300, **options)
    assert done.returncode == 0, f"{words}\n{done.stdout}"
    return done.stdout


@pytest.fixture(scope="module")
def python(tmp_path_factory):
    folder = tmp_path_factory.mktemp("clean")
    call(sys.executable, "-m", "venv", folder / "venv")
    call(folder / "venv" / "bin" / "python", "-m", "pip", "install", "-q", "--disable-pip-version-check", WHEELS[-1], "onnx==1.23.2", "onnxruntime==1.31.1",
         "pytest==9.2.0")
    return folder / "venv" / "bin" / "python"


def test_the_wheel_is_for_every_python_from_3_10():
    assert "-cp310-abi3-manylinux_" in WHEELS[-1].name
    assert WHEELS[-1].stat().st_size < 60e6


def test_in_a_clean_environment(python, tmp_path):
    shutil.copy(HERE / "in_the_wheel.py", tmp_path / "in_the_wheel.py")
    environment = {"PATH": "/usr/bin:/bin", "HOME": str(tmp_path), "LANG": os.environ.get("LANG", "C.UTF-8")}
    said = call(python, "-I", "-m", "pytest", "-q", "-p", "no:cacheprovider", "in_the_wheel.py", cwd=tmp_path, env=environment)
    assert " passed" in said and "failed" not in said


@pytest.mark.skipif(not os.environ.get("OBELISK_TEST_ALL"), reason="ziglang has 100 MB: scripts/test.sh --all")
def test_without_a_compiler_ziglang_is_one(tmp_path):
    """In a home of its own, where its C runtime is built first; from Python and from the command line."""
    call(sys.executable, "-m", "venv", tmp_path / "venv")
    python = tmp_path / "venv" / "bin" / "python"
    call(python, "-m", "pip", "install", "-q", "--disable-pip-version-check", f"{WHEELS[-1]}[cpu]")
    (tmp_path / "g.ir").write_text('graph "g" {\n  in %0 "x": f32[64,64]\n  %1: f32[64,64] = MatMul(%0, %0)\n  %2: f32[64,64] = Exp(%1)\n  out %2 "y"\n}\n')
    text = ("import numpy, obelisk; model = obelisk.compile('g.ir', target='cpu'); x = numpy.full((64, 64), 0.125, numpy.float32); "
            "assert model.target == 'cpu' and model.verification['rows'] == 'every row' and numpy.allclose(model(x), numpy.e)")
    where = {"cwd": tmp_path, "env": {"PATH": "/nowhere", "HOME": str(tmp_path)}}
    call(python, "-I", "-c", text, **where)
    assert "/ziglang/zig: clang" in call(tmp_path / "venv" / "bin" / "obelisk", "doctor", **where)


def test_minilm(python, tmp_path):
    """A trained encoder, beside ONNX Runtime's answers."""
    onnxruntime = pytest.importorskip("onnxruntime")
    call(sys.executable, HERE.parents[1] / "scripts" / "minilm.py", tmp_path / "minilm.onnx")
    rows = np.random.default_rng(0).integers(1000, 20000, (2, 12))
    inputs = {"input_ids": rows, "attention_mask": np.ones_like(rows), "token_type_ids": np.zeros_like(rows)}
    inputs["attention_mask"][1, 7:] = 0
    np.savez(tmp_path / "inputs.npz", **inputs)
    text = ("import numpy, obelisk; session = obelisk.InferenceSession('minilm.onnx'); feed = dict(numpy.load('inputs.npz')); "
            "numpy.save('answer.npy', session.run(['last_hidden_state'], feed)[0])")
    call(python, "-I", "-c", text, cwd=tmp_path, env={"PATH": "/usr/bin:/bin", "HOME": str(tmp_path)})
    wanted = onnxruntime.InferenceSession(str(tmp_path / "minilm.onnx"), providers=["CPUExecutionProvider"]).run(["last_hidden_state"], inputs)[0]
    assert np.abs(np.load(tmp_path / "answer.npy") - wanted).max() < 1e-4
