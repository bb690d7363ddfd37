"""scripts/gpu_goodput.py and the program that it runs, on the CPU: that what it counts adds up, never how quick anything
is. Networks lie where the script would have exported them, so no PyTorch is wanted."""
import json
import subprocess
import sys
import xml.dom.minidom

import numpy as np
import pytest
from conftest import ROOT, TensorProto, helper, numpy_helper, onnx

SCRIPT, PICTURE = ROOT / "scripts" / "gpu_goodput.py", ROOT / "scripts" / "goodput_picture.py"
LATE = ROOT / "scripts" / "goodput_late.py"
POLICIES = ["vliw", "batch", "edf", "streams", "fifo", "time"]


def network(path, width, depth):
    random, nodes, weights, before = np.random.default_rng(0), [], [], "x"
    for layer in range(depth):
        weights.append(numpy_helper.from_array(random.standard_normal((width, width), dtype=np.float32) / width, f"w{layer}"))
        nodes += [helper.make_node("MatMul", [before, f"w{layer}"], [f"m{layer}"]), helper.make_node("Relu", [f"m{layer}"], [f"r{layer}"])]
        before = f"r{layer}"
    nodes.append(helper.make_node("Identity", [before], ["y"]))
    ports = [helper.make_tensor_value_info(name, TensorProto.FLOAT, ["batch", 16, width]) for name in ("x", "y")]
    graph = helper.make_graph(nodes, "net", ports[:1], ports[1:], weights)
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8), path)


@pytest.fixture
def work(tmp_path):
    folder = tmp_path / "work"
    folder.mkdir()
    for name, width, depth in (("small", 64, 1), ("middle", 128, 4), ("large", 256, 8)):
        network(folder / f"{name}.onnx", width, depth)
    return folder


def run(work, environment, *words):
    out = work / "rows.json"
    command = [sys.executable, SCRIPT, "--models", "small,middle,large", "--target", "cpu", "--workers", 2, "--precision", "keep",
               "--seconds", 0.2, "--warm", 0.05, "--points", 4, "--factors", 10, "--max-batch", 2, "--work", work, "--out", out, *words]
    done = subprocess.run([str(word) for word in command], capture_output=True, text=True, env=environment, timeout=300)
    return done, json.loads(out.read_text()) if out.exists() else None


def adds_up(counts):
    return counts["sent"] == counts["in_time"] + counts["late"] + counts["refused"] + counts["failed"] and counts["given_up"] <= counts["late"]


def test_counts_add_up_for_every_policy(obelisk, work):
    done, body = run(work, obelisk.environment, "--arrivals", "poisson,burst:1.5", "--budget", 60)
    assert done.returncode == 0 and body["failures"] == [], done.stdout + done.stderr
    assert [model["name"] for model in body["models"]] == ["small", "middle", "large"]
    assert all(model["solo_us"] > 0 for model in body["models"]) and body["serial_rate"] > 0
    assert set(body["machine"]["servers"]) == set(POLICIES)
    assert [(cell["arrivals"], cell["policy"]) for cell in body["cells"]] == [(a, p) for a in ("poisson", "burst:1.5") for p in POLICIES][:len(body["cells"])]
    assert body["end"]["cells_left_out"] == 12 - len(body["cells"]) and len(body["cells"]) >= 6
    assert body["end"]["points"] == len(body["points"]) + len(body["overload"])
    for row in body["points"] + body["overload"]:
        assert adds_up(row) and row["failed"] == 0 and row["counts_agree"], row
        assert row["fraction"] == pytest.approx(row["in_time"] / max(row["sent"], 1), abs=1e-4)
        # The server's clock stops before the client's.
        assert row["in_time"] <= row["in_time_by_record"] <= row["in_time"] + row["verdicts_differ"]
        assert 0 <= row["submitter_late_us"]["p50"] <= row["submitter_late_us"]["p99"] <= row["submitter_late_us"]["max"]
        assert row["valid"] == (row["submitter_late_us"]["share_late"] <= 0.01)
        assert not row["cut"] or row["fraction"] < 0.99 + 1 / max(row["sent"], 1)
    for row in body["overload"]:  # all of one rate, behind the cells that it follows from
        best = max(cell["rate"] for cell in body["cells"] if cell["arrivals"] == row["arrivals"])
        assert row["policy"] in POLICIES and row["rate"] == pytest.approx(1.2 * best, rel=1e-3)
        assert row["of_admitted"] == pytest.approx(row["in_time"] / max(row["sent"] - row["refused"], 1), abs=1e-4)
        assert not row["cut"] and set(row["models"]) == {"small", "middle", "large"}
        assert all(adds_up(counts) for counts in row["models"].values())
        for key in ("sent", "in_time", "late", "refused"):
            assert sum(counts[key] for counts in row["models"].values()) == row[key]


