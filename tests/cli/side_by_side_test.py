"""Copies of a program side by side (bench/tenants/side_by_side.cpp), over a stub of the driver that
computes nothing. No GPU is wanted, the device compiler is."""
import json
import subprocess

import device_networks
import pytest
from conftest import found


@pytest.mark.parametrize("words, counts", [((), [1, 2, 4]), (("--one-copy", "--most", "1"), [1])])
def test_a_row_for_each_kernel_and_a_time_for_each_number(obelisk, program, tmp_path, words, counts):
    if not found(obelisk, "nvrtc")["ok"]:
        pytest.skip("no device compiler")
    model = device_networks.write("minilm", tmp_path / "network.onnx")
    made = obelisk("compile", model, "-o", "m.obk", "--target", "sm_90a", "--granularity", "stitch", "--sms", "16",
                   "--precision", "fp16", "--verify", "off", "--json", code=0).json
    stub = {"LD_LIBRARY_PATH": str(program.parent.parent / "stub")}
    done = subprocess.run(
        [program.with_name("side_by_side"), "m.obk", "--most", "4", *words, "--runs", "2", "--turns", "3", "--kernels"],
        capture_output=True, text=True, timeout=100, env={**obelisk.environment, **stub}, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    said = json.loads(done.stdout)
    assert [int(count) for count in said["round_us"]] == counts and min(said["round_us"].values()) > 0
    assert said["same_bits"] and said["one_copy"] == ("--one-copy" in words)
    assert [row["kernel"] for row in said["kernels"]] == list(range(made["launches"]))
    assert all({"us", "task_us", "gap_us", "us_beside", "task_us_beside", "gap_us_beside"} <= set(row) for row in said["kernels"])
