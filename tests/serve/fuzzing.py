"""Requests and settings that are almost right, drawn from a seed: fuzzing.py [--minutes 10] [--seed 1] sends them to a server, and looks after each whether it is well.

The ordinary tests send some hundreds (faults_test.py). What a server must do with them: answer with a status of the protocol, and JSON where it is an error; or close the connection; and answer the next client.
"""

import argparse
import copy
import json
import os
import random
import re
import signal
import socket
import subprocess
import sys
import tempfile
import time
from pathlib import Path

STATUSES = {200, 400, 401, 403, 404, 405, 408, 411, 413, 414, 415, 417, 431, 499, 500, 501, 503}
ODD = [b"", b"\0", b"\r\n", b"\r\n\r\n", b"{", b"}", b"[" * 200, b"-1", b"0", b"99999999999999999999", b"1e999", b"NaN", b"null", b"true", b"\xff\xfe", b"\xed\xa0\x80", b"%00", b"%zz", b"../..", b'"', b"\\u0000", b"\\ud800",
       b": ", b"chunked", b"gzip", b"18446744073709551615", b"-9223372036854775808", b"x" * 9000]
VALUES = [None, True, -1, 0, 1, 2**31, 2**63, 2**64, -2**63, 1.5, 1e308, "", "x", "y", "mlp", "FP32", "BYTES", "\0", "é" * 50, [], {}, [[]], [None], {"a": 1}, [1] * 9, "A" * 5000]


def infer_json(chance):
    """A call, with something of it exchanged."""
    body = {"id": "a", "parameters": {"timeout": 10_000_000, "priority": 1, "tenant": "t", "trace": True, "binary_data_output": False},
            "inputs": [{"name": "x", "shape": [1, 8], "datatype": "FP32", "data": [1, 2, 3, 4, 5, 6, 7, 8], "parameters": {}}],
            "outputs": [{"name": "y", "parameters": {"binary_data": chance.random() < 0.3}}]}

    def places(value):
        for key in list(value) if isinstance(value, dict) else range(len(value)) if isinstance(value, list) else []:
            yield value, key
            yield from places(value[key])
    for _ in range(chance.choice([0, 1, 1, 1, 2, 3])):
        holder, key = chance.choice(list(places(body)))
        way = chance.randrange(4)
        if way == 0:
            holder[key] = copy.deepcopy(chance.choice(VALUES))
        elif way == 1 and isinstance(holder, dict):
            holder.pop(key)
        elif way == 1:
            holder.insert(key, holder[key])
        elif way == 2 and isinstance(holder, dict):
            holder[chance.choice(["binary_data_size", "shared_memory_region", "shared_memory_byte_size", "classification", "sequence_id", "contents", "data", "shape", "x" * 300])] = copy.deepcopy(chance.choice(VALUES))
        else:
            holder[key] = [holder[key]] * chance.choice([1, 2, 50])
    return json.dumps(body).encode()


def spoiled(chance, data):
    """Bytes, some of them others."""
    data = bytearray(data)
    for _ in range(chance.choice([0, 0, 1, 1, 2, 5])):
        at = chance.randrange(len(data) + 1)
        way = chance.randrange(5)
        if way == 0 and at < len(data):
            data[at] = chance.randrange(256)
        elif way == 1:
            data[at:at] = chance.choice(ODD)
        elif way == 2:
            del data[at:at + chance.choice([1, 2, 10, 1000])]
        elif way == 3:
            data[at:at] = data[at:at + chance.randrange(60)]
        elif at < len(data):
            data[at] ^= 1 << chance.randrange(8)
    return bytes(data)


