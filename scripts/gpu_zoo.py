#!/usr/bin/env python3
"""Networks of the wide zoo on a GPU: answers beside PyTorch's in f32, and device time beside torch.compile.

    gpu_zoo.py [NAME…] [--count 100] [--jobs 14] [--within 560] [--pictures 224] [--without PASS,…]
               [--precisions fp16] [--dispatch waves] [--beside PROGRAM] [--no-peer] [--out FILE.json]

Each network is a process: it makes the module, exports it, asks PyTorch (f32, f16, torch.compile of
f16) and obelisk (op, stitch, mono; fp32, fp16) for answers to the same inputs, and times both. What
computes or is timed on the GPU has it alone, in its turn (gpu_sides.turn): compilers of other networks
use the CPU meanwhile.

--pictures: sides of torchvision's and timm's pictures, where a network takes any (their own are small).
--granularities: of op, stitch and mono, those that are compiled, compared and timed.
--without: each pass is left out once (several at once where a + joins them), and "stitch" is timed
beside what it takes with all of them.
--precisions: of fp32 and fp16, those in which answers are compared.
--dispatch: how kernels are ordered; without it each network's quickest way is measured.
--beside: another build of obelisk, whose device times are measured in the same turn.
--no-peer: torch.compile is not timed.

An answer is right when its largest difference from PyTorch's in f32, over the root mean square, is at
most what rounding explains: in fp32 four times what PyTorch's own f32 differs from its f64, in fp16
three times what its f16 differs from its f32 (where a module does not run in f16: 2^13 times the
former, for so much coarser are 16 bits); FP32 and FP16 are always allowed. That shows something where
other inputs move the answer at least four times as far: in which precisions they do is in the row.
"""
import argparse
import concurrent.futures
import datetime
import fnmatch
import hashlib
import json
import os
import pathlib
import statistics
import subprocess
import sys
import tempfile
import time

HERE = pathlib.Path(__file__).resolve().parent
ROOT = HERE.parent
sys.path.insert(0, str(HERE))
os.environ.setdefault("OBELISK_PYTHON", sys.executable)  # whose packages have the device compiler
BIN = next((p for p in (ROOT / "bin", ROOT / "build/bin") if (p / "obelisk").exists()), ROOT / "bin")
FP32, FP16 = 2e-4, 5e-3
GRANULARITIES = ("op", "stitch", "mono")
PRECISIONS = os.environ.get("OBELISK_ZOO_PRECISIONS", "fp32,fp16").split(",")  # of each network's process
DISPATCH = os.environ.get("OBELISK_ZOO_DISPATCH")  # of each network's process
OF_DISPATCH = ["--dispatch", DISPATCH] if DISPATCH else []


def error_of(got, wanted):
    """Largest difference over the root mean square; infinite where one is not finite."""
    import numpy
    got, wanted = got.astype("f8"), wanted.astype("f8")
    if got.shape != wanted.shape or not numpy.isfinite(got).all():
        return float("inf")
    return float(abs(got - wanted).max(initial=0) / max(numpy.sqrt((wanted**2).mean()), 1e-30))


def reason(error):
    return " ".join(f"{type(error).__name__}: {error}".split())[:200]


def on_gpu(module, tensors, dtype):
    import torch
    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = False
    cast = [t.cuda().to(dtype) if t.is_floating_point() else t.cuda() for t in tensors]
    with torch.inference_mode():
        answers = module.cuda().to(dtype)(*cast)
    answers = answers if isinstance(answers, tuple) else (answers,)
    if dtype == torch.float64:
        return [a.cpu().numpy() for a in answers]
    return [a.float().cpu().numpy() if a.is_floating_point() else a.cpu().numpy() for a in answers]


def time_torch(module, tensors, row):
    """Device time of torch.compile in fp16, as one launch of a CUDA graph."""
    import torch_peer
    from gpu_sides import turn
    peer = torch_peer.Peer(module, tensors, "fp16")
    call = peer.way("compile")
    with turn():
        row["torch_compile_us"] = round(statistics.median(torch_peer.device_us(call)), 2)


