"""The wide zoo's bookkeeping: whose turn it is, the table, the verdict. No network is exported."""

import pytest
import zoo_wide
from zoo_wide_networks import NETWORKS

VERSIONS = {"torch": "1", "onnxruntime": "2", "torchvision": "3", "timm": "4", "transformers": "5"}


def result(verdict, library="timm", **more):
    return {"library": library, "exporter": "dynamo", "verdict": verdict, **more}


def test_every_network_has_its_turn_before_any_has_a_second():
    names = [f"n{k}" for k in range(36)]
    turns = [zoo_wide.dozen(names, turn) for turn in range(100, 103)]
    assert all(len(turn) == 12 for turn in turns)
    assert sorted(sum(turns, [])) == sorted(names)
    assert zoo_wide.dozen(names, 103) == turns[0]


def test_a_dozen_goes_on_where_the_list_ends():
    names = [f"n{k}" for k in range(20)]
    first, second = zoo_wide.dozen(names, 0), zoo_wide.dozen(names, 1)
    assert len(set(first)) == len(set(second)) == 12
    assert set(first) | set(second) == set(names)
    assert sorted(zoo_wide.dozen(names[:5], 7)) == names[:5]


def test_the_table_counts_and_tells_every_network():
    text = zoo_wide.table({
        "timm.a": result("agrees", parameters=1_500_000, fp32={"error": 2e-6},
                         fp16={"error": 1e-3}),
        "timm.b": result("refused", reason="op 'X' | not there"),
        "torchvision.c": result("not exportable", "torchvision", reason="its own"),
    }, VERSIONS)
    assert "| timm 4 | 2 | 1 | 1 | 0 |" in text
    assert "| all | 3 | 1 | 1 | 1 |" in text
    assert "| a | dynamo | 1.50 M | agrees | 2.0e-06 | 1.0e-03 |  |" in text
    assert "| b | dynamo |  | refused |  |  | op 'X' \\| not there |" in text
    assert "wrong" not in text


def test_a_wrong_answer_has_a_column():
    text = zoo_wide.table({"timm.a": result("wrong", reason="crash")}, VERSIONS)
    assert "| all | 1 | 0 | 0 | 0 | 1 | 0 |" in text


LISTED = next(name for name, wide in NETWORKS.items() if wide.refused)
OTHER = next(name for name, wide in NETWORKS.items() if not wide.refused)


@pytest.mark.parametrize("name, verdict, reason, good", [
    (OTHER, "agrees", "", True),
    (OTHER, "not exportable", "its own", True),
    (OTHER, "wrong", "", False),
    (OTHER, "says little", "", False),
    (OTHER, "refused", NETWORKS[LISTED].refused, False),
    (LISTED, "refused", f"node X: {NETWORKS[LISTED].refused}", True),
    (LISTED, "refused", "another reason", False),
    (LISTED, "agrees", "", False),
])
def test_what_is_wrong_or_refused_without_being_listed_fails(tmp_path, name, verdict, reason, good):
    results = {name: result(verdict, reason=reason)}
    assert zoo_wide.judge(results)[1] is good
    zoo_wide.junit(results, tmp_path / "junit.xml")
    assert (f'failures="{0 if good else 1}"' in (tmp_path / "junit.xml").read_text())


def test_few_are_listed_as_refused():
    assert sum(bool(wide.refused) for wide in NETWORKS.values()) <= 0.05 * len(NETWORKS)


def test_the_libraries_are_as_wide_as_promised():
    libraries = [wide.library for wide in NETWORKS.values()]
    assert len({wide.family for wide in NETWORKS.values() if wide.family}) >= 80
    assert libraries.count("transformers") >= 40
    assert {wide.exporter for wide in NETWORKS.values()} == {"dynamo", "torchscript"}
