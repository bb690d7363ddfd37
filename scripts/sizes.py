#!/usr/bin/env python3
"""Counts code lines: per room without tests, with them beside, and names the files above their
size.

Code lines are lines with something other than a comment. `src` without tests has a budget until
1.0; raising it is a commit of its own. Exits 1 above the budget or when a file has more than 800
lines (as they lie, comments included). --json prints the same as data.
"""

import argparse
import json
import re
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
SUFFIXES = {".h", ".cpp", ".def", ".cuh", ".cu", ".py", ".sh"}
BUDGET = 38_000     # code lines of src, tests apart
SAY_WHY, NEVER = 500, 800


def code_lines(text, suffix):
    if suffix in {".py", ".sh"}:
        return sum(
            1 for line in text.splitlines() if line.strip() and not line.strip().startswith("#")
        )
    # Strings first, so that a quoted // stays; then both kinds of comments go.
    pattern = r'"(?:\\.|[^"\\\n])*"|//[^\n]*|/\*.*?\*/'
    bare = re.sub(pattern, lambda match: "s" if match[0][0] == '"' else "", text, flags=re.DOTALL)
    return sum(1 for line in bare.splitlines() if line.strip())


def is_test(path):
    return "test" in path.parts or "tests" in path.parts or path.stem.endswith("_test")


def count():
    rooms, large = {}, []
    for top in ("src", "include", "tools", "tests", "scripts", "bench"):
        for path in sorted((ROOT / top).rglob("*")) if (ROOT / top).is_dir() else []:
            if path.suffix not in SUFFIXES or "__pycache__" in path.parts:
                continue
            text = path.read_text(errors="replace")
            name = path.relative_to(ROOT)
            room = name.parts[1] if top == "src" and len(name.parts) > 2 else top
            entry = rooms.setdefault(room, {"files": 0, "code": 0, "tests": 0})
            entry["files"] += 1
            entry["tests" if is_test(name) else "code"] += code_lines(text, path.suffix)
            if (length := text.count("\n")) > SAY_WHY:
                large.append({"file": str(name), "lines": length})
    outside = {"include", "tools", "tests", "scripts", "bench"}
    total = sum(entry["code"] for room, entry in rooms.items() if room not in outside)
    return {"rooms": rooms, "src": total, "budget": BUDGET, "large": large}


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--json", action="store_true")
    sizes = count()
    too_long = [each for each in sizes["large"] if each["lines"] > NEVER]
    wrong = bool(too_long) or sizes["src"] > BUDGET
    if parser.parse_args().json:
        print(json.dumps(sizes, indent=1))
        return int(wrong)
    print(f"{'room':<10} {'files':>5} {'code':>6} {'tests':>6}")
    for room, entry in sizes["rooms"].items():
        print(f"{room:<10} {entry['files']:>5} {entry['code']:>6} {entry['tests']:>6}")
    for each in sizes["large"]:
        limit = f"more than {NEVER}, split it" if each["lines"] > NEVER else f"more than {SAY_WHY}"
        print(f"{each['file']}: {each['lines']} lines, {limit}")
    print(f"src: {sizes['src']} of {BUDGET} code lines")
    return int(wrong)


if __name__ == "__main__":
    sys.exit(main())
