"""The server as a program: what it is given, deadlines, how it ends, who may call, and what must not harm it."""

import gzip
import json
import os
import signal
import socket
import ssl
import subprocess
import threading
import time

import grpc
import pytest
from conftest import PROGRAM, random, save_mlp, save_slow, wait_until

MLP = {"inputs": [{"name": "x", "shape": [1, 8], "datatype": "FP32", "data": random(1, 8).tolist()}]}
SLOW = {"inputs": [{"name": "x", "shape": [1], "datatype": "FP32", "data": [1]}]}
INFER = "/v2/models/mlp/infer"


def check(folder, environment, *flags):
    """What `serve --check` says of a folder: (exit code, models by name)."""
    done = subprocess.run([str(PROGRAM), "serve", str(folder), "--check", "--json", *flags], env=environment, capture_output=True, text=True, timeout=60)
    return done.returncode, {one["name"]: one for one in json.loads(done.stdout)["models"]}


# ---- what it is given ----

def test_settings(tmp_path, environment):
    toml = 'deadline_ms = 12.5\npriority = 2\nweight = 3.0\nbatch = 4\nqueue_limit = 9\nprecision = "fp32"\nmemory_mib = 100\nbatch_invariant = true\n'
    save_mlp(tmp_path / "a", toml)
    save_mlp(tmp_path / "b", "[dimensions]\nrows = 3\n")
    code, models = check(tmp_path, environment)
    assert code == 0
    a = models["a"]
    assert (a["deadline_ms"], a["priority"], a["weight"], a["batch"], a["queue_limit"], a["batch_dimension"]) == (12.5, 2, 3, 4, 9, "rows")
    assert models["b"]["dimensions"] == {"rows": 3} and models["b"]["batch"] == 1
    assert a["batch_invariant"] is True and models["b"]["batch_invariant"] is False
    assert {one["batch_invariant"] for one in check(tmp_path, environment, "--batch-invariant")[1].values()} == {True}


@pytest.mark.parametrize("toml, words", [
    ("deadline_ms = 'soon'", ["model.toml:1", "deadline_ms"]), ("\n\nwaeight = 3", ["model.toml:3", "waeight", "weight"]), ("= 3", ["model.toml:1"]),
    ("[dimensions]\nrows = 'x'", ["rows"]), ("[dimensions]\nlines = 3", ["lines", "rows"]), ("batch = 0", ["batch"]), ("queue_limit = -1", ["queue_limit"]), ("memory_mib = 'much'", ["memory_mib"]),
    ("file = '../m.onnx'", ["file"]), ("file = 'gone.onnx'", ["gone.onnx"]), ("precision = 'fp7'", ["precision"]), ("dimensions = 3", ["dimensions"]),
    ("batch_invariant = 1", ["model.toml:1", "'batch_invariant' is true or false"]), ("\nbatch_invariant = 'true'", ["model.toml:2", "true or false"]), ("batch_invariants = true", ["batch_invariants", "batch_invariant,"]),
    ("a = [" * 500, ["model.toml:1"]), ("[" * 500, ["model.toml"]), ("batch = 4\n[[[a", ["model.toml"]), ("deadline_ms = 1e400", ["model.toml:1"]), ("\x00", ["model.toml:1"]), ("priority = 9223372036854775808", ["model.toml:1"]),
    ("x" * (2 << 20), ["mebibyte"]),
])
def test_bad_settings(tmp_path, environment, toml, words):
    save_mlp(tmp_path / "m", toml)
    code, models = check(tmp_path, environment)
    assert code == 1
    for word in words:
        assert word in models["m"]["error"], models


def test_settings_of_any_bytes(tmp_path, environment):
    """Settings with bytes changed: read or refused, for each model alone."""
    seed = b'deadline_ms = 12.5\npriority = 2\nbatch = 4\nfile = "model.onnx"\n[dimensions]\nrows = 3\n'
    import random as chance
    chance.seed(5)
    for k in range(60):
        text = bytearray(seed)
        for _ in range(chance.randint(1, 5)):
            text[chance.randrange(len(text))] = chance.randrange(256)
        save_mlp(tmp_path / f"m{k}")
        (tmp_path / f"m{k}" / "model.toml").write_bytes(text)
    code, models = check(tmp_path, environment)
    assert code in (0, 1) and len(models) == 60


