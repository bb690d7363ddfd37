"""A server of small models, and what asks it: stock clients, and sockets that no client would send."""

import http.client
import json
import os
import signal
import socket
import subprocess
import time
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

ROOT = Path(__file__).resolve().parents[2]
PROGRAM = Path(os.environ.get("OBELISK", ROOT / "build" / "bin" / "obelisk"))


def random(*dims):
    return np.random.default_rng(0).standard_normal(dims, dtype=np.float32)


def save(folder, nodes, inputs, outputs, weights=(), toml=""):
    """A model's folder. inputs and outputs: {name: (element type, dims)}."""
    folder.mkdir(parents=True, exist_ok=True)
    def values(table):
        return [helper.make_tensor_value_info(name, *one) for name, one in table.items()]
    stored = [numpy_helper.from_array(array, name) for name, array in dict(weights).items()]
    graph = helper.make_graph(nodes, "test", values(inputs), values(outputs), stored)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    onnx.save(model, folder / "model.onnx")
    if toml:
        (folder / "model.toml").write_text(toml)
    return folder


def save_mlp(folder, toml=""):
    """relu(x · w + b), x [rows, 8] with rows symbolic."""
    nodes = [helper.make_node("MatMul", ["x", "w"], ["xw"]), helper.make_node("Add", ["xw", "b"], ["sum"]),
             helper.make_node("Relu", ["sum"], ["y"])]
    return save(folder, nodes, {"x": (TensorProto.FLOAT, ["rows", 8])}, {"y": (TensorProto.FLOAT, ["rows", 4])},
                {"w": random(8, 4), "b": random(4)}, toml)


def mlp(x):
    return np.maximum(x @ random(8, 4) + random(4), 0)


def save_types(folder):
    """Two inputs and outputs of each type that the protocol has: a + a."""
    inputs, outputs, nodes = {}, {}, []
    for name in ("FLOAT", "DOUBLE", "FLOAT16", "INT64", "INT32", "INT8", "UINT8"):
        kind = getattr(TensorProto, name)
        inputs[f"in_{name}"] = outputs[f"out_{name}"] = (kind, [2, 3])
        nodes.append(helper.make_node("Add", [f"in_{name}", f"in_{name}"], [f"out_{name}"]))
    inputs["in_BOOL"] = outputs["out_BOOL"] = (TensorProto.BOOL, [2, 3])
    nodes.append(helper.make_node("Not", ["in_BOOL"], ["out_BOOL"]))
    return save(folder, nodes, inputs, outputs)


def save_slow(folder, toml=""):
    """Some hundred milliseconds of products."""
    nodes, before = [helper.make_node("Mul", ["w", "x"], ["first"])], "first"
    for k in range(6):
        nodes.append(helper.make_node("MatMul", [before, "w"], [f"m{k}"]))
        nodes.append(helper.make_node("Tanh", [f"m{k}"], [f"t{k}"]))
        before = f"t{k}"
    nodes.append(helper.make_node("ReduceMean", [before], ["y"], axes=[0, 1], keepdims=0))
    size = 1280
    return save(folder, nodes, {"x": (TensorProto.FLOAT, [1])}, {"y": (TensorProto.FLOAT, [])},
                {"w": random(size, size) / 36}, toml)


PATIENCE = float(os.environ.get("OBELISK_PATIENCE", 1))  # more for a program that a sanitizer slows down


def wait_until(true, seconds=60):
    until = time.monotonic() + seconds * PATIENCE
    while not true():
        assert time.monotonic() < until, "it did not happen"
        time.sleep(0.02)


