"""Load generators that nobody here wrote: k6, perf_analyzer, MLPerf LoadGen. What they say of answers counts, not how quick they were."""

import json
import re

import numpy as np
import pytest
from conftest import mlp
from stock import HERE, JUDGES, call, protocol_descriptors, tool


def test_k6(server, tmp_path):
    """400 requests a second of four kinds; each check of each answer holds."""
    protocol_descriptors(tmp_path / "service.protoset")
    x = np.array([[1, -2, 3, -4, 5, -6, 7, -8]], np.float32)
    out = tmp_path / "summary.json"
    call(JUDGES / "py" / "bin" / "k6", "run", "--quiet", "--no-usage-report", "--summary-export", out, "-e", f"HTTP={server.http}", "-e", f"GRPC={server.grpc}", "-e", f"PROTOSET={tmp_path / 'service.protoset'}",
         "-e", f"WANTED={json.dumps(mlp(x)[0].tolist())}", HERE / "k6.js")
    checks = json.loads(out.read_text())["metrics"]["checks"]
    assert checks["fails"] == 0 and checks["passes"] > 500
    for tenant in ("json", "binary", "rpc"):
        assert server.metric(f'obelisk_tenant_requests{{tenant="{tenant}",model="mlp",outcome="ok"}}') > 50


@pytest.mark.parametrize("flags", [["-i", "http"], ["-i", "grpc"], ["-i", "grpc", "--streaming"], ["-i", "http", "--request-rate-range", "200", "--request-distribution", "poisson"],
                                   ["-i", "http", "--shared-memory", "system"], ["-i", "grpc", "--async", "--concurrency-range", "4"],
                                   ["-i", "grpc", "--request-parameter", "timeout:20000000:int"], ["-i", "http", "-H", "x-envoy-expected-rq-timeout-ms:20000"],
                                   ["-i", "grpc", "--shared-memory", "system"]], ids=" ".join)
def test_perf_analyzer(server, flags):
    """Unchanged and asking for what it wants: metadata, configuration, statistics, requests."""
    address = server.http if flags[1] == "http" else server.grpc
    out = call(tool("perf_analyzer"), "-m", "mlp", "-u", address, "--shape", "x:8", "-b", "2", "--measurement-mode", "count_windows", "--measurement-request-count", "100", "-s", "999", "-r", "4", *flags)
    count = re.search(r"Request count: (\d+)", out)
    assert count and int(count[1]) >= 100, out
    assert "Server" in out and not re.search(r"error|failed", out, re.I), out


def loadgen(server, folder, *words):
    folder.mkdir()
    call(JUDGES / "py" / "bin" / "python", HERE / "loadgen.py", server.http, folder, *words)
    return (folder / "mlperf_log_summary.txt").read_text()


def test_loadgen(server, tmp_path):
    """The Server scenario, requests at random times: MLPerf's own verdict, under a bound that a busy machine keeps."""
    summary = loadgen(server, tmp_path / "log", "--rate", 200, "--count", 1000, "--bound-ms", 500)
    assert re.search(r"Result is : VALID", summary), summary
    assert re.search(r"Min queries satisfied : Yes", summary), summary


def test_loadgen_of_two_tenants_at_once(server, tmp_path):
    """Each is VALID alone, and so are both at once: together at twice the rate."""
    from concurrent.futures import ThreadPoolExecutor

    def verdict(name, tenant):
        summary = loadgen(server, tmp_path / name, "--rate", 100, "--count", 500, "--bound-ms", 500, "--tenant", tenant)
        assert "Result is : VALID" in summary, summary
    for one in "ab":
        verdict(one, one)
    with ThreadPoolExecutor(2) as pool:
        for done in [pool.submit(verdict, f"both-{one}", one) for one in "ab"]:
            done.result()
    for one in "ab":
        assert server.metric(f'obelisk_tenant_requests{{tenant="{one}",model="mlp",outcome="ok"}}') >= 1000


def test_loadgen_can_say_no(server, tmp_path):
    """With a bound that no server keeps its verdict is another."""
    summary = loadgen(server, tmp_path / "log", "--rate", 50, "--count", 100, "--bound-ms", 0.001)
    assert re.search(r"Result is : INVALID", summary), summary
