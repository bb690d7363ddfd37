#!/usr/bin/env python3
"""Keeps the rooms apart, as src/rooms.txt and the house rules say. Prints FILE:LINE: what is wrong.

  looks right      a room includes only rooms to its left (above it in rooms.txt)
  side entrance    another room is entered by its door, room/room.h; base's small headers are doors
  foreign word     a word that rooms.txt keeps out of the room, in code or comment
  too long         a line of more than 100 columns, as .clang-format has them; but rows of tables (*.def), and raw
                   strings, whose lines are another language's

Tests (ROOM/test/, *_test.cpp) may say any word, and may enter any header to their left.
"""
import argparse
import re
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
SUFFIXES = {".h", ".cpp", ".def", ".cuh", ".cu"}
COLUMNS = 100
RAW = re.compile(r'R"([^()\\\s]{0,16})\(')
# Rooms whose headers are each a door: nothing stands behind them that could be entered sideways.
OPEN_ROOMS = {"base"}
# Headers that are doors beside room/room.h: what the cost models know of one machine, for those alone that price its tiles.
DOORS = {"machine": {"costs_cpu.h", "costs_cuda.h"}}


def read_rooms(path):
    """[(room, words that are foreign to it)], left to right."""
    rooms = []
    for line in path.read_text().splitlines():
        line = line.split("#")[0].strip()
        if line:
            name, *words = line.split()
            rooms.append((name, [word.removeprefix("!") for word in words]))
    return rooms


def is_test(path):
    return "test" in path.parts or path.stem.endswith("_test")


def check_include(room, text, order, sideways):
    match = re.match(r'\s*#\s*include\s+"(\w+)/([^"]+)"', text)
    if not match or match[1] not in order or match[1] == room:
        return None
    other, header = match.groups()
    if order[other] > order[room]:
        return f"{room} looks right, to {other}; pass the fact in from the left"
    if header not in DOORS.get(other, set()) | {f"{other}.h"} and other not in OPEN_ROOMS and not sideways:
        return f"side entrance to {other}; include \"{other}/{other}.h\""
    return None


def lines_without_raw_strings(text):
    """(number, line) of the lines that no raw string has a part of."""
    raw, at = set(), 0
    while opens := RAW.search(text, at):
        at = text.find(f'){opens[1]}"', opens.end())
        at = len(text) if at < 0 else at
        raw.update(range(text.count("\n", 0, opens.start()) + 1, text.count("\n", 0, at) + 2))
    return [(number, line) for number, line in enumerate(text.splitlines(), 1) if number not in raw]


def check_columns(path):
    name = path.relative_to(ROOT)
    for number, text in lines_without_raw_strings(path.read_text()) if path.suffix != ".def" else []:
        if len(text) > COLUMNS:
            yield f"{name}:{number}: {len(text)} columns, allowed are {COLUMNS}"


def check_file(path, room, words, order):
    name = path.relative_to(ROOT)
    test = is_test(path.relative_to(ROOT / "src"))
    for number, text in enumerate(path.read_text().splitlines(), 1):
        wrong = check_include(room, text, order, sideways=test)
        if wrong:
            yield f"{name}:{number}: {wrong}"
        for word in words if not test else []:
            if re.search(word, text, re.IGNORECASE):
                yield f"{name}:{number}: '{word}' is not a word of {room}"


def main():
    argparse.ArgumentParser(description=__doc__.split("\n")[0]).parse_args()
    rooms = read_rooms(ROOT / "src" / "rooms.txt")
    order = {name: place for place, (name, _) in enumerate(rooms)}
    wrong, files = [], 0
    for room, words in rooms:
        for path in sorted((ROOT / "src" / room).rglob("*")):
            if path.suffix in SUFFIXES:
                files += 1
                wrong += check_file(path, room, words, order)
                wrong += check_columns(path)
    print("\n".join(wrong + [f"rooms: {files} files, {len(wrong)} breaches"]))
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
