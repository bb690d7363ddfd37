"""KServe's SDK: its clients ask, its classes read our runtime, and the container lives as its cluster makes it live."""

import json
import signal
import subprocess
import time

import numpy as np
import pytest
from conftest import PROGRAM, mlp, save_mlp, wait_until
from stock import HERE, ROOT, call, tool

pytestmark = pytest.mark.slow
X = np.array([[1, -2, 3, -4, 5, -6, 7, -8]], np.float32)


def test_clients(server):
    out = call(tool("kserve/bin/python"), HERE / "ask_by_kserve.py", server.http, server.grpc, "mlp")
    answers = [json.loads(line) for line in out.splitlines() if line.startswith("{")]
    assert [one["way"] for one in answers] == ["http, binary False", "http, binary True", "grpc, raw False", "grpc, raw True"]
    for one in answers:
        assert (one["id"], one["model"]) == ("one", "mlp")
        np.testing.assert_allclose(one["y"], mlp(X)[0], rtol=1e-4, atol=1e-5)


def test_runtime(tmp_path, environment):
    """The container's command runs here; its probes answer; SIGTERM turns readiness off, then ends it with 0."""
    out = call(tool("kserve/bin/python"), HERE / "check_runtime.py", ROOT / "deploy" / "kserve" / "runtime.yaml")
    container = json.loads([line for line in out.splitlines() if line.startswith("{")][-1])
    assert container["command"] == ["obelisk", "serve"] and container["args"][0] == "/mnt/models"
    save_mlp(tmp_path / "models" / "mlp")
    # Where it listens is a port's matter, and a cluster's cache folder would be shared here.
    instead = {"--host": "127.0.0.1", "--http": "0", "--grpc": "0", "--metrics": "0", "--cache": str(tmp_path / "cache")}
    flags = [f"{flag}={instead.get(flag, value)}" if value else flag for flag, _, value in (one.partition("=") for one in container["args"][1:])]
    log = tmp_path / "log"
    process = subprocess.Popen([str(PROGRAM), "serve", str(tmp_path / "models"), *flags, "--log-file", str(log)], env=environment, stdin=subprocess.DEVNULL)
    try:
        wait_until(lambda: log.exists() and '"listening"' in log.read_text())
        port = next(line for line in map(json.loads, log.read_text().splitlines()) if line.get("state") == "listening")["http"]

        def probe(kind):
            import http.client
            connection = http.client.HTTPConnection("127.0.0.1", port, timeout=10)
            connection.request("GET", container[kind]["httpGet"]["path"])
            return connection.getresponse().status
        wait_until(lambda: probe("readinessProbe") == 200)
        assert probe("livenessProbe") == 200
        process.send_signal(signal.SIGTERM)
        wait_until(lambda: probe("readinessProbe") == 503)
        assert probe("livenessProbe") == 200
        started = time.monotonic()
        assert process.wait(timeout=60) == 0
        assert time.monotonic() - started > 2  # the grace of its flags
    finally:
        process.kill()
        process.wait()
