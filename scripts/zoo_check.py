#!/usr/bin/env python3
"""Compares obelisk with ONNX Runtime on the exported networks that zoo.py wrote, at each shape.

A value agrees when |got - wanted| <= tolerance * (|wanted| + rms of the output), tolerance from the
network's card: random weights make small answers, which a fixed bound would not test. Equal NaN and
infinities agree. A network whose outputs hardly depend on its inputs shows nothing, and fails. Prints a line a file and shape; the exit is 1 when one disagrees.
"""
import argparse
import json
import sys
import tempfile
import time
from pathlib import Path
from xml.sax.saxutils import quoteattr

import numpy as np
import onnxruntime

sys.path.insert(0, str(Path(__file__).parent))
from obelisk_backend import Failure, Program, output_file, write_npz  # noqa: E402
from zoo_inputs import make_inputs  # noqa: E402

SAYS_LITTLE = 20  # tolerances that other inputs must move an output by, at least


def session(path):
    onnxruntime.set_default_logger_severity(3)
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 2
    return onnxruntime.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])


def change(one, other):
    """How far an output lies from that of other inputs, over its size; of integers: 1 where any differs."""
    if one.dtype.kind != "f":
        return float((one != other).any())
    one, other = one.astype(np.float64), other.astype(np.float64)
    return float(np.abs(one - other).max() / max(np.sqrt(np.mean(np.square(one))), 1e-30))


def worst(got, wanted, tolerance):
    """(largest |difference| over its bound, a note where shape or type differ)."""
    if got.shape != wanted.shape or got.dtype != wanted.dtype:
        return (
            np.inf,
            f"got {got.dtype}{list(got.shape)}, wanted {wanted.dtype}{list(wanted.shape)}",
        )
    got, wanted = got.astype(np.float64), wanted.astype(np.float64)
    same = (got == wanted) | (np.isnan(got) & np.isnan(wanted))
    with np.errstate(invalid="ignore"):
        scale = np.sqrt(np.mean(np.square(wanted[np.isfinite(wanted)]))) if wanted.size else 0.0
        share = np.abs(got - wanted) / (tolerance * (np.abs(wanted) + scale))
    share = np.where(same, 0, np.where(np.isfinite(share), share, np.inf))
    return float(share.max(initial=0)), ""


def check(path, card, shape, program):
    """(largest share of the tolerance used, note) at one shape."""
    inputs = make_inputs(card, shape, seed=7)
    reference = session(path)
    names = [output.name for output in reference.get_outputs()]
    taken = {value.name for value in reference.get_inputs()}
    inputs = {name: array for name, array in inputs.items() if name in taken}
    wanted = dict(zip(names, reference.run(None, inputs)))
    others = {name: array for name, array in make_inputs(card, shape, seed=8).items() if name in taken}
    moved = {name: change(wanted[name], other) for name, other in zip(names, reference.run(None, others))}
    if min(moved.values()) < SAYS_LITTLE * card["tolerance"]:
        return np.inf, f"other inputs move the outputs by {moved} of their size, wanted are {SAYS_LITTLE * card['tolerance']:.0e}: that an answer is right says little; give the network weights that let its inputs through (zoo_models.py)"
    with tempfile.TemporaryDirectory(prefix="obelisk-") as folder:
        write_npz(Path(folder) / "inputs.npz", inputs)
        program("run", path, "--inputs", Path(folder) / "inputs.npz", "--output-dir", folder)
        results = []
        for name in names:
            file = output_file(folder, name)
            if not file.exists():
                return np.inf, f"output '{name}' was not written"
            share, note = worst(np.load(file), wanted[name], card["tolerance"])
            results.append((share, note or f"at {name}"))
        return max(results)


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("names", nargs="*", help="networks, or file names; all without")
    parser.add_argument("--zoo", type=Path, default=Path("build/zoo"))
    parser.add_argument("--target", help="passed on to obelisk run")
    parser.add_argument("--timeout", type=int, default=600)
    parser.add_argument("--junit", type=Path, metavar="FILE")
    arguments = parser.parse_args()
    program = Program(flags=["--target", arguments.target] if arguments.target else [],
                      timeout=arguments.timeout)
    rows = []
    for path in sorted(arguments.zoo.glob("*.onnx")):
        name = path.name.split(".")[0]
        card_path = arguments.zoo / f"{name}.json"
        wanted = not arguments.names or name in arguments.names or path.name in arguments.names
        if not wanted or not card_path.exists():
            continue
        card = json.loads(card_path.read_text())
        for shape in card["shapes"]:
            if ".dynamo." in path.name:
                shape = {**shape, **card.get("fixed", {})}
            start = time.monotonic()
            try:
                share, note = check(path, card, shape, program)
            except Failure as error:
                share, note = np.inf, str(error)
            good = share <= 1
            label = " ".join(f"{dim}={size}" for dim, size in shape.items())
            rows.append((path.name, label, None if good else note))
            used = (
                f"error {share * card['tolerance']:.1e} of {card['tolerance']:.0e}"
                if good
                else note
            )
            print(f"{'ok' if good else 'FAILED':7}{path.name:30}{label:32}{used}"
                  f"  ({time.monotonic() - start:.1f} s)", flush=True)
    failed = [row for row in rows if row[2]]
    if arguments.junit:
        body = "".join(f'<testcase classname={quoteattr(file)} name={quoteattr(label)}>'
                       + (f"<failure message={quoteattr(note)}/>" if note else "") + "</testcase>\n"
                       for file, label, note in rows)
        arguments.junit.parent.mkdir(parents=True, exist_ok=True)
        arguments.junit.write_text(
            f'<testsuite name="zoo" tests="{len(rows)}" failures="{len(failed)}" '
            f'errors="0" skipped="0">\n{body}</testsuite>\n'
        )
    if not rows:
        print(f"zoo: no exported network in {arguments.zoo}; write them with scripts/zoo.sh")
        return 1
    print(f"zoo: {len(rows) - len(failed)} of {len(rows)} agree with ONNX Runtime "
          f"{onnxruntime.__version__}")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
