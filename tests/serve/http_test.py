"""The protocol over HTTP, asked by a stock client that nobody here wrote: tritonclient."""

import json

import numpy as np
import pytest
from conftest import mlp, random

import tritonclient.http as triton
from tritonclient.utils import InferenceServerException


@pytest.fixture
def client(server):
    with triton.InferenceServerClient(server.http) as one:
        yield one


def given(x, **options):
    one = triton.InferInput("x", list(x.shape), "FP32")
    one.set_data_from_numpy(x, **options)
    return one


def test_health_and_metadata(client, server):
    assert client.is_server_live() and client.is_server_ready() and client.is_model_ready("mlp")
    assert not client.is_model_ready("nobody")
    assert client.get_server_metadata()["name"] == "obelisk"
    assert client.get_model_metadata("mlp") == {
        "name": "mlp", "versions": ["1"], "platform": "obelisk",
        "inputs": [{"name": "x", "datatype": "FP32", "shape": [-1, 8]}],
        "outputs": [{"name": "y", "datatype": "FP32", "shape": [-1, 4]}]}
    config = client.get_model_config("mlp")
    assert config["max_batch_size"] == 8 and config["input"] == [{"name": "x", "data_type": "TYPE_FP32", "dims": [8]}]
    assert client.get_model_config("types")["max_batch_size"] == 0
    # One client reads no body, another wants JSON.
    assert server.json("GET", "/v2/health/live") == (200, {"live": True})
    assert server.json("GET", "/v2/models/mlp/versions/1/ready") == (200, {"name": "mlp", "ready": True})


@pytest.mark.parametrize("rows", [1, 3, 8])
@pytest.mark.parametrize("binary_in", [True, False])
@pytest.mark.parametrize("binary_out", [True, False])
def test_infer(client, rows, binary_in, binary_out):
    x = random(rows, 8)
    outputs = [triton.InferRequestedOutput("y", binary_data=binary_out)]
    answer = client.infer("mlp", [given(x, binary_data=binary_in)], outputs=outputs, request_id="seven", model_version="1")
    np.testing.assert_allclose(answer.as_numpy("y"), mlp(x), rtol=1e-4, atol=1e-5)
    assert answer.get_response()["id"] == "seven"


@pytest.mark.parametrize("binary", [True, False])
def test_every_type(client, binary):
    inputs, wanted = [], {}
    for name, numpy, wire in [("FLOAT", np.float32, "FP32"), ("DOUBLE", np.float64, "FP64"), ("FLOAT16", np.float16, "FP16"), ("INT64", np.int64, "INT64"),
                              ("INT32", np.int32, "INT32"), ("INT8", np.int8, "INT8"), ("UINT8", np.uint8, "UINT8"), ("BOOL", np.bool_, "BOOL")]:
        x = (np.arange(6) % 2 == 0).reshape(2, 3) if name == "BOOL" else np.arange(6).reshape(2, 3).astype(numpy)
        one = triton.InferInput(f"in_{name}", [2, 3], wire)
        one.set_data_from_numpy(x, binary_data=binary or name == "FLOAT16")
        inputs.append(one)
        wanted[f"out_{name}"] = ~x if name == "BOOL" else x + x
    answer = client.infer("types", inputs, outputs=[triton.InferRequestedOutput(name, binary_data=binary or "16" in name) for name in wanted])
    for name, value in wanted.items():
        got = answer.as_numpy(name)
        assert got.dtype == value.dtype and np.array_equal(got, value), name


@pytest.mark.parametrize("coding", ["gzip", "deflate"])
def test_compressed_requests(client, coding):
    x = random(4, 8)
    answer = client.infer("mlp", [given(x)], request_compression_algorithm=coding, response_compression_algorithm=coding)
    np.testing.assert_allclose(answer.as_numpy("y"), mlp(x), rtol=1e-4, atol=1e-5)


def test_bytes_alone(server):
    x = random(1, 8)
    status, headers, body = server.ask("POST", "/v2/models/mlp/infer", x.tobytes(), {"Inference-Header-Content-Length": "0"})
    size = int(headers["Inference-Header-Content-Length"])
    assert status == 200, body
    np.testing.assert_allclose(np.frombuffer(body[size:], np.float32), mlp(x)[0], rtol=1e-4, atol=1e-5)


