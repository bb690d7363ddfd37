"""The plan for many models on many GPUs, in small."""

import json
import os
import subprocess
import sys

from conftest import PROGRAM, ROOT


def test_plan(tmp_path):
    out = tmp_path / "plan.json"
    command = [sys.executable, str(ROOT / "deploy" / "plan.py"), "--models", "24", "--gpus", "4", "--rate", "40000", "--power", "1.5", "--seconds", "0.1", "-o", str(out)]
    subprocess.run(command, env={**os.environ, "OBELISK": str(PROGRAM)}, check=True, capture_output=True, timeout=120)
    plan = json.loads(out.read_text())
    placed = [{one.split()[0] for one in gpu} for gpu in plan["gpus_of_plan"]]
    assert len(set().union(*placed)) == 24 and len(placed) == 4
    assert all(len(names) == len(gpu) for names, gpu in zip(placed, plan["gpus_of_plan"]))  # no GPU has a model twice
    ours, in_turn = plan["plans"]["placed"], plan["plans"]["in turn"]
    assert ours["asked"] > 500 and 0 < ours["in_time"] <= ours["asked"]
    assert ours["busiest"] - ours["least_busy"] < in_turn["busiest"] - in_turn["least_busy"]
    assert ours["share"] >= in_turn["share"]


def test_no_room(tmp_path):
    done = subprocess.run([sys.executable, str(ROOT / "deploy" / "plan.py"), "--models", "24", "--gpus", "1", "--memory", "100"], env={**os.environ, "OBELISK": str(PROGRAM)}, capture_output=True, text=True, timeout=60)
    assert done.returncode == 1 and "no GPU has room" in done.stderr
