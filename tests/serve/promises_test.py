"""What docs/serving.md promises, through the door: the same bits in any mix, reasons for who is refused, a record that replays, tenants that harm nobody."""

import json
import subprocess
import threading
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
import tritonclient.grpc as over_grpc
import tritonclient.http as over_http
from conftest import PATIENCE, PROGRAM, mlp, random, save, save_mlp, save_slow, wait_until
from onnx import TensorProto, helper

INFER = "/v2/models/mlp/infer"


def ask(server, module, x, **options):
    address = server.http if module is over_http else server.grpc
    with module.InferenceServerClient(address) as client:
        one = module.InferInput("x", list(x.shape), "FP32")
        one.set_data_from_numpy(x)
        return client.infer("mlp", [one], **options).as_numpy("y")


def wait_for_batches(server, *names):
    """Until the programs of all batches are there, which are compiled behind the first."""
    def there():
        models = {one["name"]: one for one in server.json("GET", "/v2/live.json")[1]["models"]}
        return all(models[name]["programs"] > 1 and models[name]["programs_to_come"] == 0 for name in names)
    wait_until(there, 300)


def test_the_same_bits_in_any_mix(tmp_path, start):
    """60 requests at once, of one to eight rows, by both protocols, behind one that takes long: each row as when it is asked alone."""
    save_slow(tmp_path / "models" / "slow")
    save_mlp(tmp_path / "models" / "mlp")
    server = start(tmp_path / "models", "--no-verify", "--threads", "1")
    slow = {"inputs": [{"name": "x", "shape": [1], "datatype": "FP32", "data": [1]}]}
    rows = np.random.default_rng(3).standard_normal((64, 8), dtype=np.float32)
    alone = [ask(server, over_http, rows[k:k + 1]).tobytes() for k in range(64)]
    cuts = [(k % 56, 1 + k % 8, over_http if k % 2 else over_grpc) for k in range(60)]
    for _ in range(2):
        with ThreadPoolExecutor(61) as pool:
            pool.submit(server.ask, "POST", "/v2/models/slow/infer", slow)
            answers = list(pool.map(lambda cut: ask(server, cut[2], rows[cut[0]:cut[0] + cut[1]]), cuts))
        for (first, count, _), got in zip(cuts, answers):
            assert [one.tobytes() for one in got] == alone[first:first + count]


def save_deep(folder):
    """Products that are long enough to be summed in pieces, norms and an activation: what a batch could round otherwise."""
    nodes, weights, before, width = [], {}, "x", 257
    for k in range(3):
        weights[f"w{k}"], weights[f"s{k}"] = random(width, width) / 16, random(width)
        nodes += [helper.make_node("MatMul", [before, f"w{k}"], [f"m{k}"]), helper.make_node("LayerNormalization", [f"m{k}", f"s{k}"], [f"n{k}"], axis=-1),
                  helper.make_node("Tanh", [f"n{k}"], [f"t{k}"]), helper.make_node("Add", [f"t{k}", before], [f"a{k}"])]
        before = f"a{k}"
    nodes.append(helper.make_node("Softmax", [before], ["y"], axis=-1))
    return save(folder, nodes, {"x": (TensorProto.FLOAT, ["rows", width])}, {"y": (TensorProto.FLOAT, ["rows", width])}, weights, "batch = 16\n")


def test_the_same_bits_in_joined_batches(tmp_path, start):
    """60 requests at once that the engine joins: the bits of each row are those of the row alone, in whatever batch it was."""
    save_slow(tmp_path / "models" / "slow")
    save_deep(tmp_path / "models" / "deep")
    server = start(tmp_path / "models", "--no-verify", "--threads", "2")
    slow = {"inputs": [{"name": "x", "shape": [1], "datatype": "FP32", "data": [1]}]}
    rows = np.random.default_rng(5).standard_normal((64, 257), dtype=np.float32)

    def traced(first, count):
        with over_http.InferenceServerClient(server.http) as client:
            one = over_http.InferInput("x", [count, 257], "FP32")
            one.set_data_from_numpy(rows[first:first + count])
            got = client.infer("deep", [one], parameters={"trace": True})
            return got.as_numpy("y"), got.get_response()["parameters"]["trace_batch_rows"]
    alone = [traced(k, 1) for k in range(64)]
    assert {joined for _, joined in alone} == {1}
    wait_for_batches(server, "deep")
    alone = [y.tobytes() for y, _ in alone]
    chance, seen = np.random.default_rng(6), set()
    for turn in range(20):
        cuts = [(int(first), int(count)) for first, count in zip(chance.integers(0, 56, 60), chance.choice([1, 1, 1, 2, 5, 8], 60))]
        with ThreadPoolExecutor(62) as pool:
            for _ in range(2):
                pool.submit(server.ask, "POST", "/v2/models/slow/infer", slow)
            for (first, count), (y, joined) in zip(cuts, pool.map(lambda cut: traced(*cut), cuts)):
                assert [one.tobytes() for one in y] == alone[first:first + count], (first, count, joined)
                if joined > count:
                    seen.add(joined)
        if turn >= 1 and len(seen) >= 4:
            break
    assert len(seen) >= 4, seen  # batches of several sizes
    assert server.stop() == 0


