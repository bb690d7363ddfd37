#!/usr/bin/env python3
"""The wide zoo: networks of torchvision, timm and transformers, exported, compared, and listed.

Each network is exported (zoo_wide_export.py) and compared (zoo_wide_check.py) by processes of its
own, bounded in time and memory, so that one that fails or hangs stops no other. What was found goes
to FOLDER/NAME.result.json; a rerun with the same compiler begins where the last one stopped, and
does again what did not agree. docs/networks.md is made of the results when all networks have one.

Exits with 1 if one is wrong, if one is refused that is not listed as refused with that reason, or if one that is listed so runs.
"""
import argparse
import fnmatch
import hashlib
import json
import multiprocessing
import os
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from xml.sax.saxutils import quoteattr

sys.path.insert(0, str(Path(__file__).parent))
from zoo_wide_networks import NETWORKS  # noqa: E402

ROOT = Path(__file__).resolve().parent.parent
EXPORT_LIMIT = 300  # seconds
CHECK_LIMIT = 500
MEMORY = 12 << 30   # bytes of address space for one process
LIBRARIES = {"torchvision": "torchvision", "timm": "timm", "transformers": "transformers"}
VERDICTS = ("agrees", "refused", "not exportable", "wrong", "says little")


def compiler():
    """Names the program under test by its content: a verdict holds for that one only."""
    path = os.environ.get("OBELISK", ROOT / "build" / "bin" / "obelisk")
    return hashlib.sha256(Path(path).read_bytes()).hexdigest()[:16]


def child(step, name, folder, pipe):
    """Runs in a process of its own: a step that takes the process with it stops no other."""
    import resource
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY, MEMORY))
    # What libraries print while they export is of no use here.
    os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
    os.dup2(1, 2)
    try:
        if step == "export":
            from zoo_wide_export import export
            pipe.send(export(name, folder))
        else:
            from zoo_wide_check import check
            pipe.send(check(name, folder))
    except Exception as error:
        from zoo import cause
        pipe.send({"verdict": "wrong", "reason": f"{step}: {cause(error)}"})


def in_child(processes, step, name, folder, limit):
    """What the step found; {"verdict", "reason"} where it found nothing."""
    ours, theirs = processes.Pipe(duplex=False)
    process = processes.Process(target=child, args=(step, name, folder, theirs))
    process.start()
    theirs.close()
    try:
        if ours.poll(limit):
            return ours.recv()
        reason = f"no answer within {limit} s"
    except EOFError:
        process.join()
        reason = f"the process ended by {-process.exitcode}" if process.exitcode else "no answer"
    finally:
        process.kill()
        process.join()
    verdict = "not exportable" if step == "export" else "wrong"
    return {"verdict": verdict, "reason": f"{step}: {reason}"}


def export_and_check(name, folder, keep, processes):
    start = time.monotonic()
    found = {"library": NETWORKS[name].library, "exporter": NETWORKS[name].exporter}
    files = [folder / f"{name}{end}" for end in (".onnx", ".json", ".f64.npz")]
    if not all(file.exists() for file in files):
        reason = in_child(processes, "export", name, folder, EXPORT_LIMIT)
        if isinstance(reason, dict):
            found |= reason
        elif reason:
            found |= {"verdict": "not exportable", "reason": reason}
        found["export_seconds"] = round(time.monotonic() - start, 1)
    if "verdict" not in found:
        found |= in_child(processes, "check", name, folder, CHECK_LIMIT)
    if not keep:
        for file in files:
            file.unlink(missing_ok=True)
    found["seconds"] = round(time.monotonic() - start, 1)
    return found


def figure(found):
    """One precision's largest error beside what is allowed."""
    if not found:
        return ""
    text = f"{found['error']:.1e}"
    if found.get("onnxruntime") is not None:
        text += f" (ONNX Runtime {found['onnxruntime']:.1e})"
    return text


