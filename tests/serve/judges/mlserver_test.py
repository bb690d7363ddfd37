"""MLServer beside us: the same requests to both."""

import json
import socket
import subprocess

import numpy as np
import pytest
import tritonclient.grpc as over_grpc
from conftest import mlp, random, wait_until
from stock import HERE, environment_without_proxies, tool
from triton_test import ask, infer, tensor

pytestmark = pytest.mark.slow

MODEL = '''
import numpy as np
from mlserver import MLModel
from mlserver.codecs import NumpyCodec
from mlserver.types import InferenceResponse


class Mlp(MLModel):
    async def load(self):
        self.w, self.b = (np.load(f"{name}.npy") for name in "wb")
        return True

    async def predict(self, request):
        x = NumpyCodec.decode_input(request.inputs[0]).astype(np.float32)
        return InferenceResponse(model_name=self.name, id=request.id, outputs=[NumpyCodec.encode_output("y", np.maximum(x @ self.w + self.b, 0))])
'''


@pytest.fixture(scope="module")
def mlserver(tmp_path_factory):
    folder = tmp_path_factory.mktemp("mlserver")
    (folder / "mlp.py").write_text(MODEL)
    np.save(folder / "w.npy", random(8, 4))
    np.save(folder / "b.npy", random(4))
    port = []
    for _ in range(3):
        with socket.socket() as one:
            one.bind(("127.0.0.1", 0))
            port.append(one.getsockname()[1])
    (folder / "settings.json").write_text(json.dumps({"host": "127.0.0.1", "http_port": port[0], "grpc_port": port[1], "metrics_port": port[2], "parallel_workers": 0, "debug": False}))
    (folder / "model-settings.json").write_text(json.dumps({"name": "mlp", "implementation": "mlp.Mlp"}))
    with open(folder / "log", "w") as log:
        process = subprocess.Popen([tool("mlserver/bin/mlserver"), "start", "."], cwd=folder, env=environment_without_proxies(), stdin=subprocess.DEVNULL, stdout=log, stderr=subprocess.STDOUT)

    def ready():
        assert process.poll() is None, (folder / "log").read_text()[-3000:]
        try:
            return ask(f"127.0.0.1:{port[0]}", "GET", "/v2/models/mlp/ready")[0] == 200
        except OSError:
            return False
    try:
        wait_until(ready)
        yield {"http": f"127.0.0.1:{port[0]}", "grpc": f"127.0.0.1:{port[1]}"}
    finally:
        process.terminate()
        process.wait(timeout=60)


@pytest.mark.parametrize("call, ours, theirs", [
    (infer({"inputs": [tensor()]}, Content_Type="application/json"), 200, 200),
    (infer({"id": "a", "inputs": [tensor()], "parameters": {"content_type": "np"}}, Content_Type="application/json"), 200, 200),
    (infer({}, Content_Type="application/json"), 400, 422),
    (infer({"inputs": [{"name": "x"}]}, Content_Type="application/json"), 400, 422),
    (("POST", "/v2/models/nobody/infer", {"inputs": [tensor()]}, {"Content-Type": "application/json"}), 404, 404),
    (("GET", "/v2/models/nobody"), 404, 404), (("GET", "/v2/health/live"), 200, 200), (("GET", "/v2/health/ready"), 200, 200), (("GET", "/v2"), 200, 200),
    (("GET", "/v2/models/mlp/ready"), 200, 200), (("POST", "/v2/repository/index", {}, {"Content-Type": "application/json"}), 200, 200),
], ids=lambda one: json.dumps(one)[:70] if isinstance(one, tuple) else None)
def test_same_requests(mlserver, server, call, ours, theirs):
    mine, its = ask(server.http, *call), ask(mlserver["http"], *call)
    assert mine[0] == ours, mine
    assert its[0] == theirs, its
    if ours == theirs == 200 and call[1].endswith("infer"):
        mine, its = json.loads(mine[2])["outputs"][0], json.loads(its[2])["outputs"][0]
        assert (mine["name"], mine["shape"], mine["datatype"]) == (its["name"], its["shape"], its["datatype"])
        np.testing.assert_allclose(mine["data"], its["data"], rtol=1e-5)


def test_its_client(server, tmp_path):
    """`mlserver infer` asks us."""
    requests = tmp_path / "requests.txt"
    requests.write_text("".join(json.dumps({"id": str(k), "inputs": [tensor(data=[float(k)] * 8)]}) + "\n" for k in range(20)))
    done = subprocess.run([tool("mlserver/bin/mlserver"), "infer", "-u", server.http, "-m", "mlp", "-i", str(requests), "-o", str(tmp_path / "out.txt"), "--workers", "2"],
                          env=environment_without_proxies(), capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stdout + done.stderr
    answers = [json.loads(line) for line in (tmp_path / "out.txt").read_text().splitlines()]
    assert len(answers) == 20
    for one in answers:
        x = np.full((1, 8), float(one["id"]), np.float32)
        np.testing.assert_allclose(one["outputs"][0]["data"], mlp(x)[0], rtol=1e-4, atol=1e-4)


def test_grpc(mlserver, server):
    x = random(3, 8)
    answers = []
    for address in (server.grpc, mlserver["grpc"]):
        with over_grpc.InferenceServerClient(address) as client:
            one = over_grpc.InferInput("x", [3, 8], "FP32")
            one.set_data_from_numpy(x)
            answers.append(client.infer("mlp", [one]).as_numpy("y"))
    np.testing.assert_allclose(answers[0], answers[1], rtol=1e-4, atol=1e-5)
