#!/usr/bin/env python3
"""GEMM tiles that are chosen ahead of time, by prediction, beside the best that measuring finds for each shape.

    gpu_tiles.py [--shapes 197x768x3072,…] [--prepare] [--most 14] [--jobs 12] [--out FILE.json]

A shape is ROWSxDEPTHxCOLUMNS of a product in f16 by constant weights, with a bias; by default those of twenty networks. Each is
a graph of `--copies` such products, with inputs and weights of their own, one after another: the first row of each is part of the
next one's bias, so that none runs beside another and each has the tiles that it has alone. It is compiled with the tile that the
compiler chooses and with other tiles of a pipelined GEMM (--gemm-tile): of those that make a product at least `--fewest` tasks the
`--most` that are nearest to a task a multiprocessor. Rows hold device microseconds of a product and its launch: `chosen_us` and
`chosen` (rows, columns), `tuned_us` and `tuned` of the quickest, `share`: tuned over chosen, the speed that the prediction keeps.
The `--again` quickest and the chosen one are timed a second time, and the less of both counts. The answer with the quickest tile
is compared with that of the chosen one. --prepare compiles what a later call times, and needs no GPU to itself.

Works in the folder that scripts/pack.sh makes, and in a checkout with a build.
"""
import argparse
import concurrent.futures
import json
import math
import os
import pathlib
import re
import statistics
import subprocess
import sys

from gpu_tenants import BIN, call, count_sms, say, write_record

# Rows, depth, columns, by network: tokens or pixels of one input.
SHAPES = {
    "vit_large_patch16": ["197x1024x4096", "197x4096x1024"],
    "deit_tiny": ["198x192x768", "198x768x192"],
    "swin_t": ["784x192x576", "196x384x1536", "49x3072x768"],
    "bert_large, 384 tokens": ["384x1024x3072", "384x1024x1024"],
    "gpt2_xl, 64 tokens": ["64x1600x6400", "64x6400x1600"],
    "whisper_small": ["1500x768x3072", "1500x768x768"],
    "clip_text": ["77x512x2048", "77x2048x512"],
    "dinov2_small": ["257x384x1536", "257x384x1152"],
    "eva02_tiny": ["257x192x576"],
    "mobilevit_s": ["256x144x432", "64x240x480"],
    "llama_1b, 128 tokens": ["128x2048x8192", "128x8192x2048"],
    "qwen2_0.5b, 96 tokens": ["96x896x4864"],
    "conformer": ["499x512x2048"],
    "detr": ["850x256x2048", "850x2048x256"],
    "sam_vit_b": ["4096x768x768"],
    "mixer_b16": ["196x768x3072"],
    "convnext_tiny": ["3136x96x384", "784x768x192"],
    "xlm_roberta_base, 48 tokens": ["48x768x2304"],
    "segformer_b0": ["1024x160x640"],
    "t5_large, 160 tokens": ["160x1024x2816"],
}
TILES = re.compile(r"cut into tiles of (\d+) x (\d+)")  # as --explain schedule says
TOLERANCE = 0.02  # chosen: answers are about 1.4, and a tile adds in another order
COLUMNS = (32, 48, 64, 80, 96, 112, 128, 144, 160, 192)