@pytest.mark.parametrize("flags", [["--http", "70000"], ["--certificate", "a.pem"], ["--token-file", "none"], ["--policy", "luck"]])
def test_bad_flags(tmp_path, environment, flags):
    done = subprocess.run([str(PROGRAM), "serve", str(tmp_path), *flags], env=environment, capture_output=True, text=True, timeout=30)
    assert done.returncode == 1 and "error" in done.stderr


def test_port_that_is_taken(tmp_path, environment, server):
    for flags in (["--http", server.port, "--grpc", -1], ["--http", 0, "--grpc", server.grpc.split(":")[1]]):
        done = subprocess.run([str(PROGRAM), "serve", str(tmp_path), "--metrics", "-1", *map(str, flags)], env=environment, capture_output=True, text=True, timeout=30)
        assert done.returncode == 1 and "cannot listen" in done.stderr


def test_damaged_models_harm_nobody(tmp_path, start):
    models = tmp_path / "models"
    save_mlp(models / "mlp")
    whole = (models / "mlp" / "model.onnx").read_bytes()
    for name, content in {"empty": b"", "cut": whole[:len(whole) // 2], "noise": os.urandom(5000)}.items():
        (models / name).mkdir()
        (models / name / "model.onnx").write_bytes(content)
    (models / "hollow").mkdir()
    (models / "obk").mkdir()
    (models / "obk" / "model.obk").write_bytes(b"OBK\x1a" + os.urandom(3000))
    server = start(models)
    assert server.ask("POST", INFER, MLP)[0] == 200
    for listed in (server.json("POST", "/v2/repository/index")[1], server.json("GET", "/v2/live.json")[1]["models"]):
        listed = {one["name"]: one for one in listed}
        assert all(listed[name]["state"] == "UNAVAILABLE" and listed[name]["reason"] not in ("", "not loaded") for name in ("empty", "cut", "noise", "hollow")), listed
    for name in ("empty", "cut", "noise", "hollow", "obk"):
        status, answer = server.json("POST", f"/v2/repository/models/{name}/load")
        assert status == 400 and answer["error"], name
        assert server.ask("POST", f"/v2/models/{name}/infer", MLP)[0] in (404, 503)
        assert any(line["event"] == "model" and line["model"] == name and line.get("reason") for line in server.lines()), name
    # Mended, it loads; a model that works is replaced only by one that does, and goes on until then.
    (models / "cut" / "model.onnx").write_bytes(whole)
    assert server.ask("POST", "/v2/repository/models/cut/load")[0] == 200
    assert server.ask("POST", "/v2/models/cut/infer", MLP)[0] == 200
    (models / "mlp" / "model.onnx").write_bytes(whole[:100])
    status, answer = server.json("POST", "/v2/repository/models/mlp/load")
    assert status == 400 and answer["error"]
    assert server.ask("POST", INFER, MLP)[0] == 200
    (models / "mlp" / "model.onnx").write_bytes(whole)
    assert server.ask("POST", "/v2/repository/models/mlp/load")[0] == 200
    assert server.stop() == 0


def test_no_model_is_ready(tmp_path, start):
    (tmp_path / "models" / "m").mkdir(parents=True)
    (tmp_path / "models" / "m" / "model.onnx").write_bytes(b"no model")
    server = start(tmp_path / "models", ready=False)
    server.wait_for_line(lambda line: line["event"] == "model" and line["state"] in ("failed", "UNAVAILABLE"))
    assert server.json("GET", "/v2/health/live") == (200, {"live": True})


# ---- deadlines ----

@pytest.fixture(scope="module")
def pair(tmp_path_factory):
    """A model that takes long, and one that does not."""
    folder = tmp_path_factory.mktemp("pair") / "models"
    save_slow(folder / "slow")
    save_mlp(folder / "mlp", "batch = 1\n")
    save_mlp(folder / "classy", "batch = 1\ndeadline_ms = 5\n")
    return folder


def test_deadline_behind_a_slow_model(pair, start):
    """While the whole machine is taken for longer than the deadline the answer is a refusal, at once or at the deadline: never an answer that is late."""
    server = start(pair, "--no-verify", "--policy", "fifo")
    stop = threading.Event()

    def load():
        while not stop.is_set():
            server.ask("POST", "/v2/models/slow/infer", SLOW)
    threads = [threading.Thread(target=load) for _ in range(3)]
    for one in threads:
        one.start()
    try:
        carriers = [("mlp", dict(MLP, parameters={"timeout": 5000}), {}), ("mlp", MLP, {"x-envoy-expected-rq-timeout-ms": "5"}), ("classy", MLP, {})]
        for model, body, headers in carriers:
            refused = []

            def ask():
                status, back, text = server.ask("POST", f"/v2/models/{model}/infer", body, headers)
                assert status in (200, 503), text
                if status == 503:
                    refused.append(json.loads(text)["error"])
                return len(refused) >= 2
            wait_until(ask)
            assert all("Request timeout expired" in error or "refused" in error for error in refused), refused
    finally:
        stop.set()
        for one in threads:
            one.join()
    live = server.json("GET", "/v2/live.json")[1]
    assert {one["outcome"] for one in live["refusals"]} <= {"late", "rejected"}
    assert {one["name"] for one in live["models"] if one["late"] + one["rejected"] > 0} == {"mlp", "classy"}
    assert server.stop() == 0


def test_disconnect_cancels(pair, start):
    server = start(pair, "--no-verify")
    body = json.dumps(SLOW).encode()
    request = b"POST /v2/models/slow/infer HTTP/1.1\r\nHost: a\r\nContent-Length: %d\r\n\r\n" % len(body) + body
    counts = lambda: {one["name"]: one for one in server.json("GET", "/v2/live.json")[1]["models"]}["slow"]
    in_flight = lambda: server.json("GET", "/v2/live.json")[1]["in_flight"]
    connections = []
    for _ in range(6):
        connections.append(socket.create_connection(("127.0.0.1", server.port)))
        connections[-1].sendall(request)
    wait_until(lambda: in_flight() == 6)
    for one in connections[2:]:
        one.close()
    wait_until(lambda: in_flight() == 0)
    assert counts()["cancelled"] >= 1 and counts()["ok"] + counts()["cancelled"] == 6, counts()
    for one in connections[:2]:
        assert one.recv(100).startswith(b"HTTP/1.1 200")
        one.close()
    assert server.stop() == 0


def test_queue_limit(tmp_path, start):
    save_slow(tmp_path / "models" / "slow", "queue_limit = 1\n")
    server = start(tmp_path / "models", "--no-verify")
    answers = []
    threads = [threading.Thread(target=lambda: answers.append(server.ask("POST", "/v2/models/slow/infer", SLOW))) for _ in range(8)]
    for one in threads:
        one.start()
    for one in threads:
        one.join()
    statuses = [status for status, _, _ in answers]
    assert statuses.count(200) >= 1 and statuses.count(503) >= 1 and len(statuses) == statuses.count(200) + statuses.count(503)
    assert all("error" in json.loads(text) for status, _, text in answers if status == 503)


# ---- how it ends ----

@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_drain(pair, start, number):
    """What was accepted is answered; the exit is 0."""
    server = start(pair, "--no-verify", "--grace", "0.3")
    answers = []
    threads = [threading.Thread(target=lambda: answers.append(server.ask("POST", "/v2/models/slow/infer", SLOW)[0])) for _ in range(3)]
    for one in threads:
        one.start()
    wait_until(lambda: server.json("GET", "/v2/live.json")[1]["in_flight"] == 3)
    server.process.send_signal(number)
    server.wait_for_line(lambda line: line.get("state") == "draining")
    # In the grace it says not ready, and answers.
    assert server.ask("GET", "/v2/health/ready")[0] == 503
    for one in threads:
        one.join()
    assert answers == [200] * 3
    assert server.process.wait(timeout=60) == 0
    assert server.lines()[-1]["state"] == "stopped" and server.lines()[-1]["clean"]


def test_unload_under_load(tmp_path, start):
    """Models that come and go while others, and they themselves, are asked: every request has an answer, and it is the right one."""
    for name in ("mlp", "coming"):
        save_mlp(tmp_path / "models" / name)
    server = start(tmp_path / "models")
    stop, wrong, counts = threading.Event(), [], {}

    def ask(name):
        while not stop.is_set():
            status, _, text = server.ask("POST", f"/v2/models/{name}/infer", MLP)
            counts[name, status] = counts.get((name, status), 0) + 1
            if status not in ((200,) if name == "mlp" else (200, 404, 503)):
                wrong.append((name, status, text))
    threads = [threading.Thread(target=ask, args=[name]) for name in ("mlp", "coming", "coming")]
    for one in threads:
        one.start()
    for _ in range(5):
        assert server.ask("POST", "/v2/repository/models/coming/unload")[0] == 200
        assert server.ask("POST", "/v2/repository/models/coming/load")[0] == 200
    stop.set()
    for one in threads:
        one.join()
    assert not wrong and counts["mlp", 200] > 0 and counts["coming", 200] > 0, (wrong[:3], counts)
    assert server.stop() == 0


# ---- who may call ----

# ---- classes and quotas ----

def test_tenants_have_classes_and_quotas(tmp_path, start):
    save_mlp(tmp_path / "models" / "mlp", "batch = 1\n")
    tenants = tmp_path / "tenants.toml"
    tenants.write_text('[slow]\nrate = 0.01\nburst = 2\n[hasty]\ndeadline_ms = 0.001\n["*"]\nweight = 2\n')
    server = start(tmp_path / "models", "--no-verify", "--tenants", tenants)

    def ask(tenant, **parameters):
        return server.ask("POST", INFER, {**MLP, "parameters": {"tenant": tenant, **parameters}})
    assert [ask("slow")[0] for _ in range(4)] == [200, 200, 429, 429]
    status, headers, text = ask("slow")
    assert status == 429 and 90 < int(headers["Retry-After"]) <= 100 and "quota of 0.01 requests a second" in json.loads(text)["error"]
    assert server.ask("POST", INFER, MLP, {"x-tenant": "slow"})[0] == 429
    # A deadline of the class, where the request brings none.
    status, _, text = ask("hasty")
    assert status == 503 and json.loads(text)["error"].startswith("refused")
    assert ask("hasty", timeout=60_000_000)[0] == 200
    assert [ask("other")[0] for _ in range(5)] == [200] * 5
    with grpc.insecure_channel(server.grpc) as channel:
        call = channel.unary_unary("/inference.GRPCInferenceService/ModelInfer", request_serializer=None, response_deserializer=None)
        with pytest.raises(grpc.RpcError) as refused:
            call(b"\x0a\x03mlp", metadata=[("x-tenant", "slow")])
        assert refused.value.code() == grpc.StatusCode.RESOURCE_EXHAUSTED and "quota" in refused.value.details()
    logged = [line for line in server.lines() if line["event"] == "request" and line["tenant"] == "slow"]
    assert len(logged) == 5 and all("quota" in line["reason"] for line in logged)
    assert server.metric('obelisk_tenant_requests{tenant="slow",model="mlp",outcome="rejected"}') == 5
    assert server.stop() == 0


def test_metrics_of_a_tenant_whose_name_is_no_text(tmp_path, start):
    save_mlp(tmp_path / "models" / "mlp")
    server = start(tmp_path / "models", "--no-verify")
    for name in (b"\xed\xa0\x80", b'a\xff"b', "\u00e9".encode()):
        assert server.ask("POST", INFER, MLP, {"x-tenant": name})[0] == 200
    for tenant in ("\ufffd\ufffd\ufffd", 'a\ufffd\\"b', "\u00e9"):
        assert server.metric(f'obelisk_tenant_requests{{tenant="{tenant}",model="mlp",outcome="ok"}}') == 1
    assert server.stop() == 0


@pytest.mark.parametrize("toml, words", [("[a]\nrate = -1", ["tenants.toml:2", "rate"]), ("a = 3", ["tenants.toml:1", "'a'"]), ("[a]\nspeed = 1", ["speed", "rate"]), ("[a", ["not TOML"]), ("[a]\npriority = 0.5", ["priority"])])
def test_bad_tenants(tmp_path, environment, toml, words):
    save_mlp(tmp_path / "models" / "mlp")
    (tmp_path / "tenants.toml").write_text(toml)
    done = subprocess.run([str(PROGRAM), "serve", str(tmp_path / "models"), "--tenants", str(tmp_path / "tenants.toml")], env=environment, capture_output=True, text=True, timeout=60)
    assert done.returncode == 1 and all(word in done.stderr for word in words), (done.returncode, done.stderr)


def test_tokens(tmp_path, models, start):
    (tmp_path / "tokens").write_text("# who\nsecret-1 tenant-a\nsecret-2\n")
    server = start(models, "--token-file", tmp_path / "tokens")
    assert server.ask("GET", "/v2/health/ready")[0] == 200
    for headers in ({}, {"Authorization": "Bearer wrong"}, {"Authorization": "secret-1"}):
        status, back, _ = server.ask("POST", INFER, MLP, headers)
        assert status == 401 and back["WWW-Authenticate"] == "Bearer"
    assert server.ask("GET", "/v2/live.json")[0] == 401
    body = dict(MLP, parameters={"tenant": "somebody-else"})
    assert server.ask("POST", INFER, body, {"Authorization": "Bearer secret-1"})[0] == 200
    assert server.ask("POST", INFER, body, {"Authorization": "Bearer secret-2"})[0] == 200
    assert server.metric('obelisk_tenant_requests{tenant="tenant-a",model="mlp",outcome="ok"}') == 1
    assert server.metric('obelisk_tenant_requests{tenant="somebody-else",model="mlp",outcome="ok"}') == 1
    import tritonclient.grpc as triton
    client = triton.InferenceServerClient(server.grpc)
    assert client.is_server_ready()
    with pytest.raises(Exception, match="UNAUTHENTICATED"):
        client.get_server_metadata()
    assert client.get_server_metadata(headers={"authorization": "Bearer secret-2"}).name == "obelisk"
    client.close()


def test_no_model_control(models, start):
    server = start(models, "--no-model-control")
    assert server.ask("POST", "/v2/repository/models/mlp/unload")[0] == 403
    assert server.ask("POST", INFER, MLP)[0] == 200
    assert server.ask("GET", "/v2/systemsharedmemory/status")[0] == 200
    assert server.json("POST", "/v2/systemsharedmemory/region/r/register", {"key": "/x", "byte_size": 8})[0] == 501


def test_tls(tmp_path, models, start):
    command = ["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes", "-days", "2", "-subj", "/CN=localhost",
               "-addext", "subjectAltName=DNS:localhost,IP:127.0.0.1", "-keyout", tmp_path / "key.pem", "-out", tmp_path / "cert.pem"]
    subprocess.run(command, check=True, capture_output=True)
    server = start(models, "--certificate", tmp_path / "cert.pem", "--key", tmp_path / "key.pem")
    trust = ssl.create_default_context(cafile=tmp_path / "cert.pem")
    body = json.dumps(MLP).encode()
    with trust.wrap_socket(socket.create_connection(("127.0.0.1", server.port)), server_hostname="localhost") as connection:
        for _ in range(2):
            connection.sendall(b"POST %s HTTP/1.1\r\nHost: a\r\nContent-Length: %d\r\n\r\n" % (INFER.encode(), len(body)) + body)
            assert connection.recv(4096).startswith(b"HTTP/1.1 200")
    server.raw(b"GET /v2 HTTP/1.1\r\nHost: a\r\n\r\n")  # no TLS: closed, not answered
    import grpc
    credentials = grpc.ssl_channel_credentials((tmp_path / "cert.pem").read_bytes())
    with grpc.secure_channel(f"localhost:{server.grpc.split(':')[1]}", credentials) as channel:
        ready = channel.unary_unary("/inference.GRPCInferenceService/ServerReady", request_serializer=lambda x: x, response_deserializer=lambda x: x)
        assert ready(b"", timeout=20) == b"\x08\x01"
    assert server.stop() == 0


# ---- what must not harm it ----

def alive(server):
    assert server.ask("POST", INFER, MLP)[0] == 200


@pytest.mark.parametrize("data, status", [
    (b"GARBAGE\r\n\r\n", b"400"), (b"GET / HTTP/9.9\r\n\r\n", b"400"), (b"GET /v2 HTTP/1.1\r\nHost a\r\n\r\n", b"400"), (b"\x16\x03\x01\x02\x00\x01\x00" * 20, b"400"),
    (b"POST /v2/models/mlp/infer HTTP/1.1\r\nHost: a\r\nContent-Length: 10737418240\r\n\r\n", b"413"),
    (b"POST /v2/models/mlp/infer HTTP/1.1\r\nHost: a\r\nContent-Length: -5\r\n\r\n", b"400"),
    (b"POST /v2/models/mlp/infer HTTP/1.1\r\nHost: a\r\nContent-Length: 5\r\nContent-Length: 6\r\n\r\n", b"400"),
    (b"POST /v2/models/mlp/infer HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\nZZ\r\n", b"400"),
    (b"POST /v2/models/mlp/infer HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n" + b"100000\r\n" + bytes(1 << 20) + b"\r\n" + b"fffffff\r\n" + bytes(8 << 20), b"413"),
    (b"GET /v2 HTTP/1.1\r\nA: " + b"x" * 60000 + b"\r\n\r\n", b"431"),
    (b"GET /v2 HTTP/1.1\r\n" + b"".join(b"H%d: x\r\n" % k for k in range(9000)) + b"\r\n", b"431"),
    (b"POST /v2/models/mlp/infer HTTP/1.1\r\nHost: a\r\nConnection: close\r\nContent-Length: 2\r\nContent-Encoding: br\r\n\r\n{}", b"415"),
    (b"POST /v2/models/mlp/infer HTTP/1.1\r\nHost: a\r\nConnection: close\r\nContent-Length: 2\r\nContent-Encoding: gzip\r\n\r\n{}", b"400"),
    (b"POST /v2/models/mlp/infer HTTP/1.1\r\nHost: a\r\nConnection: close\r\nInference-Header-Content-Length: 99\r\nContent-Length: 2\r\n\r\n{}", b"400"),
    (b"POST /v2/models/mlp/infer HTTP/1.1\r\nHost: a\r\nConnection: close\r\nInference-Header-Content-Length: -1\r\nContent-Length: 2\r\n\r\n{}", b"400"),
    (b"POST /v2/models/mlp/infer HTTP/1.1\r\nHost: a\r\nConnection: close\r\nInference-Header-Content-Length: 18446744073709551615\r\nContent-Length: 2\r\n\r\n{}", b"400"),
])
def test_bytes_that_are_no_request(server, data, status):
    try:
        out = server.raw(data)
        assert out.startswith(b"HTTP/1.1 " + status), out[:200]
        assert json.loads(out.split(b"\r\n\r\n", 1)[1])["error"]
    except (BrokenPipeError, ConnectionResetError):
        assert len(data) > 1 << 20  # the server may hang up on who still sends
    alive(server)


@pytest.mark.parametrize("body", [b"", b"{", b"[]", b"null", b"\xff\xfe", b'{"inputs":[]}', b'{"inputs":' + b"[" * 100000, b'{"inputs":[{"name":"x","shape":[1,8],"datatype":"FP32","data":[' + b"1e999," * 7 + b"1]}]}",
                                  b'{"inputs":[{"name":"x","shape":[1,8],"datatype":"FP32","data":[NaN,1,1,1,1,1,1,1]}]}', b'{"inputs":[{"name":"x","shape":[99999999999,99999999999],"datatype":"FP32","data":[1]}]}',
                                  b'{"inputs":[{"name":"x","shape":[1,8],"datatype":"FP32","parameters":{"binary_data_size":18446744073709551615}}]}'])
def test_malformed_json(server, body):
    status, headers, text = server.ask("POST", INFER, body)
    assert status == 400 and headers["Content-Type"] == "application/json" and json.loads(text)["error"]
    alive(server)


def test_bodies_of_all_connections_together(tmp_path, start):
    """They may take 4 MiB: another long one is refused before it is read, short ones are taken, and it is well again when the first is gone."""
    save_mlp(tmp_path / "models" / "mlp")
    server = start(tmp_path / "models", "--no-verify", "--body-memory", "4")
    long, head = 2 << 20, "POST /v2/models/mlp/infer HTTP/1.1\r\nHost: a\r\nContent-Length: %d\r\n%s\r\n"

    def full(out):
        return out.startswith(b"HTTP/1.1 503 ") and b"Retry-After: 1\r\n" in out and "no room for a body" in json.loads(out.split(b"\r\n\r\n", 1)[1])["error"]
    with socket.create_connection(("127.0.0.1", server.port)) as first, grpc.insecure_channel(server.grpc) as channel:
        call = channel.unary_unary("/inference.GRPCInferenceService/ModelInfer", request_serializer=None, response_deserializer=None)
        first.sendall((head % (3 << 20, "")).encode() + b"x" * 1000)
        wait_until(lambda: server.metric("obelisk_body_bytes") == 3 << 20)
        assert full(server.raw((head % (long, "")).encode()))
        assert full(server.raw((head % (long, "Expect: 100-continue\r\n")).encode()))
        chunks = (b"%x\r\n" % (1 << 19) + bytes(1 << 19) + b"\r\n") * 4
        assert full(server.raw(b"POST /v2/models/mlp/infer HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n" + chunks))
        status, headers, text = server.ask("POST", INFER, gzip.compress(bytes(long)), {"Content-Encoding": "gzip"})
        assert status == 503 and "no room" in json.loads(text)["error"] and headers["Retry-After"] == "1"
        with pytest.raises(grpc.RpcError) as refused:
            call(bytes(long))
        assert refused.value.code() == grpc.StatusCode.RESOURCE_EXHAUSTED and "no room" in refused.value.details()
        alive(server)
        assert server.metric("obelisk_bodies_refused") == 5
        assert server.raw((head % (5 << 20, "")).encode()).startswith(b"HTTP/1.1 413 ")  # it would never fit
    wait_until(lambda: server.metric("obelisk_body_bytes") == 0)
    assert server.ask("POST", INFER, bytes(long))[0] == 400
    wait_until(lambda: server.metric("obelisk_body_bytes") == 0)
    assert server.stop() == 0


def test_slow_senders_are_told_and_closed(server):
    """Half a header, half a body, nothing at all: others are answered meanwhile."""
    halves = [b"POST /v2/mod", b"POST /v2/models/mlp/infer HTTP/1.1\r\nHost: a\r\nContent-Length: 100\r\n\r\n{", b""]
    connections = []
    for half in halves:
        connections.append(socket.create_connection(("127.0.0.1", server.port), timeout=30))
        connections[-1].sendall(half)
    alive(server)
    for half, one in zip(halves, connections):
        out = b""
        while piece := one.recv(4096):
            out += piece
        assert out.startswith(b"HTTP/1.1 408") if half else out == b"", out
        one.close()


def test_readers_that_do_not_read(server):
    """Answers that nobody takes must not hold up anybody else."""
    connections = []
    for _ in range(20):
        one = socket.socket()
        one.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        one.connect(("127.0.0.1", server.port))
        one.sendall(b"GET /v2/live.json HTTP/1.1\r\nHost: a\r\n\r\n" * 200)
        connections.append(one)
    for _ in range(20):
        alive(server)
    for one in connections:
        one.close()
    alive(server)


def test_many_connections(server):
    """A thousand that say nothing, and one that is answered."""
    import resource
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(hard, max(soft, 4096)), hard))
    connections = [socket.create_connection(("127.0.0.1", server.port)) for _ in range(1000)]
    alive(server)
    for one in connections[::2]:
        one.close()
    alive(server)
    for one in connections[1::2]:
        one.close()


