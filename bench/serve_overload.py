#!/usr/bin/env python3
"""More requests than the machine can answer: who is answered in time, by policy, beside Triton.

  bench/serve_overload.py [--triton FILE] [--load 1.2] [--cv 4] [--slo 5] [--seconds 20] [--rounds 3]
                          [--network products|steps|layers] [--batch 32] [--server-cpus 0-3 --client-cpus 4-5] [--output bench/results/serve_overload.json]

Models of one architecture with weights of their own, some tens of milliseconds each on one core, so that the client takes little beside them. Each has its own arrivals: gaps are Gamma with
the coefficient of variation CV, rates over the models by a power law of exponent 0.5, together LOAD times what the server answers
in a closed loop (its capacity). A request's deadline is SLO times the time of one alone.
--network: products of 512 rows, which all threads share; or steps of an LSTM, which more threads hardly shorten, so that a server of
many cores answers requests side by side, and bursts are shorter beside what it answers within a deadline; or layers whose weights
are longer than caches, so that a batch (--batch: of so many requests at most) takes little longer than a request. Every side has the same arrivals, in turns.
Triton's backend (bench/serve_triton_identity.c) takes as much processor time as one of our runs; its queue rejects what has timed out.
Client and server share the machine, each on processors of its own where they are given. Where it may, the client runs before
the servers (nice -10), so that its clock tells when answers came, and not when it was its turn.

  goodput      answers in time, as the client sees them, a second; of the capacity, as it is just before and behind (the mean); and of what one server of that capacity that knows all
               times could answer in time of these arrivals, which come in bursts that no queue within the deadline outlasts
  attainment   of what was admitted (answered, or given up later than at once): answers in time, as the client sees them;
               by_server: as the server's metrics count them
  refused      of all: at once, because the deadline could not be met
"""
import argparse
import asyncio
import contextlib
import datetime
import json
import os
import platform
import random
import signal
import statistics
import subprocess
import tempfile
import time
import urllib.request
from pathlib import Path

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

from serve import ROOT, wait_ready

WIDTH, ROWS, LAYERS = 512, 512, 10
HIDDEN, STEPS = 256, 1024
WIDE, DEEP = 4096, 12
BODY = json.dumps({"inputs": [{"name": "x", "shape": [1, WIDTH], "datatype": "FP32", "data": [0.5] * WIDTH}]})
CONFIG = """name: "{name}"
backend: "identity"
max_batch_size: 1
input [{{ name: "x" data_type: TYPE_FP32 dims: [ {size} ] }}]
output [{{ name: "y" data_type: TYPE_FP32 dims: [ {size} ] }}]
instance_group [{{ kind: KIND_CPU count: {count} }}]
dynamic_batching {{ default_queue_policy {{ timeout_action: REJECT allow_timeout_override: true }} }}
"""


def products(random_):
    """A row, ROWS times with other offsets, through LAYERS products; the mean of the rows."""
    nodes, weights, last = [], [], "rows"
    weights.append(numpy_helper.from_array(random_.standard_normal((ROWS, WIDTH), dtype=np.float32), "offsets"))
    nodes.append(helper.make_node("Add", ["x", "offsets"], ["rows"]))
    for k in range(LAYERS):
        weights.append(numpy_helper.from_array(random_.standard_normal((WIDTH, WIDTH), dtype=np.float32) / np.float32(WIDTH ** 0.5), f"w{k}"))
        nodes += [helper.make_node("MatMul", [last, f"w{k}"], [f"p{k}"]), helper.make_node("Relu", [f"p{k}"], [f"r{k}"])]
        last = f"r{k}"
    nodes.append(helper.make_node("ReduceMean", [last], ["y"], axes=[0], keepdims=1))
    return nodes, weights


def steps(random_):
    """A row, STEPS times with other offsets, through an LSTM, one step after another; its last state through a product."""
    def weight(name, *dims):
        weights.append(numpy_helper.from_array((random_.standard_normal(dims) / dims[-1] ** 0.5).astype(np.float32), name))
    weights = [numpy_helper.from_array(np.array([STEPS, 1, WIDTH]), "shape"), numpy_helper.from_array(np.array([0]), "first")]
    weight("offsets", STEPS, WIDTH), weight("w", 1, 4 * HIDDEN, WIDTH), weight("r", 1, 4 * HIDDEN, HIDDEN), weight("last", HIDDEN, WIDTH)
    return [helper.make_node("Add", ["x", "offsets"], ["rows"]), helper.make_node("Reshape", ["rows", "shape"], ["steps"]),
            helper.make_node("LSTM", ["steps", "w", "r"], ["", "state"], hidden_size=HIDDEN),
            helper.make_node("Squeeze", ["state", "first"], ["row"]), helper.make_node("MatMul", ["row", "last"], ["y"])], weights