def http_request(chance):
    paths = ["/v2/models/mlp/infer"] * 6 + ["/v2", "/v2/models/mlp", "/v2/models/mlp/versions/1/infer", "/v2/models/mlp/config", "/v2/models/stats", "/v2/repository/index", "/v2/logging", "/v2/trace/setting", "/v2/health/ready",
                                              "/v2/systemsharedmemory/status", "/v2/systemsharedmemory/region/r/register", "/v2/live.json", "/", "/%2e%2e/%2e%2e/etc/passwd", "//v2//models//mlp"]
    path = chance.choice(paths)
    body = infer_json(chance) if path.endswith("infer") else chance.choice([b"", b"{}", b"[]", b'{"ready":true}', b'{"key":"/x","byte_size":8}'])
    method = chance.choice(["POST", "POST", "POST", "GET", "HEAD", "PUT", "OPTIONS", "CONNECT", "\x01"]) if path.endswith("infer") else chance.choice(["GET", "POST"])
    headers = [b"Host: a"]
    if chance.random() < 0.2:
        tail = bytes(chance.randrange(256) for _ in range(chance.choice([0, 31, 32, 33])))
        headers.append(b"Inference-Header-Content-Length: %d" % (len(body) + chance.choice([0, 0, 0, 1, -1, 1000])))
        body += tail
    if chance.random() < 0.1:
        import zlib
        body = zlib.compress(body)
        headers.append(b"Content-Encoding: " + chance.choice([b"deflate", b"gzip", b"br"]))
    for name in (b"x-envoy-expected-rq-timeout-ms", b"x-tenant", b"Expect", b"Authorization", b"endpoint-load-metrics-format"):
        if chance.random() < 0.05:
            headers.append(name + b": " + chance.choice([b"100", b"100-continue", b"text", b"Bearer x"] + ODD).replace(b"\r\n", b""))
    if chance.random() < 0.2:
        size, chunks = chance.choice([1, 7, 100]), b""
        for k in range(0, len(body), size):
            chunks += b"%x\r\n%s\r\n" % (len(body[k:k + size]), body[k:k + size])
        body = chunks + b"0\r\n\r\n"
        headers.append(b"Transfer-Encoding: chunked")
    else:
        headers.append(b"Content-Length: %d" % len(body))
    return b"%s %s HTTP/1.%d\r\n" % (method.encode(), path.encode(), chance.choice([1, 1, 1, 0])) + b"\r\n".join(headers) + b"\r\n\r\n" + body


def send_http(port, data):
    """What comes back, at most a second after the last byte."""
    out = b""
    with socket.create_connection(("127.0.0.1", port), timeout=30) as one:
        try:
            one.sendall(data)
            one.shutdown(socket.SHUT_WR)
            while piece := one.recv(65536):
                out += piece
        except (BrokenPipeError, ConnectionResetError):
            pass
    return out


def check_http(data, out):
    if not out:
        return
    found = re.match(rb"HTTP/1\.[01] (\d{3}) ", out)
    assert found, (data[:300], out[:300])
    status = int(found[1])
    assert status in STATUSES or status == 100, (status, data[:300], out[:300])
    if status >= 400 and not data.startswith(b"HEAD"):
        head, _, body = out.partition(b"\r\n\r\n")
        length = int(re.search(rb"content-length: (\d+)", head.lower())[1])
        assert json.loads(body[:length])["error"], (data[:300], out[:300])


def varint(value):
    out = b""
    while True:
        value, low = value >> 7, value & 127
        out += bytes([low | (128 if value else 0)])
        if not value:
            return out


def grpc_message(chance):
    """A ModelInferRequest, fields by hand, so that they may be wrong."""
    def field(number, data):
        return varint(number << 3 | 2) + varint(len(data)) + data
    tensor = field(1, b"x") + field(2, chance.choice([b"FP32", b"FP32", b"INT32", b"BYTES", b"\xff"])) + field(3, b"".join(varint(one % 2**64) for one in chance.choice([[1, 8], [1, 8], [8], [], [-1, 8], [2**62, 8]])))
    if chance.random() < 0.3:
        tensor += field(5, field(chance.randrange(1, 10), b"\0\0\x80?" * chance.choice([0, 1, 8, 9])))
    message = field(1, b"mlp") + field(3, b"a") + field(5, tensor)
    if chance.random() < 0.3:
        message += field(4, field(1, chance.choice([b"timeout", b"priority", b"trace", b"tenant"])) + field(2, chance.choice([b"\x10\x80\x89\x7a", b"\x08\x01", b"\x1a\x01a", b"\x18\xff", b""])))
    if chance.random() < 0.8:
        message += field(7, b"\0\0\x80?" * chance.choice([8, 8, 8, 7, 0]))
    return spoiled(chance, message)


def settings(chance):
    text = b'deadline_ms = 12.5\npriority = 2\nweight = 3.0\nbatch = 4\nqueue_limit = 9\nprecision = "fp32"\nfile = "model.onnx"\n[dimensions]\nrows = 3\n'
    return spoiled(chance, spoiled(chance, text))


