"""The protocol over gRPC: tritonclient, and messages that no client would send."""

import json
import signal
from concurrent import futures

import numpy as np
import pytest
from conftest import mlp, random, save_slow, wait_until

import tritonclient.grpc as triton
import grpc
from tritonclient.grpc import service_pb2
from tritonclient.utils import InferenceServerException


@pytest.fixture
def client(server):
    with triton.InferenceServerClient(server.grpc) as one:
        yield one


@pytest.fixture
def channel(server):
    with grpc.insecure_channel(server.grpc) as one:
        yield one


def given(x):
    one = triton.InferInput("x", list(x.shape), "FP32")
    one.set_data_from_numpy(x)
    return one


def method(channel, name, answer=None):
    """A method of the service, bytes in."""
    return channel.unary_unary(f"/inference.GRPCInferenceService/{name}", request_serializer=lambda x: x,
                               response_deserializer=answer.FromString if answer else lambda x: x)


def test_health_and_metadata(client):
    assert client.is_server_live() and client.is_server_ready() and client.is_model_ready("mlp")
    assert not client.is_model_ready("nobody")
    assert client.get_server_metadata().name == "obelisk"
    metadata = client.get_model_metadata("mlp", as_json=True)
    assert metadata["inputs"] == [{"name": "x", "datatype": "FP32", "shape": ["-1", "8"]}]
    config = client.get_model_config("mlp").config
    assert config.max_batch_size == 8 and list(config.input[0].dims) == [8] and config.backend == "obelisk"
    assert client.get_model_config("types").config.max_batch_size == 0


def test_health_service(channel):
    check = channel.unary_unary("/grpc.health.v1.Health/Check", request_serializer=lambda x: x, response_deserializer=lambda x: x)
    assert check(b"") == b"\x08\x01"
    service = b"inference.GRPCInferenceService"
    assert check(b"\x0a" + bytes([len(service)]) + service) == b"\x08\x01"
    with pytest.raises(grpc.RpcError) as refused:
        check(b"\x0a\x06nobody")
    assert refused.value.code() == grpc.StatusCode.NOT_FOUND


def test_health_is_watched(channel):
    watch = channel.unary_stream("/grpc.health.v1.Health/Watch", request_serializer=lambda x: x, response_deserializer=lambda x: x)
    states = watch(b"")
    assert next(states) == b"\x08\x01"
    states.cancel()
    assert next(watch(b"\x0a\x06nobody", timeout=30)) == b"\x08\x03"


def test_who_watches_sees_the_server_drain(models, start):
    own = start(models, "--no-verify", "--grace", "0.3")
    with grpc.insecure_channel(own.grpc) as channel:
        states = channel.unary_stream("/grpc.health.v1.Health/Watch", request_serializer=lambda x: x, response_deserializer=lambda x: x)(b"", timeout=60)
        assert next(states) == b"\x08\x01"
        own.process.send_signal(signal.SIGTERM)
        assert next(states) == b"\x08\x02"
        with pytest.raises(grpc.RpcError) as ended:
            next(states)
        assert ended.value.code() == grpc.StatusCode.CANCELLED
    assert own.process.wait(timeout=60) == 0