def write_model(path, rows, depth, columns, copies):
    import numpy as np
    import onnx
    from onnx import TensorProto, helper, numpy_helper

    random = np.random.default_rng(rows * depth + columns)
    weights, nodes, outputs = [], [], []
    for k in range(copies):
        weights.append(numpy_helper.from_array((random.standard_normal((depth, columns)) / (4 * depth**0.5)).astype("f2"), f"w{k}"))
        nodes.append(helper.make_node("MatMul", [f"x{k}", f"w{k}"], [f"p{k}"]))
        if k == 0:
            weights.append(numpy_helper.from_array((random.standard_normal(columns) / 4).astype("f2"), "bias"))
        else:
            nodes.append(helper.make_node("Slice", [f"y{k - 1}", "zero", "one", "zero"], [f"bias{k}"]))
        nodes.append(helper.make_node("Add", [f"p{k}", f"bias{k}" if k else "bias"], [f"y{k}"]))
        outputs.append(helper.make_tensor_value_info(f"y{k}", TensorProto.FLOAT16, [rows, columns]))
    weights += [numpy_helper.from_array(np.array([number]), name) for name, number in (("zero", 0), ("one", 1))]
    # Of inputs of their own: products of one input would become one.
    inputs = [helper.make_tensor_value_info(f"x{k}", TensorProto.FLOAT16, [rows, depth]) for k in range(copies)]
    graph = helper.make_graph(nodes, "products", inputs, outputs, weights)
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8), path)