def test_chunks_and_pipelining(server):
    """Bodies without a length, and the next request before the answer."""
    x = random(1, 8)
    body = json.dumps({"inputs": [{"name": "x", "shape": [1, 8], "datatype": "FP32", "data": x.tolist()}]}).encode()
    chunks = b"".join(b"%x\r\n%s\r\n" % (len(body[k:k + 37]), body[k:k + 37]) for k in range(0, len(body), 37)) + b"0\r\n\r\n"
    one = b"POST /v2/models/mlp/infer HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n" + chunks
    last = b"POST /v2/models/mlp/infer HTTP/1.1\r\nHost: a\r\nConnection: close\r\nContent-Length: %d\r\n\r\n" % len(body) + body
    out = server.raw(one + last)
    assert out.count(b"HTTP/1.1 200") == 2, out


def test_expect_continue(server):
    out = server.raw(b"POST /v2/repository/index HTTP/1.1\r\nHost: a\r\nExpect: 100-continue\r\nConnection: close\r\nContent-Length: 2\r\n\r\n{}")
    assert out.startswith(b"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 200"), out


@pytest.mark.parametrize("call, status, words", [
    (lambda c: c.infer("nobody", [given(random(1, 8))]), "404", ["nobody"]),
    (lambda c: c.infer("mlp", [given(random(1, 8))], model_version="2"), "404", ["version"]),
    (lambda c: c.infer("mlp", [given(random(1, 7))]), "400", ["x", "7", "8"]),
    (lambda c: c.infer("mlp", [given(random(2, 2, 8))]), "400", ["x"]),
    (lambda c: c.infer("mlp", []), "400", ["x"]),
    (lambda c: c.infer("mlp", [given(random(1, 8))], outputs=[triton.InferRequestedOutput("z")]), "400", ["z"]),
    (lambda c: c.infer("mlp", [given(random(1, 8))], sequence_id=3), "400", ["sequence"]),
    (lambda c: c.infer("mlp", [given(random(1, 8))], outputs=[triton.InferRequestedOutput("y", class_count=2)]), "400", ["classification"]),
    (lambda c: c.load_model("nobody"), "404", ["nobody"]),
    (lambda c: c.load_model("../mlp"), "404", ["mlp"]),
    (lambda c: c.load_model("mlp", config="{}"), "501", ["configurations"]),
    (lambda c: c.unload_model("nobody"), "404", ["nobody"]),
    (lambda c: c.get_model_metadata("nobody"), "404", ["nobody"]),
    (lambda c: c.get_inference_statistics("nobody"), "404", ["nobody"]),
    (lambda c: c.update_log_settings({"log_file": "/tmp/elsewhere"}), "400", ["log_file"]),
])
def test_refusals_of_calls(client, call, status, words):
    with pytest.raises(InferenceServerException) as refused:
        call(client)
    assert refused.value.status() == status, refused.value
    for word in words:
        assert word in refused.value.message(), refused.value


def test_wrong_type_says_got_and_wanted(client):
    one = triton.InferInput("x", [1, 8], "INT32")
    one.set_data_from_numpy(np.zeros((1, 8), np.int32))
    with pytest.raises(InferenceServerException) as refused:
        client.infer("mlp", [one])
    assert refused.value.status() == "400"
    assert "i32" in refused.value.message() and "f32" in refused.value.message()


@pytest.mark.parametrize("method, path, status, allow", [
    ("GET", "/v2/models/mlp/infer", 405, "POST"), ("POST", "/v2/health/live", 405, "GET"), ("DELETE", "/v2", 405, "GET"),
    ("GET", "/v2/repository/index", 405, "POST"), ("GET", "/elsewhere", 404, None), ("GET", "/v2/models", 404, None),
    ("GET", "/v2/models/mlp/versions/1/nothing", 404, None), ("GET", "/v2/%zz", 400, None), ("GET", "/v2/models/nobody", 404, None),
])
def test_statuses(server, method, path, status, allow):
    got, headers, body = server.ask(method, path)
    assert got == status and headers.get("Allow") == allow
    assert headers["Content-Type"] == "application/json" and json.loads(body)["error"]


def test_head(server):
    status, headers, body = server.ask("HEAD", "/v2/health/ready")
    assert (status, body) == (200, b"") and headers["Content-Length"] == str(len('{"ready":true}'))


def test_statistics_grow(client):
    before = client.get_inference_statistics("mlp")["model_stats"][0]
    client.infer("mlp", [given(random(3, 8))])
    after = client.get_inference_statistics("mlp")["model_stats"][0]
    assert after["inference_count"] == before["inference_count"] + 3
    assert after["inference_stats"]["queue"]["count"] == before["inference_stats"]["queue"]["count"] + 1
    assert int(after["version"]) == 1
    assert {one["name"] for one in client.get_inference_statistics()["model_stats"]} == {"mlp", "types"}