def save_gate(folder, toml=""):
    """tanh(x) · z in 16 bits: a value a row, and a long row that it is spread over."""
    nodes = [helper.make_node("Tanh", ["x"], ["gate"]), helper.make_node("Mul", ["gate", "z"], ["y"])]
    half = TensorProto.FLOAT16
    save(folder, nodes, {"x": (half, ["rows", 1]), "z": (half, ["rows", 8000])}, {"y": (half, ["rows", 8000])}, toml=toml)


@pytest.mark.parametrize("flags, toml", [(["--batch-invariant", "--threads", "2"], ""), (["--policy", "batch", "--threads", "12"], "batch_invariant = true\n")], ids=["beside", "joined"])
def test_a_mix_of_models_has_the_bits_of_requests_alone(tmp_path, start, flags, toml):
    """60 requests at once to three models, by both protocols, joined with their own kind and beside the others: each row as when a batch of 1 has the server to itself. A policy that
    joins all waiting requests has more workers than the largest batch has rows, for the number of workers must not decide what is rounded either."""
    save_slow(tmp_path / "models" / "slow")
    save_mlp(tmp_path / "models" / "mlp", toml + "batch = 16\n")
    save_deep(tmp_path / "models" / "deep")
    save_gate(tmp_path / "models" / "gate", toml + "batch = 10\n")
    if toml:
        (tmp_path / "models" / "deep" / "model.toml").write_text(toml)
    server = start(tmp_path / "models", "--no-verify", *flags)
    for name in ("mlp", "deep", "gate"):
        assert server.json("GET", f"/v2/models/{name}/config")[1]["parameters"]["batch_invariant"]["string_value"] == "true"
    numbers = np.random.default_rng(9)
    inputs = {"mlp": {"x": numbers.standard_normal((64, 8), dtype=np.float32)}, "deep": {"x": numbers.standard_normal((64, 257), dtype=np.float32)},
              "gate": {"x": numbers.standard_normal((64, 1)).astype(np.float16), "z": numbers.standard_normal((64, 8000)).astype(np.float16)}}

    def infer(name, module, first, count):
        """Its answer, how many rows were computed with it, and who ran beside it."""
        with module.InferenceServerClient(server.http if module is over_http else server.grpc) as client:
            given = []
            for port, rows in inputs[name].items():
                given.append(module.InferInput(port, [count, rows.shape[1]], "FP16" if rows.dtype == np.float16 else "FP32"))
                given[-1].set_data_from_numpy(rows[first:first + count])
            got = client.infer(name, given, parameters={"trace": True})
            answer = got.get_response() if module is over_http else got.get_response(as_json=True)
            told = {key: next(iter(value.values())) if isinstance(value, dict) else value for key, value in answer["parameters"].items()}
            return got.as_numpy("y"), int(told["trace_batch_rows"]), told.get("trace_partners")

    alone = {name: [infer(name, over_http, k, 1)[0].tobytes() for k in range(64)] for name in inputs}
    wait_for_batches(server, *inputs)
    slow = {"inputs": [{"name": "x", "shape": [1], "datatype": "FP32", "data": [1]}]}
    chance, joined, beside = np.random.default_rng(10), {name: set() for name in inputs}, 0
    for _ in range(60):
        cuts = [(str(chance.choice(list(inputs))), over_http if k % 2 else over_grpc, int(chance.integers(0, 56)), int(chance.choice([1, 1, 1, 2, 5]))) for k in range(60)]
        with ThreadPoolExecutor(62) as pool:
            for _ in range(2):
                pool.submit(server.ask, "POST", "/v2/models/slow/infer", slow)
            for (name, _, first, count), (y, together, partners) in zip(cuts, pool.map(lambda cut: infer(*cut), cuts)):
                assert [one.tobytes() for one in y] == alone[name][first:first + count], (name, first, count, together, partners)
                beside += bool(partners)
                if together > count:
                    joined[name].add(together)
        if enough := all(len(sizes) >= 2 for sizes in joined.values()) and (max(joined["gate"]) > 8 if toml else beside > 0):
            break
    assert enough, (beside, joined)
    assert server.stop() == 0


