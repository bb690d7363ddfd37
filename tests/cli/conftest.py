"""The program under test, and small models for it. Every test has a folder and a cache of its
own."""

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

ROOT = Path(__file__).resolve().parents[2]
VERBS = ("check", "compile", "run", "bench", "verify", "profile", "inspect", "cache", "doctor", "simulate", "report")
sys.path.insert(0, str(ROOT / "scripts"))


class Result:
    def __init__(self, process):
        self.code = process.returncode
        self.out = process.stdout
        self.err = process.stderr

    @property
    def json(self):
        """Standard output must be one JSON document and nothing else."""
        return json.loads(self.out)

    def __repr__(self):
        return f"exit {self.code}\n--- out\n{self.out}\n--- err\n{self.err}"


@pytest.fixture(scope="session")
def environment(tmp_path_factory):
    """One cache for the session: the tests that need an empty one make it."""
    home = tmp_path_factory.mktemp("home")
    return {"OBELISK_PYTHON": sys.executable, **os.environ, "HOME": str(home), "XDG_CACHE_HOME": str(home / "cache")}


@pytest.fixture(scope="session")
def program():
    path = Path(os.environ.get("OBELISK", ROOT / "build" / "bin" / "obelisk"))
    assert path.exists(), f"{path} is not there; run scripts/build.sh"
    return path


@pytest.fixture(scope="session")
def verbs(program):
    """The verbs that this build has. A test of another one is skipped by its name, never
    silently."""
    text = subprocess.run(
        [str(program), "--help"], capture_output=True, text=True, timeout=20
    ).stdout
    return {verb for verb in VERBS if re.search(rf"^\s+{verb}\b", text, re.MULTILINE)}


def found(obelisk, name):
    """What `doctor` says of one thing."""
    return {one["name"]: one for one in json.loads(obelisk("doctor", "--json").out)["findings"]}[name]


def shared_library(path, text):
    """A library with these C functions."""
    path.parent.mkdir(parents=True, exist_ok=True)
    words = ["c++", "-shared", "-fPIC", "-x", "c++", "-", "-o", path]
    subprocess.run(words, input=f'extern "C" {{\n{text}\n}}', text=True, check=True)


class Pack:
    """The folder that scripts/pack.sh makes, with a stand-in for its program."""

    def __init__(self, folder, environment):
        self.folder = folder
        stubs = Path(__file__).resolve().parent / "stub"
        self.environment = {**environment, "PYTHONPATH": str(stubs), "ASKED": str(folder / "asked")}
        for name in ("bin", "scripts", "work"):
            (folder / name).mkdir()
        for script in (ROOT / "scripts").glob("*.py"):
            shutil.copy(script, folder / "scripts")
        (folder / "VERSION").write_text("1234567\n")

    def gpu_py(self, program, *words, **variables):
        """How gpu.py ended, of the networks a and b, with stubs of PyTorch and JAX, and what it wrote."""
        file = self.folder / "bin" / "obelisk"
        file.write_text(program)
        file.chmod(0o755)
        done = subprocess.run(
            [sys.executable, self.folder / "scripts" / "gpu.py", *words, "--models", "a,b@fp32",
             "--jobs", "2", "--work", self.folder / "work", "--out", self.folder / "out.json"],
            capture_output=True, text=True, timeout=100, env={**self.environment, **variables},
        )
        return done, json.loads((self.folder / "out.json").read_text())


@pytest.fixture
def pack(tmp_path, environment):
    return Pack(tmp_path, environment)


@pytest.fixture
def need(verbs):
    def check(verb):
        if verb in VERBS and verb not in verbs:
            pytest.skip(f"this build has no verb '{verb}'")
    return check


@pytest.fixture
def obelisk(program, environment, need, tmp_path):
    """obelisk('check', file, …): runs in the test's folder, waits at most two minutes."""
    def run(*arguments, code=None):
        need(arguments[0])
        process = subprocess.run(
            [str(program), *map(str, arguments)],
            cwd=tmp_path,
            env=environment,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=120,
        )
        result = Result(process)
        if code is not None:
            assert result.code == code, result
        return result
    run.environment = environment  # for monkeypatch.setitem
    return run


def save(path, nodes, inputs, outputs, weights=(), opset=17):
    """inputs and outputs: {name: (element type, dims)}; weights: {name: array}."""
    def values(table):
        return [
            helper.make_tensor_value_info(name, kind, dims) for name, (kind, dims) in table.items()
        ]
    stored = [numpy_helper.from_array(array, name) for name, array in dict(weights).items()]
    graph = helper.make_graph(nodes, "test", values(inputs), values(outputs), stored)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=8)
    onnx.save(model, path)
    return path


def random(*dims):
    return np.random.default_rng(0).standard_normal(dims, dtype=np.float32)


@pytest.fixture
def mlp(tmp_path):
    """relu(x · w + b), x [rows, 8] with rows symbolic."""
    nodes = [helper.make_node("MatMul", ["x", "w"], ["xw"], name="first/MatMul"),
             helper.make_node("Add", ["xw", "b"], ["sum"], name="first/Add"),
             helper.make_node("Relu", ["sum"], ["y"], name="first/Relu")]
    return save(tmp_path / "mlp.onnx", nodes, {"x": (TensorProto.FLOAT, ["rows", 8])},
                {"y": (TensorProto.FLOAT, ["rows", 4])}, {"w": random(8, 4), "b": random(4)})


@pytest.fixture
def unsupported(tmp_path):
    """Two nodes that no program holds, with one that all run between them, and one that nothing
    runs: so the host does not run the two either."""
    nodes = [helper.make_node("NonZero", ["x"], ["where"], name="find/NonZero"),
             helper.make_node("Relu", ["x"], ["y"], name="fine/Relu"),
             helper.make_node("Unique", ["x"], ["kinds"], name="count/Unique"),
             helper.make_node("Strange", ["x"], ["odd"], name="odd/Strange", domain="com.example")]
    return save(tmp_path / "unsupported.onnx", nodes, {"x": (TensorProto.FLOAT, [4])},
                {"where": (TensorProto.INT64, [1, None]), "y": (TensorProto.FLOAT, [4]),
                 "kinds": (TensorProto.FLOAT, [None]), "odd": (TensorProto.FLOAT, [4])})


@pytest.fixture
def deep(tmp_path):
    """Many layers of different widths, so that a compile takes a while."""
    nodes, weights, before = [], {}, "x"
    activations = ["Relu", "Tanh", "Sigmoid", "Softplus", "Erf", "Exp", "Sqrt", "Abs"]
    for layer in range(60):
        weights[f"w{layer}"] = random(64 + layer, 65 + layer)
        nodes.append(
            helper.make_node("MatMul", [before, f"w{layer}"], [f"m{layer}"], name=f"m{layer}")
        )
        kind = activations[layer % len(activations)]
        nodes.append(helper.make_node(kind, [f"m{layer}"], [f"a{layer}"], name=f"a{layer}"))
        nodes.append(
            helper.make_node("Softmax", [f"a{layer}"], [f"s{layer}"], name=f"s{layer}", axis=-1)
        )
        before = f"s{layer}"
    nodes.append(helper.make_node("Identity", [before], ["y"], name="last"))
    return save(tmp_path / "deep.onnx", nodes, {"x": (TensorProto.FLOAT, [4, 64])},
                {"y": (TensorProto.FLOAT, [4, 124])}, weights)
