"""The real Triton beside us, from its wheel: with our backend it answers as we do, and to bad requests it says no where we say no."""

import http.client
import json
import shutil
import socket
import subprocess
import threading

import numpy as np
import pytest
import tritonclient.grpc as over_grpc
import tritonclient.http as over_http
from conftest import mlp, random, save_mlp, wait_until
from stock import ROOT, environment_without_proxies, tool

pytestmark = pytest.mark.slow

CONFIG = """
backend: "obelisk"
max_batch_size: 8
input [{ name: "x" data_type: TYPE_FP32 dims: [8] }]
output [{ name: "y" data_type: TYPE_FP32 dims: [4] }]
instance_group [{ kind: KIND_CPU count: 1 }]
parameters { key: "batch_dimension" value: { string_value: "rows" } }
"""


def free_port():
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        return one.getsockname()[1]


@pytest.fixture(scope="module")
def triton(tmp_path_factory, environment):
    folder = tmp_path_factory.mktemp("triton")
    for name, config in {"mlp": CONFIG}.items():
        save_mlp(folder / "plain" / name)
        (folder / "models" / name / "1").mkdir(parents=True)
        shutil.copy(folder / "plain" / name / "model.onnx", folder / "models" / name / "1")
        (folder / "models" / name / "config.pbtxt").write_text(config)
    (folder / "models" / "broken" / "1").mkdir(parents=True)
    (folder / "models" / "broken" / "1" / "model.onnx").write_bytes(b"no model")
    (folder / "models" / "broken" / "config.pbtxt").write_text(CONFIG)
    library = ROOT / "build" / "lib" / "triton" / "obelisk" / "libtriton_obelisk.so"
    (folder / "backends" / "obelisk").mkdir(parents=True)
    shutil.copy(library, folder / "backends" / "obelisk")
    ports = [free_port() for _ in range(3)]
    with open(folder / "log", "w") as log:
        process = subprocess.Popen(
            [tool("tritonserver"), f"--model-repository={folder / 'models'}", f"--backend-directory={folder / 'backends'}", "--exit-timeout-secs=2", "--exit-on-error=false",
             f"--http-port={ports[0]}", f"--grpc-port={ports[1]}", f"--metrics-port={ports[2]}", "--http-address=127.0.0.1", "--allow-cpu-metrics=false", "--model-control-mode=explicit", "--load-model=*"],
            env={**environment, **environment_without_proxies(), "HOME": environment["HOME"]}, stdin=subprocess.DEVNULL, stdout=log, stderr=subprocess.STDOUT)

    def ready():
        assert process.poll() is None, (folder / "log").read_text()[-3000:]
        try:
            return over_http.InferenceServerClient(f"127.0.0.1:{ports[0]}").is_model_ready("mlp")
        except Exception:
            return False
    try:
        wait_until(ready)
        yield {"http": f"127.0.0.1:{ports[0]}", "grpc": f"127.0.0.1:{ports[1]}", "models": folder / "models"}
    finally:
        process.terminate()
        try:
            process.wait(timeout=40)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
    assert "Signal (11)" not in (folder / "log").read_text() and "Signal (6)" not in (folder / "log").read_text()


@pytest.mark.parametrize("rows", [1, 3, 8])
@pytest.mark.parametrize("module", [over_http, over_grpc], ids=["http", "grpc"])
def test_backend(triton, module, rows):
    x = random(rows, 8)
    with module.InferenceServerClient(triton["grpc" if module is over_grpc else "http"]) as client:
        one = module.InferInput("x", list(x.shape), "FP32")
        one.set_data_from_numpy(x)
        np.testing.assert_allclose(client.infer("mlp", [one]).as_numpy("y"), mlp(x), rtol=1e-4, atol=1e-5)


def test_backend_refuses_a_damaged_model(triton):
    with over_http.InferenceServerClient(triton["http"]) as client:
        assert not client.is_model_ready("broken")
        reasons = {one["name"]: one.get("reason", "") for one in client.get_model_repository_index()}
        assert reasons["broken"] and reasons["mlp"] == ""


def test_backend_under_many(triton):
    """Requests from many threads are answered, each with its own numbers, while the model is loaded again and again."""
    wrong, counts = [], [0] * 4

    def ask(k):
        x = np.random.default_rng(k).standard_normal((1 + k, 8), dtype=np.float32)
        with over_grpc.InferenceServerClient(triton["grpc"]) as client:
            one = over_grpc.InferInput("x", list(x.shape), "FP32")
            one.set_data_from_numpy(x)
            for _ in range(200):
                if not np.allclose(client.infer("mlp", [one]).as_numpy("y"), mlp(x), rtol=1e-4, atol=1e-5):
                    wrong.append(k)
                counts[k] += 1
    threads = [threading.Thread(target=ask, args=[k]) for k in range(4)]
    for one in threads:
        one.start()
    with over_http.InferenceServerClient(triton["http"]) as client:
        for turn in range(3):
            (triton["models"] / "mlp" / "config.pbtxt").write_text(CONFIG + "\n" * turn)  # else Triton does nothing
            client.load_model("mlp")
    for one in threads:
        one.join()
    assert not wrong and counts == [200] * 4
    with over_http.InferenceServerClient(triton["http"]) as client:
        client.unload_model("mlp")
        wait_until(lambda: not client.is_model_ready("mlp"))
        client.load_model("mlp")
        assert client.is_model_ready("mlp")