def layers(random_):
    """Rows through LAYERS products of WIDE x WIDE, whose weights are longer than caches: a batch takes little longer than a row."""
    nodes, weights, last = [], [], "x"
    for k, (rows, columns) in enumerate([(WIDTH, WIDE), *[(WIDE, WIDE)] * DEEP, (WIDE, WIDTH)]):
        weights.append(numpy_helper.from_array(random_.standard_normal((rows, columns), dtype=np.float32) / np.float32(rows ** 0.5), f"w{k}"))
        nodes += [helper.make_node("MatMul", [last, f"w{k}"], [f"p{k}"]), helper.make_node("Relu", [f"p{k}"], ["y" if rows == WIDE and columns == WIDTH else f"r{k}"])]
        last = f"r{k}"
    return nodes, weights


def write_model(folder, seed, network, batch):
    nodes, weights = network(np.random.default_rng(seed))
    rows = 1 if batch == 1 else "rows"
    values = [helper.make_tensor_value_info(name, TensorProto.FLOAT, [rows, WIDTH]) for name in "xy"]
    folder.mkdir(parents=True)
    onnx.save(helper.make_model(helper.make_graph(nodes, network.__name__, values[:1], values[1:], weights),
                                opset_imports=[helper.make_opsetid("", 17)], ir_version=8), folder / "model.onnx")
    if batch > 1:
        (folder / "model.toml").write_text(f"batch = {batch}\n")


class Client:
    """HTTP/1.1 over connections that are kept: as many as requests are under way."""

    def __init__(self, port):
        self.port, self.idle = port, []

    async def ask(self, model, timeout_us=None):
        """The status, and seconds from the call to the answer."""
        start = time.perf_counter()
        body = BODY if timeout_us is None else BODY[:-1] + f', "parameters": {{"timeout": {timeout_us}}}}}'
        reader, writer = self.idle.pop() if self.idle else await asyncio.open_connection("127.0.0.1", self.port, limit=1 << 20)
        writer.write(f"POST /v2/models/{model}/infer HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n{body}".encode())
        head = (await reader.readuntil(b"\r\n\r\n")).decode().lower()
        length = int(head.split("content-length:")[1].split("\r\n")[0])
        await reader.readexactly(length)
        took = time.perf_counter() - start
        if "connection: close" in head:
            writer.close()
        else:
            self.idle.append((reader, writer))
        return int(head.split()[1]), took


async def alone(port, models):
    """Seconds that a request takes while nobody else asks."""
    client, times = Client(port), []
    for k in range(40 * len(models)):
        status, took = await client.ask(models[k % len(models)])
        if status != 200:
            raise SystemExit(f"a request alone: {status}")
        times.append(took)
    return statistics.median(times)


def ahead(measured):
    """Runs a coroutine before other processes of the machine, where that is allowed."""
    usual = os.getpriority(os.PRIO_PROCESS, 0)
    with contextlib.suppress(PermissionError):
        os.setpriority(os.PRIO_PROCESS, 0, usual - 10)
    try:
        return asyncio.run(measured)
    finally:
        os.setpriority(os.PRIO_PROCESS, 0, usual)


async def capacity(port, models, seconds, callers):
    """Answers a second in a closed loop."""
    client, end, count = Client(port), time.perf_counter() + seconds, 0

    async def call(k):
        nonlocal count
        while time.perf_counter() < end:
            k += 1
            status, _ = await client.ask(models[k % len(models)])
            count += status == 200
    await asyncio.gather(*(call(k) for k in range(callers)))
    return count / seconds


async def overload(port, arrivals, deadline):
    """(status, seconds from when it was due) of each request."""
    client, start, tasks = Client(port), time.perf_counter() + 0.2, []

    async def call(at, model):
        left = start + at + deadline - time.perf_counter()  # this client may be late itself, where a burst keeps it busy
        status, _ = await client.ask(model, max(round(left * 1e6), 1))
        return status, time.perf_counter() - start - at
    for at, model in arrivals:
        await asyncio.sleep(max(at - (time.perf_counter() - start), 0))
        tasks.append(asyncio.create_task(call(at, model)))
    return await asyncio.gather(*tasks)


