"""Writes one network of the wide zoo: FOLDER/NAME.onnx, NAME.json (its inputs, for make_inputs) and
NAME.f64.npz (what PyTorch answers in f64 for the inputs of seed 7, where it can).
"""
import dataclasses
import json
import logging
import time
import warnings

import numpy as np
import torch
import zoo
from zoo_inputs import make_inputs
from zoo_weights import calibrate, enliven
from zoo_wide_networks import NETWORKS



def tensors(card, seed):
    return tuple(torch.from_numpy(np.ascontiguousarray(array))
                 for array in make_inputs(card, {}, seed).values())


def plain(answers):
    return answers if isinstance(answers, tuple) else (answers,)


def prepared(name):
    """(the network with its weights, its card)"""
    warnings.simplefilter("ignore")
    logging.disable(logging.WARNING)
    torch.set_num_threads(1)
    # The fused attention of nn.MultiheadAttention is an operator that ONNX has no spelling for.
    torch.backends.mha.set_fastpath_enabled(False)
    torch.manual_seed(0)
    wide = NETWORKS[name]
    network = wide.make()
    network.module.eval()
    enliven(network.module)
    card = {
        "shapes": network.shapes,
        "tolerance": network.tolerance,
        "outputs": network.outputs,
        "inputs": {key: dataclasses.asdict(spec) for key, spec in network.inputs.items()},
        "exporter": wide.exporter,
        "parameters": sum(p.numel() for p in network.module.parameters()),
    }
    calibrate(network.module, [tensors(card, seed) for seed in range(100, 108)])
    return network, card


def write_onnx(name, network, card, folder):
    """None, or why the network could not be written."""
    try:
        with torch.no_grad():
            {"torchscript": zoo.torchscript, "dynamo": zoo.dynamo}[card["exporter"]](
                network, tensors(card, seed=0), str(folder / f"{name}.partial"))
    except Exception as error:  # an exporter may raise anything
        (folder / f"{name}.partial").unlink(missing_ok=True)
        return zoo.cause(error)
    (folder / f"{name}.partial").replace(folder / f"{name}.onnx")
    return None


def export(name, folder):
    """None, or why the network could not be written."""
    start = time.monotonic()
    network, card = prepared(name)
    why = write_onnx(name, network, card, folder)
    if why:
        return why
    wanted = {}
    try:
        with torch.no_grad():
            exact = network.module.double()(*(
                tensor.double() if tensor.is_floating_point() else tensor
                for tensor in tensors(card, seed=7)))
        wanted = {key: answer.numpy() for key, answer in zip(network.outputs, plain(exact))}
    except Exception as error:  # constants of f32 somewhere inside
        card["no_f64"] = zoo.cause(error)
    np.savez(folder / f"{name}.f64.npz", **{key: array for key, array in wanted.items()})
    card["seconds"] = round(time.monotonic() - start, 1)
    (folder / f"{name}.json").write_text(json.dumps(card, indent=1) + "\n")
    return None