def ask(address, method, path, body=None, headers=()):
    connection = http.client.HTTPConnection(address, timeout=30)
    connection.request(method, path, json.dumps(body) if isinstance(body, dict) else body, dict(headers))
    answer = connection.getresponse()
    return answer.status, answer.headers, answer.read()


def tensor(**more):
    return {"name": "x", "shape": [1, 8], "datatype": "FP32", "data": [1, 2, 3, 4, 5, 6, 7, 8], **more}


def infer(body, **headers):
    return ("POST", "/v2/models/mlp/infer", body, {key.replace("_", "-"): value for key, value in headers.items()})


@pytest.mark.parametrize("call, ours, theirs", [
    (infer({"inputs": [tensor()]}), 200, 200),
    (infer({"id": "a", "inputs": [tensor()], "outputs": [{"name": "y"}], "unknown": 1}), 200, 200),
    (infer({"inputs": [tensor(data=[[1, 2, 3, 4, 5, 6, 7, 8]])]}), 200, 200),
    (infer({"inputs": [tensor()], "outputs": [{"name": "y", "parameters": {"binary_data": True}}]}), 200, 200),
    (infer({"inputs": [tensor(parameters={"binary_data_size": 32}) | {"data": None}]}), 400, 400),
    (infer({"inputs": [tensor(shape=[1, 7])]}), 400, 500),
    (infer({"inputs": [tensor(shape=[1, 7], data=[0] * 7)]}), 400, 400),
    (infer({"inputs": [tensor(shape=[9, 8], data=[0] * 72)]}), 400, 400),  # more rows than a batch has
    (infer({"inputs": [tensor(name="z")]}), 400, 400),
    (infer({"inputs": [tensor(datatype="INT32")]}), 400, 400),
    (infer({"inputs": [tensor(datatype="FP23")]}), 400, 400),
    (infer({"inputs": [tensor(), tensor()]}), 400, 400),
    (infer({"inputs": []}), 400, 400),
    (infer({}), 400, 500),
    (infer({"inputs": [tensor()], "outputs": [{"name": "z"}]}), 400, 400),
    (infer("{"), 400, 500),
    (infer("{}", Inference_Header_Content_Length="77"), 400, 400),
    (("POST", "/v2/models/nobody/infer", {"inputs": [tensor()]}), 404, 404),
    (("POST", "/v2/models/mlp/versions/7/infer", {"inputs": [tensor()]}), 404, 404),
    (("GET", "/v2/models/mlp/infer"), 405, 405),
    (("GET", "/v2/models/nobody"), 404, 404),
    (("GET", "/v2/health/live"), 200, 200),
    (("GET", "/v2"), 200, 200), (("GET", "/v2/models/mlp"), 200, 200), (("GET", "/v2/models/mlp/config"), 200, 200), (("GET", "/v2/models/mlp/stats"), 200, 200),
    (("POST", "/v2/repository/index"), 200, 200), (("GET", "/v2/systemsharedmemory/status"), 200, 200), (("GET", "/nothing"), 404, 404),
], ids=lambda one: json.dumps(one)[:70] if isinstance(one, tuple) else None)
def test_same_requests(triton, server, call, ours, theirs):
    """What each answers to one request, in statuses; numbers are equal where both answer."""
    mine, its = ask(server.http, *call), ask(triton["http"], *call)
    assert mine[0] == ours, mine
    assert its[0] == theirs, its
    if ours == theirs == 200 and call[0] == "POST" and call[1].endswith("infer") and mine[1]["Content-Type"] == "application/json":
        mine, its = json.loads(mine[2]), json.loads(its[2])
        assert [(one["name"], one["shape"], one["datatype"]) for one in mine["outputs"]] == [(one["name"], one["shape"], one["datatype"]) for one in its["outputs"]]
        np.testing.assert_allclose(mine["outputs"][0]["data"], its["outputs"][0]["data"], rtol=1e-6)


def test_same_metadata(triton, server):
    for path in ("/v2/models/mlp", "/v2/models/mlp/config"):
        mine, its = (json.loads(ask(address, "GET", path)[2]) for address in (server.http, triton["http"]))
        for key in ("name", "versions", "inputs", "outputs", "max_batch_size"):
            assert mine.get(key) == its.get(key), (path, key)
        for key in ("input", "output"):
            for one, other in zip(mine.get(key, []), its.get(key, []), strict=True):
                assert (one["name"], one["data_type"], [int(n) for n in one["dims"]]) == (other["name"], other["data_type"], [int(n) for n in other["dims"]])
    # What a client of Triton finds in statistics and metrics has the same names here.
    mine, its = (json.loads(ask(address, "GET", "/v2/models/mlp/stats")[2])["model_stats"][0] for address in (server.http, triton["http"]))
    assert set(mine["inference_stats"]) <= set(its["inference_stats"]) and int(mine["version"]) == int(its["version"])
