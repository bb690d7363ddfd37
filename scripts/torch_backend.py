#!/usr/bin/env python3
"""`torch.compile(model, backend="obelisk")` beside eager PyTorch on 30 models of transformers and 30 of timm.

Each model (scripts/zoo_wide_networks.py: as its library defines it, small, with weights that let the input through) runs in a
process of its own, bounded in time. What was found goes to FOLDER/NAME.json; a rerun continues, `--again` begins anew.
docs/torch.md is made of what is there.

    scripts/torch_backend.py                                             on the CPU
    scripts/torch_backend.py --target cuda --inductor default graphs     on a GPU, inductor beside it, in the same processes
    scripts/torch_backend.py 'timm.*' --limit 60                         some of them
    scripts/torch_backend.py --target cuda --jobs 20                     compiled twenty at a time, timed one at a time

The Python that runs this has the wheel of Obelisk, PyTorch, timm and transformers. Exits with 1 if an answer is wrong.
"""
import argparse
import concurrent.futures
import contextlib
import fnmatch
import functools
import json
import math
import multiprocessing
import os
import statistics
import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))
ROOT = Path(__file__).resolve().parent.parent
MODELS = [f"transformers.{name}" for name in (
    "bert roberta albert electra distilbert deberta mpnet xlnet modernbert funnel gpt2 gpt-neox opt bloom llama qwen2 qwen3 gemma2 "
    "phi3 falcon mixtral mamba llama-cache t5 bart whisper vit swin clip wav2vec2").split()] + [f"timm.{name}" for name in (
        "beit_base_patch16_224 regnetz_b16 repvgg_a0 cait_xxs24_224 convmixer_1024_20_ks9_p14 convnext_atto convnextv2_atto "
        "deit_tiny_distilled_patch16_224 dla46_c edgenext_xx_small efficientnet_lite0 mobilenetv4_conv_small efficientvit_b0 "
        "eva02_tiny_patch14_224 fastvit_t8 ghostnet_050 hardcorenas_a mambaout_femto poolformer_s12 mixer_s32_224 gmlp_ti16_224 "
        "mobilevit_xxs mvitv2_tiny regnety_002 resnet10t ecaresnet26t skresnet18 twins_svt_small vit_tiny_patch16_224 "
        "xcit_nano_12_p16_224").split()]
MODELS = [name for pair in zip(MODELS[:30], MODELS[30:], strict=True) for name in pair]  # a run that stops early has some of both
TOLERANCE = 1e-4    # of the largest output's size; beyond it PyTorch in f64 judges, as scripts/zoo_wide_check.py does
CONDITIONING = 4
RUNS = 30
# Modes of inductor, and what the table calls them.
INDUCTOR = {"default": (None, "inductor"), "graphs": ("reduce-overhead", "inductor with CUDA graphs"),
            "autotune": ("max-autotune-no-cudagraphs", "inductor with max-autotune")}
LABELS = {"whole": "whole", "parts": "in parts", "refused": "refused", "wrong": "wrong", "failed": "failed"}


def leaves(answer):
    import torch
    return [leaf for leaf in torch.utils._pytree.tree_leaves(answer) if isinstance(leaf, torch.Tensor)]


def distance(made, wanted):
    """The largest difference, each output's relative to its largest number."""
    worst = 0.0
    for mine, theirs in zip(made, wanted, strict=True):
        theirs = theirs.double().cpu()
        scale = float(theirs.abs().max()) if theirs.numel() else 0.0
        difference = float((mine.double().cpu() - theirs).abs().max()) if theirs.numel() else 0.0
        worst = max(worst, difference / (scale or 1.0)) if math.isfinite(difference) else math.inf
    return worst


def milliseconds(functions, target):
    """The median of each, in turns."""
    import torch
    wait = torch.cuda.synchronize if target == "cuda" else lambda: None
    times = [[] for _ in functions]
    for turn in range(RUNS + 3):
        for function, own in zip(functions, times):
            wait()
            start = time.perf_counter()
            function()
            wait()
            if turn >= 3:
                own.append((time.perf_counter() - start) * 1e3)
    return [statistics.median(own) for own in times]