def counted(port):
    """Of a server of ours: requests with a deadline that it admitted, and those that it answered in time."""
    text = urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=30).read().decode()
    return [sum(float(line.split()[1]) for line in text.splitlines() if line.startswith(name + "{"))
            for name in ("obelisk_deadline_requests", "obelisk_deadline_met")]


def to_come(port):
    """Programs of a server of ours that are still to be compiled."""
    live = json.load(urllib.request.urlopen(f"http://127.0.0.1:{port}/v2/live.json", timeout=30))
    return sum(model["programs_to_come"] for model in live["models"])


def arrivals_of(models, rate, cv, seconds, seed):
    random_ = random.Random(seed)
    shares = [(k + 1) ** -0.5 for k in range(len(models))]
    out = []
    for model, share in zip(models, shares):
        scale = cv ** 2 / (rate * share / sum(shares))
        at = random_.random() * scale
        while at < seconds:
            out.append((at, model))
            at += random_.gammavariate(1 / cv ** 2, scale)
    return sorted(out)


def possible(arrivals, deadline, capacity):
    """Of requests of one length and one deadline, those that can be in time: first come, first served, if it will be in time."""
    free, count = 0.0, 0
    for at, _ in arrivals:
        end = max(free, at) + 1 / capacity
        if end <= at + deadline:
            free, count = end, count + 1
    return count


def judge(results, arrivals, deadline, seconds, capacity):
    in_time = sum(status == 200 and took <= deadline for status, took in results)
    # What is refused at once never waited; what is given up later was admitted.
    refused = [took for status, took in results if status != 200 and took <= deadline / 2]
    admitted = len(results) - len(refused)
    return {"requests": len(results), "capacity": round(capacity, 1), "goodput": round(in_time / seconds, 1), "of_capacity": round(in_time / seconds / capacity, 3),
            "of_possible": round(in_time / possible(arrivals, deadline, capacity), 3),
            "attainment": round(in_time / max(admitted, 1), 4), "in_time_of_all": round(in_time / len(results), 4),
            "refused": round(len(refused) / len(results), 4), "refused_p50_us": round(statistics.median(refused) * 1e6) if refused else None}


def cpus(text):
    """Of 0-3,8: {0, 1, 2, 3, 8}."""
    ends = [[int(end) for end in part.split("-")] for part in text.split(",")]
    return {cpu for part in ends for cpu in range(part[0], part[-1] + 1)}


