"""A network whose inputs and outputs are tensors of Python: NumPy's on a CPU, PyTorch's on a GPU,
by DLPack, without a copy, on PyTorch's stream.

    tensors.py LIBRARY NETWORK [--target cuda] [--seed 1] [--save FILE.npz] [--count]
               [NAME=EXTENT ...]

LIBRARY is libtensors.so, built from tensors.cpp beside this file.
"""

import argparse
import ctypes
import sys

import numpy as np

NAMES = {"f64": "float64", "f32": "float32", "f16": "float16", "bf16": "bfloat16", "b1": "bool"}
for bits in (8, 16, 32, 64):
    NAMES |= {f"i{bits}": f"int{bits}", f"u{bits}": f"uint{bits}"}


class Refused(RuntimeError):
    """What the library says it cannot do, with the way out."""


class Network:
    """ports: (side, name, type as NumPy calls it, shape), side is "in" or "out"."""

    def __init__(self, library, path, target="cpu", dimensions=""):
        self.library = ctypes.CDLL(library)
        self.library.tensors_open.restype = ctypes.c_void_p
        self.library.tensors_error.restype = self.library.tensors_ports.restype = ctypes.c_char_p
        words = (str(word).encode() for word in (path, target, dimensions))
        self.bound, self.network = {}, ctypes.c_void_p(self.library.tensors_open(*words))
        self.check(0 if self.network else -1)
        lines = self.library.tensors_ports(self.network).decode().splitlines()
        self.ports = [(side, name, NAMES[element], tuple(map(int, shape)))
                      for side, name, element, *shape in map(str.split, lines)]

    def __del__(self):
        if getattr(self, "network", None):
            self.library.tensors_close(self.network)

    def check(self, status):
        if status != 0:
            raise Refused(self.library.tensors_error().decode())

    def bind(self, side, name, tensor):
        """Uses the tensor's memory from now on; it lives as long as it is bound."""
        capsule = tensor.__dlpack__()
        pointer = ctypes.pythonapi.PyCapsule_GetPointer
        pointer.restype, pointer.argtypes = ctypes.c_void_p, (ctypes.py_object, ctypes.c_char_p)
        words = (side.encode(), name.encode(), ctypes.c_void_p(pointer(capsule, b"dltensor")))
        self.check(self.library.tensors_bind(self.network, *words))
        self.bound[side, name] = capsule

    def run(self):
        self.check(self.library.tensors_run(self.network))

    def run_on(self, stream):
        """Returns before the work is done. `stream`: a number, as torch.cuda.Stream.cuda_stream."""
        self.check(self.library.tensors_run_on(self.network, ctypes.c_void_p(stream)))


def numbers(random, element, shape):
    """What an input holds: -1 to 1, or whole numbers from 0 to 9."""
    if np.issubdtype(element, np.floating):
        return random.uniform(-1, 1, shape).astype(element)
    return random.integers(0, 2 if element == "bool" else 10, shape).astype(element)


def on_cpu(network, inputs):
    made = {port[1]: np.empty(port[3], port[2]) for port in network.ports if port[0] == "out"}
    for name, value in inputs.items():
        network.bind("in", name, value)
    for name, value in made.items():
        network.bind("out", name, value)
    network.run()
    return made


def on_gpu(network, inputs):
    """Three times on a stream of PyTorch's, into the same tensors: between them PyTorch's own
    kernels fill the inputs and take the outputs, and nobody waits but the stream."""
    import torch
    stream = torch.cuda.Stream()
    given = {name: torch.zeros(value.shape, dtype=getattr(torch, str(value.dtype)), device="cuda")
             for name, value in inputs.items()}
    made = {name: torch.empty(shape, dtype=getattr(torch, element), device="cuda")
            for side, name, element, shape in network.ports if side == "out"}
    wanted = {name: torch.from_numpy(value).cuda() for name, value in inputs.items()}
    for side, tensors in (("in", given), ("out", made)):
        for name, tensor in tensors.items():
            network.bind(side, name, tensor)
    torch.cuda.synchronize()
    kept = []
    with torch.cuda.stream(stream):
        for real in (True, False, True):
            for name, tensor in given.items():
                tensor.copy_(wanted[name]) if real else tensor.zero_()
            network.run_on(stream.cuda_stream)
            kept.append({name: tensor.clone() for name, tensor in made.items()})
    stream.synchronize()
    first, zeros, last = kept
    assert all(torch.equal(first[name], last[name]) for name in made), "not the same bits again"
    assert any(not torch.equal(first[name], zeros[name]) for name in made), "zeros change nothing"
    return {name: tensor.cpu().numpy() for name, tensor in last.items()}


def counted(network):
    """What one run gives the GPU to do, as its profiling library sees it; the tensors are bound."""
    import torch
    from torch.profiler import ProfilerActivity, profile
    stream = torch.cuda.Stream()
    with profile(activities=[ProfilerActivity.CUDA]) as seen:
        network.run_on(stream.cuda_stream)
        stream.synchronize()
    names = [e.name.lower() for e in seen.events() if e.device_type == torch.autograd.DeviceType.CUDA]
    copies, fills = (sum(word in name for name in names) for word in ("memcpy", "memset"))
    return f"{len(names) - copies - fills} kernels, {copies} copies, {fills} fills"


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("library")
    parser.add_argument("network")
    parser.add_argument("dimensions", nargs="*", help="NAME=EXTENT")
    parser.add_argument("--target", default="cpu")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--save", help="a file for inputs and outputs")
    parser.add_argument("--count", action="store_true", help="of a GPU: what a run consists of")
    options = parser.parse_args()
    network = Network(options.library, options.network, options.target, " ".join(options.dimensions))
    random = np.random.default_rng(options.seed)
    inputs = {name: numbers(random, element, shape)
              for side, name, element, shape in network.ports if side == "in"}
    outputs = (on_cpu if options.target == "cpu" else on_gpu)(network, inputs)
    for name, value in outputs.items():
        print(f"{name} {list(value.shape)} {value.dtype}: root mean square "
              f"{np.sqrt(np.mean(np.square(value, dtype=np.float64))):.6g}")
    if options.count:
        print(f"a run: {counted(network)}")
    if options.save:
        np.savez(options.save, **inputs, **outputs)


if __name__ == "__main__":
    try:
        main()
    except Refused as why:
        sys.exit(f"error: {why}")
