"""Obelisk compiles a neural network into one program and runs it.

    import obelisk
    model = obelisk.compile("m.onnx", precision="fp16", shapes={"batch": 8})
    scores = model(pixels)

    session = obelisk.InferenceSession("m.onnx")       # the shape of ONNX Runtime's
    scores, = session.run(["scores"], {"pixels": pixels})

`compile` and `load` give a `Model`, which is called with NumPy arrays, or with tensors of other
libraries by DLPack. Errors are `obelisk.Error`, with a class for each kind.
"""
from __future__ import annotations

import os as _os
import sys as _sys

# The Python that imports this is the one whose packages may bring the compiler of device code.
_os.environ.setdefault("OBELISK_PYTHON", _sys.executable or "python3")

from . import _obelisk  # noqa: E402
from ._errors import (  # noqa: E402
    AccuracyError, BadModelError, BuildError, DeviceError, Error, InterruptedError, OutOfMemoryError, UnsupportedError,
    UsageError)
from ._model import Model, Port, compile, load  # noqa: E402
from ._session import InferenceSession, IOBinding, NodeArg, SessionOptions  # noqa: E402

__version__: str = _obelisk.__version__
__all__ = [
    "AccuracyError", "BadModelError", "BuildError", "DeviceError", "Error", "IOBinding", "InferenceSession",
    "InterruptedError", "Model", "NodeArg", "OutOfMemoryError", "Port", "SessionOptions", "UnsupportedError",
    "UsageError", "compile", "load"]
