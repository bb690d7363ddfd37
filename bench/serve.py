#!/usr/bin/env python3
"""What `obelisk serve` adds to a call in a process, beside Triton in the same go: perf_analyzer on an identity model, HTTP and gRPC, small
and large, and wrk, which takes little of the processor itself, with large tensors over HTTP.

  bench/serve.py --perf-analyzer FILE [--triton FILE] [--wrk FILE] [--output bench/results/serve_cpu.json] [--note TEXT]

Rounds alternate between the servers; a row has the median of its rounds. Client and server share the machine.
`build/bin/in_process_call` makes the calls without a server.
"""
import argparse
import csv
import datetime
import json
import os
import platform
import re
import signal
import statistics
import struct
import subprocess
import sys
import tempfile
import time
import urllib.request
from pathlib import Path

import onnx
from onnx import TensorProto, helper

ROOT = Path(__file__).resolve().parent.parent
MODELS = {"small": 16, "large": 150528}
CASES = [("small", 1), ("small", 8), ("large", 1)]
CONFIG = """name: "{name}"
backend: "identity"
max_batch_size: 0
input [{{ name: "x" data_type: TYPE_FP32 dims: [ 1, {size} ] }}]
output [{{ name: "y" data_type: TYPE_FP32 dims: [ 1, {size} ] }}]
instance_group [{{ kind: KIND_CPU count: 1 }}]
"""


def write_models(folder, triton):
    for name, size in MODELS.items():
        values = [helper.make_tensor_value_info(one, TensorProto.FLOAT, [1, size]) for one in "xy"]
        graph = helper.make_graph([helper.make_node("Identity", ["x"], ["y"])], name, values[:1], values[1:])
        (folder / "obelisk" / name).mkdir(parents=True)
        onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8), folder / "obelisk" / name / "model.onnx")
        if triton:
            (folder / "triton" / name / "1").mkdir(parents=True)
            (folder / "triton" / name / "config.pbtxt").write_text(CONFIG.format(name=name, size=size))
    if triton:
        (folder / "backends" / "identity").mkdir(parents=True)
        subprocess.run(["cc", "-O2", "-shared", "-fPIC", ROOT / "bench" / "serve_triton_identity.c", "-o",
                        folder / "backends" / "identity" / "libtriton_identity.so"], check=True)


def wait_ready(port, process, seconds=60):
    for _ in range(10 * seconds):
        if process.poll() is not None:
            sys.exit(f"a server ended: {process.args}")
        try:
            if urllib.request.urlopen(f"http://127.0.0.1:{port}/v2/health/ready", timeout=5).status == 200:
                return
        except OSError:
            pass
        time.sleep(0.1)
    sys.exit("a server is not ready")


def measure(analyzer, port, protocol, model, connections, seconds, folder):
    out = folder / "out.csv"
    words = [analyzer, "-m", model, "-u", f"127.0.0.1:{port}", "-i", protocol, "-b", "1", "--concurrency-range", str(connections),
             "-p", str(int(seconds * 1000 / 3)), "--max-trials", "6", "-s", "100000", "-f", out]
    done = subprocess.run([str(word) for word in words], capture_output=True, text=True, timeout=120)
    if not out.exists():
        sys.exit(f"{' '.join(done.args)}\n{done.stdout}{done.stderr}")
    row = next(csv.DictReader(out.open()))
    out.unlink()
    return {"per_second": float(row["Inferences/Second"]), "p50_us": float(row["p50 latency"]), "p99_us": float(row["p99 latency"])}


def wrk_script(folder):
    """A request with one large tensor, binary both ways."""
    size = MODELS["large"]
    head = json.dumps({"inputs": [{"name": "x", "shape": [1, size], "datatype": "FP32", "parameters": {"binary_data_size": 4 * size}}],
                       "outputs": [{"name": "y", "parameters": {"binary_data": True}}]})
    (folder / "body").write_bytes(head.encode() + struct.pack(f"<{size}f", *range(size)))
    script = folder / "large.lua"
    script.write_text(f'''wrk.method = "POST"
local file = io.open("{folder}/body", "rb")
wrk.body = file:read("*a")
file:close()
wrk.headers["Content-Type"] = "application/octet-stream"
wrk.headers["Inference-Header-Content-Length"] = "{len(head)}"
''')
    return script


def in_us(text):
    number, unit = re.fullmatch(r"([\d.]+)(us|ms|s)", text).groups()
    return round(float(number) * {"us": 1, "ms": 1e3, "s": 1e6}[unit], 1)