def table(results, versions, missing=()):
    """docs/networks.md from {name: result}; `missing`: networks of the list that have none."""
    def count(rows):
        return {verdict: sum(row["verdict"] == verdict for row in rows) for verdict in VERDICTS}

    total = count(results.values())
    lines = [
        "# Networks",
        "",
        "Written by `scripts/zoo.sh wide`; not by hand. Networks as their libraries define them, small, with random",
        "weights that let the input through (`scripts/zoo_weights.py`), exported by PyTorch "
        f"{versions['torch']}, answered by Obelisk on a CPU.",
        "",
        f"*agrees*: in f32 with ONNX Runtime {versions['onnxruntime']} (largest error beside |wanted| + rms of the output, at most 1e-4,",
        "or four times ONNX Runtime's own distance to PyTorch in f64, which then stands beside it), and in f16 with the",
        "reference (largest error beside the output's scale, within `verify`'s tolerance); other inputs move each",
        "output by at least twenty tolerances. *refused*: Obelisk says why. *not exportable*: the exporter's own reason.",
        "",
        "| library | networks | agree | refused | not exportable |" +
        (" wrong | say little |" if total["wrong"] + total["says little"] else ""),
        "| --- | --- | --- | --- | --- |" +
        (" --- | --- |" if total["wrong"] + total["says little"] else ""),
    ]
    extra = bool(total["wrong"] + total["says little"])

    def summary(title, rows):
        found = count(rows)
        cells = [title, sum(found.values()), found["agrees"], found["refused"],
                 found["not exportable"]]
        if extra:
            cells += [found["wrong"], found["says little"]]
        return "| " + " | ".join(map(str, cells)) + " |"

    for library in LIBRARIES:
        rows = [row for row in results.values() if row["library"] == library]
        lines.append(summary(f"{library} {versions[library]}", rows))
    lines.append(summary("all", results.values()))
    if missing:
        lines += ["", f"{len(missing)} networks of the list have no result yet: " +
                  ", ".join(sorted(missing)) + "."]
    for library in LIBRARIES:
        lines += ["", f"## {library}", "",
                  "| network | exporter | parameters | verdict | f32 error | f16 error | reason |",
                  "| --- | --- | --- | --- | --- | --- | --- |"]
        for name, row in sorted(results.items()):
            if row["library"] != library:
                continue
            parameters = row.get("parameters")
            cells = [name.partition(".")[2], row["exporter"],
                     f"{parameters / 1e6:.2f} M" if parameters else "", row["verdict"],
                     figure(row.get("fp32")), figure(row.get("fp16")),
                     row.get("reason", "").replace("|", "\\|")]
            lines.append("| " + " | ".join(cells) + " |")
    return "\n".join(lines) + "\n"


def dozen(names, turn, count=12):
    """The networks of one turn: every one comes once before any comes again."""
    names = sorted(names, key=lambda name: hashlib.sha256(name.encode()).hexdigest())
    start = turn * count % len(names)
    return (names + names)[start:start + min(count, len(names))]


def versions():
    pins = dict(line.strip().split("==") for line in
                (ROOT / "scripts/requirements-zoo.txt").read_text().splitlines() if "==" in line)
    return {name: pins[name] for name in ("torch", "onnxruntime", *LIBRARIES)}


def fault(name, row):
    """Why this result is a failure; "" where it is as it should be."""
    refused = NETWORKS[name].refused
    if row["verdict"] in ("wrong", "says little"):
        return row.get("reason", "") or row["verdict"]
    if row["verdict"] == "refused" and not (refused and refused in row.get("reason", "")):
        return f"refused, and not listed so: {row.get('reason', '')}"
    if row["verdict"] == "agrees" and refused:
        return f"listed as refused ({refused}), but it runs"
    return ""