def test_a_bisection_closes_in(obelisk, work):
    """The rate that is told passed, the one above it did not, and each that was tried lies between those known before it."""
    done, body = run(work, obelisk.environment, "--arrivals", "poisson", "--policies", "vliw,fifo", "--points", 8)
    assert done.returncode == 0, done.stdout + done.stderr
    for cell in body["cells"]:
        tried = [row for row in body["points"] if row["policy"] == cell["policy"]]
        assert len(tried) == cell["points"] >= 1
        low, high = 0, float("inf")
        for k, row in enumerate(tried):
            assert low < row["rate"] < high or (k > 0 and row["rate"] == tried[k - 1]["rate"]), (low, row["rate"], high)
            again = k + 1 < len(tried) and tried[k + 1]["rate"] == row["rate"]  # one that was disturbed, or failed, is tried again
            holds = row["valid"] and row["fraction"] >= 0.99
            if again:
                assert not holds
            elif holds:
                low = row["rate"]
            else:
                high = row["rate"]
        assert cell["rate"] == low and (cell["fails_at"] or float("inf")) == high
        assert not cell["complete"] or high <= low * 1.0501
        assert cell["bound_by"] in ("deadlines", "submitter") and (cell["invalid"] > 0 or cell["bound_by"] == "deadlines")


def test_every_policy_has_a_point_in_overload(obelisk, work):
    done, body = run(work, obelisk.environment, "--arrivals", "burst:1.5,azure", "--policies", "vliw,streams", "--share", 0.5, "--factors", 2000, "--overload", 1.5, "--budget", 60)
    assert done.returncode == 0, done.stdout + done.stderr
    reached = {cell["arrivals"]: 0 for cell in body["cells"]}
    for cell in body["cells"]:
        reached[cell["arrivals"]] = max(reached[cell["arrivals"]], cell["rate"])
    if not any(row["valid"] for row in body["points"]):
        pytest.skip("the machine is too busy for this client to submit a request in time")
    assert any(reached.values()), body["cells"]
    wanted = [(arrivals, policy) for arrivals, rate in reached.items() if rate for policy in ("vliw", "streams")]
    assert [(row["arrivals"], row["policy"]) for row in body["overload"]] == wanted
    for row in body["overload"]:
        assert row["rate"] == pytest.approx(1.5 * reached[row["arrivals"]], rel=1e-3)
    done, body = run(work, obelisk.environment, "--arrivals", "poisson", "--policies", "vliw", "--share", 0.5, "--factors", 2000, "--overload", 0)
    assert done.returncode == 0 and body["overload"] == []


def test_what_a_budget_leaves_out_is_counted_and_no_failure(obelisk, work):
    done, body = run(work, obelisk.environment, "--budget", 1)
    assert done.returncode == 0 and body["failures"] == [], done.stdout + done.stderr
    assert len(body["cells"]) < 4 * len(POLICIES)
    assert body["end"]["cells_left_out"] + len(body["cells"]) == 4 * len(POLICIES)


def test_what_cannot_be_served_is_told(obelisk, work):
    (work / "small.onnx").write_bytes(b"no network")
    done, body = run(work, obelisk.environment)
    assert done.returncode == 1 and body["failures"] == ["goodput"] and "small" in done.stdout
    done = subprocess.run([sys.executable, SCRIPT, "--models", "nobody"], capture_output=True, text=True, timeout=60)
    assert done.returncode == 2 and "there is no nobody" in done.stderr


