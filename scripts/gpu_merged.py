#!/usr/bin/env python3
"""Two networks as one program, beside two programs: one launch for both of them.

    gpu_merged.py --pairs deepfm_b1+crnn_b1,minilm_b1+resnet18_b1 --out FILE.json [--precision fp16] [--seconds 0.2]

onnx.compose joins the networks to one without edges between them. As a program of one kernel (mono) the tasks of both lie
side by side in the lists of the multiprocessors; as a graph of kernels (stitch) the networks are branches. Rows hold
device microseconds: `alone_us`, each network by itself, by granularity; `in_turn_us`, the sum of what each takes in its
quicker granularity; `side_by_side_us`, a round of both as programs for half of the multiprocessors each, on streams of
their own (bench/tenants/side_by_side.cpp); `merged_us`, by granularity. Each merged program is verified. Networks that are
not in the folder --work as NAME.onnx are exported by gpu_models.py.

Works in the folder that scripts/pack.sh makes, and in a checkout with a build.
"""
import argparse
import json
import os
import pathlib
import sys

from gpu_tenants import BIN, HERE, call, count_sms, say, write_record

GRANULARITIES = ("mono", "stitch")
EXPORT = """
import sys, pathlib, gpu_models
gpu_models.export(sys.argv[1], pathlib.Path(sys.argv[2]))
"""


def merge(models, out):
    """One ONNX model of several; names of the k-th begin with `k/`."""
    import onnx
    from onnx import compose

    merged = None
    for k, path in enumerate(models):
        model = compose.add_prefix(onnx.load(path), f"{k}/")
        merged = model if merged is None else compose.merge_models(merged, model, io_map=[])
    onnx.save(merged, out)


class Pairs:
    def __init__(self, options):
        self.options, self.failures, self.rows = options, [], []
        self.work = pathlib.Path(options.work)
        self.work.mkdir(parents=True, exist_ok=True)
        self.on_cpu = options.target == "cpu"
        self.sms = options.sms or count_sms()

    def output(self, words, **options):
        code, out, err = call(words, self.options.timeout, **options)
        if code != 0:
            raise RuntimeError(f"{' '.join(map(str, words[:2]))}: {(err or out).strip()[-400:]}")
        return out

    def obelisk(self, *words):
        return self.output([BIN / "obelisk", *words])

    def words(self, granularity):
        how = [] if self.on_cpu else ["--granularity", granularity]
        return ["--target", self.options.target, *how, "--precision", self.options.precision]

    def network(self, name):
        path = self.work / f"{name}.onnx"
        if not path.exists():
            self.output([sys.executable, "-c", EXPORT, name, path], cwd=HERE)
        return path

    def us(self, path, granularity):
        out = json.loads(self.obelisk("bench", path, *self.words(granularity), "--verify", "off", "--seconds", self.options.seconds, "--json"))
        return round(out["latency_us" if self.on_cpu else "device_us"]["median"], 2)

    def halves(self, paths):
        """A round of both as programs for half of the machine."""
        programs = []
        for k, path in enumerate(paths):
            programs.append(self.work / f"half{k}.obk")
            self.obelisk("compile", path, *self.words("mono"), "--sms", self.sms // 2, "--dispatch", "waves", "--verify", "off", "-o", programs[-1])
        round_us = json.loads(self.output([BIN / "side_by_side", programs[0], "--other", programs[1], "--most", 2]))["round_us"]
        return round(round_us["2"], 2)

    def pair(self, names):
        paths = [self.network(name) for name in names]
        both = self.work / ("+".join(names) + ".onnx")
        merge(paths, both)
        granularities = ("cpu",) if self.on_cpu else GRANULARITIES
        alone = {name: {g: self.us(path, g) for g in granularities} for name, path in zip(names, paths)}
        merged = {}
        for granularity in granularities:
            self.obelisk("verify", both, *self.words(granularity))
            merged[granularity] = self.us(both, granularity)
        row = {"networks": names, "precision": self.options.precision, "alone_us": alone, "merged_us": merged,
               "in_turn_us": round(sum(min(times.values()) for times in alone.values()), 2)}
        if not self.on_cpu:
            row["side_by_side_us"] = self.halves(paths)
        return row

    def run(self):
        for entry in self.options.pairs.split(","):
            try:
                row = self.pair(entry.split("+"))
            except (RuntimeError, KeyError) as wrong:
                self.failures.append(f"{entry}: {wrong}")
                say(f"FAILED {self.failures[-1]}")
                continue
            self.rows.append(row)
            say(json.dumps(row))
            self.keep()
        self.keep()
        return 1 if self.failures else 0

    def keep(self):
        if self.options.out:
            write_record(self.options.out, "gpu_merged.py", {"rows": self.rows, "failures": self.failures})


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--pairs", default="deepfm_b1+crnn_b1,minilm_b1+resnet18_b1,googlenet_b1+minilm_b1,resnet50_b1+bert_b1")
    parser.add_argument("--precision", default="fp16")
    parser.add_argument("--target", default="cuda")
    parser.add_argument("--sms", type=int, default=0, help="of the machine; 0: as many as the GPU has")
    parser.add_argument("--seconds", type=float, default=0.2, help="that each program is timed")
    parser.add_argument("--timeout", type=float, default=280, help="seconds of one command")
    parser.add_argument("--work", default=os.environ.get("TMPDIR", "/tmp") + "/obelisk-merged")
    parser.add_argument("--out", help="a JSON file for the rows")
    return Pairs(parser.parse_args()).run()


if __name__ == "__main__":
    sys.exit(main())