def look_at(name, target, inductor, dtype, wait_for_turn):
    """Compiles on all ways, waits for its turn, and times them."""
    import torch
    from zoo_wide_export import prepared, tensors

    import obelisk.torch as backend
    network, card = prepared(name)
    kind = getattr(torch, dtype)
    torch.backends.cudnn.allow_tf32 = False  # all ways compute in the same type
    module = network.module.to(target, kind)
    inputs = [tensor.to(target, kind if tensor.is_floating_point() else None) for tensor in tensors(card, seed=7)]
    found = {"parameters": card["parameters"]}
    with torch.no_grad():
        wanted = leaves(module(*inputs))
        start = time.monotonic()
        fast = torch.compile(module, backend="obelisk", options={"threads": 1} if target == "cpu" else {})
        made = leaves(fast(*inputs))
        found["first_seconds"] = round(time.monotonic() - start, 1)
        found["error"] = max(distance(made, wanted), distance(leaves(fast(*inputs)), wanted))
        report = backend.report()
        compiled = sum(graph.compiled_calls > 0 for graph in report)
        found |= {"graphs": len(report), "compiled": compiled, "reasons": list(report.reasons),
                  "operations": sum(graph.nodes for graph in report),
                  "export_seconds": round(sum(graph.export_seconds for graph in report), 1),
                  "compile_seconds": round(sum(graph.compile_seconds for graph in report), 1),
                  "weight_bytes": sum(graph.weight_bytes for graph in report), "shared_bytes": sum(graph.shared_bytes for graph in report)}
        found["runs"] = "whole" if report.compiled == len(report) > 0 else "parts" if compiled else "refused"
        timed, functions = ["eager_ms", "obelisk_ms"], [functools.partial(module, *inputs), functools.partial(fast, *inputs)]
        if inductor:
            torch._dynamo.reset()
            for way in inductor:
                other = torch.compile(module, backend="inductor", mode=INDUCTOR[way][0])
                try:
                    for _ in range(3):  # CUDA graphs are recorded at the second call
                        other(*inputs)
                except Exception as error:  # of its own: Obelisk has its row all the same
                    found[f"inductor_{way}_error"] = str(error)[:300]
                    continue
                functions.append(functools.partial(other, *inputs))
                timed.append(f"inductor_{way}_ms")
            fast = torch.compile(module, backend="obelisk", options={"threads": 1} if target == "cpu" else {})
            fast(*inputs)
            functions[1] = functools.partial(fast, *inputs)
        wait_for_turn()
        medians = milliseconds(functions, target)
        found |= {key: round(value, 4) for key, value in zip(timed, medians)}
        if found["error"] > TOLERANCE:
            exact = leaves(module.double()(*(tensor.double() if tensor.is_floating_point() else tensor for tensor in inputs)))
            found["own_error"] = distance(wanted, exact)
            found["error"] = distance(made, exact)
            if found["error"] > max(TOLERANCE, CONDITIONING * found["own_error"]):
                found["runs"] = "wrong"
    found["dtype"] = dtype
    found["device"] = torch.cuda.get_device_name() if target == "cuda" else "CPU"
    return found