def junit(results, path):
    rows = "".join(
        f'<testcase classname={quoteattr(row["library"])} name={quoteattr(name)}>'
        + (f'<failure message={quoteattr(fault(name, row))}/>' if fault(name, row) else
           f'<skipped message={quoteattr(row.get("reason", ""))}/>'
           if row["verdict"] != "agrees" else "") + "</testcase>\n"
        for name, row in results.items())
    bad = sum(bool(fault(name, row)) for name, row in results.items())
    skipped = sum(row["verdict"] in ("refused", "not exportable") and not fault(name, row) for name, row in results.items())
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f'<testsuite name="zoo_wide" tests="{len(results)}" failures="{bad}" errors="0" '
                    f'skipped="{skipped}">\n{rows}</testsuite>\n')


def judge(results):
    """A line for the end, and whether all is well."""
    exported = [row for row in results.values() if row["verdict"] != "not exportable"]
    agree = sum(row["verdict"] == "agrees" for row in exported)
    bad = [f"{name} ({fault(name, row)})" for name, row in results.items() if fault(name, row)]
    line = (f"{len(results)} networks, {len(exported)} exported, {agree} agree, "
            f"{sum(row['verdict'] == 'refused' for row in exported)} refused")
    if bad:
        line += f", failed: {', '.join(bad)}"
    return line, not bad


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("names", nargs="*", help="networks, or patterns as timm.*; all without")
    parser.add_argument("--folder", type=Path, default=ROOT / "build" / "zoo-wide")
    parser.add_argument("--keep", action="store_true", help="leave the exported files")
    parser.add_argument("--again", action="store_true", help="also those that agreed before")
    parser.add_argument("--older", action="store_true",
                        help="what agreed with an older compiler still counts")
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--dozen", type=int, metavar="TURN", help="twelve small ones, others each turn")
    parser.add_argument("--within", type=int, metavar="SECONDS", help="begin none after that long")
    parser.add_argument("--table", action="store_true", help="only write the table, of the results that are there")
    parser.add_argument("--junit", type=Path, metavar="FILE")
    arguments = parser.parse_args()
    folder = arguments.folder
    folder.mkdir(parents=True, exist_ok=True)
    names = list(dict.fromkeys(name for pattern in arguments.names or ["*"] for name in NETWORKS
                               if fnmatch.fnmatch(name, pattern)))
    if not names:
        parser.error(f"no network is called {arguments.names}; there are {', '.join(NETWORKS)}")
    if arguments.dozen is not None:
        names = dozen([name for name in names if NETWORKS[name].quick], arguments.dozen)
    # Children are forks of a server that has imported what all of them need.
    processes = multiprocessing.get_context("forkserver")
    processes.set_forkserver_preload(["zoo_wide_preload"])
    start, results, left = time.monotonic(), {}, []

    def work(name):
        path = folder / f"{name}.result.json"
        kept = json.loads(path.read_text()) if path.exists() else None
        if arguments.table:
            return kept
        if kept and kept["verdict"] == "agrees" and not arguments.again and (
                arguments.older or kept["compiler"] == compiler()):
            return kept
        if arguments.within and time.monotonic() - start > arguments.within:
            return None
        found = export_and_check(name, folder, arguments.keep, processes)
        found["compiler"] = compiler()
        path.write_text(json.dumps(found, indent=1) + "\n")
        print(f"{found['verdict']:15} {name:42} {figure(found.get('fp32')):>9} "
              f"{figure(found.get('fp16')):>9}  {found.get('reason', '')[:150]} "
              f"({found['seconds']:.0f} s)", flush=True)
        return found

    with ThreadPoolExecutor(arguments.jobs) as pool:
        for name, found in zip(names, pool.map(work, names)):
            if found:
                results[name] = found
            else:
                left.append(name)
    if left:
        print(f"zoo_wide: {len(left)} not looked at: {', '.join(left)}")
    if arguments.junit:
        junit(results, arguments.junit)
    if arguments.table or len(results) == len(NETWORKS):
        (ROOT / "docs" / "networks.md").write_text(
            table(results, versions(), set(NETWORKS) - set(results)))
    line, good = judge(results)
    print(f"zoo_wide: {line}")
    return 0 if good and results else 1


if __name__ == "__main__":
    sys.exit(main())
