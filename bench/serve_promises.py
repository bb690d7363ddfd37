#!/usr/bin/env python3
"""What docs/serving.md promises about time, measured: deadlines behind a slow model, and what others feel of models that come and go, of tenants beyond their quota, of NaN, of clients that do not read, and of malformed requests.

  bench/serve_promises.py [--only deadline,load,first,quota,nan,reader,malformed] [--rounds 7] [--seconds 4] [--output bench/results/serve_promises.json] [--note TEXT]

A client asks a small model at a steady rate, from a process of its own. In each round it does so quietly, with the disturbance, and quietly again; so the noise of the machine is in both, and two quiet
parts of the same round tell how large it is. Of each part the median and the 99th percentile are taken; a ratio is the median over the rounds of disturbed over quiet. Clients that disturb run at the lowest
priority, for they share the machine with the server.
"""
import argparse
import contextlib
import datetime
import json
import os
import platform
import random
import socket
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / "tests" / "serve"))
WIDTH, RATE = 512, 100  # of the small model; requests a second
BIG = 3616  # two products of so many columns: 100 MiB of weights
ALLOWED = 1.10


# ---- clients, each a process ----

class Connection:
    """HTTP on one socket, with as little of Python as there can be between two readings of the clock."""

    def __init__(self, port):
        self.socket = socket.create_connection(("127.0.0.1", port), timeout=60)
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.rest = b""

    def ask(self, data):
        """(status, seconds); a status of 0 where the deadline passed in the queue."""
        begun = time.perf_counter()
        self.socket.sendall(data)
        text = self.rest
        while (end := text.find(b"\r\n\r\n")) < 0:
            text += self.more()
        took = time.perf_counter() - begun
        at = text.lower().index(b"content-length:") + 15
        whole = end + 4 + int(text[at:text.index(b"\r\n", at)])
        while len(text) < whole:
            text += self.more()
        self.rest = text[whole:]
        return 0 if b"timeout expired" in text[end:whole] else int(text[9:12]), took

    def more(self):
        piece = self.socket.recv(1 << 16)
        if not piece:
            raise ConnectionError("the server closed")
        return piece


def request(model, shape, values, headers="", **parameters):
    """Bytes of an HTTP request whose one tensor is binary."""
    import numpy as np
    tensor = np.broadcast_to(np.asarray(values, np.float32), shape).tobytes()
    body = json.dumps({"inputs": [{"name": "x", "shape": shape, "datatype": "FP32", "parameters": {"binary_data_size": len(tensor)}}], "parameters": {"binary_data_output": True, **parameters}}).encode()
    return f"POST /v2/models/{model}/infer HTTP/1.1\r\nHost: a\r\nInference-Header-Content-Length: {len(body)}\r\nContent-Length: {len(body) + len(tensor)}\r\n{headers}\r\n".encode() + body + tensor


def steady(port, data, rate, seconds):
    """Asks at moments of its own, whatever the answers do; [status, milliseconds] of each request."""
    chance, connection, out = random.Random(1), Connection(port), []
    connection.ask(data)
    print("on", flush=True)
    start = time.perf_counter()
    due = start
    while due < start + seconds:
        due += chance.uniform(0.5, 1.5) / rate
        if (wait := due - time.perf_counter()) > 0:
            time.sleep(wait)
        status, took = connection.ask(data)
        out.append([status, round(took * 1000, 4)])
    return out


def client(kind, port, seconds, rate):
    small = ["small", [1, WIDTH]]
    if kind == "steady":
        print(json.dumps(steady(port, request(*small, 0.5), rate, seconds)))
    elif kind == "deadline":
        print(json.dumps(steady(port, request(*small, 0.5, timeout=10_000), rate, seconds)))
    elif kind == "slow":
        connection, data = Connection(port), request("slow", [1], 1)
        connection.ask(data)
        print("on", flush=True)
        while True:
            connection.ask(data)
    elif kind in ("numbers", "nan"):
        steady(port, request(*small, float("nan") if kind == "nan" else 0.5, tenant="other"), rate, seconds)
    elif kind == "greedy":
        steady(port, request(*small, 0.5, tenant="greedy"), rate, seconds)
    elif kind == "reader":
        data, open_ones = request("wide", [1, 150528], 1), []
        print("on", flush=True)
        while True:  # 32 connections with answers that nobody reads; the oldest is given up for a new one
            one = socket.create_connection(("127.0.0.1", port), timeout=60)
            one.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
            one.sendall(data)
            open_ones.append(one)
            if len(open_ones) > 32:
                open_ones.pop(0).close()
            time.sleep(1 / rate)
    elif kind == "malformed":
        import fuzzing
        chance = random.Random(1)
        print("on", flush=True)
        while True:
            fuzzing.fuzz_http(argparse.Namespace(port=port), chance, 1)
            time.sleep(1 / rate)


