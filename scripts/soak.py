#!/usr/bin/env python3
"""A server under mixed traffic for half an hour: whether memory, threads and open files stay.

  scripts/soak.py [--minutes 30] [--rate 40] [-o FILE]

Requests by HTTP (JSON, binary, gzip) and gRPC, bad ones, ones that are too late, connections that end in the middle, models that come and go, and a worker that is killed once a
minute. Every ten seconds it looks at both processes. Ends with 1 if an answer was wrong or anything grew after the first fifth of the time; with -o the samples are written as JSON.
"""
import argparse
import json
import os
import random as chance
import signal
import socket
import sys
import tempfile
import threading
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / "tests" / "serve"))
import numpy as np  # noqa: E402
import tritonclient.grpc as over_grpc  # noqa: E402
import tritonclient.http as over_http  # noqa: E402
from conftest import Server, mlp, save_mlp, save_types  # noqa: E402

flags = argparse.ArgumentParser()
flags.add_argument("--minutes", type=float, default=30)
flags.add_argument("--rate", type=float, default=40, help="requests a second")
flags.add_argument("-o", "--output")
flags = flags.parse_args()

folder = Path(tempfile.mkdtemp(prefix="obelisk-soak-"))
for name in ("mlp", "other", "third"):
    save_mlp(folder / "models" / name)
save_types(folder / "models" / "types")
server = Server(folder / "models", {**os.environ, "XDG_CACHE_HOME": str(folder / "cache")}, "--worker-process", "--max-body", "8", "--body-timeout", "2", "--threads", "1", ends_with_us=True)
stop, counts, wrong = threading.Event(), {}, []


def worker():
    """The process that runs the programs: the server's newest child."""
    children = Path(f"/proc/{server.process.pid}/task/{server.process.pid}/children").read_text().split()
    mine = [int(pid) for task in Path(f"/proc/{server.process.pid}/task").iterdir() for pid in (task / "children").read_text().split()] or [int(pid) for pid in children]
    return max(mine) if mine else None


def look(pid):
    status = Path(f"/proc/{pid}/status").read_text()
    field = lambda name: int(next(line for line in status.splitlines() if line.startswith(name + ":")).split()[1])
    return {"resident_kib": field("VmRSS"), "threads": field("Threads"), "files": len(os.listdir(f"/proc/{pid}/fd"))}


def rows(module):
    x = np.random.default_rng().standard_normal((chance.randint(1, 8), 8), dtype=np.float32)
    one = module.InferInput("x", list(x.shape), "FP32")
    return x, one


def right(x, y):
    if not np.allclose(y, mlp(x), rtol=1e-4, atol=1e-5):
        wrong.append("other numbers")


def by_http(client):
    x, one = rows(over_http)
    one.set_data_from_numpy(x, binary_data=chance.random() < 0.5)
    right(x, client.infer(chance.choice(["mlp", "other"]), [one], parameters={"tenant": f"t{chance.randrange(5)}"},
                          request_compression_algorithm=chance.choice([None, None, "gzip"])).as_numpy("y"))


def by_grpc(client):
    x, one = rows(over_grpc)
    one.set_data_from_numpy(x)
    right(x, client.infer(chance.choice(["mlp", "other"]), [one], client_timeout=60).as_numpy("y"))


def bad(_):
    status, _, text = server.ask("POST", "/v2/models/mlp/infer", chance.choice([b"{", b"", b"[]", json.dumps({"inputs": [{"name": "x", "shape": [1, 7], "datatype": "FP32", "data": [0] * 7}]}), os.urandom(2000)]))
    if status != 400 or not json.loads(text)["error"]:
        wrong.append(("bad", status, text[:100]))


def late(_):
    status, _, text = server.ask("POST", "/v2/models/mlp/infer", {"parameters": {"timeout": 1}, "inputs": [{"name": "x", "shape": [1, 8], "datatype": "FP32", "data": [0] * 8}]})
    if status not in (200, 503):
        wrong.append(("late", status, text[:100]))


def torn(_):
    request = b"POST /v2/models/mlp/infer HTTP/1.1\r\nHost: a\r\nContent-Length: 500\r\n\r\n" + b"x" * 499
    with socket.create_connection(("127.0.0.1", server.port), timeout=30) as one:
        one.sendall(request[:chance.randrange(1, len(request))])
        if chance.random() < 0.5:
            one.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\x01\0\0\0\0\0\0\0")


def long(_):
    status, _, _ = server.ask("POST", "/v2/models/mlp/infer", b"x" * (6 << 20))
    if status != 400:
        wrong.append(("long", status))


def come_and_go(_):
    for verb in ("unload", "load"):
        status, _, text = server.ask("POST", f"/v2/repository/models/third/{verb}")
        if status not in (200, 400, 404, 503):  # others of these threads do the same at the time
            wrong.append((verb, status, text[:100]))


KINDS = [(by_http, 40), (by_grpc, 40), (bad, 8), (late, 4), (torn, 5), (long, 1), (come_and_go, 0.5)]


def ask(k):
    clients = {by_http: over_http.InferenceServerClient(server.http), by_grpc: over_grpc.InferenceServerClient(server.grpc)}
    while not stop.is_set():
        stop.wait(chance.expovariate(flags.rate / 4))
        kind = chance.choices([one for one, _ in KINDS], [weight for _, weight in KINDS])[0]
        try:
            kind(clients.get(kind))
            counts[kind.__name__] = counts.get(kind.__name__, 0) + 1
        except Exception as failed:
            wrong.append((kind.__name__, repr(failed), str(failed)))
    for one in clients.values():
        one.close()


threads = [threading.Thread(target=ask, args=[k], daemon=True) for k in range(4)]
for one in threads:
    one.start()
samples, started, killed = [], time.monotonic(), 0
while (passed := time.monotonic() - started) < flags.minutes * 60 and len(wrong) < 20:
    time.sleep(10)
    try:
        samples.append({"s": round(passed + 10), "door": look(server.process.pid), "worker": look(worker())})
    except (FileNotFoundError, TypeError, ValueError, StopIteration):
        pass  # it has just ended
    if passed // 60 > killed:
        killed += 1
        os.kill(worker(), signal.SIGKILL)
stop.set()
for one in threads:
    one.join()
code = server.stop()
settled = [one["door"] for one in samples if one["s"] >= flags.minutes * 60 / 5]
half = len(settled) // 2
grown = []
for what, allowed in (("resident_kib", 4096), ("threads", 0), ("files", 0)):
    first, last = (sorted(one[what] for one in part) for part in (settled[:half], settled[half:]))
    # The median of each half, for connections and models come and go.
    if first and last and last[len(last) // 2] > first[len(first) // 2] + allowed:
        grown.append(f"{what}: {first[len(first) // 2]} to {last[len(last) // 2]}")
result = {"minutes": flags.minutes, "rate": flags.rate, "requests": counts, "worker_killed": killed, "wrong": [str(one) for one in wrong], "grown": grown, "exit": code, "samples": samples[::6]}
if flags.output:
    Path(flags.output).write_text(json.dumps(result, indent=1) + "\n")
print(json.dumps({key: value for key, value in result.items() if key != "samples"}))
print("soak:", "nothing grew, every answer was right" if not grown and not wrong and code == 0 else "failed")
sys.exit(0 if not grown and not wrong and code == 0 and settled else 1)
