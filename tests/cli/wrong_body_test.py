"""Verification finds wrong machine code. The fault is planted where it may really arise: in the
host compiler, which here is a script that changes one function of the body's text before it hands
it on. Nothing in the product knows of it."""

import re
import stat
import sys

import numpy as np
import pytest
from conftest import random, save
from onnx import TensorProto, helper

ACCURACY = 5

WRAPPER = """#!{python}
import os, sys
arguments = sys.argv[1:]
for place, word in enumerate(arguments):
    if word.endswith(".cpp"):
        text = open(word).read()
        wrong = text.replace({right!r}, {wrong!r})
        if wrong != text:
            open({log!r}, "a").write(word + "\\n")
            arguments[place] = word[:-4] + "-wrong.cpp"
            open(arguments[place], "w").write(wrong)
os.execvp("g++", ["g++", *arguments])
"""


@pytest.fixture
def miscompile(tmp_path):
    """miscompile(right, wrong): a compiler that reads `wrong` where a body says `right`."""
    def make(right, wrong):
        path = tmp_path / "compiler"
        path.write_text(
            WRAPPER.format(
                python=sys.executable, right=right, wrong=wrong, log=str(tmp_path / "planted")
            )
        )
        path.chmod(path.stat().st_mode | stat.S_IXUSR)
        return ["--compiler", path, "--cache", tmp_path / "wrong-cache"]
    return make


@pytest.fixture
def chain(tmp_path):
    """Three layers of different functions; only the middle one says tanh."""
    nodes = [helper.make_node("MatMul", ["x", "w0"], ["a0"], name="first/MatMul"),
             helper.make_node("Exp", ["a0"], ["b0"], name="first/Exp"),
             helper.make_node("MatMul", ["b0", "w1"], ["a1"], name="second/MatMul"),
             helper.make_node("Tanh", ["a1"], ["b1"], name="second/Tanh"),
             helper.make_node("MatMul", ["b1", "w2"], ["a2"], name="third/MatMul"),
             helper.make_node("Softplus", ["a2"], ["y"], name="third/Softplus")]
    weights = {f"w{layer}": random(8, 8) * 0.2 for layer in range(3)}
    return save(
        tmp_path / "chain.onnx",
        nodes,
        {"x": (TensorProto.FLOAT, [5, 8])},
        {"y": (TensorProto.FLOAT, [5, 8])},
        weights,
    )


def tanh_call(obelisk, chain):
    """How a body says tanh, from the text that codegen prints."""
    text = obelisk("compile", chain, "--to=codegen", code=0).out
    (call,) = set(re.findall(r"[\w:]*tanh\w*\(", text))
    return call


def test_a_wrong_body_fails_the_compile(obelisk, chain, miscompile, tmp_path):
    call = tanh_call(obelisk, chain)
    flags = miscompile(call, "0.75f * " + call)
    result = obelisk("compile", chain, "-o", "chain.obk", *flags, code=ACCURACY)
    assert (tmp_path / "planted").exists(), "the fault was not planted"
    assert "third/Softplus" in result.err, "the node that made the output"
    assert re.search(r"\[\d+,\d+\]", result.err) and "got" in result.err and "wanted" in result.err
    assert not (tmp_path / "chain.obk").exists()


def test_verify_names_value_and_node(obelisk, chain, miscompile):
    call = tanh_call(obelisk, chain)
    report = obelisk(
        "verify", chain, *miscompile(call, "0.75f * " + call), "--json", code=ACCURACY
    ).json
    first = report["first"]
    assert report["ok"] is False and first["node"] == "third/Softplus" and first["value"] == "y"
    assert len(first["coordinate"]) == 2 and abs(first["got"] - first["wanted"]) > first["allowed"]


@pytest.mark.parametrize("verb", [["run", "--seed", "1"], ["bench", "--seconds", "0.05"]])
def test_run_and_bench_do_not_answer_wrongly(obelisk, chain, miscompile, tmp_path, verb):
    call = tanh_call(obelisk, chain)
    flags = miscompile(call, "0.75f * " + call)
    result = obelisk(verb[0], chain, *verb[1:], *flags, code=ACCURACY)
    assert "answers differ from the reference: 'y' [" in result.err, result
    assert "got" in result.err and "wanted" in result.err and "allowed" in result.err
    assert not list((tmp_path / "wrong-cache").glob("*.verified")), "a failure is not kept"
    again = obelisk(verb[0], chain, *verb[1:], *flags, "--verify", "off", code=0)
    assert "not verified: --verify off" in again.out


def test_bisect_finds_the_node(obelisk, chain, miscompile):
    call = tanh_call(obelisk, chain)
    report = obelisk(
        "verify", chain, *miscompile(call, "0.75f * " + call), "--bisect", "--json", code=ACCURACY
    ).json
    assert report["ok"] is False
    assert report["first"]["node"] == "second/Tanh" and report["first"]["op"] == "Tanh"
    ratio = np.float64(report["first"]["got"]) / report["first"]["wanted"]
    assert ratio == pytest.approx(0.75, rel=1e-3)


def test_bisect_of_sound_code_finds_nothing(obelisk, chain):
    assert obelisk("verify", chain, "--bisect", "--json", code=0).json["ok"] is True


def test_verify_off_does_not_look(obelisk, chain, miscompile, tmp_path):
    call = tanh_call(obelisk, chain)
    obelisk(
        "compile",
        chain,
        "-o",
        "chain.obk",
        "--verify",
        "off",
        *miscompile(call, "0.75f * " + call),
        code=0,
    )
    (tmp_path / "chain.onnx").unlink()
    obelisk("verify", "chain.obk", code=ACCURACY)  # the file carries the wrong machine code
    result = obelisk("verify", "chain.obk", "--bisect", code=ACCURACY)
    assert "machine code" in result.err, "compiled again from the graph inside it is right"
    assert "not verified" in obelisk("run", "chain.obk", "--seed", 1, code=0).out
    obelisk("run", "chain.obk", "--portable", "--seed", 1, code=0)