def candidates(rows, columns, sms, fewest, most):
    """(rows, columns) of tiles: rows as even as can be of up to 64 and of up to 128."""
    found = set()
    for high in (64, 128):
        each = -(-rows // high)
        for wide in COLUMNS:
            if wide <= columns and each * -(-columns // wide) >= fewest:
                found.add((-(-rows // each), wide))
    at = lambda tile: -(-rows // tile[0]) * -(-columns // tile[1])  # noqa: E731
    return sorted(found, key=lambda tile: abs(math.log(at(tile) / sms)))[:most]


def words(given, verb, model, tile):
    return [verb, str(model), "--target", given.target, "--granularity", "stitch", "--dispatch", "sequential", "--verify", "off",
            *(["--gemm-tile", "%dx%d" % tile] if tile else [])]


class Bench:
    """One process that times programs one after another."""

    def __init__(self, given):
        self.given, self.why = given, ""
        self.process = subprocess.Popen([BIN / "obelisk", "batch"], stdin=subprocess.PIPE, stdout=subprocess.PIPE,
                                        stderr=subprocess.DEVNULL, text=True)

    def time(self, model, tile):
        """Microseconds of a run, or nothing: then `why`."""
        command = [*words(self.given, "bench", model, tile), "--seconds", str(self.given.seconds), "--json"]
        self.process.stdin.write(json.dumps(command) + "\n")
        self.process.stdin.flush()
        said = json.loads(self.process.stdout.readline())
        try:
            answer = json.loads(said["stdout"])
            return answer.get("granularities", [answer])[0]["device_us"]["median"]
        except (ValueError, KeyError, IndexError, TypeError):
            self.why = said.get("stderr", "").strip()[-400:] or f"bench says {said}"[:400]
            return None


def compiled(given, model, tile):
    """Rows and columns of the tiles in a program that is compiled and kept for later calls."""
    done, out, _ = call([BIN / "obelisk", *words(given, "compile", model, tile), "--to", "load", "--explain", "schedule"], 300)
    found = TILES.findall(out)
    return tuple(map(int, found[0])) if done == 0 and found else None


def answers(given, model, tile, folder):
    """What a run gives, or why there is nothing."""
    done, _, err = call([BIN / "obelisk", *words(given, "run", model, tile), "--seed", "3", "--output-dir", str(folder)], 100)
    if done != 0:
        return err
    import numpy as np
    return [np.load(file).astype("f4") for file in sorted(folder.glob("*.npy"))]


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--shapes", default="", help="in place of those of the networks")
    parser.add_argument("--prepare", action="store_true", help="compile, and time nothing")
    parser.add_argument("--target", default="cuda")
    parser.add_argument("--copies", type=int, default=8)
    parser.add_argument("--fewest", type=int, default=12)
    parser.add_argument("--most", type=int, default=14)
    parser.add_argument("--again", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=0.02)
    parser.add_argument("--jobs", type=int, default=12)
    parser.add_argument("--work", default=os.environ.get("TMPDIR", "/tmp") + "/obelisk-tiles")
    parser.add_argument("--out", help="a JSON file for the rows")
    given = parser.parse_args()
    work = pathlib.Path(given.work)
    work.mkdir(parents=True, exist_ok=True)
    named = [(shape, network) for network, shapes in SHAPES.items() for shape in shapes]
    if given.shapes:
        named = [(shape, "") for shape in given.shapes.split(",")]
    sms, rows, failures = count_sms(), [], []

    built = (BIN / "obelisk").stat()
    made_by = [built.st_mtime_ns, built.st_size, given.target, given.copies, given.fewest, given.most, sms]

    def ready(shape):
        """The model, its predicted tile, the others; compiled, unless an earlier call has done that."""
        model, kept = work / f"{shape}.onnx", work / f"{shape}.json"
        if kept.exists() and (found := json.loads(kept.read_text()))["made_by"] == made_by:
            return model, found["chosen"] and tuple(found["chosen"]), [tuple(tile) for tile in found["tiles"]]
        m, k, n = map(int, shape.split("x"))
        write_model(model, m, k, n, given.copies)
        chosen = compiled(given, model, None)
        tiles = [tile for tile in candidates(m, n, sms, given.fewest, given.most) if tile != chosen and compiled(given, model, tile) == tile]
        kept.write_text(json.dumps({"made_by": made_by, "chosen": chosen, "tiles": tiles}))
        return model, chosen, tiles

    with concurrent.futures.ThreadPoolExecutor(given.jobs) as pool:
        prepared = list(pool.map(ready, [shape for shape, _ in named]))
    if given.prepare:
        say(f"tiles  {sum(len(tiles) + 1 for _, _, tiles in prepared)} programs of {len(prepared)} shapes")
        return 0
    bench = Bench(given)
    for (shape, network), (model, chosen, tiles) in zip(named, prepared):
        times = {tile: bench.time(model, tile) for tile in [None, *tiles]}
        if not chosen or not times[None]:
            failures.append(f"{shape}: the chosen tile was not timed: {bench.why or 'no tiles in --explain schedule'}")
            continue
        times = {tile: us for tile, us in times.items() if us}
        for tile in {None, *sorted(times, key=times.get)[:given.again]}:
            times[tile] = min(times[tile], bench.time(model, tile) or times[tile])
        best = min(times, key=times.get)
        wanted = answers(given, model, None, work / f"{shape}.chosen")
        got = answers(given, model, best, work / f"{shape}.tuned") if best else wanted
        wrong = next((each for each in (wanted, got) if isinstance(each, str)), None)
        if wrong is None and (off := max(float(abs(a - b).max()) for a, b in zip(got, wanted))) > TOLERANCE:
            wrong = f"differs by {off:.3g} from the answer with {chosen}, {TOLERANCE} is allowed"
        if wrong is not None:
            failures.append(f"{shape}: with tiles of {best or chosen}: {wrong}")
        row = {"network": network, "shape": shape, "chosen": chosen, "chosen_us": round(times[None] / given.copies, 3),
               "tuned": best or chosen, "tuned_us": round(times[best] / given.copies, 3), "share": round(times[best] / times[None], 3),
               "tried": len(times), "us": {"%dx%d" % (tile or chosen): round(us / given.copies, 3) for tile, us in times.items()}}
        rows.append(row)
        say(f"tiles  {shape:16} {chosen} {row['chosen_us']:.2f} us, tuned {row['tuned']} {row['tuned_us']:.2f} us, share {row['share']:.3f} of {row['tried']}")
        if given.out:
            shares = [row["share"] for row in rows]
            write_record(given.out, "gpu_tiles.py", {"of_tuned": {
                "geometric_mean": round(math.exp(statistics.mean(map(math.log, shares))), 3), "least": min(shares),
                "at_least_0.9": sum(share >= 0.9 for share in shares), "shapes": len(shares)}, "rows": rows})
    for failure in failures:
        say(f"FAILED {failure}")
    return 1 if failures or not rows else 0


if __name__ == "__main__":
    sys.exit(main())