def test_unload_and_load(client):
    assert {one["name"]: one["state"] for one in client.get_model_repository_index()}["mlp"] == "READY"
    client.unload_model("mlp")
    assert not client.is_model_ready("mlp")
    assert {one["name"]: one["state"] for one in client.get_model_repository_index()}["mlp"] == "UNAVAILABLE"
    client.load_model("mlp")
    assert client.is_model_ready("mlp")
    client.infer("mlp", [given(random(1, 8))])


def test_trace(client):
    x = given(random(2, 8))
    answer = client.infer("mlp", [x], parameters={"trace": True}, timeout=60_000_000).get_response()["parameters"]
    assert answer["trace_batch_rows"] >= 2 and answer["trace_variant"] and answer["trace_reason"]
    assert answer["trace_waited_us"] >= 0 and answer["trace_ran_us"] > 0 and 0 < answer["trace_slack_us"] <= 60_000_000
    assert "parameters" not in client.infer("mlp", [x]).get_response()


def test_log_settings(client):
    assert client.update_log_settings({"log_verbose_level": 1})["log_verbose_level"] == 1
    assert client.get_log_settings()["log_verbose_level"] == 1
    client.update_log_settings({"log_verbose_level": 0})
    assert client.get_trace_settings()["trace_level"] == ["OFF"]


def test_system_shared_memory(client):
    import tritonclient.utils.shared_memory as shm
    x = random(2, 8)
    region = shm.create_shared_memory_region("in", "/obelisk_test_in", x.nbytes + 64)
    try:
        shm.set_shared_memory_region(region, [x])
        client.register_system_shared_memory("both", "/obelisk_test_in", x.nbytes + 64)
        status = client.get_system_shared_memory_status()
        assert [(one["name"], one["byte_size"]) for one in status] == [("both", x.nbytes + 64)]
        with pytest.raises(InferenceServerException, match="already"):
            client.register_system_shared_memory("both", "/obelisk_test_in", x.nbytes)
        with pytest.raises(InferenceServerException, match="do not fit"):
            client.register_system_shared_memory("more", "/obelisk_test_in", 1 << 30)
        one = triton.InferInput("x", [2, 8], "FP32")
        one.set_shared_memory("both", x.nbytes)
        out = triton.InferRequestedOutput("y")
        out.set_shared_memory("both", 32, offset=x.nbytes)
        answer = client.infer("mlp", [one], outputs=[out])
        assert "data" not in answer.get_output("y")
        got = shm.get_contents_as_numpy(region, np.float32, [2, 4], offset=x.nbytes)
        np.testing.assert_allclose(got, mlp(x), rtol=1e-4, atol=1e-5)
        one.set_shared_memory("both", x.nbytes, offset=1 << 20)
        with pytest.raises(InferenceServerException, match="do not fit"):
            client.infer("mlp", [one])
        client.unregister_system_shared_memory("both")
        assert client.get_system_shared_memory_status() == []
    finally:
        shm.destroy_shared_memory_region(region)


def test_metrics(server, client):
    from prometheus_client import parser
    client.infer("mlp", [given(random(1, 8))], parameters={"tenant": 'a"b'}, timeout=10_000_000)
    status, headers, body = server.ask("GET", "/metrics", port=int(server.metrics.split(":")[1]))
    assert status == 200 and headers["Content-Type"].startswith("text/plain; version=0.0.4")
    families = {one.name: one for one in parser.text_string_to_metric_families(body.decode())}
    ok = [one.value for one in families["obelisk_tenant_requests"].samples if one.labels == {"tenant": 'a"b', "model": "mlp", "outcome": "ok"}]
    assert ok and ok[0] >= 1
    assert {"nv_inference_request_success", "nv_inference_request_failure", "nv_inference_pending_request_count", "obelisk_tenant_latency_us"} <= set(families)
    assert server.ask("GET", "/v2", port=int(server.metrics.split(":")[1]))[0] == 404


def test_live_page(server, client):
    client.infer("mlp", [given(random(1, 8))], parameters={"tenant": "page"}, timeout=10_000_000)
    with pytest.raises(InferenceServerException):
        client.infer("mlp", [given(random(1, 7))], parameters={"tenant": "page"})
    status, live = server.json("GET", "/v2/live.json")
    assert status == 200 and live["ready"]
    assert {one["name"]: one["state"] for one in live["models"]}["mlp"] == "READY"
    tenant = [one for one in live["tenants"] if one["tenant"] == "page"][0]
    assert tenant["outcomes"]["ok"] >= 1 and tenant["with_deadline"] == tenant["in_time"] >= 1 and tenant["p99_us"] > 0
    assert live["lanes"] and live["refusals"][0]["tenant"] == "page" and live["refusals"][0]["outcome"] == "bad_request"
    status, headers, page = server.ask("GET", "/")
    assert status == 200 and headers["Content-Type"].startswith("text/html") and b"v2/live.json" in page
