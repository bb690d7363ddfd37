#!/usr/bin/env python3
"""Replicas of `obelisk serve` on the machines of a Ray cluster: fleet.py MODELS [--replicas 1:8] [--endpoints FILE]

Each actor has a process of the server on the machine where Ray put it, and starts it again when it ends. Requests go to the processes themselves, never through Ray: a load balancer has
their addresses from FILE, in Envoy's form (EDS), which is written anew with each change. Once a second the fleet asks every replica how much of its time it was busy (as it tells
load balancers) and adds or takes one by that. SIGTERM drains all of them.
"""
import argparse
import json
import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
import urllib.request
from pathlib import Path

import ray

flags = argparse.ArgumentParser()
flags.add_argument("models", help="a folder that every machine sees under this name")
flags.add_argument("--replicas", default="1:8", help="least:most")
flags.add_argument("--cpus", type=float, default=1, help="of a machine, for each replica")
flags.add_argument("--gpus", type=float, default=0)
flags.add_argument("--busy", default="0.2:0.7", help="share of its time below which one replica less, above which one more is wanted")
flags.add_argument("--seconds", type=float, default=5, help="for which it must be so")
flags.add_argument("--endpoints", help="a file for a load balancer")
flags.add_argument("--obelisk", default="obelisk")
flags.add_argument("--address", help="of a Ray cluster; else one of this machine alone")
flags.epilog = "After -- more flags of `obelisk serve`."


@ray.remote(max_restarts=-1)
class Replica:
    def __init__(self, program, models, more):
        self.command = [program, "serve", models, "--http", "0", "--grpc", "0", "--metrics", "0", "--host", ray.util.get_node_ip_address(), *more]
        self.process, self.where, self.ending = None, None, False
        self.start()
        threading.Thread(target=self.watch, daemon=True).start()

    def start(self):
        log = Path(tempfile.mkdtemp(prefix="obelisk-replica-")) / "log"
        self.process = subprocess.Popen([*self.command, "--log-file", str(log)], stdin=subprocess.DEVNULL)
        while self.process.poll() is None:
            for line in log.read_text().splitlines() if log.exists() else []:
                event = json.loads(line) if line.endswith("}") else {}
                if event.get("state") == "listening":
                    self.where = {key: event[key] for key in ("host", "http", "grpc", "metrics")}
                    self.where["pid"] = self.process.pid
                    return
            time.sleep(0.05)
        raise RuntimeError(f"{self.command} ended with {self.process.returncode}: {log.read_text() if log.exists() else ''}")

    def watch(self):
        while not self.ending:
            self.process.wait()
            if not self.ending:
                self.where = None
                self.start()

    def address(self):
        """Where it listens, once it is ready."""
        where = self.where
        try:
            with urllib.request.urlopen(f"http://{where['host']}:{where['http']}/v2/health/ready", timeout=2) as answer:
                return where if answer.status == 200 else None
        except (OSError, TypeError):
            return None

    def counts(self):
        """Requests under way and answered."""
        try:
            with urllib.request.urlopen(f"http://{self.where['host']}:{self.where['http']}/v2/live.json", timeout=2) as answer:
                live = json.load(answer)
            return {"in_flight": live["in_flight"], "busy": live["busy"]}
        except (OSError, TypeError):
            return None

    def drain(self):
        self.ending = True
        self.process.send_signal(signal.SIGTERM)
        return self.process.wait()


def endpoints(cluster, ports, key):
    return {"@type": "type.googleapis.com/envoy.config.endpoint.v3.ClusterLoadAssignment", "cluster_name": cluster,
            "endpoints": [{"lb_endpoints": [{"endpoint": {"address": {"socket_address": {"address": one["host"], "port_value": one[key]}}}} for one in ports]}]}


def main():
    words = sys.argv[1:]
    cut = words.index("--") if "--" in words else len(words)
    given, more = flags.parse_args(words[:cut]), words[cut + 1:]
    least, most = map(int, given.replicas.split(":"))
    idle, busy = map(float, given.busy.split(":"))
    ray.init(address=given.address, include_dashboard=False, log_to_driver=False)
    place = Replica.options(num_cpus=given.cpus, num_gpus=given.gpus, max_concurrency=4)
    fleet, told, since = [], None, time.monotonic()
    ended = threading.Event()
    signal.signal(signal.SIGTERM, lambda *_: ended.set())
    signal.signal(signal.SIGINT, lambda *_: ended.set())

    def tell():
        nonlocal told
        found = [one for one in ray.get([replica.address.remote() for replica in fleet]) if one]
        if found == told:
            return
        told = found
        print(json.dumps({"replicas": found}), flush=True)
        if given.endpoints:
            path = Path(given.endpoints)
            text = json.dumps({"resources": [endpoints("http", found, "http"), endpoints("grpc", found, "grpc")]})
            path.with_suffix(".new").write_text(text)
            os.replace(path.with_suffix(".new"), path)  # Envoy sees the move

    while not ended.wait(1 if fleet else 0):
        while len(fleet) < least:
            fleet.append(place.remote(given.obelisk, os.path.abspath(given.models), more))
        tell()
        shares = [one["busy"] for one in ray.get([replica.counts.remote() for replica in fleet]) if one]
        share = sum(shares) / len(shares) if shares else 0
        wanted = len(fleet) + (1 if share > busy and len(fleet) < most else -1 if share < idle and len(fleet) > least else 0)
        if wanted == len(fleet):
            since = time.monotonic()
        elif time.monotonic() - since >= given.seconds:
            since = time.monotonic()
            if wanted > len(fleet):
                fleet.append(place.remote(given.obelisk, os.path.abspath(given.models), more))
            else:
                going = fleet.pop()
                tell()  # the balancer first
                ray.get(going.drain.remote())
                ray.kill(going)
    codes = ray.get([replica.drain.remote() for replica in fleet])
    print(json.dumps({"ended": codes}), flush=True)
    ray.shutdown()
    return max(codes, default=0)


if __name__ == "__main__":
    sys.exit(main())
