"""Programs in a process of their own: it is killed, ended by requests and by models, and nobody else notices."""

import os
import re
import signal
import threading

import pytest
from conftest import PROGRAM, random, save_mlp, wait_until

STUB = PROGRAM.parent.parent / "stub"

X = random(1, 8).tolist()
INFER = "/v2/models/mlp/infer"


def body(**more):
    return {"inputs": [{"name": "x", "shape": [1, 8], "datatype": "FP32", "data": X}], **more}


def workers(server):
    """The processes that were started, in their order."""
    return [int(line["detail"]) for line in server.lines() if line["event"] == "worker" and line["state"] == "started"]


def quarantined(server):
    return [line["detail"] for line in server.lines() if line["event"] == "worker" and line["state"] == "quarantined"]


def with_fault(start, monkeypatch, environment, fault, folder):
    monkeypatch.setitem(environment, "OBELISK_SERVE_FAULT", fault)
    server = start(folder, "--worker-process", "--no-verify", ready=False)
    monkeypatch.delitem(environment, "OBELISK_SERVE_FAULT")
    return server


def test_the_same_answers(models, start):
    server = start(models, "--worker-process")
    status, answer = server.json("POST", INFER, body(parameters={"trace": True}))
    assert status == 200 and answer["parameters"]["trace_variant"]
    plain = start(models)
    assert plain.json("POST", INFER, body())[1]["outputs"] == answer["outputs"]
    assert server.ask("POST", "/v2/models/nobody/infer", body())[0] == 404
    assert server.ask("POST", INFER, body(inputs=[]))[0] == 400
    assert server.ask("POST", "/v2/repository/models/mlp/unload")[0] == 200
    assert server.ask("POST", INFER, body())[0] == 404
    assert server.ask("POST", "/v2/repository/models/mlp/load")[0] == 200
    assert server.ask("POST", INFER, body())[0] == 200
    assert server.stop() == 0
    wait_until(lambda: not os.path.exists(f"/proc/{workers(server)[0]}"))


def test_killed_under_load(tmp_path, start):
    """Requests without a deadline are all answered, however often the worker is killed."""
    save_mlp(tmp_path / "models" / "mlp", "batch = 1\n")
    server = start(tmp_path / "models", "--worker-process", "--no-verify")
    stop, wrong, count = threading.Event(), [], [0]

    def ask():
        while not stop.is_set():
            status, _, text = server.ask("POST", INFER, body())
            count[0] += 1
            if status != 200:
                wrong.append((status, text))
    threads = [threading.Thread(target=ask) for _ in range(4)]
    for one in threads:
        one.start()
    for turn in range(6):
        before = count[0]
        wait_until(lambda: count[0] > before + 20)
        os.kill(workers(server)[-1], signal.SIGKILL)
        wait_until(lambda: len(workers(server)) == turn + 2)
    before = count[0]
    wait_until(lambda: count[0] > before + 20)
    stop.set()
    for one in threads:
        one.join()
    assert not wrong, wrong[:3]
    counts = server.json("GET", "/v2/live.json")[1]["models"][0]
    assert counts["state"] == "READY" and counts["failed"] == 0
    assert server.stop() == 0


@pytest.mark.parametrize("flags, toml", [(["--batch-invariant"], ""), ([], "batch_invariant = true\n")])
def test_the_worker_is_told_of_batch_invariance(tmp_path, start, flags, toml):
    """What the worker says of its models: the flag goes along its command, a model's own setting with the model."""
    save_mlp(tmp_path / "models" / "a", toml)
    save_mlp(tmp_path / "models" / "b")
    server = start(tmp_path / "models", "--worker-process", "--no-verify", *flags)
    told = {name: server.json("GET", f"/v2/models/{name}/config")[1]["parameters"]["batch_invariant"]["string_value"] for name in "ab"}
    assert told == {"a": "true", "b": "false" if toml else "true"}
    wait_until(lambda: [(one["programs"] > 1, one["programs_to_come"]) for one in server.json("GET", "/v2/live.json")[1]["models"]] == [(True, 0)] * 2)


