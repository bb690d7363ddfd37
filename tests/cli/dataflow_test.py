"""Which networks of few rows become one kernel without barriers on a GPU, as `compile --explain schedule` says for one that is not there."""
import numpy as np
import pytest
from conftest import save
from onnx import TensorProto, helper

HALF = TensorProto.FLOAT16
MONO = ("--granularity", "mono")


@pytest.fixture
def scheduled(obelisk, tmp_path):
    """What is said of two feed-forward layers of `width` columns, `inner` between their products, each behind a norm. By themselves the
    second products are split over k: what adds the parts up is there, a sum with the layer's input."""

    def of(rows, width, inner, *words):
        random, nodes = np.random.default_rng(0), []
        weights = {"scale": np.ones(width, np.float16)}
        for k in range(2):
            for name, shape in ((f"up{k}", (width, inner)), (f"down{k}", (inner, width))):
                weights[name] = (random.standard_normal(shape) / shape[0] ** 0.5).astype(np.float16)
            nodes += [helper.make_node("LayerNormalization", [f"x{k}", "scale"], [f"n{k}"]), helper.make_node("MatMul", [f"n{k}", f"up{k}"], [f"u{k}"]),
                      helper.make_node("Relu", [f"u{k}"], [f"r{k}"]), helper.make_node("MatMul", [f"r{k}", f"down{k}"], [f"d{k}"]),
                      helper.make_node("Add", [f"x{k}", f"d{k}"], [f"x{k + 1}"])]
        save(tmp_path / "layers.onnx", nodes, {"x0": (HALF, [rows, width])}, {"x2": (HALF, [rows, width])}, weights)
        said = obelisk("compile", "layers.onnx", "--target", "sm_90a", "--precision", "keep", "--verify", "off", "--to", "schedule",
                       "--explain", "schedule", *(words or MONO), code=0)
        return said.out + said.err

    return of


def without_barriers(said):
    return "dataflow: no barriers" in said


def test_products_are_whole_where_this_leaves_no_barriers(scheduled):
    assert without_barriers(scheduled(1, 768, 3072)) and without_barriers(scheduled(2, 768, 3072))
    assert "4 x 768" in scheduled(1, 768, 3072, *MONO, "--disable", "dataflow")  # four parts of k


def test_products_that_gain_more_than_barriers_cost_stay_split(scheduled):
    said = scheduled(1, 128, 8192)
    assert not without_barriers(said) and said == scheduled(1, 128, 8192, *MONO, "--disable", "dataflow")
    assert without_barriers(scheduled(1, 128, 8192, *MONO, "--disable", "split_products"))


def test_products_stay_split_where_there_are_barriers_anyway(scheduled):
    for rows, words in ((1, [*MONO, "--batch-invariant"]), (1, ["--granularity", "stitch"]), (8, MONO)):
        assert not without_barriers(scheduled(rows, 768, 3072, *words))
