"""Shapes that no machine holds: refused at once, in a few words, with little memory; and shapes
that only this machine does not hold. No verb may begin to fill memory before it knows."""

import json
import resource
import subprocess
import sys

import numpy as np
import pytest
from conftest import save
from onnx import TensorProto, helper

FLOAT, INT64 = TensorProto.FLOAT, TensorProto.INT64
BIG = [10**6, 10**6]
REFUSALS = (2, 3, 6)
VERBS = [["check"], ["compile", "-o", "m.obk"], ["run", "--seed", "1", "--target", "cpu"],
         ["run", "--seed", "1", "--target", "reference"]]


def node(op, inputs, output="y", **attributes):
    return helper.make_node(op, inputs, [output], name=f"the {op}", **attributes)


def model(folder, nodes, inputs, weights=None):
    inputs = {name: (FLOAT, dims) for name, dims in inputs.items()}
    return save(folder / "m.onnx", nodes, inputs, {"y": (FLOAT, None)}, weights or {})


def trip_count(folder):
    names = {"i": (INT64, []), "c": (TensorProto.BOOL, []), "v": (FLOAT, [4])}
    ports = {name: helper.make_tensor_value_info(name, *port) for name, port in names.items()}
    body = helper.make_graph(
        [helper.make_node("Identity", ["c"], ["again"]), helper.make_node("Relu", ["v"], ["w"])],
        "body",
        list(ports.values()),
        [
            helper.make_tensor_value_info("again", TensorProto.BOOL, []),
            helper.make_tensor_value_info("w", FLOAT, [4]),
        ],
    )
    return model(
        folder,
        [helper.make_node("Loop", ["m", "go", "x"], ["y"], name="the Loop", body=body)],
        {"x": [4]},
        {"m": np.array(10**12), "go": np.array(True)},
    )


CASES = {
    "input": lambda f: model(f, [node("Relu", ["x"])], {"x": BIG}),
    "input beyond 64 bits": lambda f: model(f, [node("Relu", ["x"])], {"x": [2**40, 2**40]}),
    "broadcast": lambda f: model(f, [node("Add", ["x", "z"])], {"x": [10**6, 1], "z": [1, 10**6]}),
    "broadcast between nodes": lambda f: model(
        f,
        [node("Add", ["x", "z"], "a"), node("Exp", ["a"], "b"), node("ReduceSum", ["b"])],
        {"x": [10**6, 1], "z": [1, 10**6]},
    ),
    "ConstantOfShape": lambda f: model(
        f,
        [node("ConstantOfShape", ["s"], "c"), node("Add", ["x", "c"])],
        {"x": [1]},
        {"s": np.array(BIG)},
    ),
    "Range": lambda f: model(
        f,
        [node("Range", ["a", "b", "c"], "r"), node("Add", ["x", "r"])],
        {"x": [1]},
        {"a": np.array(0), "b": np.array(10**12), "c": np.array(1)},
    ),
    "Expand": lambda f: model(
        f,
        [node("Expand", ["x", "s"], "e"), node("ReduceSum", ["e"])],
        {"x": [1]},
        {"s": np.array(BIG)},
    ),
    "Pad": lambda f: model(f, [node("Pad", ["x", "p"])], {"x": [4]}, {"p": np.array([0, 10**12])}),
    "Tile": lambda f: model(f, [node("Tile", ["x", "p"])], {"x": [4]}, {"p": np.array([10**12])}),
    "OneHot": lambda f: save(
        f / "m.onnx",
        [node("OneHot", ["x", "d", "v"])],
        {"x": (INT64, [4])},
        {"y": (FLOAT, None)},
        {"d": np.array(10**12), "v": np.array([0, 1], np.float32)},
    ),
    "Resize": lambda f: model(
        f, [node("Resize", ["x", "", "", "p"])], {"x": [1, 1, 4, 4]}, {"p": np.array([1, 1, *BIG])}
    ),
    "Conv": lambda f: model(
        f,
        [node("Conv", ["x", "w"], pads=[10**6] * 4)],
        {"x": [1, 1, 4, 4]},
        {"w": np.ones((1, 1, 3, 3), np.float32)},
    ),
    "HannWindow": lambda f: model(
        f,
        [node("HannWindow", ["n"], "h"), node("Add", ["x", "h"])],
        {"x": [1]},
        {"n": np.array(10**12)},
    ),
    "trip count": trip_count,
}


# A small process of its own starts the program: a child's peak begins with the memory of what
# forked it.
LAUNCHER = """
import json, resource, subprocess, sys, time
start = time.monotonic()
done = subprocess.run(sys.argv[1:], stdin=subprocess.DEVNULL, capture_output=True, text=True,
                      timeout=120)
peak = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss * 1024
print(json.dumps([done.returncode, done.stderr, time.monotonic() - start, peak]))
"""


def run_measured(program, environment, folder, words):
    """(exit, standard error, seconds, peak bytes of this one program)."""
    done = subprocess.run(
        [sys.executable, "-c", LAUNCHER, str(program), *map(str, words)],
        cwd=folder,
        env=environment,
        capture_output=True,
        text=True,
        timeout=150,
        check=True,
    )
    return json.loads(done.stdout)


@pytest.mark.parametrize("name", CASES)
def test_a_trillion_elements(program, environment, tmp_path, name):
    file = CASES[name](tmp_path)
    for verb, *flags in VERBS:
        code, text, seconds, peak = run_measured(
            program, environment, tmp_path, [verb, file, *flags]
        )
        assert code in REFUSALS, f"{verb}: exit {code}\n{text}"
        assert any(word in text for word in ("elements", "too large", "more than")), text
        assert seconds < 20 and peak < 300 << 20, f"{verb}: {seconds} s, {peak >> 20} MiB"
    assert not (tmp_path / "m.obk").exists()


@pytest.mark.parametrize("shape", ["n=1000000000000", "n=9223372036854775807", "x=1000000000000"])
def test_a_trillion_by_a_flag(obelisk, tmp_path, shape):
    model(tmp_path, [node("Relu", ["x"])], {"x": ["n"]})
    result = obelisk("run", "m.onnx", "--seed", "1", "--shape", shape)
    assert result.code in (1, *REFUSALS) and result.err, result


@pytest.mark.parametrize(
    "verb",
    [
        ["compile", "-o", "m.obk"],
        ["run", "--seed", "1", "--target", "cpu"],
        ["run", "--seed", "1", "--target", "reference"],
    ],
)
def test_more_than_this_machine_holds(program, environment, tmp_path, verb):
    """A limit of 6 GB of addresses stands for a small machine; the tensors have 128 GB."""
    model(
        tmp_path,
        [
            node("Add", ["x", "z"], "a"),
            node("Softmax", ["a"], "b", axis=0),
            node("ReduceSum", ["b"]),
        ],
        {"x": [2**17, 1], "z": [1, 2**18]},
    )
    words = [str(program), verb[0], "m.onnx", *verb[1:]]
    process = subprocess.run(
        words,
        cwd=tmp_path,
        env=environment,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=120,
        preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_AS, (6 << 30,) * 2),
    )
    assert process.returncode == 6 and "error[O6] memory" in process.stderr, process
    assert not (tmp_path / "m.obk").exists()
