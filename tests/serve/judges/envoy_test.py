"""Envoy before two replicas: one is killed, another drained, under load; every request is answered."""

import http.client
import json
import signal
import socket
import subprocess
import threading

import numpy as np
import pytest
import tritonclient.grpc as triton
from conftest import mlp, random, save_mlp, wait_until
from stock import ROOT, call, environment_without_proxies, tool

INFER = "/v2/models/mlp/infer"
X = random(1, 8)
BODY = json.dumps({"inputs": [{"name": "x", "shape": [1, 8], "datatype": "FP32", "data": X.tolist()}], "parameters": {"trace": True}})


def free_port():
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        return one.getsockname()[1]


class Envoy:
    def __init__(self, folder, replicas):
        """Our configuration, with ports that are free here."""
        text = (ROOT / "deploy" / "envoy" / "envoy.yaml").read_text()
        self.ports = {"8080": free_port(), "8081": free_port(), "9901": free_port()}
        wanted = dict(self.ports)
        for k, one in enumerate(replicas):
            wanted[f"180{k}0"], wanted[f"180{k}1"] = one.port, one.grpc.split(":")[1]
        for port, mine in wanted.items():
            assert f"port_value: {port}}}" in text
            text = text.replace(f"port_value: {port}}}", f"port_value: {mine}}}")
        (folder / "envoy.yaml").write_text(text)
        call(tool("envoy"), "--mode", "validate", "-c", folder / "envoy.yaml")
        self.log = open(folder / "envoy.log", "w")
        self.process = subprocess.Popen([tool("envoy"), "-c", folder / "envoy.yaml", "--concurrency", "1", "--use-dynamic-base-id"], stdin=subprocess.DEVNULL, stdout=self.log,
                                        stderr=subprocess.STDOUT, env=environment_without_proxies())
        wait_until(lambda: self.healthy("http") == self.healthy("grpc") == len(replicas))

    def admin(self, path):
        connection = http.client.HTTPConnection("127.0.0.1", self.ports["9901"], timeout=10)
        connection.request("GET", path)
        return connection.getresponse().read().decode()

    def healthy(self, cluster):
        assert self.process.poll() is None
        try:
            return sum(one.split("::")[-1] == "healthy" for one in self.admin("/clusters").splitlines() if one.startswith(f"{cluster}::127") and "::health_flags::" in one)
        except OSError:
            return -1

    def stop(self):
        self.process.terminate()
        self.process.wait(timeout=60)
        self.log.close()


@pytest.fixture
def replicas(tmp_path, start):
    save_mlp(tmp_path / "models" / "mlp")
    return [start(tmp_path / "models", "--grace", "2") for _ in range(2)]


@pytest.fixture
def envoy(tmp_path, replicas):
    one = Envoy(tmp_path, replicas)
    yield one
    one.stop()


class Load:
    """Threads that ask through Envoy until told to stop; what was no right answer is kept."""

    def __init__(self, envoy):
        self.stop, self.count, self.wrong = threading.Event(), [0, 0], []
        self.threads = [threading.Thread(target=self.by_http, args=[envoy.ports["8080"]]) for _ in range(3)] + [threading.Thread(target=self.by_grpc, args=[envoy.ports["8081"]]) for _ in range(2)]
        for one in self.threads:
            one.start()

    def by_http(self, port):
        connection = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
        while not self.stop.is_set():
            try:
                connection.request("POST", INFER, BODY)
                answer = connection.getresponse()
                text = answer.read()
                assert answer.status == 200, (answer.status, text)
                np.testing.assert_allclose(json.loads(text)["outputs"][0]["data"], mlp(X)[0], rtol=1e-4, atol=1e-5)
                self.count[0] += 1
            except Exception as wrong:
                self.wrong.append(wrong)
                connection.close()

    def by_grpc(self, port):
        with triton.InferenceServerClient(f"127.0.0.1:{port}") as client:
            one = triton.InferInput("x", [1, 8], "FP32")
            one.set_data_from_numpy(X)
            while not self.stop.is_set():
                try:
                    np.testing.assert_allclose(client.infer("mlp", [one], client_timeout=20).as_numpy("y"), mlp(X), rtol=1e-4, atol=1e-5)
                    self.count[1] += 1
                except Exception as wrong:
                    self.wrong.append(wrong)

    def more(self, number=100):
        before = list(self.count)
        wait_until(lambda: all(now > then + number for now, then in zip(self.count, before)) or self.wrong)

    def __enter__(self):
        return self

    def __exit__(self, *failed):
        self.stop.set()
        for one in self.threads:
            one.join()
        assert not self.wrong, (len(self.wrong), [str(one) for one in self.wrong[:3]], self.count)


def served(server):
    return sum(one["ok"] for one in server.json("GET", "/v2/live.json")[1]["models"])


def test_a_replica_is_killed_under_load(envoy, replicas):
    with Load(envoy) as load:
        load.more()
        assert min(map(served, replicas)) > 20  # both take part
        replicas[0].process.kill()
        wait_until(lambda: envoy.healthy("http") == envoy.healthy("grpc") == 1)
        load.more()


def test_a_replica_is_drained_under_load(envoy, replicas):
    with Load(envoy) as load:
        load.more()
        assert replicas[0].stop(signal.SIGTERM) == 0
        load.more()


def test_deadline_of_the_route(envoy, replicas):
    """The time that Envoy gives a request arrives with it: the answer's slack is what is left of 30 s."""
    connection = http.client.HTTPConnection("127.0.0.1", envoy.ports["8080"], timeout=60)
    connection.request("POST", INFER, BODY)
    parameters = json.loads(connection.getresponse().read())["parameters"]
    assert 0 < parameters["trace_slack_us"] <= 30_000_000


def test_load_reports(envoy, replicas):
    """Envoy weighs replicas by what they report, and keeps the reports to itself."""
    connection = http.client.HTTPConnection("127.0.0.1", envoy.ports["8080"], timeout=60)
    connection.request("POST", INFER, BODY)
    answer = connection.getresponse()
    assert answer.status == 200 and answer.read()

    def report(form):
        status, headers, _ = replicas[0].ask("POST", INFER, BODY, {"endpoint-load-metrics-format": form})
        assert status == 200
        kind, _, text = headers["endpoint-load-metrics"].partition(" ")
        assert kind == form.upper()
        return json.loads(text) if form == "json" else {name: float(value) for name, _, value in (one.partition("=") for one in text.split(","))}

    with Load(envoy) as load:
        load.more()
        for form in ("text", "json"):  # a report is of a moment that has passed
            wait_until(lambda form=form: min(report(form).values()) > 0)
            assert set(report(form)) == {"application_utilization", "rps_fractional"}
    assert "endpoint-load-metrics" not in replicas[0].ask("POST", INFER, BODY)[1]
