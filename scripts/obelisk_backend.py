"""Obelisk as an ONNX backend: onnx.backend.base.Backend over the program `obelisk`.

One run of a model is   obelisk run M.onnx --inputs F.npz --output-dir D --json
and the answers are read back from D/NAME.npy, every character of NAME outside A-Za-z0-9._- as _.

Element types that NumPy lacks travel as their bits, and each side reads them by the model's own
input and output types:

  model type                   in F.npz and D/NAME.npy
  bfloat16                     V2, the bits
  float8*, float4e2m1          V1, the bits; float4e2m1 has one value a byte
  int4, int2 · uint4, uint2    int8 · uint8, one value a byte
  all others                   NumPy's own type

Strings, sequences, optionals and maps are refused with a message; the program does not run them.
"""
import json
import os
import re
import select
import signal
import subprocess
import tempfile
import time
import zipfile
from pathlib import Path

import ml_dtypes
import numpy as np
import onnx
from onnx import TensorProto
from onnx.backend.base import Backend, BackendRep

ROOT = Path(__file__).resolve().parent.parent
NOT_NUMPY = {
    getattr(TensorProto, name): np.dtype(getattr(ml_dtypes, kind))
    for name, kind in {
        "BFLOAT16": "bfloat16",
        "FLOAT8E4M3FN": "float8_e4m3fn",
        "FLOAT8E4M3FNUZ": "float8_e4m3fnuz",
        "FLOAT8E5M2": "float8_e5m2",
        "FLOAT8E5M2FNUZ": "float8_e5m2fnuz",
        "FLOAT8E8M0": "float8_e8m0fnu",
        "FLOAT4E2M1": "float4_e2m1fn",
        "INT4": "int4",
        "UINT4": "uint4",
        "INT2": "int2",
        "UINT2": "uint2",
    }.items()
    if hasattr(TensorProto, name) and hasattr(ml_dtypes, kind)
}
INTEGERS = {np.dtype(getattr(ml_dtypes, kind)) for kind in ("int2", "int4", "uint2", "uint4")}
STATUS = {
    1: "usage",
    2: "bad model",
    3: "unsupported",
    4: "build",
    5: "accuracy",
    6: "memory",
    7: "device",
}


class Failure(Exception):
    """The program gave no answer; the text is its own reason, in one line."""


def to_plain(array):
    """An array as NumPy can store it: values of the small integers, bits of the small floats."""
    if array.dtype in INTEGERS:
        return array.astype(np.int8 if array.dtype.name.startswith("int") else np.uint8)
    if array.dtype in NOT_NUMPY.values():
        return array.view(f"V{array.dtype.itemsize}")
    return array


def from_plain(array, element_type):
    """What was stored by the program's side of the table above, as an array of the model's type."""
    dtype = NOT_NUMPY.get(element_type)
    if dtype is None or array.dtype == dtype:
        return array
    if dtype in INTEGERS:
        return array.astype(dtype)
    if array.dtype.itemsize != dtype.itemsize:
        raise Failure(f"an output of type {dtype} came back as {array.dtype}")
    return np.ascontiguousarray(array).view(dtype)


def write_npz(path, arrays):
    """np.savez, but for any names: that one takes 'file' for itself."""
    with zipfile.ZipFile(path, "w") as archive:
        for name, array in arrays.items():
            with archive.open(f"{name}.npy", "w", force_zip64=True) as member:
                np.lib.format.write_array(
                    member, np.asanyarray(to_plain(array)), allow_pickle=False
                )


def output_file(folder, name):
    return Path(folder) / (re.sub(r"[^A-Za-z0-9._-]", "_", name) + ".npy")


def first_reason(text):
    """The line of the program's output that says what went wrong."""
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    for line in lines:
        if line.startswith("error"):
            return line.partition(":")[2].strip() or line
    return lines[0] if lines else "no message"


class Batch:
    """One process that runs one command after another (`obelisk batch`): a driver starts once."""

    running = {}  # by path

    def __init__(self, path):
        self.process = subprocess.Popen([str(path), "batch"], stdin=subprocess.PIPE,
                                        stdout=subprocess.PIPE, start_new_session=True)
        self.read = b""

    @classmethod
    def of(cls, path):
        kept = cls.running.get(path)
        if kept is None or kept.process.poll() is not None:
            kept = cls.running[path] = cls(path)
        return kept

    def __call__(self, words, timeout):
        """(status, standard output, standard error). Raises Failure; the process is a new one then."""
        until = time.monotonic() + timeout
        self.process.stdin.write(json.dumps(words).encode() + b"\n")
        self.process.stdin.flush()
        while b"\n" not in self.read:
            left = until - time.monotonic()
            if left <= 0 or not select.select([self.process.stdout], [], [], left)[0]:
                self.end()
                raise Failure(f"no answer within {timeout} s")
            more = os.read(self.process.stdout.fileno(), 1 << 20)
            if not more:
                code = self.process.wait()
                self.end()
                what = signal.Signals(-code).name if code < 0 else f"exit {code}"
                raise Failure(f"crash: {what}")
            self.read += more
        line, _, self.read = self.read.partition(b"\n")
        answer = json.loads(line)
        if STATUS.get(answer["status"]) == "device":  # a GPU's context may be of no more use
            self.end()
        return answer["status"], answer["stdout"], answer["stderr"]

    def end(self):
        if self.process.poll() is None:
            os.killpg(self.process.pid, signal.SIGKILL)
            self.process.wait()
        self.process.stdin.close()
        self.process.stdout.close()
        Batch.running = {path: one for path, one in Batch.running.items() if one is not self}