def test_a_request_that_ends_the_worker(tmp_path, start, monkeypatch, environment):
    """It is refused when it has done so twice, its model is out of service until it is loaded again, and others are answered all the while."""
    for name in ("mlp", "other"):
        save_mlp(tmp_path / "models" / name, "batch = 1\n")
    server = with_fault(start, monkeypatch, environment, "request:boom", tmp_path / "models")
    wait_until(lambda: server.ask("GET", "/v2/health/ready")[0] == 200)
    stop, wrong = threading.Event(), []

    def ask():
        while not stop.is_set():
            status, _, text = server.ask("POST", "/v2/models/other/infer", body())
            if status != 200:
                wrong.append((status, text))
    threads = [threading.Thread(target=ask) for _ in range(2)]
    for one in threads:
        one.start()
    status, answer = server.json("POST", INFER, body(id="boom"))
    assert status == 500 and "ended the worker twice" in answer["error"]
    assert len(quarantined(server)) == 1 and quarantined(server)[0].startswith("mlp: ")
    status, answer = server.json("POST", INFER, body())
    assert status == 503 and "quarantined" in answer["error"]
    wait_until(lambda: server.ask("GET", "/v2/models/other/ready")[0] == 200)
    assert server.ask("POST", "/v2/repository/models/mlp/load")[0] == 200
    assert server.ask("POST", INFER, body())[0] == 200
    stop.set()
    for one in threads:
        one.join()
    assert not wrong, wrong[:3]
    assert server.stop() == 0


def test_a_model_that_ends_the_worker(tmp_path, start, monkeypatch, environment):
    """Loading it is tried twice; the others load and answer."""
    for name in ("a", "bad", "c"):
        save_mlp(tmp_path / "models" / name, "batch = 1\n")
    server = with_fault(start, monkeypatch, environment, "load:bad", tmp_path / "models")
    wait_until(lambda: server.ask("GET", "/v2/health/ready")[0] == 200)
    index = lambda: {one["name"]: one for one in server.json("POST", "/v2/repository/index")[1]}
    wait_until(lambda: index()["a"]["state"] == index()["c"]["state"] == "READY" and quarantined(server))
    states = index()
    assert states["bad"]["state"] == "UNAVAILABLE" and re.search("quarantined: loading it ended the worker twice", states["bad"]["reason"])
    for name in ("a", "c"):
        assert server.ask("POST", f"/v2/models/{name}/infer", body())[0] == 200
    assert server.stop() == 0


def test_deadlines_while_it_starts_again(tmp_path, start):
    """A request that waits for a worker is told when its deadline passes."""
    save_mlp(tmp_path / "models" / "mlp", "batch = 1\n")
    server = start(tmp_path / "models", "--worker-process", "--no-verify")
    wait_until(lambda: server.ask("POST", INFER, body())[0] == 200)
    os.kill(workers(server)[-1], signal.SIGSTOP)
    os.kill(workers(server)[-1], signal.SIGKILL)
    server.wait_for_line(lambda line: line["event"] == "worker" and line["state"] == "ended")
    status, answer = server.json("POST", INFER, body(parameters={"timeout": 1}))
    assert status in (200, 503)
    assert status == 200 or "Request timeout expired" in answer["error"] or "refused" in answer["error"]
    wait_until(lambda: server.ask("POST", INFER, body())[0] == 200)
    assert server.stop() == 0


def test_an_error_of_the_gpu_restarts_the_worker(tmp_path, start, monkeypatch, environment):
    """Over a driver that computes nothing: a context that is broken by a launch ends with its process, and no request is lost."""
    if not (STUB / "libcuda.so.1").exists():
        pytest.skip("the build has no driver that computes nothing")
    save_mlp(tmp_path / "models" / "mlp", "batch = 1\n")
    fault = tmp_path / "fault"
    monkeypatch.setitem(environment, "LD_LIBRARY_PATH", str(STUB))
    monkeypatch.setitem(environment, "OBELISK_STUB_FAULT", str(fault))
    server = start(tmp_path / "models", "--target", "cuda", "--worker-process", "--no-verify")
    for turn in range(3):
        assert server.ask("POST", INFER, body())[0] == 200
        fault.touch()
        for _ in range(5):
            status, _, text = server.ask("POST", INFER, body())
            assert status == 200, text
        assert not fault.exists()
        assert len(workers(server)) == turn + 2
    ends = [line["detail"] for line in server.lines() if line["event"] == "worker" and line["state"] == "ended"]
    assert ends == ["an error of the GPU"] * 3
    assert server.stop() == 0