def compile_program(onnx, granularity, precision, without="", program=BIN / "obelisk"):
    words = ["compile", onnx, "--target", "cuda", "--granularity", granularity, "--precision",
             precision, "--verify", "off", "--to", "load", *OF_DISPATCH, *(["--disable", without.replace("+", ",")] if without else [])]
    done = subprocess.run([program, *words], capture_output=True, text=True, timeout=200)
    return done.stderr.strip()[:300] if done.returncode else ""


def obelisk_answers(onnx, folder, runs, feeds, outputs):
    """{(granularity, precision): answers or a reason}, by one process."""
    import numpy
    from obelisk_backend import output_file, write_npz
    write_npz(folder / "inputs.npz", feeds)
    unverified = ["--verify", "off"] if b"--verify" in subprocess.run([BIN / "obelisk", "run", "--help"], capture_output=True).stdout else []
    lines, folders = [], {}
    for granularity, precision in runs:
        folders[granularity, precision] = folder / f"{granularity}.{precision}"
        lines.append(json.dumps(["run", str(onnx), "--inputs", str(folder / "inputs.npz"), "--target", "cuda",
                                 "--granularity", granularity, "--precision", precision, *OF_DISPATCH, *unverified,
                                 "--output-dir", str(folders[granularity, precision])]))
    done = subprocess.run([BIN / "obelisk", "batch"], input="\n".join(lines) + "\n", capture_output=True,
                          text=True, timeout=200)
    found = {}
    for which, line in zip(runs, done.stdout.splitlines() + ["{}"] * len(runs)):
        said = json.loads(line)
        if said.get("status", said.get("exit", 1)) != 0:
            found[which] = " ".join(str(said.get("stderr", said)).split())[:300] or done.stderr[-300:]
            continue
        found[which] = [numpy.load(output_file(folders[which], name)) for name in outputs]
    return found


def bench(onnx, granularities, without="", program=BIN / "obelisk"):
    """{granularity: device time in us}, in fp16; or what stopped it."""
    words = ["bench", onnx, "--target", "cuda", "--granularity", ",".join(granularities), "--precision", "fp16",
             "--seconds", "0.2", "--json", *OF_DISPATCH, *(["--disable", without.replace("+", ",")] if without else [])]
    unverified = ["--verify", "off"] if b"--verify" in subprocess.run([program, "bench", "--help"], capture_output=True).stdout else []
    done = subprocess.run([program, *words, *unverified], capture_output=True, text=True, timeout=200)
    try:
        said = json.loads(done.stdout)
        each = said if isinstance(said, list) else said.get("granularities", [said])
        return {one["granularity"]: round(one["device_us"]["median"], 2) for one in each}
    except (ValueError, KeyError, TypeError) as error:
        return (done.stderr.strip() or reason(error))[:300]