def test_more_connections_than_allowed(models, start):
    server = start(models, "--max-connections", "5")
    connections = [socket.create_connection(("127.0.0.1", server.port)) for _ in range(20)]
    closed = 0
    for one in connections:
        one.settimeout(1)
        try:
            closed += one.recv(1) == b""
        except TimeoutError:
            pass
    assert closed == 15
    for one in connections:
        one.close()
    wait_until(lambda: server.ask("GET", "/v2/health/live")[0] == 200 if not time.sleep(0.1) else False)


def test_resets_and_half_closed_connections(server):
    """Connections that end anywhere in a request."""
    body = json.dumps(MLP).encode()
    request = b"POST /v2/models/mlp/infer HTTP/1.1\r\nHost: a\r\nContent-Length: %d\r\n\r\n" % len(body) + body
    for cut in range(0, len(request), 9):
        one = socket.create_connection(("127.0.0.1", server.port))
        one.sendall(request[:cut])
        one.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\x01\0\0\0\0\0\0\0")  # a reset, not an end
        one.close()
        server.raw(request[:cut], half_close=True)
    alive(server)


def test_memory_stays(server):
    """Bodies that come and go leave nothing behind."""
    def round():
        for _ in range(30):
            server.ask("POST", INFER, b"x" * (7 << 20))
        return server.metric("process_resident_memory_bytes")
    first = round()
    for _ in range(3):
        last = round()
    assert last < first + (64 << 20)
