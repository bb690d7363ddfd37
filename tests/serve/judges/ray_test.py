"""Ray places servers: as many as are told, again when one ends, more under load; requests never go through it."""

import http.client
import json
import os
import signal
import subprocess
import threading

import pytest
from conftest import PROGRAM, random, save_mlp, wait_until
from stock import ROOT, environment_without_proxies, tool

pytestmark = pytest.mark.slow
BODY = json.dumps({"inputs": [{"name": "x", "shape": [1, 8], "datatype": "FP32", "data": random(1, 8).tolist()}]})


def ask(one):
    connection = http.client.HTTPConnection(one["host"], one["http"], timeout=30)
    connection.request("POST", "/v2/models/mlp/infer", BODY)
    answer = connection.getresponse()
    answer.read()
    return answer.status


def test_fleet(tmp_path, environment):
    save_mlp(tmp_path / "models" / "mlp")
    said = open(tmp_path / "said", "w+")
    process = subprocess.Popen([tool("ray/bin/python"), str(ROOT / "deploy" / "ray" / "fleet.py"), str(tmp_path / "models"), "--replicas", "1:2", "--cpus", "0.1", "--busy", "0.001:0.01", "--seconds", "1", "--obelisk", str(PROGRAM),
                                "--endpoints", str(tmp_path / "endpoints.json"), "--", "--no-verify", "--drain", "5"],
                               env={**environment_without_proxies(), **environment, "RAY_USAGE_STATS_ENABLED": "0"}, stdin=subprocess.DEVNULL, stdout=said, stderr=subprocess.STDOUT)

    def replicas():
        assert process.poll() is None, (tmp_path / "said").read_text()[-3000:]
        lines = [json.loads(line) for line in (tmp_path / "said").read_text().splitlines() if line.startswith('{"replicas"')]
        return lines[-1]["replicas"] if lines else []
    stop, wrong = threading.Event(), []
    try:
        wait_until(lambda: len(replicas()) == 1, 120)
        first = replicas()[0]
        assert ask(first) == 200
        # One that ends is started again, elsewhere.
        os.kill(first["pid"], signal.SIGKILL)
        wait_until(lambda: replicas() and replicas()[0]["pid"] != first["pid"])
        second = replicas()[0]
        assert ask(second) == 200

        def load():
            while not stop.is_set():
                if ask(second) != 200:
                    wrong.append(second)
        threads = [threading.Thread(target=load) for _ in range(2)]
        for one in threads:
            one.start()
        wait_until(lambda: len(replicas()) == 2, 90)
        assert all(ask(one) == 200 for one in replicas())
        text = json.loads((tmp_path / "endpoints.json").read_text())["resources"][0]
        assert {one["endpoint"]["address"]["socket_address"]["port_value"] for one in text["endpoints"][0]["lb_endpoints"]} == {one["http"] for one in replicas()}
        stop.set()
        for one in threads:
            one.join()
        assert not wrong
        wait_until(lambda: len(replicas()) == 1, 90)
        assert ask(replicas()[0]) == 200
        process.send_signal(signal.SIGTERM)
        assert process.wait(timeout=90) == 0, (tmp_path / "said").read_text()[-3000:]
    finally:
        stop.set()
        if process.poll() is None:
            process.terminate()
            process.wait(timeout=60)
        said.close()