def measure_wrk(wrk, port, connections, seconds, script):
    done = subprocess.run([wrk, "-t", "1", "-c", str(connections), "-d", f"{max(round(seconds), 1)}s", "--latency", "-s", str(script),
                           f"http://127.0.0.1:{port}/v2/models/large/infer"], capture_output=True, text=True, timeout=120)
    if done.returncode or "Non-2xx" in done.stdout or "Socket errors" in done.stdout:
        sys.exit(f"{' '.join(done.args)}\n{done.stdout}{done.stderr}")
    return {"per_second": float(re.search(r"Requests/sec:\s+([\d.]+)", done.stdout)[1]),
            "p50_us": in_us(re.search(r"\n +50%\s+(\S+)", done.stdout)[1]), "p99_us": in_us(re.search(r"\n +99%\s+(\S+)", done.stdout)[1])}


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--perf-analyzer", required=True)
    parser.add_argument("--obelisk", default=ROOT / "build/bin/obelisk")
    parser.add_argument("--triton")
    parser.add_argument("--wrk", help="https://github.com/wg/wrk, a package of Debian")
    parser.add_argument("--in-process", default=ROOT / "build/bin/in_process_call")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=2)
    parser.add_argument("--threads", default="1", help="of the programs that obelisk serve runs")
    parser.add_argument("--output", type=Path)
    parser.add_argument("--note", default="")
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        write_models(folder, given.triton)
        servers = {"obelisk": (8300, [given.obelisk, "serve", folder / "obelisk", "--http", "8300", "--grpc", "8301", "--metrics", "-1", "--threads", given.threads, "-q"])}
        if given.triton:
            servers["triton"] = (8310, [given.triton, "--backend-directory", folder / "backends", "--model-repository", folder / "triton", "--http-port", "8310", "--grpc-port", "8311",
                                        "--allow-metrics", "false", "--log-error", "true", "--log-info", "false", "--http-address", "127.0.0.1", "--grpc-address", "127.0.0.1"])
        running = {server: subprocess.Popen([str(word) for word in words], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) for server, (_, words) in servers.items()}
        try:
            for server, (port, _) in servers.items():
                wait_ready(port, running[server])
            rows = []

            def only(server):
                for other in running:
                    running[other].send_signal(signal.SIGCONT if other == server else signal.SIGSTOP)

            def rounds(row, measured):
                """`measured(port)` of each server in turns: its medians become a row."""
                found = {server: [] for server in servers}
                for _ in range(given.rounds):
                    for server, (port, _) in servers.items():
                        only(server)
                        found[server].append(measured(port))
                for server, results in found.items():
                    rows.append({"server": server, **row, **{key: round(statistics.median(one[key] for one in results), 1) for key in results[0]}})
                    print(json.dumps(rows[-1]), flush=True)

            only("")
            for model in MODELS:
                done = subprocess.run([given.in_process, folder / "obelisk" / model / "model.onnx", "--seconds", str(given.seconds)],
                                      capture_output=True, text=True, check=True)
                rows.append({"server": "none: a call in the process", "bytes": 4 * MODELS[model], **json.loads(done.stdout)})
                print(json.dumps(rows[-1]), flush=True)
            for model, connections in CASES:
                for protocol in ("http", "grpc"):
                    rounds({"client": "perf_analyzer", "protocol": protocol, "bytes": 4 * MODELS[model], "connections": connections},
                           lambda port: measure(given.perf_analyzer, port + (protocol == "grpc"), protocol, model, connections, given.seconds, folder))
            if given.wrk:
                script = wrk_script(folder)
                for connections in (1, 2):
                    rounds({"client": "wrk", "protocol": "http", "bytes": 4 * MODELS["large"], "connections": connections},
                           lambda port: measure_wrk(given.wrk, port, connections, given.seconds, script))
        finally:
            for process in running.values():
                process.send_signal(signal.SIGCONT)
                process.kill()
    cpu = [line.split(":")[1].strip() for line in open("/proc/cpuinfo") if line.startswith("model name")][0]
    text = json.dumps({"device": {"cpu": cpu, "cores": os.cpu_count(), "kernel": platform.release()}, "date": datetime.datetime.now(datetime.timezone.utc).isoformat(timespec="seconds"),
                       "commit": subprocess.run(["git", "rev-parse", "--short", "HEAD"], cwd=ROOT, capture_output=True, text=True).stdout.strip(),
                       "command": "bench/serve.py --perf-analyzer perf_analyzer" + (" --triton tritonserver" if given.triton else "") + (" --wrk wrk" if given.wrk else "") + f" --rounds {given.rounds} --seconds {given.seconds:g} --threads {given.threads}",
                       "note": given.note, "rows": rows}, indent=1)
    if given.output:
        given.output.write_text(text + "\n")


if __name__ == "__main__":
    main()
