"""Whether two builds of the compiler write the same code, byte for byte: called by scripts/same_text.sh, which builds them.

What is compared: the networks of tests/cli/device_code.json at each of its granularities, precisions and targets, the same networks for the CPU, and the
graphs of tests/graphs for both; of each what `compile --to codegen` prints and, for GPUs, what `compile --to assemble --emit cuda,schedule` writes. Nothing
is compiled by a device compiler. Hashes of bodies and what else stands in the line above a body are left out of the comparison.

    python scripts/same_text.py texts PROGRAM FOLDER [--only NAME…]       # writes the texts that FOLDER lacks
    python scripts/same_text.py compare BEFORE NOW [--only NAME…]         # prints what differs; exit 1 where something does
                                        [--less REGEX]                    # lines that match are left out on both sides
"""
import argparse
import difflib
import hashlib
import math
import re
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT / "scripts"), str(ROOT / "tests" / "cli")]
import device_networks  # noqa: E402
from obelisk_backend import Batch  # noqa: E402

GRAPHS = sorted((ROOT / "tests" / "graphs").glob("*.ir"))
SECONDS, WORKERS, FEW_LINES = 300, 2, 12


def programs():
    """(network, what tells the program from others of the network, flags of `compile`)."""
    for network, granularity, precision, target in device_networks.PROGRAMS:
        yield network, f"{granularity}-{precision}-{target}", ["--target", target, "--granularity", granularity, "--precision", precision]
    for network in device_networks.NETWORKS:
        yield network, "cpu", ["--target", "cpu", "--sms", "132"]
    for graph in GRAPHS:
        for granularity in ("op", "stitch", "mono"):
            yield graph.stem, f"{granularity}-sm_90a", ["--target", "sm_90a", "--granularity", granularity]
        yield graph.stem, "cpu", ["--target", "cpu", "--sms", "8"]


def chosen(only):
    known = {network for network, _, _ in programs()}
    if unknown := set(only) - known:
        sys.exit(f"error: no network is called {', '.join(sorted(unknown))}; there are {', '.join(sorted(known))}")
    return [each for each in programs() if not only or each[0] in only]


def model_of(network):
    """Its file, written once. A network whose description has changed is another file."""
    text = next((one for one in GRAPHS if one.stem == network), None)
    described = hashlib.sha256((text or Path(device_networks.__file__)).read_bytes()).hexdigest()[:12]
    folder = ROOT / "build" / "same_text" / "networks"
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"{network}-{described}.{'ir' if text else 'onnx'}"
    if not path.exists():
        part = path.with_suffix(".part")
        if text:
            part.write_text(with_numbers(text.read_text()))
        else:
            device_networks.write(network, part)
        part.rename(path)
    return path


def with_numbers(graph):
    """A graph's text in which @random constants have numbers."""
    def numbers(match):
        dims = [int(dim) for dim in match[2].split(",") if dim]
        return f"{match[1]}[{match[2]}] = [{', '.join(str((k * 7 % 31 - 15) / 16) for k in range(math.prod(dims)))}]"
    return re.sub(r"(\w+)\[([\d,]*)\] = @random", numbers, graph)


def write_texts(program, folder, which):
    """The texts of these programs that `folder` lacks. A text stands there whole or not at all."""
    folder.mkdir(parents=True, exist_ok=True)
    missing = {}
    for network, how, flags in which:
        if not (folder / f"{network}.{how}.txt").exists():
            missing.setdefault(network, []).append((how, flags))

    def of_network(network):
        batch = Batch(program)
        try:
            model = model_of(network)
            for how, flags in missing[network]:
                with tempfile.TemporaryDirectory() as texts:
                    words = ["compile", str(model), *flags, "--verify", "off"]
                    text = run(batch, [*words, "--to", "codegen"])
                    if "cpu" not in flags:
                        said = run(batch, [*words, "--to", "assemble", "--emit", "cuda,schedule", "-d", texts])
                        written = sorted(Path(texts).iterdir())
                        if not written and not said.startswith("exit "):
                            sys.exit(f"error: {program} is too old: it writes no texts with --to assemble")
                        text += "".join(f"==== {one.name}\n{one.read_text()}" for one in written)
                part = folder / f"{network}.{how}.part"
                part.write_text(text)
                part.rename(part.with_suffix(".txt"))
        finally:
            batch.end()

    with ThreadPoolExecutor(WORKERS) as pool:
        list(pool.map(of_network, missing))


def run(batch, words):
    status, out, err = batch(words, SECONDS)
    # What a machine cannot compile must stay so, and for the same reason.
    return out if status == 0 else f"exit {status}\n{out}{err}"


def compared(text, less):
    text = re.sub(r"^// ---- body .*$", "// ---- body", text, flags=re.MULTILINE)
    return "".join(line for line in text.splitlines(keepends=True) if not re.search(less, line)) if less else text


def compare(before, now, which, less=""):
    different = {}
    for network, how, _ in which:
        one, other = (compared((folder / f"{network}.{how}.txt").read_text(), less) for folder in (before, now))
        if one != other:
            different.setdefault(network, []).append((how, one, other))
    for network, hows in different.items():
        print(f"{network}: {', '.join(how for how, _, _ in hows)}")
        how, one, other = hows[0]
        lines = list(difflib.unified_diff(one.splitlines(), other.splitlines(), f"before/{how}", f"now/{how}", lineterm="", n=1))
        print("\n".join(f"    {line[:300]}" for line in lines[:FEW_LINES]), "    ..." if len(lines) > FEW_LINES else "", sep="\n")
    print(f"same text: {len(which)} programs of {len({each[0] for each in which})} networks, " +
          (f"{sum(map(len, different.values()))} differ" if different else "none differs"))
    return 1 if different else 0


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("verb", choices=["texts", "compare"])
    parser.add_argument("paths", nargs=2, type=Path)
    parser.add_argument("--only", nargs="+", default=[], metavar="NAME")
    parser.add_argument("--less", default="", metavar="REGEX")
    asked = parser.parse_args()
    if asked.verb == "texts":
        write_texts(asked.paths[0], asked.paths[1], chosen(asked.only))
    else:
        sys.exit(compare(*asked.paths, chosen(asked.only), asked.less))
