#!/usr/bin/env python3
"""Where the code is: code lines of each room, without tests and of its tests, and the longest files and functions.

    sizes.py [--longest 20] [--json]

Code lines are those with something other than a comment. Nothing is capped: the lists say where a reader has most to
hold in mind at once. A function's lines are counted as they lie, from its name to its closing brace.
"""
import argparse
import ast
import json
import re
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
SUFFIXES = {".h", ".cpp", ".c", ".def", ".cuh", ".cu", ".inl", ".py", ".sh"}
TOPS = ("src", "include", "tools", "tests", "scripts", "bench", "examples")
# Strings first, so that a quoted // stays; raw strings hold whole graphs and device code.
TOKENS = re.compile(r'R"(\w*)\(.*?\)\1"|"(?:\\.|[^"\\\n])*"|\'(?:\\.|[^\'\\\n])\'|//[^\n]*|/\*.*?\*/', re.DOTALL)
SCOPE = re.compile(r"\b(namespace|class|struct|union|enum)\b[^()=]*$|\bextern\s+s\s*$|^\s*$")
NAME = re.compile(r"([\w:~]+|operator\W{1,3})\s*\([^{}]*\)[^()]*(?:\([^{}]*)?$", re.DOTALL)


def bare(text):
    """C++ without comments and what is quoted, in as many lines."""
    def instead(match):
        quoted = match[0][0] in "R\"'"
        return ("s" if quoted else " ") + "\n" * match[0].count("\n")
    text = TOKENS.sub(instead, text)
    return re.sub(r"^[ \t]*#(?:[^\n]*\\\n)*[^\n]*", lambda m: "\n" * m[0].count("\n"), text, flags=re.MULTILINE)


def code_lines(text, suffix):
    if suffix in {".py", ".sh"}:
        return sum(1 for line in text.splitlines() if line.strip() and not line.strip().startswith("#"))
    text = TOKENS.sub(lambda m: "s" if m[0][0] in "R\"'" else "", text)
    return sum(1 for line in text.splitlines() if line.strip())


def python_functions(text):
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
            yield node.name, node.lineno, node.end_lineno - node.lineno + 1


def cpp_functions(text):
    """(name, line, lines) of functions at namespace or class scope."""
    text = bare(text)
    opened, head, line, start = [], "", 1, 1  # opened: what each open brace began, and its function
    for char in text:
        if char == "\n":
            line += 1
        if char == "{":
            inside = any(kind == "function" for kind, _, _ in opened)
            named = None if inside or SCOPE.search(head) else NAME.search(head)
            opened.append(("function" if named else "scope", named and named[1].strip(), start))
            head = ""
        elif char == "}":
            if opened:
                kind, name, from_line = opened.pop()
                if kind == "function":
                    yield name, from_line, line - from_line + 1
            head = ""
        elif char == ";" and head.count("(") == head.count(")"):
            head = ""
        else:
            if not head.strip():
                start = line
            head += char


def count():
    rooms, files, functions = {}, [], []
    for top in TOPS:
        for path in sorted((ROOT / top).rglob("*")) if (ROOT / top).is_dir() else []:
            if path.suffix not in SUFFIXES or "__pycache__" in path.parts:
                continue
            text, name = path.read_text(errors="replace"), path.relative_to(ROOT)
            test = "test" in name.parts or "tests" in name.parts or path.stem.endswith("_test")
            room = name.parts[1] if top == "src" and len(name.parts) > 2 else top
            entry = rooms.setdefault(room, {"files": 0, "code": 0, "tests": 0})
            entry["files"] += 1
            entry["tests" if test else "code"] += code_lines(text, path.suffix)
            files.append({"file": str(name), "lines": text.count("\n")})
            if path.suffix in {".sh", ".def"}:
                continue
            found = python_functions(text) if path.suffix == ".py" else cpp_functions(text)
            functions += [{"function": called, "file": str(name), "line": line, "lines": lines} for called, line, lines in found]
    def longest(rows):
        return sorted(rows, key=lambda row: -row["lines"])
    total = sum(entry["code"] for room, entry in rooms.items() if room not in TOPS[1:])
    return {"rooms": rooms, "src": total, "files": longest(files), "functions": longest(functions)}


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--longest", type=int, default=20, help="how many files and functions are listed")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    sizes = count()
    sizes["files"], sizes["functions"] = sizes["files"][:options.longest], sizes["functions"][:options.longest]
    if options.json:
        print(json.dumps(sizes, indent=1))
        return
    print(f"{'room':<10} {'files':>5} {'code':>6} {'tests':>6}")
    for room, entry in sizes["rooms"].items():
        print(f"{room:<10} {entry['files']:>5} {entry['code']:>6} {entry['tests']:>6}")
    print(f"src: {sizes['src']} code lines\n\nlongest files")
    for each in sizes["files"]:
        print(f"{each['lines']:>6} {each['file']}")
    print("\nlongest functions")
    for each in sizes["functions"]:
        print(f"{each['lines']:>6} {each['file']}:{each['line']} {each['function']}")


if __name__ == "__main__":
    main()
