"""Compares obelisk with ONNX Runtime (f32) and with the reference (f16) on one exported network of
the wide zoo: the verdict, and the errors that it rests on.

f32: zoo_check.py's rule. Where an answer is further off than that, PyTorch's answer in f64 judges:
obelisk may be as far from it as four times what ONNX Runtime is, for that much is the network's
conditioning. f16: `obelisk verify --precision fp16` on the same inputs.
"""
import json
import tempfile
from pathlib import Path

import numpy as np

from obelisk_backend import Failure, Program, output_file, write_npz
from zoo_check import SAYS_LITTLE, change, session, worst
from zoo_inputs import make_inputs

LIMIT = 200        # seconds for one command of obelisk
CONDITIONING = 4   # times ONNX Runtime's own error that an answer beyond the tolerance may have


def refusal(text):
    """('refused' or what else a failed command says of the network, the reason)."""
    kind, _, reason = text.partition(": ")
    if kind in ("unsupported", "memory"):
        return "refused", reason
    if kind == "accuracy":
        return "wrong", reason
    return "wrong", text  # a crash, no answer, or a model that is said to be bad


def compare_f32(program, path, folder, card, names, wanted, exact):
    program("run", path, "--inputs", folder / "inputs.npz", "--output-dir", folder)
    tolerance = card["tolerance"]
    shares, notes = [], []
    for name in names:
        got = np.load(output_file(folder, name))
        share, note = worst(got, wanted[name], tolerance)
        own = None
        if share > 1 and name in exact and not note:
            own, _ = worst(wanted[name], exact[name].astype(wanted[name].dtype), tolerance)
            share, _ = worst(got, exact[name].astype(wanted[name].dtype), tolerance)
        shares.append((share / max(1, CONDITIONING * (own or 0)), share, own, note))
    judged, share, own, note = max(shares, key=lambda row: row[0])
    result = {"error": share * tolerance, "tolerance": tolerance, "agrees": bool(judged <= 1)}
    if own is not None:
        result["onnxruntime"] = own * tolerance
    if note:
        result["note"] = note
    return result


def check(name, folder):
    path = folder / f"{name}.onnx"
    card = json.loads((folder / f"{name}.json").read_text())
    exact = dict(np.load(folder / f"{name}.f64.npz"))
    program = Program(timeout=LIMIT)
    found = {"exporter": card["exporter"], "parameters": card["parameters"]}
    try:
        reference = session(path)
    except Exception as error:  # what ONNX Runtime cannot read shows nothing about obelisk
        return {**found, "verdict": "not exportable",
                "reason": "ONNX Runtime: " + " ".join(str(error).replace(f"{folder}/", "").split())[:160]}
    names = [output.name for output in reference.get_outputs()]
    taken = {value.name for value in reference.get_inputs()}
    feeds, others = ({key: array for key, array in make_inputs(card, {}, seed).items()
                      if key in taken} for seed in (7, 8))
    wanted = dict(zip(names, reference.run(None, feeds)))
    moved = {key: change(wanted[key], other)
             for key, other in zip(names, reference.run(None, others))}
    with tempfile.TemporaryDirectory(prefix="obelisk-") as scratch:
        scratch = Path(scratch)
        write_npz(scratch / "inputs.npz", feeds)
        try:
            found["fp32"] = compare_f32(program, path, scratch, card, names, wanted, exact)
        except Failure as error:
            verdict, reason = refusal(str(error))
            return {**found, "verdict": verdict, "reason": reason}
        if not found["fp32"]["agrees"]:
            return {**found, "verdict": "wrong", "reason": "fp32: " + str(found["fp32"])}
        # Judged last: a network that is refused is refused, whatever its weights are.
        if not min(moved.values()) >= SAYS_LITTLE * card["tolerance"]:
            return {**found, "verdict": "says little",
                    "reason": f"other inputs move the outputs by {moved} of their size"}
        if not all(np.isfinite(value).all() for value in wanted.values() if value.dtype.kind == "f"):
            return {**found, "verdict": "says little", "reason": "infinities or NaN in the answer"}
        try:
            report = program("verify", path, "--precision", "fp16",
                             "--inputs", scratch / "inputs.npz")
            found["fp16"] = {"error": report["max_rel"], "tolerance": report["tolerance"]}
        except Failure as error:
            verdict, reason = refusal(str(error))
            return {**found, "verdict": verdict, "reason": f"fp16: {reason}"}
    return {**found, "verdict": "agrees"}