def spelled(chosen):
    return ",".join(str(cpu) for cpu in sorted(chosen))


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--obelisk", default=ROOT / "build/bin/obelisk")
    parser.add_argument("--triton")
    parser.add_argument("--load", type=float, default=1.2)
    parser.add_argument("--cv", type=float, default=4)
    parser.add_argument("--network", choices=("products", "steps", "layers"), default="products")
    parser.add_argument("--batch", type=int, default=1, help="requests of a model that may run together; of layers")
    parser.add_argument("--slo", type=float, default=5)
    parser.add_argument("--models", type=int, default=4)
    parser.add_argument("--seconds", type=float, default=20)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--threads", type=int, default=len(os.sched_getaffinity(0)))
    parser.add_argument("--server-cpus", type=cpus, default=os.sched_getaffinity(0), help="processors of the servers: 0-3,8")
    parser.add_argument("--client-cpus", type=cpus, default=os.sched_getaffinity(0))
    parser.add_argument("--policies", default="vliw,fifo")
    parser.add_argument("--output", type=Path)
    parser.add_argument("--note", default="")
    given = parser.parse_args()
    if given.batch > 1 and (given.network != "layers" or given.triton):
        parser.error(f"--batch {given.batch}: only --network layers has batches, and Triton's backend takes one request at a time")
    models = [f"m{k}" for k in range(given.models)]
    running, callers = {}, 2 * given.threads * given.batch

    def started(line, **more):
        return subprocess.Popen([str(word) for word in line], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
                                preexec_fn=lambda: os.sched_setaffinity(0, given.server_cpus), **more)

    os.sched_setaffinity(0, given.client_cpus)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        for k, model in enumerate(models):
            write_model(folder / "obelisk" / model, k, {"products": products, "steps": steps, "layers": layers}[given.network], given.batch)
        ports, words = {}, {}
        for k, policy in enumerate(given.policies.split(",")):
            ports[policy] = 8320 + k
            words[policy] = [given.obelisk, "serve", folder / "obelisk", "--http", ports[policy], "--grpc", "-1", "--metrics", 8360 + k,
                             "--threads", given.threads, "--policy", policy, "-q"]

        def only(side):
            for other, process in running.items():
                process.send_signal(signal.SIGCONT if other == side else signal.SIGSTOP)

        try:
            for side, line in words.items():
                running[side] = started(line)
                wait_ready(ports[side], running[side], 60 + 10 * given.models)
                time.sleep(1)
                while to_come(ports[side]):  # programs of other widths and batches are compiled behind the first
                    time.sleep(0.2)
            first = next(iter(words))
            only(first)
            one = ahead(alone(ports[first], models))
            if given.triton:
                (folder / "backends" / "identity").mkdir(parents=True)
                subprocess.run(["cc", "-O2", "-shared", "-fPIC", ROOT / "bench" / "serve_triton_identity.c", "-o",
                                folder / "backends" / "identity" / "libtriton_identity.so"], check=True)
                for model in models:
                    (folder / "triton" / model / "1").mkdir(parents=True)
                    (folder / "triton" / model / "config.pbtxt").write_text(CONFIG.format(name=model, size=WIDTH, count=1))
                ports["triton"] = 8340
                words["triton"] = [given.triton, "--backend-directory", folder / "backends", "--model-repository", folder / "triton", "--http-port", 8340,
                                   "--allow-grpc", "false", "--allow-metrics", "false", "--log-info", "false", "--http-address", "127.0.0.1"]
                running["triton"] = started(words["triton"], env=os.environ | {"BUSY_US": str(round(one * 1e6))})
                wait_ready(ports["triton"], running["triton"])
            # The capacity is that of the best side, so that all have the same arrivals and the same measure.
            capacities = {}
            for side in words:
                only(side)
                capacities[side] = ahead(capacity(ports[side], models, given.seconds / 4, callers))
            most, deadline = max(capacities.values()), given.slo * one
            best = max(capacities, key=capacities.get)

            def speed():
                """Its capacity now: machines that are shared with others do not always run as fast."""
                only(best)
                return ahead(capacity(ports[best], models, given.seconds / 8, callers))
            found = {side: [] for side in words}
            for turn in range(given.rounds):
                arrivals = arrivals_of(models, given.load * most, given.cv, given.seconds, turn)
                for side in words:
                    around = [speed()]
                    only(side)
                    before = counted(ports[side] + 40) if side != "triton" else None
                    results = ahead(overload(ports[side], arrivals, deadline))
                    around.append(speed())
                    found[side].append(judge(results, arrivals, deadline, given.seconds, statistics.mean(around)))
                    if before:
                        only(side)
                        admitted, met = (now - then for now, then in zip(counted(ports[side] + 40), before))
                        found[side][-1]["attainment_by_server"] = round(met / max(admitted, 1), 4)
                    print(side, json.dumps(found[side][-1]), flush=True)
        finally:
            for process in running.values():
                process.send_signal(signal.SIGCONT)
                process.kill()
    middle = {side: {key: statistics.median(row[key] for row in rows if row[key] is not None) if any(row[key] is not None for row in rows) else None
                     for key in rows[0]} for side, rows in found.items()}
    cpu = [line.split(":")[1].strip() for line in open("/proc/cpuinfo") if line.startswith("model name")][0]
    text = json.dumps({
        "device": {"cpu": cpu, "cores": os.cpu_count(), "kernel": platform.release()},
        "date": datetime.datetime.now(datetime.timezone.utc).isoformat(timespec="seconds"),
        "commit": subprocess.run(["git", "rev-parse", "--short", "HEAD"], cwd=ROOT, capture_output=True, text=True).stdout.strip(),
        "command": "bench/serve_overload.py" + (" --triton tritonserver" if given.triton else "")
                   + (f" --network {given.network}" if given.network != "products" else "") + f" --load {given.load:g} --cv {given.cv:g} --slo {given.slo:g} --models {given.models} --seconds {given.seconds:g} --rounds {given.rounds} --policies {given.policies} --threads {given.threads}"
                   + ("" if given.server_cpus & given.client_cpus else f" --server-cpus {spelled(given.server_cpus)} --client-cpus {spelled(given.client_cpus)}"),
        "note": given.note, "alone_us": round(one * 1e6), "deadline_us": round(deadline * 1e6),
        "capacity_per_second": {side: round(value, 1) for side, value in capacities.items()},
        "median_of_rounds": middle, "rounds": found}, indent=1)
    print(json.dumps(middle, indent=1))
    if given.output:
        given.output.write_text(text + "\n")


if __name__ == "__main__":
    main()
