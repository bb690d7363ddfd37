"""What goes wrong around a server: files that are cut, disks that are full, models that go while they are asked, thousands of connections. Others are answered all the while."""

import errno
import gzip
import json
import os
import random as chance
import resource
import signal
import socket
import subprocess
import sys
import threading
import time

import fuzzing
import grpc
import pytest
from conftest import PROGRAM, random, save, save_mlp, wait_until
from onnx import TensorProto, helper

MLP = {"inputs": [{"name": "x", "shape": [1, 8], "datatype": "FP32", "data": random(1, 8).tolist()}]}
INFER = "/v2/models/mlp/infer"


class Others:
    """Clients of a model that nothing happens to: each of their requests is answered."""

    def __init__(self, server, count=2):
        self.stop, self.count, self.wrong = threading.Event(), 0, []

        def ask():
            while not self.stop.is_set():
                try:
                    status, _, text = server.ask("POST", INFER, MLP)
                    if status != 200:
                        self.wrong.append((status, text))
                    self.count += 1
                except OSError as failed:
                    self.wrong.append(failed)
        self.threads = [threading.Thread(target=ask) for _ in range(count)]

    def __enter__(self):
        for one in self.threads:
            one.start()
        return self

    def __exit__(self, *_):
        self.stop.set()
        for one in self.threads:
            one.join()
        assert not self.wrong and self.count > 0, self.wrong[:3]


def save_wide(folder, width=1024):
    """Some megabytes of weights."""
    nodes = [helper.make_node("MatMul", ["x", "w0"], ["h"]), helper.make_node("MatMul", ["h", "w1"], ["y"])]
    return save(folder, nodes, {"x": (TensorProto.FLOAT, [1, width])}, {"y": (TensorProto.FLOAT, [1, width])}, {"w0": random(width, width), "w1": random(width, width)})


