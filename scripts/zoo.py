#!/usr/bin/env python3
"""Writes the exported networks as ONNX files with random weights, by both of PyTorch's exporters.

out  DIR/NAME.torchscript.onnx, DIR/NAME.dynamo.onnx, and DIR/NAME.json, which names the shapes and
     the kinds of input values that zoo_check.py and the benchmarks use (they need no PyTorch).

A network that one exporter cannot write is named with the exporter's reason, and the exit is 1
only if neither could write it. Needs scripts/requirements-zoo.txt; scripts/zoo.sh sets that up.
"""
import argparse
import dataclasses
import json
import logging
import re
import sys
import time
import warnings
from pathlib import Path

import numpy as np
import torch

sys.path.insert(0, str(Path(__file__).parent))
from zoo_inputs import make_inputs  # noqa: E402
from zoo_models import MODELS  # noqa: E402

EXPORTERS = ("torchscript", "dynamo")
TORCHSCRIPT_OPSET = 17  # the newest that gives LayerNormalization; later ones add nothing there
DYNAMO_OPSET = 20       # GELU as one op, as users of the new exporter get it


def move_norms(module, generator):
    """Neutral scales and statistics hide mistakes, so every norm gets its own."""
    def uniform(tensor, low, high):
        tensor.copy_(torch.rand(tensor.shape, generator=generator) * (high - low) + low)

    with torch.no_grad():
        for part in module.modules():
            if isinstance(part, torch.nn.modules.batchnorm._BatchNorm):
                uniform(part.running_mean, -0.2, 0.2)
                uniform(part.running_var, 0.7, 1.3)
            if "norm" in type(part).__name__.lower() or type(part).__name__ == "RootMeanSquare":
                if getattr(part, "weight", None) is not None:
                    uniform(part.weight, 0.8, 1.2)
                if getattr(part, "bias", None) is not None:
                    uniform(part.bias, -0.1, 0.1)


def torchscript(network, arguments, path):
    axes = {name: {axis: dim for axis, dim in enumerate(spec.dims) if isinstance(dim, str)}
            for name, spec in network.inputs.items()}
    batch_first = {name: {0: "batch"} for name in network.outputs}
    torch.onnx.export(
        network.module,
        arguments,
        path,
        dynamo=False,
        opset_version=TORCHSCRIPT_OPSET,
        input_names=list(network.inputs),
        output_names=network.outputs,
        dynamic_axes={**axes, **batch_first, **network.derived},
    )


def dynamo(network, arguments, path):
    symbols = {}
    shapes = []
    for spec in network.inputs.values():
        shapes.append({axis: symbols.setdefault(dim, torch.export.Dim.DYNAMIC)
                       for axis, dim in enumerate(spec.dims)
                       if isinstance(dim, str) and dim not in network.unrolled})
    names = list(network.inputs)
    # A forward(a, b, *rest) takes its tail as one argument.
    code = network.module.forward.__code__
    plain = code.co_argcount - 1
    if len(names) > plain:
        shapes = shapes[:plain] + [tuple(shapes[plain:])]
    torch.onnx.export(network.module, arguments, path, dynamo=True, opset_version=DYNAMO_OPSET,
                      input_names=names, output_names=network.outputs, dynamic_shapes=tuple(shapes),
                      external_data=False, verbose=False)


def cause(error):
    """The innermost exception in one plain line; the exporters wrap theirs in pages of advice."""
    while error.__cause__:
        error = error.__cause__
    text = re.sub(r"\x1b\[[0-9;]*m", "", f"{type(error).__name__}: {error}")
    return " ".join(text.split())[:200]


def export(name, exporters, folder):
    torch.manual_seed(0)
    network = MODELS[name]()
    network.module.eval()
    move_norms(network.module, torch.Generator().manual_seed(1))
    card = {
        "shapes": network.shapes,
        "tolerance": network.tolerance,
        "outputs": network.outputs,
        "inputs": {key: dataclasses.asdict(spec) for key, spec in network.inputs.items()},
        "files": [],
        # in the dynamo file
        "fixed": {dim: network.shapes[-1][dim] for dim in network.unrolled},
    }
    # Exporters specialise a dimension of size 1, so they see a shape without one where there is a
    # choice.
    arguments = tuple(torch.from_numpy(np.ascontiguousarray(array))
                      for array in make_inputs(card, network.shapes[-1], seed=0).values())
    with torch.no_grad():
        answers = network.module(*arguments)
    for output, answer in zip(
        network.outputs, answers if isinstance(answers, tuple) else (answers,)
    ):
        if answer.float().std() == 0:
            sys.exit(
                f"zoo: {name}: every element of '{output}' is the same, so it can test nothing"
            )
    for exporter in exporters:
        path = folder / f"{name}.{exporter}.onnx"
        partial = folder / f"{name}.{exporter}.partial"
        start = time.time()
        try:
            with torch.no_grad():
                {"torchscript": torchscript, "dynamo": dynamo}[exporter](
                    network, arguments, str(partial)
                )
        except Exception as error:  # an exporter may raise anything; the reason is printed below
            partial.unlink(missing_ok=True)
            print(f"{name:14} {exporter:12} not written: {cause(error)}", flush=True)
            continue
        partial.replace(path)
        card["files"].append(path.name)
        print(
            f"{name:14} {exporter:12} {path.stat().st_size / 1e6:8.1f} MB  "
            f"{time.time() - start:5.1f} s",
            flush=True,
        )
    card["files"] = sorted(file.name for file in folder.glob(f"{name}.*.onnx"))
    (folder / f"{name}.json").write_text(json.dumps(card, indent=1) + "\n")
    return bool(card["files"])


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("names", nargs="*", help=f"networks (all without): {', '.join(MODELS)}")
    parser.add_argument("--exporter", choices=EXPORTERS, action="append", help="both without")
    parser.add_argument("--output-dir", type=Path, default=Path("build/zoo"))
    parser.add_argument("--keep", action="store_true", help="leave files that are there already")
    arguments = parser.parse_args()
    for name in arguments.names:
        if name not in MODELS:
            parser.error(f"no network '{name}'; there are {', '.join(MODELS)}")
    warnings.simplefilter("ignore")
    # The fused attention of nn.MultiheadAttention is a PyTorch operator that ONNX has no spelling
    # for.
    torch.backends.mha.set_fastpath_enabled(False)
    logging.disable(logging.WARNING)
    arguments.output_dir.mkdir(parents=True, exist_ok=True)
    missing = []
    for name in arguments.names or MODELS:
        exporters = [
            exporter
            for exporter in arguments.exporter or EXPORTERS
            if not (arguments.keep and (arguments.output_dir / f"{name}.{exporter}.onnx").exists())
        ]
        if exporters and not export(name, exporters, arguments.output_dir):
            missing.append(name)
    if missing:
        print(f"zoo: no exporter could write {', '.join(missing)}")
        return 1
    print(f"zoo: written to {arguments.output_dir}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
