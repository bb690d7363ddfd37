#!/usr/bin/env python3
"""Draws what scripts/gpu_goodput.py measured: the part of the requests that was answered in time over their rate, a line a
policy.

    scripts/goodput_picture.py FILE.json PICTURE.svg [--arrivals poisson] [--factor 5]
    scripts/goodput_picture.py FILE.json PICTURE.svg --check    exit 1 when the picture is not what the file says
    scripts/goodput_picture.py FILE.json --table                the highest rates as rows of Markdown

Points whose requests were submitted late are left out; so are those of a policy that has none left. Colours follow the
reader's light or dark mode.
"""
import argparse
import json
import math
import sys
from pathlib import Path
from xml.sax.saxutils import escape

COLOURS = {  # light, dark
    "vliw": ("#0969da", "#4493f8"), "batch": ("#8250df", "#ab7df8"), "edf": ("#1a7f37", "#3fb950"),
    "streams": ("#bc4c00", "#db6d28"), "fifo": ("#656c76", "#9198a1"), "time": ("#bf3989", "#db61a2"),
}
WIDTH, HEIGHT, LEFT, RIGHT, TOP, BOTTOM = 760, 380, 56, 96, 52, 66  # of the picture, in its units
MEMORIES = {"host": "the host's memory", "pinned": "page-locked memory", "device": "the device's memory"}
LEAST = 0.5  # the smallest part that is shown


def curves(results, arrivals, factor):
    """{policy: [(rate, part in time)]}, ascending; of several points at a rate the mean."""
    found = {}
    for row in results["points"]:
        if row["arrivals"] == arrivals and row["factor"] == factor and row["valid"] and row["sent"]:
            found.setdefault(row["policy"], {}).setdefault(row["rate"], []).append(row["fraction"])
    return {policy: [(rate, sum(parts) / len(parts)) for rate, parts in sorted(found[policy].items())]
            for policy in COLOURS if policy in found}


def step_of(top):
    """A round step of an axis that ends at `top`."""
    size = 10 ** math.floor(math.log10(top / 4))
    return next(size * k for k in (1, 2, 5, 10) if size * k >= top / 5)


