#!/usr/bin/env python3
"""Where late requests lost their time: a table, as text, of what `goodput --requests FILE.csv` wrote.

    goodput_late.py FILE.csv [--policy vliw] [--factor 5] [--last]

A block each point (arrivals, factor, policy, rate), a line each model and one of all: requests, the share that missed its
deadline, and of those how many by what cost them most:

    refused    by admission, at once
    given up   while they waited, when their deadline could not be met any more
    submitted  the client's thread came later than a tenth of the time that they had
    queue      between when the server took them and when their program was started
    idle       their program ran longer than predicted, and nothing had run for --idle microseconds before it
    run        their program ran longer than predicted
    width      their program, as wide as it was and beside whom it was, was predicted to take longer than the quickest does
    delivery   between when the server had the answer and when the client's function had it

Behind these: the median microseconds of each part over all that were answered, and over those that were late.
"""
import argparse
import collections
import csv
import statistics
import sys

CAUSES = ("refused", "given up", "submitted", "queue", "idle", "run", "width", "delivery")
PARTS = ("queue", "predicted", "beyond", "delivery")
OK, REJECTED, LATE = 0, 4, 5
SUBMITTED_PART = 0.1  # as goodput.cpp's kLatePart


def number(text):
    return float(text) if text else None


def read(path):
    points = collections.OrderedDict()
    with open(path, newline="") as file:
        for row in csv.DictReader(file):
            key = (row["arrivals"], float(row["factor"]), row["policy"], float(row["rate"]))
            points.setdefault(key, []).append(row)
    return points


def ask_of(row):
    ask = {name: number(row[name]) for name in ("at", "budget", "submitted", "started", "answered", "took", "slack")}
    ask |= {"model": row["model"], "outcome": int(row["outcome"]), "partners": int(row["partners"]), "variant": row["variant"], "reason": row["reason"]}
    ask["lateness"] = ask["submitted"] - ask["at"]
    if ask["outcome"] == OK:
        ask["queue"], ask["ran"] = ask["started"], ask["answered"] - ask["started"]
        ask["predicted"] = ask["ran"] if ask["slack"] is None else ask["budget"] - ask["lateness"] - ask["started"] - ask["slack"]
        ask["beyond"] = ask["ran"] - ask["predicted"]
        ask["delivery"] = ask["took"] - ask["lateness"] - ask["answered"]
    ask["in time"] = ask["outcome"] == OK and ask["took"] <= ask["budget"]
    return ask


def note_idle(asks):
    """How long nothing had run when each was started, as far as what was answered tells."""
    runs = [(a["submitted"] + a["started"], a["submitted"] + a["answered"], a) for a in asks if a["outcome"] == OK]
    free_from = None
    for begun, ended, ask in sorted(runs, key=lambda run: run[:2]):
        ask["idle for"] = max(0.0, begun - free_from) if free_from is not None else 0.0
        free_from = ended if free_from is None else max(free_from, ended)


def cause_of(ask, quickest, idle):
    if ask["outcome"] == REJECTED:
        return "submitted" if ask["lateness"] > SUBMITTED_PART * ask["budget"] else "refused"
    if ask["lateness"] > SUBMITTED_PART * ask["budget"]:
        return "submitted"
    if ask["outcome"] != OK:
        return "given up"
    losses = {
        "queue": ask["queue"],
        "idle" if ask["idle for"] >= idle else "run": ask["beyond"],
        "width": ask["predicted"] - quickest[ask["model"]],
        "delivery": ask["delivery"],
    }
    return max(losses, key=losses.get)


def widths_of(asks):
    counts = collections.Counter(a["variant"].split(", ")[-1].split(" of ")[0] for a in asks if a["outcome"] == OK)
    total = sum(counts.values())
    return " ".join(f"{width}:{100 * count / total:.0f}%" for width, count in sorted(counts.items(), key=lambda w: -int(w[0]) if w[0].isdigit() else 0))


def median_of(asks, part):
    values = [a[part] for a in asks if a["outcome"] == OK]
    return f"{statistics.median(values):8.0f}" if values else "       -"


def line_of(name, asks, quickest, idle):
    missed = [a for a in asks if not a["in time"]]
    causes = collections.Counter(cause_of(a, quickest, idle) for a in missed)
    text = f"{name:12} {len(asks):7} {100 * len(missed) / len(asks):7.2f}%  " + " ".join(f"{causes[c]:9}" for c in CAUSES)
    text += "  |" + "".join(median_of(asks, part) for part in PARTS) + "  |" + "".join(median_of(missed, part) for part in PARTS)
    return text + "  | " + widths_of(asks)


def tell(key, rows, idle, warm):
    asks = [ask_of(row) for row in rows]
    note_idle(asks)
    asks = [a for a in asks if a["at"] >= warm * 1e6]
    if not asks:
        return
    quickest = {}
    for a in asks:
        if a["outcome"] == OK:
            quickest[a["model"]] = min(quickest.get(a["model"], a["predicted"]), a["predicted"])
    print(f"\n{key[0]}, factor {key[1]:g}, {key[2]}, {key[3]:.0f}/s: {100 * sum(a['in time'] for a in asks) / len(asks):.2f} % in time")
    print(f"{'':12} {'asked':>7} {'missed':>8}  " + " ".join(f"{c:>9}" for c in CAUSES) + "  |" + "".join(f"{p:>8.8}" for p in PARTS)
          + "  |" + "".join(f"{p:>8.8}" for p in PARTS) + "  | widths")
    models = collections.OrderedDict()
    for a in asks:
        models.setdefault(a["model"], []).append(a)
    for name in sorted(models, key=lambda m: -len(models[m])):
        print(line_of(name, models[name], quickest, idle))
    print(line_of("all", asks, quickest, idle))
    reasons = collections.Counter(a["reason"].split(";")[0] for a in asks if not a["in time"])
    for reason, count in reasons.most_common(6):
        of = sum(a["reason"].split(";")[0] == reason for a in asks)
        print(f"    {count:5} of {of:6} missed: {reason or '?'}")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("file")
    parser.add_argument("--policy", help="only of policies whose name begins so")
    parser.add_argument("--factor", type=float)
    parser.add_argument("--last", action="store_true", help="of each policy and factor only the point with the highest rate")
    parser.add_argument("--idle", type=float, default=500, help="microseconds")
    parser.add_argument("--warm", type=float, default=0.2, help="seconds at the beginning of a point that do not count")
    options = parser.parse_args()
    points = {key: rows for key, rows in read(options.file).items()
              if (not options.policy or key[2].startswith(options.policy)) and (options.factor is None or key[1] == options.factor)}
    if options.last:
        highest = {}
        for key in points:
            if key[:3] not in highest or key[3] > highest[key[:3]][3]:
                highest[key[:3]] = key
        points = {key: points[key] for key in highest.values()}
    if not points:
        sys.exit("there is no such point in " + options.file)
    for key, rows in points.items():
        tell(key, rows, options.idle, options.warm)


if __name__ == "__main__":
    main()
