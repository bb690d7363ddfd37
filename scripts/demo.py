#!/usr/bin/env python3
"""The main job on real input: all-MiniLM-L6-v2 from its trained weights to a ranking of sentences.

Writes the ONNX file, compiles it with obelisk into one .obk, tokenises, runs, mean-pools and
normalises; prints the ranking, the verification error, the program, and latency beside ONNX Runtime
in the same go. On a machine with a GPU the network is one kernel there, and its phases and its
latency beside PyTorch are shown (demo_gpu.py); --cpu stays on the CPU. The exit is 1 when the answers
differ by more than TOLERANCE from ONNX Runtime's.
"""
import argparse
import sys
import tempfile
from pathlib import Path

import numpy as np
import onnxruntime
from tokenizers import Tokenizer

sys.path.insert(0, str(Path(__file__).parent))
import demo_gpu  # noqa: E402
import minilm  # noqa: E402
from obelisk_backend import Failure, Program, output_file, write_npz  # noqa: E402

ROOT = Path(__file__).resolve().parent.parent
TOLERANCE = 1e-4  # on unit vectors; fp32 on both sides
SENTENCES = [
    "How do I make a program run faster?",
    "Compiling the code with optimisations turned on reduces its running time.",
    "A profiler shows which functions take the most time.",
    "Caching results avoids computing them twice.",
    "The cat sleeps on the warm windowsill.",
    "Tomorrow it will rain in the mountains.",
    "She runs ten kilometres every morning before work.",
    "This recipe needs two eggs and a cup of flour.",
]


def tokenize(sentences):
    tokenizer = Tokenizer.from_file(str(minilm.package_dir() / "tokenizer.json"))
    tokenizer.enable_padding()
    tokenizer.enable_truncation(256)
    encoded = tokenizer.encode_batch(sentences)
    fields = {"input_ids": "ids", "attention_mask": "attention_mask", "token_type_ids": "type_ids"}
    return {name: np.array([getattr(row, field) for row in encoded], np.int64)
            for name, field in fields.items()}


def embed(hidden, mask):
    """Mean over the real tokens, then unit length: [batch, sequence, 384] -> [batch, 384]."""
    weight = mask[..., None].astype(np.float32)
    mean = (hidden * weight).sum(axis=1) / weight.sum(axis=1)
    return mean / np.linalg.norm(mean, axis=1, keepdims=True)


def run_obelisk(program, file, feeds):
    with tempfile.TemporaryDirectory(prefix="obelisk-") as folder:
        write_npz(Path(folder) / "inputs.npz", feeds)
        program("run", file, "--inputs", Path(folder) / "inputs.npz", "--output-dir", folder)
        return np.load(output_file(folder, "last_hidden_state"))


def run_onnxruntime(file, feeds):
    session = onnxruntime.InferenceSession(str(file), providers=["CPUExecutionProvider"])
    return session.run(None, feeds)[0]


def print_program(report):
    seconds = report["seconds"]
    steps = sorted(
        ((time, step) for step, time in seconds.items() if step != "total"), reverse=True
    )
    slowest = ", ".join(f"{step} {time:.2f}" for time, step in steps[:4])
    print(
        f"program    {report['phases']} phases · {report['tasks']} tasks · "
        f"{report['bodies']} bodies · "
        f"{report['weights_bytes'] / 2**20:.1f} MiB weights · "
        f"{report['workspace_bytes'] / 2**20:.2f} MiB workspace   (target {report['target']})"
    )
    print(f"compiled   in {seconds['total']:.2f} s" + (f" ({slowest})" if slowest else ""))
    verify = report["verify"]
    print(f"verified   max |error| {verify['max_abs']:.1e}, relative {verify['max_rel']:.1e} "
          f"against the reference (tolerance {verify['tolerance']:.0e})")


def print_ranking(sentences, vectors):
    print(f"\nsimilar to \"{sentences[0]}\"")
    scores = vectors[1:] @ vectors[0]
    for index in np.argsort(-scores, kind="stable"):
        print(f"  {scores[index]:6.3f}  {sentences[index + 1]}")


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("sentences", nargs="*", help="the first is compared with the others")
    parser.add_argument("--cpu", action="store_true", help="leave a GPU alone")
    parser.add_argument("--seconds", default="3", help="how long to measure latency")
    arguments = parser.parse_args()
    sentences = arguments.sentences or SENTENCES
    if len(sentences) < 2:
        parser.error("give two sentences or more: the first is compared with the others")

    folder = ROOT / "build" / "demo"
    model, compiled = folder / "minilm.onnx", folder / "minilm.obk"
    program = Program(timeout=600)
    if not model.exists() or model.stat().st_mtime < Path(minilm.__file__).stat().st_mtime:
        minilm.write(model)
    feeds = tokenize(sentences)
    rows, tokens = feeds["input_ids"].shape
    print(
        f"model      all-MiniLM-L6-v2, trained weights, {model.stat().st_size / 2**20:.0f} MiB ONNX"
    )
    print(f"input      {rows} sentences, padded to {tokens} tokens")

    gpu = None if arguments.cpu else demo_gpu.find(program)
    if gpu:
        print(f"gpu        {gpu}; one kernel, 16-bit products with float sums")
    tolerance = demo_gpu.TOLERANCE if gpu else TOLERANCE
    flags = demo_gpu.FLAGS if gpu else ("--target", "cpu")
    shape = ["--shape", f"batch={rows}", "--shape", f"sequence={tokens}"]
    print_program(program("compile", model, "-o", compiled, *shape, *flags))

    vectors = embed(run_obelisk(program, compiled, feeds), feeds["attention_mask"])
    wanted = embed(run_onnxruntime(model, feeds), feeds["attention_mask"])
    error = float(np.abs(vectors - wanted).max())
    print(
        f"agrees     with ONNX Runtime {onnxruntime.__version__}: max |error| of a vector "
        f"{error:.1e}"
    )
    print_ranking(sentences, vectors)

    good = error <= tolerance
    start = f"\ndemo: {rows} sentences {'ranked' if good else 'WRONG'}, error {error:.1e} "
    start += f"(allowed {tolerance:.0e}), "
    if gpu:
        print(start + demo_gpu.show(program, model, shape, arguments.seconds, feeds))
        return 0 if good else 1
    bench = program(
        "bench", model, *shape, *flags, "--against", "onnxruntime", "--seconds", arguments.seconds
    )
    print(f"\nlatency    on {bench['device']}, both in alternating rounds"
          + (" (noisy machine)" if bench["noisy"] else ""))
    columns = ("median", "p90", "p99", "min")
    print(" " * 24 + "".join(f"{column:>11}" for column in columns))
    sides = [("obelisk", bench["latency_us"])]
    sides += [
        (f"{other['name']} {other['version']}", other["latency_us"]) for other in bench["against"]
    ]
    for name, latency in sides:
        print(f"  {name:22}" + "".join(f"{latency[column] / 1000:8.2f} ms" for column in columns))
    speedup = bench["against"][0]["speedup"]

    print(start + f"median {bench['latency_us']['median'] / 1000:.2f} ms, "
          f"{speedup:.2f}x the speed of ONNX Runtime")
    return 0 if good else 1


if __name__ == "__main__":
    try:
        sys.exit(main())
    except Failure as failure:
        sys.exit(f"demo: obelisk gave no answer: {failure}")