def start_client(kind, port, seconds=1e9, rate=RATE, low=True):
    words = [sys.executable, __file__, "--client", kind, "--port", str(port), "--seconds", str(seconds), "--rate", str(rate)]
    one = subprocess.Popen((["nice", "-n", "19"] if low else []) + words, stdout=subprocess.PIPE, text=True)
    if one.stdout.readline() != "on\n":  # its first request is answered
        sys.exit(f"a client failed: {one.args}")
    return one


def answers_of(process):
    out = process.communicate()[0]
    if process.returncode != 0:
        sys.exit(f"a client failed: {process.args}")
    return json.loads(out)


@contextlib.contextmanager
def running(*clients):
    try:
        yield
    finally:
        for one in clients:
            if one.poll() is not None:
                sys.exit(f"a client ended: {one.args}")
            one.kill()
            one.communicate()


# ---- figures ----

def share(values, part):
    values = sorted(values)
    return values[min(len(values) - 1, int(len(values) * part))]


def figures(parts):
    """Of lists of milliseconds, one a part of a round."""
    return {"n": sum(map(len, parts)), "p50_ms": round(statistics.median(share(one, 0.5) for one in parts), 4), "p99_ms": round(statistics.median(share(one, 0.99) for one in parts), 4)}


def ratio(above, below, part):
    return round(statistics.median(share(a, part) / share(b, part) for a, b in zip(above, below)), 3)


def alternate(server, given, disturb, quiet=contextlib.nullcontext):
    """Rounds of quiet, disturbed, quiet."""
    def ask():
        answers = answers_of(start_client("steady", server.port, given.seconds, low=False))
        wrong = [status for status, _ in answers if status != 200]
        if wrong:
            sys.exit(f"the steady client got {wrong[:5]}")
        return [took for _, took in answers]
    parts = {"quiet": [], "disturbed": [], "again": []}
    for _ in range(given.rounds):
        for part, around in (("quiet", quiet), ("disturbed", disturb), ("again", quiet)):
            with around():
                parts[part].append(ask())
    both = [a + b for a, b in zip(parts["quiet"], parts["again"])]
    row = {"quiet": figures(both), "disturbed": figures(parts["disturbed"])}
    for name, part in (("p50", 0.5), ("p99", 0.99)):
        row[f"{name}_ratio"] = ratio(parts["disturbed"], both, part)
        row[f"{name}_noise"] = ratio(parts["again"], parts["quiet"], part)
    row["holds"] = row["p99_ratio"] <= ALLOWED
    return row


# ---- models ----

def save_products(folder, width, count, seed=0):
    """relu(x · w) so many times."""
    import numpy as np
    from conftest import save
    from onnx import TensorProto, helper
    nodes, weights, before = [], {}, "x"
    for k in range(count):
        weights[f"w{k}"] = np.random.default_rng(seed + k).standard_normal((width, width), dtype=np.float32) / width ** 0.5
        nodes += [helper.make_node("MatMul", [before, f"w{k}"], [f"m{k}"]), helper.make_node("Relu", [f"m{k}"], [before := f"r{k}" if k + 1 < count else "y"])]
    save(folder, nodes, {"x": (TensorProto.FLOAT, [1, width])}, {"y": (TensorProto.FLOAT, [1, width])}, weights)


def save_identity(folder, size):
    from conftest import save
    from onnx import TensorProto, helper
    save(folder, [helper.make_node("Identity", ["x"], ["y"])], {"x": (TensorProto.FLOAT, [1, size])}, {"y": (TensorProto.FLOAT, [1, size])})


def save_slow(folder, products, size=512):
    import numpy as np
    from conftest import save
    from onnx import TensorProto, helper
    nodes, before = [helper.make_node("Mul", ["w", "x"], ["first"])], "first"
    for k in range(products):
        nodes += [helper.make_node("MatMul", [before, "w"], [f"m{k}"]), helper.make_node("Tanh", [f"m{k}"], [before := f"t{k}"])]
    nodes.append(helper.make_node("ReduceMean", [before], ["y"], axes=[0, 1], keepdims=0))
    save(folder, nodes, {"x": (TensorProto.FLOAT, [1])}, {"y": (TensorProto.FLOAT, [])}, {"w": np.random.default_rng(0).standard_normal((size, size), dtype=np.float32) / size ** 0.5})


