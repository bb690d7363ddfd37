#!/usr/bin/env python3
"""Draws docs/speed.svg from bench/results/h200_networks.json: each network's device time beside that of the best other
system of the same run, which is one full bar.

    scripts/chart.py            writes the picture
    scripts/chart.py --check    exit 1 when it is not what the results say
    scripts/chart.py --table    the same figures as rows of Markdown

A network's figures come from the newest run in which Obelisk and the others were timed together. The picture's colours
follow the reader's light or dark mode.
"""
import argparse
import json
import math
import sys
from pathlib import Path
from xml.sax.saxutils import escape

ROOT = Path(__file__).resolve().parent.parent
RESULTS, PICTURE = ROOT / "bench/results/h200_networks.json", ROOT / "docs/speed.svg"
NETWORKS = {
    "minilm_b1": "MiniLM, 128 tokens",
    "bert_b1": "BERT-base, 128 tokens",
    "bert_b8": "BERT-base, batch 8",
    "vit_b1": "ViT-B/16",
    "llama1b_decode": "1.1 B decoder, one token",
    "resnet18_b1": "ResNet-18",
    "resnet50_b1": "ResNet-50",
    "resnet50_b8": "ResNet-50, batch 8",
    "googlenet_b1": "GoogLeNet",
    "inception_b1": "Inception-v3",
    "crnn_b1": "CRNN",
    "deepfm_b1": "DeepFM",
    "deepfm_b512": "DeepFM, batch 512",
}
FORMS = {"mono": "one kernel", "stitch": "graph of kernels"}
WAYS = {"eager": "PyTorch eager", "graph": "PyTorch, CUDA graph", "compile": "torch.compile",
        "max-autotune": "torch.compile max-autotune", "xla": "XLA"}
WIDTH, ROW, TOP, LEFT, FULL = 760, 34, 58, 196, 330  # of the picture, in its units


def times(rows, model, key):
    return {row[key]: row["device_us"]["median"] for row in rows if row["model"] == model and "device_us" in row}


def figures(results):
    """[(name, ours by form, others by way)] of the newest run that has both."""
    found = []
    for model, name in NETWORKS.items():
        for run in reversed(results["runs"]):
            rows = [row for side in ("pytorch", "xla") for row in run.get(side, {}).get("rows", [])]
            ours, others = times(run.get("obelisk", []), model, "granularity"), times(rows, model, "way")
            if FORMS.keys() <= ours.keys() and others.keys() - {"eager"}:
                found.append((name, {form: ours[form] for form in FORMS}, others, run))
                break
    return found


def us(time):
    return f"{time:.1f}" if time < 30 else f"{time:,.0f}"


def best(times, names):
    way = min(times, key=times.get)
    return times[way], names[way]


def mean_speedup(found):
    return math.exp(sum(math.log(best(others, WAYS)[0] / best(ours, FORMS)[0]) for _, ours, others, _ in found) / len(found))


def picture(results):
    found = figures(results)
    runs = {id(run): run for _, _, _, run in found}.values()
    where = f"{results['device']}, {results['precision']}, batch 1 unless named, device time; " + ", ".join(
        sorted({f"{run['date']}, commit {run['commit']}" for run in runs}))
    height = TOP + ROW * len(found) + 34
    lines = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" width="{WIDTH}" height="{height}" role="img">',
        f"<title>Time of one run, Obelisk beside the best of PyTorch and XLA: {mean_speedup(found):.2f} times as fast in the geometric mean</title>",
        "<style>",
        "text { font: 13px system-ui, sans-serif; fill: #1f2328 } .small { font-size: 11px; fill: #59636e } .bold { font-weight: 600 }",
        ".ours { fill: #0969da } .other { fill: #afb8c1 }",
        "@media (prefers-color-scheme: dark) { text { fill: #f0f6fc } .small { fill: #9198a1 } .ours { fill: #4493f8 } .other { fill: #656c76 } }",
        "</style>",
        '<text x="0" y="18" class="bold">Time of one run, in microseconds (shorter is better)</text>',
        f'<rect x="{LEFT}" y="32" width="10" height="10" class="ours"/><text x="{LEFT + 16}" y="41" class="small">Obelisk</text>',
        f'<rect x="{LEFT + 80}" y="32" width="10" height="10" class="other"/>'
        f'<text x="{LEFT + 96}" y="41" class="small">the best of PyTorch (eager, CUDA graph, torch.compile, max-autotune) and XLA</text>',
    ]
    for k, (name, ours, others, _) in enumerate(found):
        y = TOP + ROW * k
        (our_time, form), (other_time, way) = best(ours, FORMS), best(others, WAYS)
        length = FULL * our_time / other_time
        lines += [
            f'<text x="{LEFT - 10}" y="{y + 17}" text-anchor="end">{escape(name)}</text>',
            f'<rect x="{LEFT}" y="{y + 2}" width="{length:.1f}" height="11" class="ours"/>',
            f'<text x="{LEFT + length + 6:.1f}" y="{y + 12}" class="small">{us(our_time)}, {form}</text>',
            f'<rect x="{LEFT}" y="{y + 15}" width="{FULL}" height="11" class="other"/>',
            f'<text x="{LEFT + FULL + 6}" y="{y + 25}" class="small">{us(other_time)}, {escape(way)}</text>',
            f'<text x="{WIDTH}" y="{y + 12}" text-anchor="end" class="bold">{other_time / our_time:.2f}x</text>',
        ]
    lines += [f'<text x="0" y="{height - 10}" class="small">{escape(where)}</text>', "</svg>"]
    return "\n".join(lines) + "\n"


def table(results):
    rows = ["| network | one kernel | graph of kernels | " + " | ".join(WAYS.values()) + " |", "| --- " * (3 + len(WAYS)) + "|"]
    for name, ours, others, _ in figures(results):
        cells = [ours[form] for form in FORMS] + [others.get(way) for way in WAYS]
        rows.append(f"| {name} | " + " | ".join("" if cell is None else us(cell) for cell in cells) + " |")
    return "\n".join(rows)


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--check", action="store_true")
    parser.add_argument("--table", action="store_true")
    options = parser.parse_args()
    results = json.loads(RESULTS.read_text())
    if options.table:
        print(table(results))
    elif not options.check:
        PICTURE.write_text(picture(results))
    elif not PICTURE.exists() or PICTURE.read_text() != picture(results):
        sys.exit(f"{PICTURE.relative_to(ROOT)} is not what {RESULTS.relative_to(ROOT)} says: run scripts/chart.py")


if __name__ == "__main__":
    main()