def child(name, target, inductor, dtype, pipe):
    """Sends None when it is ready to be timed, waits for an answer, then sends what it found."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
    os.dup2(1, 2)

    def wait_for_turn():
        pipe.send(None)
        pipe.recv()
    try:
        pipe.send(look_at(name, target, inductor, dtype, wait_for_turn))
    except Exception as error:  # of whatever library
        from zoo import cause
        pipe.send({"runs": "failed", "reasons": [cause(error)]})


class Child:
    """A model's process: `prepare` until it is ready to be timed, `finish` for what it found."""

    def __init__(self, processes, name, arguments):
        self.name, self.limit, self.found = name, arguments.limit, None
        self.pipe, theirs = processes.Pipe()
        self.process = processes.Process(target=child, args=(name, arguments.target, arguments.inductor, arguments.dtype, theirs))
        self.process.start()
        theirs.close()

    def prepare(self):
        self.found = self.receive()
        return self

    def finish(self):
        if self.found is None:
            with contextlib.suppress(BrokenPipeError):  # it has ended: receive() says how
                self.pipe.send(None)
            self.found = self.receive()
        self.end()
        return self.found

    def receive(self):
        try:
            if self.pipe.poll(self.limit):
                return self.pipe.recv()
            reason = f"no answer within {self.limit} s"
        except EOFError:
            self.process.join()
            reason = f"the process ended by {-(self.process.exitcode or 0)}"
        self.end()
        return {"runs": "failed", "reasons": [reason]}

    def end(self):
        self.process.kill()
        self.process.join()


def geometric_mean(values):
    return math.exp(statistics.fmean(map(math.log, values))) if values else None


def summary(results, times):
    counts = {key: sum(row["runs"] == key for row in results.values()) for key in LABELS}
    text = f"{len(results)} models: " + ", ".join(f"{count} {LABELS[key]}" for key, count in counts.items() if count)
    whole = [row for row in results.values() if row["runs"] == "whole" and row.get("obelisk_ms")]
    for other, label in (("eager", "eager"), *((f"inductor_{way}", name) for way, (_, name) in INDUCTOR.items())) if times else ():
        ratio = geometric_mean([row[f"{other}_ms"] / row["obelisk_ms"] for row in whole if row.get(f"{other}_ms")])
        if ratio:
            text += f"; {label} takes {ratio:.2f} times as long as those that run whole (geometric mean)"
    return text