def test_the_picture_has_a_line_for_each_policy(tmp_path):
    """Of a made-up file: points that are not valid are left out."""
    point = {"arrivals": "poisson", "factor": 5, "sent": 1000, "valid": True}
    points = [{**point, "policy": policy, "rate": rate, "fraction": min(1, best / rate)}
              for policy, best in (("vliw", 4000), ("fifo", 900)) for rate in (500, 1000, 2000, 4000, 6000)]
    points.append({**point, "policy": "edf", "rate": 1000, "fraction": 0.5, "valid": False})
    cells = [{"arrivals": "poisson", "factor": 5, "policy": policy, "rate": rate, "complete": True, "bound_by": "deadlines"} for policy, rate in (("vliw", 4000), ("fifo", 900))]
    file, picture = tmp_path / "goodput.json", tmp_path / "goodput.svg"
    file.write_text(json.dumps({"device": "none <made up>", "date": "2026-01-01", "commit": "1234567", "precision": "fp16", "inputs": "host",
                                "models": [{}] * 8, "points": points, "cells": cells}))
    def draw(*words):
        return subprocess.run([sys.executable, str(PICTURE), str(file), *words], capture_output=True, text=True, timeout=60)
    assert draw(str(picture), "--check").returncode == 1
    assert draw(str(picture)).returncode == 0 and draw(str(picture), "--check").returncode == 0
    drawn = xml.dom.minidom.parse(str(picture))
    assert [line.getAttribute("class") for line in drawn.getElementsByTagName("polyline")] == ["vliw", "fifo"]
    assert len(drawn.getElementsByTagName("circle")) == 10
    assert "| poisson | 5 times | 4,000 | 900 |" in draw("--table").stdout
    gone = draw(str(picture), "--arrivals", "azure")
    assert gone.returncode == 1 and "no points of azure" in gone.stderr


def test_what_became_of_requests_is_a_table(obelisk, work, tmp_path):
    """Points of rates that are asked for, policies with knobs, and where late requests lost their time."""
    log = tmp_path / "requests.csv"
    policies = ["vliw:overlap=2:batch=1", "vliw:eager=1", "fifo"]
    done, body = run(work, obelisk.environment, "--arrivals", "poisson", "--policies", ",".join(policies), "--rates", "200,400", "--requests", log)
    assert done.returncode == 0 and body["failures"] == [], done.stdout + done.stderr
    assert [(row["policy"], row["rate"]) for row in body["points"]] == [(p, r) for p in policies for r in (200, 400)] and body["cells"] == []
    told = subprocess.run([sys.executable, LATE, log, "--warm", "0.05"], capture_output=True, text=True, timeout=60)
    assert told.returncode == 0, told.stderr
    for row in body["points"]:
        assert f"factor 10, {row['policy']}, {row['rate']:.0f}/s" in told.stdout
    only = subprocess.run([sys.executable, LATE, log, "--policy", "fifo", "--last"], capture_output=True, text=True, timeout=60)
    assert only.returncode == 0 and "vliw" not in only.stdout and "400/s" in only.stdout and "200/s" not in only.stdout
    done, body = run(work, obelisk.environment, "--arrivals", "poisson", "--policies", "vliw:wide=1")
    assert done.returncode == 1 and "no knob 'wide'" in done.stdout


def test_each_late_request_has_one_cause(tmp_path):
    """Of made-up requests, one for each cause: of 100 us, predicted to take 40, of which the quickest takes 20."""
    rows = ["arrivals,factor,policy,rate,model,at,budget,submitted,started,answered,took,slack,outcome,rows,partners,variant,reason"]
    def ask(at, late=0, started=1, ran=40, delivery=2, predicted=40, outcome=0, took=None):
        slack = 100 - late - started - predicted
        took = late + started + ran + delivery if took is None else took
        rows.append(f'poisson,5,vliw,1000,m,{at},100,{at + late},{started},{started + ran},{took},{slack},{outcome},1,0,"batch 1, 66 of 132 SMs","its turn"')
    ask(1000), ask(1100, predicted=20, ran=20)  # in time
    ask(1150, outcome=4, started=-1), ask(1160, outcome=5, started=-1)  # refused, given up
    ask(1200, late=70), ask(1300, started=90), ask(1450, ran=150), ask(9000, ran=150), ask(9160, predicted=150, ran=150), ask(9320, delivery=90)
    log = tmp_path / "requests.csv"
    log.write_text("\n".join(rows) + "\n")
    told = subprocess.run([sys.executable, LATE, log, "--warm", "0"], capture_output=True, text=True, timeout=60)
    assert told.returncode == 0, told.stderr
    line = next(line for line in told.stdout.splitlines() if line.startswith("all"))
    assert line.split()[1:3] == ["10", "80.00%"] and line.split("|")[0].split()[3:] == ["1"] * 8, told.stdout
