"""NumPy stands in for JAX where it is not installed: as much of it as scripts/jax_peer.py speaks
to. What is "traced" is an Array, so that constants can be told from it. Compiling takes SECONDS, and
LOG says whether it had the GPU's turn."""

import fcntl
import math
import os
import sys
import time
from types import ModuleType, SimpleNamespace

import numpy as np

__version__ = "0-stub"
LOG = os.environ.get("STUB_JAX_LOG", os.devnull)
SECONDS = float(os.environ.get("STUB_JAX_SECONDS", 0))
config = SimpleNamespace(update=lambda name, value: None)


class Array(np.ndarray):
    pass


def arrays(x):
    if isinstance(x, (tuple, list)):
        return type(x)(arrays(one) for one in x)
    return np.asarray(x).view(Array)


class Numpy(ModuleType):
    def __getattr__(self, name):
        return lambda *words, **more: arrays(getattr(np, name)(*words, **more))


numpy = sys.modules["jax.numpy"] = Numpy("jax.numpy")
lax = sys.modules["jax.lax"] = ModuleType("jax.lax")
lax.erf = lambda x: arrays(np.vectorize(math.erf, otypes=[x.dtype])(x))
lax.logistic = lambda x: arrays((1 / (1 + np.exp(-x.astype("f4")))).astype(x.dtype))
lax.max, lax.add = np.maximum, np.add


def windows(x, sizes, strides, pads, fill, dilations=None):
    """x cut into windows: their places first, then what stands in each."""
    x = np.pad(np.asarray(x), pads, constant_values=fill)
    dilations = dilations or [1] * x.ndim
    whole = [(n - 1) * d + 1 for n, d in zip(sizes, dilations)]
    view = np.lib.stride_tricks.sliding_window_view(x, whole)
    places = tuple(slice(None, None, s) for s in strides)
    return view[places + tuple(slice(None, None, d) for d in dilations)]


def reduce_window(x, start, combine, sizes, strides, pads):
    view = windows(x, sizes, strides, pads, start)
    return arrays(combine.reduce(view, axis=tuple(range(x.ndim, 2 * x.ndim))))


def conv_general_dilated(x, w, strides, pads, *, rhs_dilation, dimension_numbers,
                         feature_group_count):
    assert dimension_numbers == ("NCHW", "OIHW", "NCHW")
    parts = []
    for data, kernel in zip(np.split(np.asarray(x, "f4"), feature_group_count, 1),
                            np.split(np.asarray(w, "f4"), feature_group_count, 0)):
        view = windows(data, (1, 1, *kernel.shape[2:]), (1, 1, *strides),
                       ((0, 0), (0, 0), *pads), 0, [1, 1, *rhs_dilation])[..., 0, 0, :, :]
        parts.append(np.einsum("nchwij,ocij->nohw", view, kernel))
    return arrays(np.concatenate(parts, 1).astype(x.dtype))


def scan(step, before, rows, unroll):
    after = []
    for row in rows:
        before, one = step(before, row)
        after.append(one)
    return before, arrays(np.stack(after))


lax.reduce_window, lax.conv_general_dilated, lax.scan = reduce_window, conv_general_dilated, scan


def over(function, x):
    return tuple(over(function, one) for one in x) if isinstance(x, tuple) else function(x)


tree = SimpleNamespace(map=over)


def ShapeDtypeStruct(shape, dtype):
    return shape, dtype


def devices(backend):
    if os.environ.get("STUB_JAX_NO_GPU"):
        raise RuntimeError(f"Unknown backend {backend}")
    return [backend]


def device_put(x, device):
    return over(arrays, x)


def block_until_ready(x):
    return x


def jit(function):
    def compile():
        time.sleep(SECONDS)
        alone = False
        if os.environ.get("OBELISK_GPU_TURN"):
            with open(os.environ["OBELISK_GPU_TURN"], "w") as file:
                try:
                    fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                except BlockingIOError:
                    alone = True
        with open(LOG, "a") as log:
            log.write(f"compiled alone: {alone}\n")
        return function
    return SimpleNamespace(lower=lambda *shapes: SimpleNamespace(compile=compile))