def picture(results, arrivals, factor):
    lines = curves(results, arrivals, factor)
    if not lines:
        raise ValueError(f"there are no points of {arrivals}, factor {factor:g}")
    top = max(rate for points in lines.values() for rate, _ in points) * 1.03
    def x(rate):
        return LEFT + (WIDTH - LEFT - RIGHT) * rate / top
    def y(part):
        return TOP + (HEIGHT - TOP - BOTTOM) * (1 - max(part, LEAST)) / (1 - LEAST)
    cells = {row["policy"]: row["rate"] for row in results["cells"] if row["arrivals"] == arrivals and row["factor"] == factor}
    where = f"{results['device']}, {results['precision']}, {len(results['models'])} models at equal load, inputs in {MEMORIES[results['inputs']]}; {results['date']}, commit {results['commit']}"
    light = " ".join(f".{policy} {{ stroke: {a}; fill: {a} }}" for policy, (a, _) in COLOURS.items())
    dark = " ".join(f".{policy} {{ stroke: {b}; fill: {b} }}" for policy, (_, b) in COLOURS.items())
    out = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" width="{WIDTH}" height="{HEIGHT}" role="img">',
        f"<title>Requests in time over their rate, by policy: {escape(', '.join(f'{policy} {rate:,.0f}/s' for policy, rate in cells.items()))}</title>",
        "<style>",
        "text { font: 13px system-ui, sans-serif; fill: #1f2328 } .small { font-size: 11px; fill: #59636e } .bold { font-weight: 600 }",
        ".grid { stroke: #d1d9e0 } .goal { stroke: #59636e; stroke-dasharray: 4 3 } polyline { fill: none !important; stroke-width: 2 }",
        light + " text.name { stroke: none }",
        "@media (prefers-color-scheme: dark) { text { fill: #f0f6fc } .small { fill: #9198a1 } .grid { stroke: #3d444d } .goal { stroke: #9198a1 } " + dark + " }",
        "</style>",
        f'<text x="0" y="18" class="bold">Answered in time, of requests with deadlines of {factor:g} times the time alone ({escape(arrivals.replace(":", ", sigma "))} arrivals)</text>',
    ]
    for part in (0.5, 0.6, 0.7, 0.8, 0.9, 1.0):
        out += [f'<line x1="{LEFT}" y1="{y(part):.1f}" x2="{WIDTH - RIGHT}" y2="{y(part):.1f}" class="grid"/>',
                f'<text x="{LEFT - 8}" y="{y(part) + 4:.1f}" text-anchor="end" class="small">{part:.0%}</text>']
    out.append(f'<line x1="{LEFT}" y1="{y(0.99):.1f}" x2="{WIDTH - RIGHT}" y2="{y(0.99):.1f}" class="goal"/>')
    for k in range(int(top / step_of(top)) + 1):
        rate = k * step_of(top)
        out.append(f'<text x="{x(rate):.1f}" y="{HEIGHT - BOTTOM + 18}" text-anchor="middle" class="small">{rate:,.0f}</text>')
    out.append(f'<text x="{(LEFT + WIDTH - RIGHT) / 2:.0f}" y="{HEIGHT - BOTTOM + 36}" text-anchor="middle" class="small">requests per second, of all models; dashed: 99 %</text>')
    for k, (policy, points) in enumerate(lines.items()):
        out.append(f'<polyline points="{" ".join(f"{x(rate):.1f},{y(part):.1f}" for rate, part in points)}" class="{policy}"/>')
        out += [f'<circle cx="{x(rate):.1f}" cy="{y(part):.1f}" r="2.5" class="{policy}"/>' for rate, part in points]
        rate = f" {cells[policy]:,.0f}/s" if policy in cells else ""
        out.append(f'<text x="{WIDTH - RIGHT + 8}" y="{TOP + 12 + 18 * k}" class="name small {policy}">{policy}{rate}</text>')
    out += [f'<text x="0" y="{HEIGHT - 8}" class="small">{escape(where)}</text>', "</svg>"]
    return "\n".join(out) + "\n"


def table(results):
    """A row for arrivals and factor, a column a policy; * where no end was found: the budget was over, or requests were
    submitted late."""
    policies = [policy for policy in COLOURS if any(row["policy"] == policy for row in results["cells"])]
    rows = ["| arrivals | deadlines | " + " | ".join(policies) + " |", "| --- " * (2 + len(policies)) + "|"]
    for arrivals, factor in dict.fromkeys((row["arrivals"], row["factor"]) for row in results["cells"]):
        cells = {row["policy"]: f"{row['rate']:,.0f}" + ("" if row["complete"] and row["bound_by"] == "deadlines" else "*")
                 for row in results["cells"] if (row["arrivals"], row["factor"]) == (arrivals, factor)}
        rows.append(f"| {arrivals} | {factor:g} times | " + " | ".join(cells.get(policy, "") for policy in policies) + " |")
    return "\n".join(rows)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("results", type=Path)
    parser.add_argument("picture", type=Path, nargs="?")
    parser.add_argument("--arrivals", default="poisson")
    parser.add_argument("--factor", type=float, default=5)
    parser.add_argument("--check", action="store_true")
    parser.add_argument("--table", action="store_true")
    options = parser.parse_args()
    results = json.loads(options.results.read_text())
    if options.table:
        print(table(results))
        return
    if not options.picture:
        parser.error("a picture's file is wanted, or --table")
    try:
        drawn = picture(results, options.arrivals, options.factor)
    except ValueError as error:
        sys.exit(str(error))
    if not options.check:
        options.picture.write_text(drawn)
    elif not options.picture.exists() or options.picture.read_text() != drawn:
        sys.exit(f"{options.picture} is not what {options.results} says: run scripts/goodput_picture.py")


if __name__ == "__main__":
    main()