def test_more_threads(models, start):
    own = start(models, "--no-verify", "--grpc-threads", "3", "--http-threads", "2", "--spin", "0")
    x = random(4, 8)
    with triton.InferenceServerClient(own.grpc) as client, futures.ThreadPoolExecutor(8) as pool:
        answers = list(pool.map(lambda row: client.infer("mlp", [given(x[row % 4:row % 4 + 1])]).as_numpy("y"), range(64)))
    for row, answer in enumerate(answers):
        np.testing.assert_allclose(answer, mlp(x[row % 4:row % 4 + 1]), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("rows", [1, 5])
def test_infer(client, rows):
    x = random(rows, 8)
    answer = client.infer("mlp", [given(x)], request_id="seven", timeout=60_000_000, priority=1, outputs=[triton.InferRequestedOutput("y")])
    np.testing.assert_allclose(answer.as_numpy("y"), mlp(x), rtol=1e-4, atol=1e-5)
    assert answer.get_response().id == "seven"


def test_typed_contents(channel):
    request = service_pb2.ModelInferRequest(model_name="mlp")
    one = request.inputs.add(name="x", datatype="FP32", shape=[1, 8])
    one.contents.fp32_contents.extend(random(1, 8)[0].tolist())
    answer = method(channel, "ModelInfer", service_pb2.ModelInferResponse)(request.SerializeToString())
    np.testing.assert_allclose(np.frombuffer(answer.raw_output_contents[0], np.float32), mlp(random(1, 8))[0], rtol=1e-4, atol=1e-5)


def test_trace_and_tenant(client, server):
    answer = client.infer("mlp", [given(random(1, 8))], parameters={"trace": True, "tenant": "over grpc"}).get_response()
    assert answer.parameters["trace_variant"].string_param and answer.parameters["trace_ran_us"].double_param > 0
    assert server.metric('obelisk_tenant_requests{tenant="over grpc",model="mlp",outcome="ok"}') >= 1


def test_stream(client):
    """Many calls on one stream, one of them wrong: each is answered."""
    answers = []
    client.start_stream(lambda result, error: answers.append((result, error)))
    x = random(1, 8)
    for k in range(300):
        client.async_stream_infer("mlp" if k != 100 else "nobody", [given(x)], request_id=str(k))
    client.stop_stream()
    good = [result for result, error in answers if error is None]
    assert len(answers) == 300 and len(good) == 299
    assert {one.get_response().id for one in good} == {str(k) for k in range(300) if k != 100}
    for one in good:
        np.testing.assert_allclose(one.as_numpy("y"), mlp(x), rtol=1e-4, atol=1e-5)
    assert "nobody" in [error for _, error in answers if error is not None][0].message()


def test_statistics_repository_and_settings(client):
    before = client.get_inference_statistics("mlp").model_stats[0].inference_count
    client.infer("mlp", [given(random(2, 8))])
    assert client.get_inference_statistics("mlp").model_stats[0].inference_count == before + 2
    client.unload_model("mlp")
    assert not client.is_model_ready("mlp")
    client.load_model("mlp")
    assert {one.name: one.state for one in client.get_model_repository_index().models} == {"mlp": "READY", "types": "READY"}
    assert client.update_log_settings({"log_verbose_level": 1}).settings["log_verbose_level"].uint32_param == 1
    client.update_log_settings({"log_verbose_level": 0})
    assert client.get_trace_settings().settings["trace_level"].value == ["OFF"]
    assert len(client.get_cuda_shared_memory_status().regions) == 0


def test_system_shared_memory(client):
    import tritonclient.utils.shared_memory as shm
    x = random(2, 8)
    region = shm.create_shared_memory_region("in", "/obelisk_test_grpc", x.nbytes + 32)
    try:
        shm.set_shared_memory_region(region, [x])
        client.register_system_shared_memory("g", "/obelisk_test_grpc", x.nbytes + 32)
        assert client.get_system_shared_memory_status().regions["g"].byte_size == x.nbytes + 32
        one, out = triton.InferInput("x", [2, 8], "FP32"), triton.InferRequestedOutput("y")
        one.set_shared_memory("g", x.nbytes)
        out.set_shared_memory("g", 32, offset=x.nbytes)
        client.infer("mlp", [one], outputs=[out])
        np.testing.assert_allclose(shm.get_contents_as_numpy(region, np.float32, [2, 4], offset=x.nbytes), mlp(x), rtol=1e-4, atol=1e-5)
        client.unregister_system_shared_memory("g")
    finally:
        shm.destroy_shared_memory_region(region)


@pytest.mark.parametrize("call, status", [
    (lambda c: c.infer("nobody", [given(random(1, 8))]), "NOT_FOUND"),
    (lambda c: c.infer("mlp", [given(random(1, 7))]), "INVALID_ARGUMENT"),
    (lambda c: c.infer("mlp", []), "INVALID_ARGUMENT"),
    (lambda c: c.infer("mlp", [given(random(1, 8))], outputs=[triton.InferRequestedOutput("z")]), "INVALID_ARGUMENT"),
    (lambda c: c.get_model_metadata("nobody"), "NOT_FOUND"),
    (lambda c: c.load_model("nobody"), "NOT_FOUND"),
    (lambda c: c.load_model("mlp", config="{}"), "UNIMPLEMENTED"),
    (lambda c: c.register_system_shared_memory("r", "/nothing_there", 10), "INVALID_ARGUMENT"),
    (lambda c: c.register_cuda_shared_memory("r", b"aGFuZGxl", 0, 10), "UNIMPLEMENTED"),
])
def test_refusals(client, call, status):
    with pytest.raises(InferenceServerException) as refused:
        call(client)
    assert refused.value.status() == f"StatusCode.{status}", refused.value


@pytest.mark.parametrize("name", ["ModelInfer", "ModelMetadata", "RepositoryModelLoad", "LogSettings", "SystemSharedMemoryRegister", "TraceSetting"])
@pytest.mark.parametrize("message", [b"\xff", b"\x0a\x05ab", b"\x0a\xff\xff\xff\xff\x0f", b"\x0b\x0c"])
def test_malformed_messages(channel, name, message):
    with pytest.raises(grpc.RpcError) as refused:
        method(channel, name)(message)
    assert refused.value.code() in (grpc.StatusCode.INVALID_ARGUMENT, grpc.StatusCode.NOT_FOUND)


def test_malformed_input(channel):
    with pytest.raises(grpc.RpcError) as refused:
        method(channel, "ModelInfer")(b"\x2a\x02\x0a\x7f")
    assert refused.value.code() == grpc.StatusCode.INVALID_ARGUMENT


def test_unknown_method(channel):
    with pytest.raises(grpc.RpcError) as refused:
        method(channel, "Nothing")(b"")
    assert refused.value.code() == grpc.StatusCode.UNIMPLEMENTED


def test_long_message(channel):
    with pytest.raises(grpc.RpcError) as refused:
        method(channel, "ModelInfer")(bytes(9 << 20))
    assert refused.value.code() == grpc.StatusCode.RESOURCE_EXHAUSTED


def test_deadline_and_cancellation(tmp_path, start):
    """What the client no longer waits for does not run: by its deadline, or since it cancels."""
    save_slow(tmp_path / "models" / "slow")
    server = start(tmp_path / "models", "--no-verify")
    request = service_pb2.ModelInferRequest(model_name="slow")
    request.inputs.add(name="x", datatype="FP32", shape=[1])
    request.raw_input_contents.append(np.ones(1, np.float32).tobytes())
    with grpc.insecure_channel(server.grpc) as channel:
        infer = method(channel, "ModelInfer")
        text = request.SerializeToString()
        calls = [infer.future(text) for _ in range(6)]
        counts = lambda: json.loads(server.ask("GET", "/v2/live.json")[2])
        wait_until(lambda: counts()["in_flight"] == 6)
        calls[-1].cancel()
        wait_until(lambda: counts()["models"][0]["cancelled"] == 1)
        with pytest.raises(grpc.RpcError) as late:
            infer(text, timeout=0.05)
        assert late.value.code() in (grpc.StatusCode.DEADLINE_EXCEEDED, grpc.StatusCode.UNAVAILABLE)
        for one in calls[:-1]:
            one.result()
        wait_until(lambda: counts()["in_flight"] == 0)
        assert counts()["models"][0]["ok"] == 5, counts()
    assert server.stop() == 0