def one(name, work, passes=(), granularities=GRANULARITIES, beside="", peer=True):
    """Everything about one network; a row of JSON for each thing that is known."""
    import torch
    from gpu_sides import turn
    from zoo_inputs import make_inputs
    from zoo_wide_export import prepared, tensors, write_onnx
    row = {"network": name}
    begin = time.monotonic()

    def tell():
        row["seconds"] = round(time.monotonic() - begin, 1)
        print(json.dumps(row), flush=True)

    folder = work / name
    folder.mkdir(parents=True, exist_ok=True)
    network, card = prepared(name)
    row["parameters"] = card["parameters"]
    why = write_onnx(name, network, card, folder)
    if why:
        row["not_exportable"] = why[:200]
        return tell()
    onnx = folder / f"{name}.onnx"
    feeds, others = tensors(card, 7), tensors(card, 8)
    runs = [(g, p) for p in PRECISIONS for g in granularities]
    with concurrent.futures.ThreadPoolExecutor(3) as pool:
        ahead = [pool.submit(compile_program, onnx, "stitch", "fp16", left_out) for left_out in passes]  # for bench
        if beside:
            ahead += [pool.submit(compile_program, onnx, g, "fp16", "", beside) for g in granularities]
        refused = dict(zip(runs, pool.map(lambda run: compile_program(onnx, *run), runs)))
        concurrent.futures.wait(ahead)
    row["refused"] = {f"{g} {p}": why for (g, p), why in refused.items() if why}
    runs = [run for run in runs if not refused[run]]
    torch.zeros(1, device="cuda")  # the context: seconds, that nobody needs to wait for
    with turn():
        wanted = on_gpu(network.module, feeds, torch.float32)
        moved = min(error_of(a, b) for a, b in zip(on_gpu(network.module, others, torch.float32), wanted))
        row["moved"] = moved
        try:
            exact = on_gpu(network.module, feeds, torch.float64)
            row["torch_fp32_error"] = max(error_of(a, b) for a, b in zip(wanted, exact))
        except Exception as error:  # a module that does not run in f64: the constants are what is allowed
            row["torch_fp64"], row["torch_fp32_error"] = reason(error), 0
        network.module.float()
        try:
            own = [error_of(a, b) for a, b in zip(on_gpu(network.module, feeds, torch.float16), wanted)]
            row["torch_fp16_error"] = max(own)
        except Exception as error:
            row["torch_fp16"] = reason(error)
            row["torch_fp16_error"] = None
        network.module.float()
    import onnx as onnx_library
    model = onnx_library.load(onnx, load_external_data=False)
    taken = {value.name for value in model.graph.input}
    arrays = {key: array for key, array in make_inputs(card, {}, 7).items() if key in taken}
    with turn():
        found = obelisk_answers(onnx, folder, runs, arrays, [value.name for value in model.graph.output])
    rounding = {"fp32": max(FP32, 4 * row["torch_fp32_error"]),
                "fp16": max(FP16, 3 * (row["torch_fp16_error"] or 2**13 * row["torch_fp32_error"]))}
    row["allowed"] = rounding
    row["judged"] = [p for p in ("fp32", "fp16") if 4 * rounding[p] <= moved]
    row["errors"], row["wrong"] = {}, []
    for (granularity, precision), answers in found.items():
        label = f"{granularity} {precision}"
        if isinstance(answers, str):
            row["refused"][label] = answers
            continue
        worst = max(error_of(a, b) for a, b in zip(answers, wanted))
        row["errors"][label] = float(f"{worst:.3g}")
        if not worst <= rounding[precision]:
            row["wrong"].append(label)
    tell()
    with turn():
        times = bench(onnx, granularities)
        row["obelisk_us" if isinstance(times, dict) else "bench"] = times
        for left_out in passes:
            times = bench(onnx, ["stitch"], left_out)
            row.setdefault("stitch_us_without", {})[left_out] = times.get("stitch") if isinstance(times, dict) else times
        if beside:
            row["beside_us"] = bench(onnx, granularities, "", beside)
    tell()
    if not peer:
        return
    try:
        time_torch(network.module.float(), feeds, row)
    except Exception as error:
        row["torch_compile"] = reason(error)
    tell()