def test_a_file_is_cut_while_it_loads(tmp_path, start):
    save_mlp(tmp_path / "models" / "mlp")
    file = save_wide(tmp_path / "models" / "wide") / "model.onnx"
    whole = file.read_bytes()
    server = start(tmp_path / "models", "--no-verify")
    with Others(server):
        for turn in range(12):
            file.write_bytes(whole)
            answers = []
            load = threading.Thread(target=lambda: answers.append(server.json("POST", "/v2/repository/models/wide/load")))
            load.start()
            time.sleep(0.01 * turn)
            os.truncate(file, len(whole) // 3)
            load.join()
            assert answers[0][0] == 200 or (answers[0][0] == 400 and answers[0][1]["error"]), answers
        file.write_bytes(whole)
        assert server.json("POST", "/v2/repository/models/wide/load")[0] == 200
    assert server.stop() == 0


def test_a_compiled_file_is_cut_while_it_serves(tmp_path, start, environment):
    """The server does not read from it any more."""
    save_mlp(tmp_path / "models" / "mlp")
    save_wide(tmp_path / "from")
    (tmp_path / "models" / "wide").mkdir()
    file = tmp_path / "models" / "wide" / "model.obk"
    subprocess.run([str(PROGRAM), "compile", str(tmp_path / "from" / "model.onnx"), "--target", "cpu", "-o", str(file)], env=environment, check=True, capture_output=True)
    server = start(tmp_path / "models", "--no-verify")
    body = {"inputs": [{"name": "x", "shape": [1, 1024], "datatype": "FP32", "data": random(1, 1024).tolist()}]}
    status, before = server.json("POST", "/v2/models/wide/infer", body)
    assert status == 200
    os.truncate(file, 4096)
    assert server.json("POST", "/v2/models/wide/infer", body) == (200, before)
    assert server.ask("POST", "/v2/repository/models/wide/load")[0] == 400
    assert server.ask("POST", INFER, MLP)[0] == 200
    assert server.stop() == 0


@pytest.fixture
def small_disk(tmp_path):
    """A file system of a megabyte."""
    folder = tmp_path / "disk"
    folder.mkdir()
    if subprocess.run(["mount", "-t", "tmpfs", "-o", "size=1m", "none", str(folder)], capture_output=True).returncode != 0:
        pytest.skip("file systems cannot be mounted here")
    yield folder
    subprocess.run(["umount", "-l", str(folder)], check=True)


def test_a_full_disk(tmp_path, small_disk, start):
    """Cache and record are on a disk that is full: requests are answered, and models load."""
    save_mlp(tmp_path / "models" / "mlp")
    save_wide(tmp_path / "models" / "wide", 64)
    (small_disk / "fill").write_bytes(bytes(800 << 10))
    server = start(tmp_path / "models", "--no-verify", "--cache", small_disk / "cache", "--record", small_disk / "record", ready=False)
    wait_until(lambda: server.ask("GET", "/v2/health/ready")[0] == 200)
    try:
        with open(small_disk / "fill", "ab", buffering=0) as fill:
            while fill.write(bytes(4096)):
                pass
    except OSError as full:
        assert full.errno == errno.ENOSPC
    for _ in range(200):
        assert server.ask("POST", INFER, MLP)[0] == 200
    for verb in ("unload", "load"):
        assert server.ask("POST", f"/v2/repository/models/wide/{verb}")[0] == 200
    assert server.stop() == 0


def test_a_body_that_grows_when_it_is_inflated(tmp_path, start):
    """A quarter of a gigabyte of zeros in a few hundred kilobytes: refused at the limit, and nobody waits for it."""
    save_mlp(tmp_path / "models" / "mlp")
    server = start(tmp_path / "models", "--no-verify", "--max-body", "64")
    bomb = gzip.compress(bytes(1 << 28), 1)
    before = server.metric("process_resident_memory_bytes")
    with Others(server, 1):
        for _ in range(3):
            status, _, text = server.ask("POST", INFER, bomb, {"Content-Encoding": "gzip"})
            assert status == 413 and "inflated" in json.loads(text)["error"]
    assert server.metric("process_resident_memory_bytes") < before + (200 << 20)
    assert server.ask("POST", INFER, gzip.compress(json.dumps(MLP).encode()), {"Content-Encoding": "gzip"})[0] == 200


def test_ten_thousand_connections(tmp_path, start):
    """They are open, some in the middle of a request; one more is answered, and they all are when they go on."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if hard < 10500:
        pytest.skip("10,000 files may not be open here")
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    save_mlp(tmp_path / "models" / "mlp")
    server = start(tmp_path / "models", "--no-verify")
    body = json.dumps(MLP).encode()
    request = b"POST /v2/models/mlp/infer HTTP/1.1\r\nHost: a\r\nContent-Length: %d\r\n\r\n" % len(body) + body
    connections = []
    try:
        for k in range(10_000):
            connections.append(socket.create_connection(("127.0.0.1", server.port), timeout=60))
            if k % 10 == 0:
                connections[-1].sendall(request[:50])
        assert server.ask("POST", INFER, MLP)[0] == 200
        for one in connections[::10]:
            one.sendall(request[50:])
        for one in connections[::10]:
            assert one.recv(65536).startswith(b"HTTP/1.1 200")
    finally:
        for one in connections:
            one.close()
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    wait_until(lambda: len(os.listdir(f"/proc/{server.process.pid}/fd")) < 200)
    assert server.ask("POST", INFER, MLP)[0] == 200
    assert server.stop() == 0


@pytest.mark.parametrize("seed", range(3))
def test_almost_requests(tmp_path, server, seed):
    fuzzing.fuzz_http(server, chance.Random(seed), 150)
    with grpc.insecure_channel(server.grpc) as channel:
        fuzzing.fuzz_grpc(channel, chance.Random(seed), 150)
    assert server.ask("POST", "/v2/logging", {"log_info": True, "log_verbose_level": 0})[0] == 200
    assert server.ask("POST", INFER, MLP)[0] == 200


def test_the_fuzzer_leaves_no_server_behind():
    """Whatever ends it."""
    for number in (signal.SIGKILL, signal.SIGTERM):
        fuzzer = subprocess.Popen([sys.executable, fuzzing.__file__], stderr=subprocess.DEVNULL)
        try:
            children = f"/proc/{fuzzer.pid}/task/{fuzzer.pid}/children"
            wait_until(lambda: open(children).read().split())
            server = int(open(children).read().split()[0])
            time.sleep(0.2)
        finally:
            fuzzer.send_signal(number)
            fuzzer.wait()
        wait_until(lambda: not os.path.exists(f"/proc/{server}"), 10)


def test_almost_settings(tmp_path, environment):
    fuzzing.fuzz_settings(PROGRAM, environment, tmp_path / "models", chance.Random(7), 80, save_mlp)


def test_the_worker_is_killed_over_and_over(tmp_path, start):
    """As often as OBELISK_KILLS says: every request is answered, and a worker is back within two seconds of load on a machine that has them."""
    kills = int(os.environ.get("OBELISK_KILLS", 4))
    save_mlp(tmp_path / "models" / "mlp", "batch = 1\n")
    server = start(tmp_path / "models", "--worker-process", "--no-verify")

    def workers():
        return [int(line["detail"]) for line in server.lines() if line["event"] == "worker" and line["state"] == "started"]
    gaps = []
    with Others(server, 4) as others:
        for turn in range(kills):
            before = others.count
            wait_until(lambda: others.count > before + 20)
            os.kill(workers()[-1], signal.SIGKILL)
            killed, before = time.monotonic(), others.count
            wait_until(lambda: len(workers()) == turn + 2 and others.count > before + 8)
            gaps.append(time.monotonic() - killed)
    print(f"killed {kills} times; back after {max(gaps):.2f} s at most")
    assert server.stop() == 0