class Program:
    """The command line program: where it is, with what extra flags, for how long it may run, and
    whether in one process with the commands before."""

    def __init__(self, path=None, flags=(), timeout=30, batch=False):
        self.path = path or os.environ.get("OBELISK", ROOT / "build" / "bin" / "obelisk")
        self.flags = list(flags)
        self.timeout = timeout
        self.batch = batch

    def __call__(self, *arguments):
        """The JSON that the program printed. Raises Failure with its reason."""
        words = [*map(str, arguments), *self.flags, "--json"]
        if self.batch:
            status, out, err = Batch.of(self.path)(words, self.timeout)
            return self.answer(status, out, err)
        command = [str(self.path), *words]
        # A session of its own, so that a time-out ends the host compiler too.
        process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                                   stdin=subprocess.DEVNULL, text=True, errors="replace",
                                   start_new_session=True)
        try:
            out, err = process.communicate(timeout=self.timeout)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            process.communicate()
            raise Failure(f"no answer within {self.timeout} s") from None
        if process.returncode < 0:
            raise Failure(f"crash: {signal.Signals(-process.returncode).name}")
        return self.answer(process.returncode, out, err)

    @staticmethod
    def answer(status, out, err):
        if status:
            raise Failure(f"{STATUS.get(status, f'exit {status}')}: {first_reason(err or out)}")
        return json.loads(out) if out.strip() else {}


class Prepared(BackendRep):
    def __init__(self, model, program):
        self.model = model
        self.program = program

    def run(self, inputs, **kwargs):
        graph = self.model.graph
        stored = {tensor.name for tensor in graph.initializer}
        asked = [value for value in graph.input if value.name not in stored]
        if len(inputs) > len(asked):  # old files may feed inputs that have stored defaults, too
            asked = list(graph.input)
        feeds = {}
        for value, array in zip(asked, inputs):
            kind = value.type.WhichOneof("value")
            if kind != "tensor_type" or not isinstance(array, (np.ndarray, np.generic)):
                raise Failure(
                    f"unsupported: input '{value.name}' is of type "
                    f"{(kind or 'unknown').split('_')[0]}"
                )
            if array.dtype.kind in "OUS":
                raise Failure(f"unsupported: input '{value.name}' holds strings")
            feeds[value.name] = array
        with tempfile.TemporaryDirectory(prefix="obelisk-") as folder:
            model = Path(folder) / "model.onnx"
            model.write_bytes(self.model.SerializeToString())
            command = ["run", model, "--output-dir", folder]
            if feeds:
                write_npz(Path(folder) / "inputs.npz", feeds)
                command += ["--inputs", Path(folder) / "inputs.npz"]
            self.program(*command)
            return tuple(self.read(folder, value) for value in graph.output)

    @staticmethod
    def read(folder, value):
        path = output_file(folder, value.name)
        if not path.exists():
            raise Failure(f"output '{value.name}' was not written")
        return from_plain(np.load(path, allow_pickle=False), value.type.tensor_type.elem_type)


class ObeliskBackend(Backend):
    program = Program()  # what runs many cases puts a program with their flags and time here

    @classmethod
    def supports_device(cls, device):
        return device == "CPU"

    @classmethod
    def is_compatible(cls, model, device="CPU", **kwargs):
        return True  # each refusal comes from the program itself, with its reason

    @classmethod
    def prepare(cls, model, device="CPU", **kwargs):
        return Prepared(model, cls.program)

    @classmethod
    def run_node(cls, node, inputs, device="CPU", outputs_info=None, **kwargs):
        names = [name for name in node.input if name]
        values = [onnx.helper.make_tensor_value_info(
            name, onnx.helper.np_dtype_to_tensor_dtype(array.dtype), array.shape)
            for name, array in zip(names, inputs)]
        outputs = [onnx.ValueInfoProto(name=name) for name in node.output if name]
        graph = onnx.helper.make_graph([node], "node", values, outputs)
        return cls.prepare(onnx.helper.make_model(graph), device).run(inputs)
