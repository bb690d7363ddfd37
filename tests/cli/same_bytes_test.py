"""The same model and flags give the same compiled file: whatever folder it lies in, whatever the
cache holds, with one core or all of them, and however the compiler's children race."""

import os
import shutil
import subprocess

import pytest
from conftest import random, save
from onnx import TensorProto, helper

FLAGS = ["--target", "cpu", "--sms", "7", "--verify", "off"]


def compile_file(program, environment, model, output, *flags, one_core=False, **variables):
    def pin():
        os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})
    subprocess.run(
        [str(program), "compile", str(model), "-o", str(output), *FLAGS, *flags],
        check=True,
        env={**environment, **variables},
        cwd=output.parent,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        timeout=120,
        preexec_fn=pin if one_core else None,
    )
    return output.read_bytes()


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("same bytes")


@pytest.fixture(scope="module")
def model(folder):
    """Layers of different functions and widths: several bodies, packed weights, more than one
    wave."""
    nodes, weights, before = [], {}, "x"
    for layer, kind in enumerate(["Relu", "Tanh", "Sigmoid", "Softplus", "Erf", "Exp"]):
        weights[f"w{layer}"] = random(64 + layer, 65 + layer)
        nodes += [
            helper.make_node("MatMul", [before, f"w{layer}"], [f"m{layer}"], name=f"m{layer}"),
            helper.make_node(kind, [f"m{layer}"], [f"a{layer}"], name=f"a{layer}"),
            helper.make_node("Softmax", [f"a{layer}"], [f"s{layer}"], name=f"s{layer}", axis=-1),
        ]
        before = f"s{layer}"
    return save(folder / "m.onnx", nodes, {"x": (TensorProto.FLOAT, [40, 64])},
                {before: (TensorProto.FLOAT, [40, 70])}, weights)


@pytest.fixture(scope="module")
def first(program, environment, model, folder):
    return compile_file(
        program, environment, model, folder / "first.obk", "--cache", folder / "cache"
    )


def test_again_and_from_the_cache(program, environment, first, model, folder, tmp_path):
    for name in ("second.obk", "third.obk"):
        again = compile_file(
            program, environment, model, tmp_path / name, "--cache", folder / "cache"
        )
        assert again == first


def test_in_another_folder_under_another_name(program, environment, first, model, folder, tmp_path):
    elsewhere = tmp_path / "else where" / "deeper"
    (elsewhere / "tmp").mkdir(parents=True)
    shutil.copy(model, elsewhere / "other name.onnx")
    again = compile_file(
        program,
        environment,
        elsewhere / "other name.onnx",
        elsewhere / "m.obk",
        "--cache",
        elsewhere / "cache",
        TMPDIR=str(elsewhere / "tmp"),
        HOME=str(elsewhere),
    )
    assert again == first


def test_without_a_cache_on_one_core(program, environment, first, model, folder, tmp_path):
    again = compile_file(
        program, environment, model, tmp_path / "one.obk", "--cache", "off", one_core=True
    )
    assert again == first


@pytest.mark.parametrize("threads", [1, 2, 3])
def test_with_other_threads(program, environment, first, model, folder, tmp_path, threads):
    again = compile_file(
        program,
        environment,
        model,
        tmp_path / "one.obk",
        "--cache",
        folder / "cache",
        "--threads",
        str(threads),
    )
    assert again == first
