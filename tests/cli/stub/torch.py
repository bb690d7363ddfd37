"""Stands in for PyTorch where tests need no GPU: as much of it as scripts/torch_peer.py speaks to.
A module is called as it is; every run takes STEP seconds, of a graph half as long, compiled a
quarter. Which settings were asked for, and what ran, stands in LOG."""

import contextlib
import os
import sys
import time
from types import ModuleType, SimpleNamespace

import numpy

__version__ = "0-stub"
float16, bfloat16, uint8 = "float16", "bfloat16", "u1"
STEP = 2e-4
LOG = os.environ.get("STUB_TORCH_LOG", os.devnull)
pace = [1.0]
_dynamo = SimpleNamespace(reset=lambda: None)
nn = sys.modules["torch.nn"] = ModuleType("torch.nn")  # classes of networks that nobody makes
nn.Module, nn.functional = object, ModuleType("torch.nn.functional")
sys.modules["torch.nn.functional"] = nn.functional


class Switch:
    def __init__(self, name):
        object.__setattr__(self, "name", name)

    def __setattr__(self, key, value):
        with open(LOG, "a") as log:
            log.write(f"{self.name}.{key} = {value}\n")


backends = SimpleNamespace(
    cuda=SimpleNamespace(matmul=Switch("matmul")), cudnn=Switch("cudnn"), mha=Switch("mha")
)


class Tensor:
    def __init__(self, array):
        self.array = numpy.asarray(array)

    def is_floating_point(self):
        return self.array.dtype.kind == "f"

    def to(self, dtype):
        return Tensor(self.array.astype({"float16": "f2"}.get(dtype, "f4")))

    def float(self):
        return Tensor(self.array.astype("f4"))

    def cuda(self):
        return self

    cpu = cuda

    def numpy(self):
        return self.array

    def numel(self):
        return self.array.size

    def element_size(self):
        return self.array.itemsize

    def copy_(self, other):
        with open(LOG, "a") as log:
            log.write(f"copy {other.array.nbytes} -> {self.array.nbytes}\n")


def from_numpy(array):
    return Tensor(array)


def tensor(data, dtype=None, device=None):
    return Tensor(numpy.asarray(data))


def empty(count, dtype, device):
    return Tensor(numpy.empty(count, dtype))


class Module:
    """A function of arrays."""

    def __init__(self, function):
        self.function = function

    def eval(self):
        return self

    cuda = eval

    def to(self, dtype):
        return self

    def __call__(self, *inputs):
        time.sleep(STEP * pace[0])
        return Tensor(self.function(*(t.array for t in inputs)))


class inference_mode(contextlib.ContextDecorator):
    def __enter__(self):
        return self

    def __exit__(self, *_):
        return False


def compile(module, mode=None, fullgraph=False):
    if mode:
        raise NotImplementedError(mode)
    def compiled(*inputs):
        pace[0] = 0.5
        try:
            return module(*inputs)
        finally:
            pace[0] = 1.0
    return compiled


class cuda:
    class Event:
        def __init__(self, enable_timing=False):
            self.at = 0.0

        def record(self):
            self.at = time.perf_counter()

        def synchronize(self):
            pass

        def elapsed_time(self, stop):
            return (stop.at - self.at) * 1e3

    class CUDAGraph:
        call = None

        def replay(self):
            time.sleep(STEP / 4)

    @staticmethod
    def is_available():
        return not os.environ.get("STUB_TORCH_NO_GPU")

    @staticmethod
    def Stream():
        return None

    @staticmethod
    def stream(_):
        return contextlib.nullcontext()

    graph = stream

    @staticmethod
    def synchronize():
        pass