def table(results, versions, times):
    """`times`: with latencies, which a machine that others use does not tell."""
    inductor = [way for way in INDUCTOR if times and any(row.get(f"inductor_{way}_ms") for row in results.values())]
    device, dtype = next(((row["device"], row["dtype"]) for row in results.values() if "dtype" in row), ("", ""))
    lines = ["# Models through torch.compile", "",
             "Written by `scripts/torch_backend.py`; not by hand. Models as their libraries define them, small, with random weights that let the",
             f"input through, `torch.compile(model, backend=\"obelisk\")` on: {device}, {'one thread, ' if device == 'CPU' else ''}{dtype}. "
             + ", ".join(f"{name} {version}" for name, version in versions.items()) + ".", "",
             "*whole*: every graph is a program of Obelisk from its first operation to its last. *in parts*: some are. *refused*: none is, all runs",
             "eagerly, and the reason stands there. *failed*: no answer, for the reason named. Errors are beside eager PyTorch, relative to the largest",
             "number of the output; above 1e-4 they are beside PyTorch in f64, with eager's own in brackets."
             + (" *first* is the first call: PyTorch's exporter, the compiler, the comparison with eager; several models were compiled at once." if times else ""), "", summary(results, times) + "."]
    missing = [name for name in MODELS if name not in results]
    if missing:
        lines += ["", f"No result yet: {', '.join(missing)}."]
    heads = ["model", "runs", "graphs", "operations", "error", *(["first, s", "eager, ms", "obelisk, ms"] if times else []),
             *(f"{INDUCTOR[way][1]}, ms" for way in inductor), "reason"]
    for library in ("transformers", "timm"):
        lines += ["", f"## {library}", "", "| " + " | ".join(heads) + " |", "| " + " | ".join("---" for _ in heads) + " |"]
        for name, row in sorted(results.items()):
            if not name.startswith(library):
                continue

            def number(key, form):
                return format(row[key], form) if row.get(key) is not None else ""
            error = number("error", ".1e") + (f" ({row['own_error']:.1e})" if "own_error" in row else "")
            cells = [name.partition(".")[2], LABELS[row["runs"]], f"{row.get('compiled', '')} of {row.get('graphs', '')}" if "graphs" in row else "",
                     number("operations", "d"), error]
            cells += [number("first_seconds", ".1f"), number("eager_ms", ".3f"), number("obelisk_ms", ".3f")] if times else []
            cells += [number(f"inductor_{way}_ms", ".3f") for way in inductor]
            cells.append("; ".join(row["reasons"])[:200].replace("|", "\\|"))
            lines.append("| " + " | ".join(cells) + " |")
    return "\n".join(lines) + "\n"


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("names", nargs="*", help="models, or patterns as timm.*; all without")
    parser.add_argument("--target", choices=("cpu", "cuda"), default="cpu")
    parser.add_argument("--inductor", nargs="*", choices=tuple(INDUCTOR), default=(),
                        help="its latency, too: as it is, with CUDA graphs, with its search for tiles")
    parser.add_argument("--times", action="store_true", help="latencies in the table of a CPU, too: for a machine that nobody else uses")
    parser.add_argument("--limit", type=int, default=240, help="seconds for one model")
    parser.add_argument("--dtype", choices=("float32", "float16", "bfloat16"), default="float32")
    parser.add_argument("--jobs", type=int, default=1, help="models compiled at once; they are timed when all of these are ready, one at a time")
    parser.add_argument("--within", type=int, help="begin none after so many seconds")
    parser.add_argument("--folder", type=Path)
    parser.add_argument("--again", action="store_true", help="those that have a result, too")
    parser.add_argument("--out", type=Path, help="the table; docs/torch.md by default, docs/torch_cuda.md of a GPU")
    arguments = parser.parse_args()
    folder = arguments.folder or ROOT / "build" / f"torch-{arguments.target}"
    folder.mkdir(parents=True, exist_ok=True)
    names = [name for name in MODELS if any(fnmatch.fnmatch(name, pattern) for pattern in arguments.names or ["*"])]
    if not names:
        parser.error(f"no model is called {arguments.names}; there are {', '.join(MODELS)}")
    # The server that models' processes are forks of has imported what all of them need.
    os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, [str(Path(__file__).parent), os.environ.get("PYTHONPATH")]))
    os.environ.setdefault("PYTHONWARNINGS", "ignore")  # of what children that were ended had open
    processes = multiprocessing.get_context("forkserver")
    processes.set_forkserver_preload(["zoo_models", "zoo_wide_export", "timm", "transformers.modeling_utils", "obelisk.torch", "onnxscript"])
    if arguments.jobs > 1:
        os.environ.setdefault("TORCHINDUCTOR_COMPILE_THREADS", "1")
    start = time.monotonic()
    todo = [name for name in names if arguments.again or not (folder / f"{name}.json").exists()]
    for first in range(0, len(todo), arguments.jobs):
        if arguments.within and time.monotonic() - start > arguments.within:
            break
        children = [Child(processes, name, arguments) for name in todo[first:first + arguments.jobs]]
        with concurrent.futures.ThreadPoolExecutor(arguments.jobs) as pool:
            children = list(pool.map(Child.prepare, children))
        for one in children:
            found = one.finish()
            (folder / f"{one.name}.json").write_text(json.dumps(found, indent=1) + "\n")
            print(f"{LABELS[found['runs']]:9} {one.name:45} {found.get('error', math.nan):8.1e} eager {found.get('eager_ms', math.nan):8.2f} ms, "
                  f"obelisk {found.get('obelisk_ms', math.nan):8.2f} ms  {'; '.join(found['reasons'])[:160]}", flush=True)
    results = {name: json.loads((folder / f"{name}.json").read_text()) for name in MODELS if (folder / f"{name}.json").exists()}
    from importlib.metadata import version
    versions = {package: version(package) for package in ("torch", "transformers", "timm")}
    out = arguments.out or ROOT / "docs" / ("torch.md" if arguments.target == "cpu" else "torch_cuda.md")
    times = arguments.times or arguments.target == "cuda"
    out.write_text(table(results, versions, times))
    print(summary(results, times))
    return 1 if any(row["runs"] == "wrong" for row in results.values()) else 0


if __name__ == "__main__":
    sys.exit(main())
