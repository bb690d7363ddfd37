#!/usr/bin/env python3
"""Writes what the fuzzers begin with: seeds.py FOLDER [KIND…] → FOLDER/{onnx,ir,npy,npz,obk}/…

onnx: the models of onnx's own backend tests that are small (a case for nearly every op and
attribute).
ir:   the graphs that the rooms' tests are written in.   npy, npz: arrays of every type, by numpy.
obk:  some of those graphs compiled, without their machine code, which no reader looks into; and
      hostile_portable, which `--portable` must not follow. tests/fuzz/corpus/obk has a copy of that
      one: write it anew when the format changes.
Nothing else of this is kept in the repository: it comes from the packages and the sources here.
"""

import ctypes
import re
import struct
import subprocess
import sys
import tempfile
from pathlib import Path

import numpy as np
import onnx

ROOT = Path(__file__).resolve().parents[2]
MOST = 6000  # bytes of a seed: a mutation of a longer one seldom meets what decides
HEADER, ENTRY, SECTIONS = 24, 40, 5
TABLES, BODIES, OBJECTS = 0, 2, 3


def graphs():
    """Texts of graphs, from the cases of all rooms."""
    found = {}
    for file in sorted(ROOT.glob("src/*/test/*")):
        if file.suffix not in (".ir", ".cpp", ".h"):
            continue
        text = file.read_text()
        for match in re.finditer(r'^\S*?(graph "[^\n]*\{\n.*?^\})', text, re.MULTILINE | re.DOTALL):
            if len(match[1]) <= MOST and "@random" not in match[1]:
                found.setdefault(match[1] + "\n", f"{file.stem}_{len(found):03}")
    return [(name, text) for text, name in found.items()]


def sections_of(file):
    entries = [
        struct.unpack_from("<IIQQQQ", file, HEADER + k * ENTRY) for k in range(SECTIONS)
    ]
    return [file[entry[2]:entry[2] + entry[3]] for entry in entries]


class Hash128(ctypes.Structure):
    _fields_ = [("low", ctypes.c_uint64), ("high", ctypes.c_uint64)]


def hashed(part):
    library = ctypes.CDLL("libxxhash.so.0")
    library.XXH3_128bits.restype = Hash128
    return library.XXH3_128bits(ctypes.c_char_p(bytes(part)), ctypes.c_size_t(len(part)))


def laid_out(file, parts):
    """The compiled file with these sections; weights keep their hash, for they are not changed."""
    out = bytearray(file[:HEADER + SECTIONS * ENTRY + 16])
    for k, part in enumerate(parts):
        out += bytes(-len(out) % 64)
        entry = list(struct.unpack_from("<IIQQQQ", file, HEADER + k * ENTRY))
        entry[2:4] = len(out), len(part)
        if k < SECTIONS - 1:
            hash = hashed(part)
            entry[4:6] = hash.high, hash.low
        struct.pack_into("<IIQQQQ", out, HEADER + k * ENTRY, *entry)
        out += part
    out += bytes(-len(out) % 64)
    struct.pack_into("<Q", out, 8, len(out))
    end = HEADER + SECTIONS * ENTRY
    hash = hashed(out[:end])
    struct.pack_into("<QQ", out, end, hash.high, hash.low)
    return bytes(out)


def without_code(file):
    """The bytes of a compiled file whose machine code is gone."""
    parts = sections_of(file)
    (need,) = struct.unpack_from("<Q", parts[OBJECTS])
    parts[OBJECTS] = parts[OBJECTS][:8 + need] + bytes(8)
    return laid_out(file, parts)


def hostile(file):
    """A compiled file with right checksums that nobody may run: its source does not compile, its
    machine code traps, its program wants 8 TiB. The graph inside is as it was."""
    parts = sections_of(file)
    (need,) = struct.unpack_from("<Q", parts[OBJECTS])
    (objects,) = struct.unpack_from("<Q", parts[OBJECTS], 8 + need)
    trap = b"\x0f\x0b" * 32
    parts[OBJECTS] = parts[OBJECTS][:16 + need] + objects * (struct.pack("<Q", len(trap)) + trap)
    parts[BODIES] = re.sub(rb"return|void", lambda word: b"#" * len(word[0]), parts[BODIES])
    tables = bytearray(parts[TABLES])
    at = 8 + 32 * struct.unpack_from("<Q", tables)[0]  # behind the weights' places
    for _ in range(4):  # name, target, granularity, precision
        at += 8 + struct.unpack_from("<Q", tables, at)[0]
    struct.pack_into("<q", tables, at + 8, 1 << 43)  # behind the numbers of lists and waves
    parts[TABLES] = bytes(tables)
    return laid_out(file, parts)


HOSTILE = """graph "hostile" {
  in %0 "x": f32[2,4]
  const %1 "w": f32[4,2] = [1, 0, 0, 1, 1, 0, 0, 1]
  %2: f32[2,2] = MatMul(%0, %1)
  %3 "y": f32[2,2] = Relu(%2)
  out %3 "y"
}
"""


def compiled(cases, folder):
    for name, text in [("hostile_portable", HOSTILE), *cases]:
        with tempfile.TemporaryDirectory(prefix="obelisk-") as scratch:
            model, file = Path(scratch) / "m.ir", Path(scratch) / "m.obk"
            model.write_text(text)
            words = [
                "compile",
                model,
                "-o",
                file,
                "--target",
                "cpu",
                "--sms",
                "2",
                "--verify",
                "off",
            ]
            done = subprocess.run([ROOT / "build/bin/obelisk", *words], capture_output=True)
            if done.returncode == 0:
                keep = hostile if text is HOSTILE else without_code
                small = keep(file.read_bytes())
                if len(small) <= MOST:
                    (folder / name).write_bytes(small)


def arrays(folder):
    for name in "?bBhHiIlLefdFD":
        for shape in ((), (3,), (2, 0), (2, 3)):
            values = np.ones(shape, name)
            big = values.astype(values.dtype.newbyteorder(">"))
            for tag, array in (("c", values), ("f", np.asfortranarray(values)), ("big", big)):
                with open(folder / f"{values.dtype.name}_{len(shape)}_{tag}", "wb") as file:
                    file.write(bytes([values.dtype.num % 20]))  # the type that is wanted
                    np.lib.format.write_array(file, array, version=(1, 0) if tag != "f" else (2, 0))


def archives(folder):
    some = {"x": np.arange(6, dtype=np.float32).reshape(2, 3), "y": np.ones((), np.int64),
            "z": np.zeros((0, 4), bool)}
    np.savez(folder / "stored.npz", **some)
    np.savez_compressed(folder / "deflated.npz", **some)
    np.savez_compressed(folder / "long.npz", x=np.zeros(5000, np.uint16))


def models(folder):
    for file in sorted(Path(onnx.__file__).parent.glob("backend/test/data/*/*/model.onnx")):
        if file.stat().st_size <= MOST:
            (folder / file.parent.name).write_bytes(file.read_bytes())


def texts(folder):
    for name, text in graphs():
        (folder / name).write_text(text)


WRITERS = {"onnx": models, "ir": texts, "npy": arrays, "npz": archives,
           "obk": lambda folder: compiled(graphs()[::4], folder)}


def main():
    folders = {}
    for name in sys.argv[2:] or WRITERS:
        folders[name] = Path(sys.argv[1]) / name
        folders[name].mkdir(parents=True, exist_ok=True)
        WRITERS[name](folders[name])
    print(
        "seeds: "
        + ", ".join(f"{len(list(folder.iterdir()))} {name}" for name, folder in folders.items())
    )


if __name__ == "__main__":
    main()