def fuzz_http(server, chance, count):
    for _ in range(count):
        data = spoiled(chance, http_request(chance)) if chance.random() < 0.6 else http_request(chance)
        check_http(data, send_http(server.port, data))


def fuzz_grpc(channel, chance, count):
    import grpc
    for _ in range(count):
        name = chance.choice(["ModelInfer"] * 6 + ["ModelMetadata", "ModelConfig", "ModelStatistics", "RepositoryIndex", "LogSettings", "TraceSetting", "SystemSharedMemoryRegister", "Nothing"])
        call = channel.unary_unary(f"/inference.GRPCInferenceService/{name}", request_serializer=lambda one: one, response_deserializer=lambda one: one)
        try:
            call(grpc_message(chance), timeout=60)
        except grpc.RpcError as failed:
            assert failed.code() in (grpc.StatusCode.INVALID_ARGUMENT, grpc.StatusCode.NOT_FOUND, grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.UNIMPLEMENTED, grpc.StatusCode.DEADLINE_EXCEEDED,
                                     grpc.StatusCode.RESOURCE_EXHAUSTED, grpc.StatusCode.PERMISSION_DENIED, grpc.StatusCode.INTERNAL), failed
            assert "bug" not in (failed.details() or ""), failed


def fuzz_settings(program, environment, folder, chance, count, save_mlp):
    """Settings of many models, read at once; the program ends as it should and names each model."""
    import shutil
    shutil.rmtree(folder, ignore_errors=True)
    save_mlp(folder / "m0")
    for k in range(count):
        (folder / f"m{k}").mkdir(exist_ok=True)
        if k:
            os.link(folder / "m0" / "model.onnx", folder / f"m{k}" / "model.onnx")
        (folder / f"m{k}" / "model.toml").write_bytes(settings(chance))
    done = subprocess.run([str(program), "serve", str(folder), "--check", "--json"], env=environment, capture_output=True, timeout=120)
    assert done.returncode in (0, 1), (done.returncode, done.stderr[-500:])
    assert len(json.loads(done.stdout)["models"]) == count


def main():
    flags = argparse.ArgumentParser()
    flags.add_argument("--minutes", type=float, default=10)
    flags.add_argument("--seed", type=int, default=1)
    flags = flags.parse_args()
    sys.path.insert(0, str(Path(__file__).resolve().parent))
    from conftest import PROGRAM, Server, save_mlp
    folder = Path(tempfile.mkdtemp(prefix="obelisk-fuzz-"))
    environment = {**os.environ, "XDG_CACHE_HOME": str(folder / "cache")}
    save_mlp(folder / "models" / "mlp")
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))
    server = Server(folder / "models", environment, "--max-body", "4", "--body-timeout", "2", ends_with_us=True)
    try:
        fuzz(server, folder, environment, flags, PROGRAM, save_mlp)
    finally:
        if server.process.poll() is None:
            server.process.kill()
            server.process.wait()


def fuzz(server, folder, environment, flags, program, save_mlp):
    import grpc
    body = {"inputs": [{"name": "x", "shape": [1, 8], "datatype": "FP32", "data": [1] * 8}]}
    counts = {"http": 0, "grpc": 0, "toml": 0}
    first = None
    until = time.monotonic() + flags.minutes * 60
    turn = flags.seed * 1_000_000
    with grpc.insecure_channel(server.grpc) as channel:
        while time.monotonic() < until:
            turn += 1
            chance = random.Random(turn)
            try:
                fuzz_http(server, chance, 100)
                fuzz_grpc(channel, chance, 100)
                fuzz_settings(program, environment, folder / "settings", chance, 40, save_mlp)
                server.ask("POST", "/v2/logging", {"log_info": True, "log_verbose_level": 0})
                assert server.ask("POST", "/v2/models/mlp/infer", body)[0] == 200
                assert server.process.poll() is None
            except Exception:
                print(f"turn {turn} broke it; the server's log is {server.log_path}", file=sys.stderr)
                raise
            counts = {"http": counts["http"] + 100, "grpc": counts["grpc"] + 100, "toml": counts["toml"] + 40}
            first = first or server.metric("process_resident_memory_bytes")
    last = server.metric("process_resident_memory_bytes")
    assert server.stop() == 0
    print(json.dumps({**counts, "resident_mib": [round(first / 2**20), round(last / 2**20)]}))


if __name__ == "__main__":
    main()