@contextlib.contextmanager
def serving(models, *flags):
    from conftest import Server
    environment = {**os.environ, "XDG_CACHE_HOME": str(models.parent / "cache")}
    server = Server(models, environment, "--threads", "1", *flags, ends_with_us=True)
    try:
        time.sleep(1)  # larger batches are compiled behind
        yield server
    finally:
        server.stop()


# ---- cases ----

def deadline(folder, given, policy="vliw"):
    """A deadline of 10 ms behind runs of 50 ms: refused within 1 ms, or answered by 11 ms."""
    save_products(folder / "models" / "small", WIDTH, 4)
    products = 10
    for _ in range(2):
        save_slow(folder / "models" / "slow", products)
        with serving(folder / "models") as server:
            connection, data = Connection(server.port), request("slow", [1], 1)
            run = statistics.median(connection.ask(data)[1] for _ in range(15)) * 1000
        products = max(1, round(products * 50 / run))
    with serving(folder / "models", "--policy", policy) as server:
        rows, behind = [], None
        for _ in range(given.rounds):
            rows.append(answers_of(start_client("deadline", server.port, given.seconds, low=False)))
            with running(start_client("slow", server.port)):
                behind = (behind or []) + answers_of(start_client("deadline", server.port, given.seconds, low=False))
        alone = [one for row in rows for one in row]

    def kinds(answers):
        took = {name: [ms for status, ms in answers if status == wanted] for name, wanted in (("answered", 200), ("refused", 503), ("given_up", 0))}
        if sum(map(len, took.values())) != len(answers):
            sys.exit(f"other statuses: {set(status for status, _ in answers)}")
        out = {"n": len(answers), "answered_by_11_ms": sum(ms <= 11 for ms in took["answered"]), "answered_later": sum(ms > 11 for ms in took["answered"]),
               "refused_within_1_ms": sum(ms < 1 for ms in took["refused"]), "refused_later": sum(ms >= 1 for ms in took["refused"]), "given_up": len(took["given_up"])}
        for kind, all_of in took.items():
            if all_of:
                out[f"{kind}_p50_ms"], out[f"{kind}_p99_ms"], out[f"{kind}_max_ms"] = round(share(all_of, 0.5), 3), round(share(all_of, 0.99), 3), round(max(all_of), 3)
        return out
    row = {"slow_run_ms": round(run, 1), "alone": kinds(alone), "behind": kinds(behind)}
    # What the scheduler of a busy machine takes from a client is no answer of the server's: one in a thousand may be late.
    most = row["behind"]["n"] // 1000
    row["holds"] = row["behind"]["answered_later"] + row["behind"]["refused_later"] + row["behind"]["given_up"] <= most
    return row


def come_and_go(folder, given, fresh):
    """A model of 100 MiB is loaded and unloaded without a pause. fresh: another model each time, so that it is compiled anew."""
    save_products(folder / "models" / "small", WIDTH, 4)
    loads, resident, width = [], [], BIG
    (folder / "spare").mkdir()
    save_products(folder / "spare", width, 2)
    with serving(folder / "models", *["--no-verify"] * given.no_verify) as server:
        big = folder / "models" / "big"
        big.mkdir()
        os.link(folder / "spare" / "model.onnx", big / "model.onnx")

        def ask(verb):
            begun = time.monotonic()
            status, _, text = server.ask("POST", f"/v2/repository/models/big/{verb}")
            if status != 200:
                sys.exit(f"{verb}: {status} {text}")
            return time.monotonic() - begun

        def memory():
            text = server.ask("GET", "/metrics", port=int(server.metrics.split(":")[1]))[2].decode()
            return sum(float(line.split()[-1]) for line in text.splitlines() if line.startswith("obelisk_model_memory_bytes{"))
        before = memory()

        @contextlib.contextmanager
        def coming_and_going():
            nonlocal width
            if fresh:  # written while nobody is asked
                width -= 8
                save_products(folder / "next", width, 2)
                os.replace(folder / "next" / "model.onnx", big / "model.onnx")
            stop = threading.Event()

            def turn():
                while not stop.is_set():
                    loads.append(ask("load"))
                    ask("unload")
                    if fresh:
                        return
            thread = threading.Thread(target=turn)
            thread.start()
            yield
            stop.set()
            thread.join()
            resident.append(server.metric("process_resident_memory_bytes"))
        row = alternate(server, given, coming_and_going)
        row["loads"], row["load_s"] = len(loads), round(statistics.median(loads), 3)
        row["models_bytes_before_and_after"] = [int(before), int(memory())]
        row["resident_mib_after_each"] = [round(one / 2**20) for one in resident]
        row["holds"] = row["holds"] and memory() == before
    return row