def test_reasons_and_the_record(tmp_path, start):
    """Requests that are refused or late say why, in the answer and in the log; the record replays to the same decisions."""
    save_slow(tmp_path / "models" / "slow")
    save_mlp(tmp_path / "models" / "mlp", "batch = 1\n")
    record = tmp_path / "record"
    server = start(tmp_path / "models", "--no-verify", "--record", record, "--policy", "vliw:segments=0")
    slow = {"inputs": [{"name": "x", "shape": [1], "datatype": "FP32", "data": [1]}]}
    quick = {"inputs": [{"name": "x", "shape": [1, 8], "datatype": "FP32", "data": [1] * 8}], "parameters": {"timeout": 3000}}
    refused = []

    def load():
        assert server.ask("POST", "/v2/models/slow/infer", slow)[0] == 200

    def hurry(k):
        for n in range(20):
            status, _, text = server.ask("POST", INFER, {**quick, "id": f"{k}-{n}"})
            assert status in (200, 503)
            if status == 503:
                refused.append((f"{k}-{n}", json.loads(text)["error"]))
    threads = [threading.Thread(target=load) for _ in range(2)] + [threading.Thread(target=hurry, args=[k]) for k in range(2)]
    for one in threads:
        one.start()
    for one in threads:
        one.join()
    assert refused
    assert server.stop() == 0
    logged = {line["id"]: line for line in server.lines() if line["event"] == "request" and line["outcome"] != "ok"}
    for name, error in refused:
        assert error and logged[name]["reason"] and logged[name]["outcome"] in ("rejected", "late"), (name, error)
    done = subprocess.run([str(PROGRAM), "simulate", "--replay", str(record)], capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stdout + done.stderr


def test_a_long_run_gives_way_to_urgent_requests(tmp_path, start):
    """Requests with deadlines far below the time of the run that has the only worker: answered within it, with their numbers, and the run has its own; the record replays to the same decisions."""
    save_slow(tmp_path / "models" / "slow")
    save_mlp(tmp_path / "models" / "mlp")
    record = tmp_path / "record"
    server = start(tmp_path / "models", "--no-verify", "--threads", "1", "--record", record)
    slow = {"inputs": [{"name": "x", "shape": [1], "datatype": "FP32", "data": [1]}], "parameters": {"trace": True}}
    x = random(1, 8)
    quick = {"inputs": [{"name": "x", "shape": [1, 8], "datatype": "FP32", "data": x[0].tolist()}], "parameters": {"timeout": round(20000 * PATIENCE), "trace": True}}
    alone = server.json("POST", "/v2/models/slow/infer", slow)[1]["outputs"]
    stop, gave_way, wrong = threading.Event(), [], []

    def load():
        while not stop.is_set():
            status, answer = server.json("POST", "/v2/models/slow/infer", slow)
            if status != 200 or answer["outputs"] != alone:
                wrong.append(answer)
            gave_way.append(answer["parameters"]["trace_reason"])
    thread, within = threading.Thread(target=load), 0
    thread.start()
    for _ in range(2000):
        status, answer = server.json("POST", INFER, quick)
        if status == 200:
            np.testing.assert_allclose(answer["outputs"][0]["data"], mlp(x)[0], rtol=1e-4, atol=1e-5)
            within += answer["parameters"]["trace_reason"].startswith("within a run") and "slow" in answer["parameters"]["trace_partners"]
        if within >= 20:
            break
    stop.set()
    thread.join()
    assert within >= 20 and not wrong
    assert any("it gave way" in one for one in gave_way)
    assert server.stop() == 0
    done = subprocess.run([str(PROGRAM), "simulate", "--replay", str(record)], capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stdout + done.stderr


def test_tenants_that_harm_nobody(tmp_path, start):
    """One floods its queue, one sends NaN: others have their numbers, each request."""
    save_mlp(tmp_path / "models" / "mlp", "queue_limit = 50\n")
    save_mlp(tmp_path / "models" / "other")
    server = start(tmp_path / "models", "--no-verify")
    stop, statuses, wrong = threading.Event(), set(), []
    nan = np.full((8, 8), np.nan, np.float32)

    def flood():
        body = json.dumps({"inputs": [{"name": "x", "shape": [1, 8], "datatype": "FP32", "data": [1] * 8}], "parameters": {"tenant": "flood"}})
        while not stop.is_set():
            statuses.add(server.ask("POST", INFER, body)[0])

    def poison():
        while not stop.is_set():
            if not np.isnan(ask(server, over_grpc, nan)).all():
                wrong.append("nan")
    threads = [threading.Thread(target=flood) for _ in range(8)] + [threading.Thread(target=poison)]
    for one in threads:
        one.start()
    x = random(3, 8)
    for _ in range(100):
        np.testing.assert_allclose(ask(server, over_http, x), mlp(x), rtol=1e-4, atol=1e-5)
    stop.set()
    for one in threads:
        one.join()
    assert not wrong and statuses <= {200, 503}
    assert server.stop() == 0