class Server:
    """The program, serving a folder on ports that were free."""

    def __init__(self, models, environment, *flags, ready=True, ends_with_us=False):
        """ends_with_us: it is killed when the thread that started it ends, however that ends."""
        first = ["setpriv", "--pdeathsig", "KILL"] if ends_with_us else []
        self.log_path = models.parent / f"{models.name}-{time.monotonic_ns()}.log"
        self.process = subprocess.Popen(
            [*first, str(PROGRAM), "serve", str(models), "--http", "0", "--grpc", "0", "--metrics", "0", "--log-file", str(self.log_path), *map(str, flags)],
            env=environment, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
        try:
            self.settle(ready)
        except BaseException:
            self.process.kill()
            self.process.wait()
            raise

    def settle(self, ready):
        listening = self.wait_for_line(lambda line: line.get("state") == "listening")
        self.http, self.grpc, self.metrics = (f"127.0.0.1:{listening[key]}" for key in ("http", "grpc", "metrics"))
        self.port = listening["http"]
        if ready:
            self.wait_for_line(lambda line: line["event"] == "server" and line["state"] == "ready")

    def lines(self):
        if not self.log_path.exists():
            return []
        return [json.loads(line) for line in self.log_path.read_text().splitlines(keepends=True) if line.endswith("\n")]

    def wait_for_line(self, wanted, seconds=90):
        until = time.monotonic() + seconds * PATIENCE
        while time.monotonic() < until:
            for line in self.lines():
                if wanted(line):
                    return line
            if self.process.poll() is not None:
                raise AssertionError(f"the server ended with {self.process.returncode}: {self.process.stdout.read()}\n{self.lines()}")
            time.sleep(0.02)
        raise AssertionError(f"no such line: {self.lines()}")

    def ask(self, method, path, body=None, headers=(), port=None):
        """(status, headers, body), by a connection of its own."""
        connection = http.client.HTTPConnection("127.0.0.1", port or self.port, timeout=60)
        if isinstance(body, dict):
            body = json.dumps(body)
        connection.request(method, path, body, dict(headers))
        answer = connection.getresponse()
        text = answer.read()
        connection.close()
        return answer.status, dict(answer.headers), text

    def json(self, method, path, body=None, headers=()):
        status, _, text = self.ask(method, path, body, headers)
        return status, json.loads(text)

    def raw(self, data, seconds=30, half_close=False):
        """What comes back for bytes as they are, until the server closes."""
        with socket.create_connection(("127.0.0.1", self.port), timeout=seconds) as connection:
            connection.sendall(data)
            if half_close:
                connection.shutdown(socket.SHUT_WR)
            out = b""
            while piece := connection.recv(65536):
                out += piece
        return out

    def metric(self, start):
        """The value of the one line of /metrics that begins so."""
        text = self.ask("GET", "/metrics", port=int(self.metrics.split(":")[1]))[2].decode()
        found = [line for line in text.splitlines() if line.startswith(start)]
        assert len(found) == 1, (start, found)
        return float(found[0].split()[-1])

    def stop(self, number=signal.SIGTERM):
        if self.process.poll() is None:
            self.process.send_signal(number)
        code = self.process.wait(timeout=60)
        self.process.stdout.close()
        return code


def pytest_configure(config):
    config.addinivalue_line("markers", "slow: minutes, or gigabytes to install")


@pytest.fixture(scope="session")
def environment(tmp_path_factory):
    home = tmp_path_factory.mktemp("home")
    return {**os.environ, "HOME": str(home), "XDG_CACHE_HOME": str(home / "cache")}


@pytest.fixture(scope="session")
def models(tmp_path_factory):
    folder = tmp_path_factory.mktemp("served") / "models"
    save_mlp(folder / "mlp")
    save_types(folder / "types")
    return folder


@pytest.fixture(scope="session")
def server(models, environment):
    one = Server(models, environment, "--shared-memory", "--max-body", "8", "--body-timeout", "2")
    yield one
    assert one.stop() == 0, one.lines()


@pytest.fixture
def start(environment):
    """start(folder, flags…): a server that is stopped after the test."""
    servers = []
    def begin(folder, *flags, **options):
        servers.append(Server(folder, environment, *flags, **options))
        return servers[-1]
    yield begin
    for one in servers:
        if one.process.poll() is None:
            one.process.kill()
        one.process.wait()
        one.process.stdout.close()
