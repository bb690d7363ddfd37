#!/usr/bin/env python3
"""Which of many models go on which of many GPUs, and what the scheduler then makes of it: plan.py [--models 1000] [--gpus 100] [--rate R] [-o FILE]

Each model has the times of a network of bench/results/h200_tenants.json, and a rate by a power law. A model that needs more than a share of a GPU has several replicas; then the largest
replicas go first, each where the least is to do among the GPUs that have room for its weights and not the model already. Each GPU's requests are drawn (lognormal gaps, deadlines of 2 to
10 times the time alone) and decided by `obelisk simulate`, the scheduler of the server under a virtual clock. Beside it the same with models dealt out in turn.
"""
import argparse
import concurrent.futures
import json
import math
import os
import random
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
# Megabytes of weights in f16, and of workspaces of a few programs.
MEGABYTES = {"resnet50": 60, "resnet18": 30, "googlenet": 20, "minilm": 60, "bert-base": 240, "crnn": 30, "deepfm": 120}


def wants(count, networks, rate, power, chance):
    """Models with their rates: the k-th most asked as often as k ** -power."""
    shares = [(k + 1) ** -power for k in range(count)]
    chance.shuffle(shares)
    whole = sum(shares)
    return [{"name": f"m{k}:{networks[k % len(networks)]}", "network": networks[k % len(networks)], "rate": rate * share / whole} for k, share in enumerate(shares)]


def place(models, cost, gpus, memory, most):
    """GPUs with [(model, rate)]; each as busy as the others, weights where there is room."""
    replicas = []
    for model in models:
        load = model["rate"] * cost[model["network"]]
        parts = min(gpus, max(1, math.ceil(load / most)))
        replicas += [(load / parts, model["rate"] / parts, model)] * parts
    replicas.sort(key=lambda one: (-one[0], one[2]["name"]))
    found = [{"load": 0.0, "megabytes": 0, "models": []} for _ in range(gpus)]
    for load, rate, model in replicas:
        size = MEGABYTES[model["network"]]
        room = [gpu for gpu in found if gpu["megabytes"] + size <= memory and all(other is not model for other, _ in gpu["models"])]
        if not room:
            raise SystemExit(f"error: no GPU has room for another replica of {model['name']}")
        gpu = min(room, key=lambda one: one["load"])
        gpu["load"] += load
        gpu["megabytes"] += size
        gpu["models"].append((model, rate))
    return found


def deal(models, cost, gpus):
    """Model k on GPU k modulo their number."""
    found = [{"load": 0.0, "megabytes": 0, "models": []} for _ in range(gpus)]
    for k, model in enumerate(models):
        gpu = found[k % gpus]
        gpu["load"] += model["rate"] * cost[model["network"]]
        gpu["megabytes"] += MEGABYTES[model["network"]]
        gpu["models"].append((model, model["rate"]))
    return found


def simulated(at, gpu, cost, seconds, seed, program, times, folder):
    """What comes of a GPU's requests: (asked, in time, busy)."""
    chance = random.Random(f"{seed}/{at}")
    requests = []
    for model, rate in gpu["models"]:
        now, sigma = 0.0, 1.0
        mean = -math.log(rate) - sigma**2 / 2
        while (now := now + chance.lognormvariate(mean, sigma)) < seconds:
            requests.append((now * 1e6, model["name"], cost[model["network"]] * 1e6 * chance.choice([2, 3, 5, 10])))
    if not requests:
        return 0, 0, 0.0
    requests.sort()
    trace = Path(folder) / f"{at}.jsonl"
    trace.write_text("".join(json.dumps({"time_us": round(when, 1), "model": name, "deadline_us": round(deadline, 1)}) + "\n" for when, name, deadline in requests))
    own = Path(folder) / f"{at}.times.json"
    own.write_text(json.dumps({**times, "models": {model["name"]: times["models"][model["network"]] for model, _ in gpu["models"]}}))
    done = subprocess.run([program, "simulate", str(trace), "--times", str(own), "--policy", "vliw", "--json"], capture_output=True, text=True)
    if done.returncode:
        raise SystemExit(done.stderr)
    report = json.loads(done.stdout)
    one = report["policies"][0]
    trace.unlink()
    own.unlink()
    return one["all"]["asked"], one["all"]["in_time"], one["busy"]


def main():
    flags = argparse.ArgumentParser()
    flags.add_argument("--models", type=int, default=1000)
    flags.add_argument("--gpus", type=int, default=100)
    flags.add_argument("--rate", type=float, default=250_000, help="requests a second of all models")
    flags.add_argument("--power", type=float, default=0.9, help="of the law of their rates")
    flags.add_argument("--memory", type=int, default=80_000, help="megabytes of a GPU for weights")
    flags.add_argument("--most", type=float, default=0.25, help="share of a GPU that a replica may want")
    flags.add_argument("--seconds", type=float, default=2, help="of virtual time")
    flags.add_argument("--seed", type=int, default=1)
    flags.add_argument("--jobs", type=int, default=1)
    flags.add_argument("--times", default=str(ROOT / "bench" / "results" / "h200_tenants.json"))
    flags.add_argument("--obelisk", default=os.environ.get("OBELISK", str(ROOT / "build" / "bin" / "obelisk")))
    flags.add_argument("-o", "--output", help="the plan, as JSON")
    given = flags.parse_args()
    times = json.loads(Path(given.times).read_text())
    networks = [name for name in MEGABYTES if name in times["models"]]
    cost = {name: min(times["models"][name]["alone"].values()) / 1e6 for name in networks}  # seconds of a whole GPU
    models = wants(given.models, networks, given.rate, given.power, random.Random(given.seed))
    plans = {"placed": place(models, cost, given.gpus, given.memory, given.most), "in turn": deal(models, cost, given.gpus)}
    result = {"models": given.models, "gpus": given.gpus, "rate": given.rate, "power": given.power, "seed": given.seed, "plans": {}}
    with tempfile.TemporaryDirectory() as folder, concurrent.futures.ThreadPoolExecutor(given.jobs) as pool:
        for name, gpus in plans.items():
            reports = list(pool.map(lambda one: simulated(one[0], one[1], cost, given.seconds, given.seed, given.obelisk, times, folder), enumerate(gpus)))
            asked, in_time = sum(one[0] for one in reports), sum(one[1] for one in reports)
            result["plans"][name] = {"asked": asked, "in_time": in_time, "share": round(in_time / asked, 4), "worst_gpu": round(min(one[1] / one[0] for one in reports if one[0]), 4),
                                     "busiest": round(max(one[2] for one in reports), 3), "least_busy": round(min(one[2] for one in reports), 3), "replicas": sum(len(gpu["models"]) for gpu in gpus),
                                     "most_megabytes": max(gpu["megabytes"] for gpu in gpus)}
            print(f"{name:8} {asked} requests, {100 * in_time / asked:.2f} % in time, on the worst GPU {100 * result['plans'][name]['worst_gpu']:.2f} %; {result['plans'][name]['replicas']} replicas, "
                  f"GPUs busy {100 * result['plans'][name]['least_busy']:.0f} to {100 * result['plans'][name]['busiest']:.0f} %, weights of {result['plans'][name]['most_megabytes']} MB at most")
    if given.output:
        result["gpus_of_plan"] = [[f"{model['name']} {rate:.1f}/s" for model, rate in gpu["models"]] for gpu in plans["placed"]]
        Path(given.output).write_text(json.dumps(result, indent=1) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