def in_process(name, options, deadline):
    """The last row that the network's process told, or why there is none."""
    left = deadline - time.monotonic()
    if left < 20:
        return {"network": name, "left_out": "no time was left"}
    words = [sys.executable, __file__, "--one", name, "--work", options.work, "--without", options.without,
             "--granularities", options.granularities, "--beside", options.beside,
             *(["--no-peer"] if options.no_peer else [])]
    settings = {"OMP_NUM_THREADS": "2", "TORCHINDUCTOR_COMPILE_THREADS": "1", "OBELISK_GPU_TURN": str(pathlib.Path(options.work) / "turn")}
    log = open(pathlib.Path(options.work) / f"{name}.log", "w")
    try:
        done = subprocess.run(words, stdout=subprocess.PIPE, stderr=log, text=True, timeout=min(left, 240), env={**os.environ, **settings})
        out, late = done.stdout, "" if done.returncode == 0 else f"ended with {done.returncode}"
    except subprocess.TimeoutExpired as error:
        out, late = (error.stdout or b"").decode(errors="replace"), "not ready in time"
    rows = [json.loads(line) for line in out.splitlines() if line.startswith('{"network"')]
    row = rows[-1] if rows else {"network": name}
    if late:
        told = (pathlib.Path(options.work) / f"{name}.log").read_text()
        tail = told[:200] + " … " + told[-200:]
        row["late"] = f"{late}: {' '.join(tail.split())}" if not rows else late
    return row


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("names", nargs="*")
    parser.add_argument("--count", type=int, default=1000, help="so many networks, spread over the libraries")
    parser.add_argument("--skip", type=int, default=0, help="leave out so many first")
    parser.add_argument("--jobs", type=int, default=14)
    parser.add_argument("--within", type=float, default=560, help="seconds in all")
    parser.add_argument("--work", default=tempfile.gettempdir() + "/gpu_zoo")
    parser.add_argument("--out", type=pathlib.Path)
    parser.add_argument("--pictures", type=int, help="sides of pictures, where a network takes any")
    parser.add_argument("--without", default="", help="passes, each of which is left out once")
    parser.add_argument("--dispatch", help="of graphs of kernels")
    parser.add_argument("--precisions", help="of fp32 and fp16, in which answers are compared")
    parser.add_argument("--beside", default="", help="another build of obelisk, timed in the same turn")
    parser.add_argument("--no-peer", action="store_true", help="torch.compile is not timed")
    parser.add_argument("--granularities", default=",".join(GRANULARITIES))
    parser.add_argument("--one", metavar="NAME")
    options = parser.parse_args()
    if options.pictures:
        os.environ["OBELISK_ZOO_PICTURES"] = str(options.pictures)  # zoo_wide_networks.py, here and in each network's process
    if options.precisions:
        os.environ["OBELISK_ZOO_PRECISIONS"] = options.precisions
    if options.dispatch:
        os.environ["OBELISK_ZOO_DISPATCH"] = options.dispatch
    pathlib.Path(options.work).mkdir(parents=True, exist_ok=True)
    if options.one:
        return one(options.one, pathlib.Path(options.work), [name for name in options.without.split(",") if name],
                   options.granularities.split(","), options.beside, not options.no_peer)
    from gpu import Session
    from zoo_wide_networks import NETWORKS
    names = [name for name in NETWORKS if any(fnmatch.fnmatch(name, p) for p in options.names or ["*"])]
    names.sort(key=lambda name: hashlib.sha256(name.encode()).hexdigest())  # the libraries mixed, always alike
    names = names[options.skip:options.skip + options.count]
    deadline = time.monotonic() + options.within
    rows = []
    with concurrent.futures.ThreadPoolExecutor(options.jobs) as pool:
        for row in pool.map(lambda name: in_process(name, options, deadline), names):
            rows.append(row)
            print(json.dumps(row), flush=True)
            if options.out:
                summary = {"networks": len(rows), "compared": sum("errors" in r for r in rows),
                           "right": sum("errors" in r and not r["wrong"] and not r["refused"] for r in rows),
                           "wrong": [r["network"] for r in rows if r.get("wrong")],
                           "refused": [r["network"] for r in rows if r.get("refused")],
                           "judged_in_fp32_only": [r["network"] for r in rows if r.get("judged") == ["fp32"]],
                           "judged_in_none": [r["network"] for r in rows if r.get("judged") == []]}
                options.out.write_text(json.dumps({
                    "date": datetime.datetime.now(datetime.timezone.utc).strftime("%Y-%m-%d"), "commit": Session.commit(),
                    "command": "gpu_zoo.py " + " ".join(sys.argv[1:]), **Session.machine(), "summary": summary, "rows": rows}, indent=1) + "\n")
    bad = [row["network"] for row in rows if row.get("wrong")]
    print(f"gpu_zoo: {len(rows)} networks, {sum('errors' in row for row in rows)} compared, wrong: {', '.join(bad) or 'none'}")
    return 1 if bad or not any("errors" in row for row in rows) else 0


if __name__ == "__main__":
    sys.exit(main())