def quota(folder, given):
    """A tenant with a quota of 50 requests a second of the same model: at it, and at ten times as many."""
    save_products(folder / "models" / "small", WIDTH, 4)
    (folder / "tenants.toml").write_text("[greedy]\nrate = 50\n")
    with serving(folder / "models", "--tenants", folder / "tenants.toml") as server:
        def at(rate):
            return lambda: running(start_client("greedy", server.port, rate=rate))
        row = alternate(server, given, at(500), at(50))
        text = server.ask("GET", "/metrics", port=int(server.metrics.split(":")[1]))[2].decode()
        row["greedy"] = {outcome: int(float(line.split()[-1])) for line in text.splitlines() for outcome in ("ok", "rejected") if line.startswith(f'obelisk_tenant_requests{{tenant="greedy",model="small",outcome="{outcome}"')}
    return row


def nan(folder, given):
    """A tenant whose numbers are NaN, beside one with as many others."""
    save_products(folder / "models" / "small", WIDTH, 4)
    with serving(folder / "models") as server:
        return alternate(server, given, lambda: running(start_client("nan", server.port, rate=50)), lambda: running(start_client("numbers", server.port, rate=50)))


def reader(folder, given):
    """Clients that ask for answers of 602 KB and do not read them."""
    save_products(folder / "models" / "small", WIDTH, 4)
    save_identity(folder / "models" / "wide", 150528)
    with serving(folder / "models") as server:
        return alternate(server, given, lambda: running(start_client("reader", server.port, rate=20)))


def malformed(folder, given):
    """Requests that are almost right, of all kinds that the tests draw."""
    save_products(folder / "models" / "small", WIDTH, 4)
    save_products(folder / "models" / "mlp", 8, 1)
    with serving(folder / "models", "--body-timeout", "2") as server:
        return alternate(server, given, lambda: running(start_client("malformed", server.port, rate=100)))


CASES = {"deadline": deadline, "whole": lambda folder, given: deadline(folder, given, "vliw:segments=0"), "load": lambda folder, given: come_and_go(folder, given, False), "first": lambda folder, given: come_and_go(folder, given, True), "quota": quota, "nan": nan, "reader": reader, "malformed": malformed}
WHAT = {"whole": deadline.__doc__ + " Runs that give way to nobody.", "load": come_and_go.__doc__.split(" fresh:")[0], "first": "A model of 100 MiB is compiled anew, loaded and unloaded."}


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--only", default=",".join(name for name in CASES if name != "whole"), help="whole: the deadline behind runs that give way to nobody")
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--seconds", type=float, default=4, help="of a part of a round")
    parser.add_argument("--no-verify", action="store_true", help="loaded models are not compared with the reference")
    parser.add_argument("--output", type=Path)
    parser.add_argument("--note", default="")
    parser.add_argument("--client", help=argparse.SUPPRESS)
    parser.add_argument("--port", type=int, help=argparse.SUPPRESS)
    parser.add_argument("--rate", type=float, default=RATE, help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.client:
        return client(given.client, given.port, given.seconds, given.rate)
    rows = {}
    for name in given.only.split(","):
        with tempfile.TemporaryDirectory(prefix="obelisk-promises-") as folder:
            (Path(folder) / "models").mkdir()
            rows[name] = {"what": WHAT.get(name) or CASES[name].__doc__, **CASES[name](Path(folder), given)}
        print(name, json.dumps(rows[name]), flush=True)
    cpu = [line.split(":")[1].strip() for line in open("/proc/cpuinfo") if line.startswith("model name")][0]
    text = json.dumps({"device": {"cpu": cpu, "cores": os.cpu_count(), "kernel": platform.release()}, "date": datetime.datetime.now(datetime.timezone.utc).isoformat(timespec="seconds"),
                       "commit": subprocess.run(["git", "rev-parse", "--short", "HEAD"], cwd=ROOT, capture_output=True, text=True).stdout.strip(),
                       "command": " ".join(["bench/serve_promises.py", *sys.argv[1:]]), "rounds": given.rounds, "seconds": given.seconds, "rate": RATE, "note": given.note, "rows": rows}, indent=1)
    if given.output:
        given.output.write_text(text + "\n")
    broken = [name for name, row in rows.items() if not row["holds"]]
    print("promises:", "broken: " + ", ".join(broken) if broken else "all hold")
    return 1 if broken else 0


if __name__ == "__main__":
    sys.exit(main())
