#!/usr/bin/env python3
"""Follows the README in an empty Debian 12 and writes down what a new user sees.

    scripts/first_ten_minutes.py [--root FOLDER] [--cache FOLDER]     as root; debootstrap is installed by apt-get

in   the commit that is checked out; Debian's and Python's package registries
out  docs/first_ten_minutes.md; the exit is 1 when a command fails

FOLDER (build/first) becomes the root of a Debian 12 with nothing but its essential packages, and is kept: remove it for a fresh one. The
checkout is cloned into it. Of this machine it gets how packages are fetched (/etc/resolv.conf, /etc/hosts, pip's settings and
the folders under /opt that they name), /proc and /dev; with --cache a compiler cache, so that a second go takes minutes.
"""
import argparse
import re
import shutil
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
HOME = "/root/obelisk"  # of the checkout in there
STEPS = [
    ("Set up", "The demo installs what it needs, builds, and embeds sentences with a trained encoder.",
     ['scripts/demo.sh "A cat sits on the mat." "A kitten rests on a rug." "Stocks fell sharply today."']),
    ("What is here", "", ["build/bin/obelisk doctor"]),
    ("Compile", "The demo's network as a file; any ONNX file will do.",
     [".venv/bin/python scripts/minilm.py model.onnx", "build/bin/obelisk inspect model.onnx",
      "build/bin/obelisk compile model.onnx -o model.obk --shape batch=1 --shape sequence=16"]),
    ("Run", "", ["build/bin/obelisk run model.obk --seed 1 --output-dir out", "ls out"]),
    ("Bench", "Here beside other programs on two cores, which it notices: what such a run says is that both answer alike.", ["build/bin/obelisk bench model.onnx --shape batch=1 --shape sequence=16 --against onnxruntime"]),
    ("Embed", "In a C program; `scripts/wheel.sh` makes a wheel for Python.",
     ["cmake --install build --prefix /usr/local", "ldconfig", "cc examples/c/main.c -o main $(pkg-config --cflags --libs obelisk)", "./main model.onnx batch=1 sequence=16 | head -4"]),
    ("Serve", "", [
        "mkdir -p models/minilm && cp model.onnx models/minilm && printf '[dimensions]\\nsequence = 128\\n' >models/minilm/model.toml",
        '''build/bin/obelisk serve models >served 2>&1 & echo $! >pid; until grep -q '"state":"ready"' served; do sleep 1; done''',
        ".venv/bin/python -c 'import numpy as np, tritonclient.http as t; c = t.InferenceServerClient(\"localhost:8000\"); x = [t.InferInput(n, [1, 128], \"INT64\") for n in (\"input_ids\", \"attention_mask\", \"token_type_ids\")]; [i.set_data_from_numpy(np.ones((1, 128), np.int64)) for i in x]; print(c.infer(\"minilm\", x, timeout=2000000).as_numpy(\"last_hidden_state\").shape)'",
        "kill $(cat pid); sleep 2; cut -c 1-160 served"]),
]


def call(*words, **more):
    subprocess.run([str(word) for word in words], check=True, **more)


def pip_settings():
    """pip's settings of this machine, which the new system is given: how the package index is reached."""
    said = subprocess.run([sys.executable, "-m", "pip", "config", "list"], capture_output=True, text=True).stdout
    found = re.findall(r"^(?:global|:env:)\.([\w-]+)='(.*)'$", said, re.MULTILINE)
    return {name: value for name, value in found if name in ("cert", "index-url", "extra-index-url", "find-links", "default-timeout")}


def mounted(root, source, target):
    """Binds a folder of this machine into the root, once."""
    place = root / target.lstrip("/")
    place.mkdir(parents=True, exist_ok=True)
    if not place.is_mount():
        call("mount", "--bind", source, place)
    return place


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--root", type=Path, default=ROOT / "build" / "first")
    parser.add_argument("--cache", type=Path)
    given = parser.parse_args()
    root = given.root.resolve()
    if not (root / "etc" / "debian_version").exists():
        if not shutil.which("debootstrap"):
            call("apt-get", "install", "-y", "-qq", "--no-install-recommends", "debootstrap")
        call("debootstrap", "--variant=minbase", "bookworm", root, "http://deb.debian.org/debian")
    for file in ("/etc/resolv.conf", "/etc/hosts"):
        shutil.copy(file, root / file[1:])
    settings = pip_settings()
    if "cert" in settings:  # a name of its own: the package ca-certificates writes the usual one
        shutil.copy(settings["cert"], root / "etc" / "pip.crt")
        settings["cert"] = "/etc/pip.crt"
    (root / "etc" / "pip.conf").write_text("[global]\n" + "".join(f"{name} = {value}\n" for name, value in settings.items()))
    mounts = [mounted(root, "/proc", "/proc"), mounted(root, "/dev", "/dev")]
    for folder in set(re.findall(r"/opt/[\w-]+", " ".join(settings.values()))):
        if Path(folder).is_dir():
            mounts.append(mounted(root, folder, folder))
    if given.cache:
        mounts.append(mounted(root, given.cache.resolve(), "/root/.cache/ccache"))
    try:
        sys.exit(follow(root))
    finally:
        for place in reversed(mounts):
            subprocess.run(["umount", "-l", place])


def follow(root):
    checkout = root / HOME[1:]
    # What a go before this one built and compiled; Debian's packages stay.
    call("rm", "-rf", checkout, root / "root" / ".cache" / "obelisk", *(root / "usr" / "local").glob("*/*obelisk*"), root / "usr/local/lib/cmake/obelisk",
         root / "usr/local/lib/pkgconfig/obelisk.pc")
    call("git", "clone", "-q", "--no-hardlinks", ROOT, checkout)
    commit = subprocess.run(["git", "-C", ROOT, "describe", "--always", "--abbrev=12", "--exclude=*"], capture_output=True, text=True, check=True).stdout.strip()
    text = ["# The first ten minutes", "",
            "What a new user sees who follows the [README](../README.md) in an empty Debian 12 (`debootstrap --variant=minbase`) on a machine without a GPU. "
            f"Written by `scripts/first_ten_minutes.py` at commit {commit}; lines that only say what is installed or built are left out. "
            "Building takes ten minutes to half an hour on two cores, all else seconds. The machine did other work meanwhile: times say little, and where they scatter the program says so. [Performance](performance.md) has measured ones.", ""]
    for title, words, commands in STEPS:
        text += [f"## {title}", "", *([words, ""] if words else []), "```console"]
        for command in commands:
            print("$", command, flush=True)
            done = subprocess.run(["chroot", root, "env", "-i", "HOME=/root", "PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin", "LANG=C.UTF-8", "CCACHE_BASEDIR=/root", "CCACHE_NOHASHDIR=1",
                                   "bash", "-c", f"cd {HOME}; {command}"], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, stdin=subprocess.DEVNULL, text=True, errors="replace")
            said = [line.split("\r")[-1].rstrip() for line in done.stdout.splitlines()]
            print(done.stdout, flush=True)
            said = [re.sub(r"\x1b\[[0-9;]*m", "", line) for line in said if line and not line.startswith(("installing ", "building ", "configuring ", "WARNING: Location"))]
            text += [f"$ {command}", *said]
            if done.returncode != 0:
                print(f"error: it ended with {done.returncode}")
                return 1
        text += ["```", ""]
    (ROOT / "docs" / "first_ten_minutes.md").write_text("\n".join(text).rstrip() + "\n")
    return 0


if __name__ == "__main__":
    main()
