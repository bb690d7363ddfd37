"""Obelisk as an execution provider of ONNX Runtime (1.24 or later): it runs what it can compile, ONNX Runtime the rest.

    import obelisk.onnxruntime, onnxruntime
    options = obelisk.onnxruntime.session_options(precision="fp16")
    session = onnxruntime.InferenceSession("m.onnx", options)

or, once it is registered, by its name: InferenceSession("m.onnx", providers=["ObeliskExecutionProvider"]).
"""
from __future__ import annotations

import threading
from typing import Any, List

from . import _obelisk
from ._errors import UsageError

PROVIDER = "ObeliskExecutionProvider"
_lock = threading.Lock()
_registered = False


def library_path() -> str:
    """The plug-in, for `register_execution_provider_library` of any language: this package's module is one."""
    return str(_obelisk.__file__)


def register() -> None:
    """Makes the provider known to this process's ONNX Runtime; what was registered already stays."""
    global _registered
    try:
        import onnxruntime
    except ImportError:
        raise UsageError("onnxruntime is not here", hint="pip install onnxruntime") from None
    if not hasattr(onnxruntime, "register_execution_provider_library"):
        raise UsageError(f"onnxruntime {onnxruntime.__version__} takes no plug-ins", hint="wanted is 1.24 or later")
    with _lock:
        if not _registered and not any(device.ep_name == PROVIDER for device in onnxruntime.get_ep_devices()):
            onnxruntime.register_execution_provider_library(PROVIDER, library_path())
        _registered = True


def devices() -> List[Any]:
    """The provider's devices, for `SessionOptions.add_provider_for_devices`."""
    register()
    import onnxruntime
    return [device for device in onnxruntime.get_ep_devices() if device.ep_name == PROVIDER]


def session_options(base: Any = None, **options: Any) -> Any:
    """`onnxruntime.SessionOptions` (`base`, or new ones) with the provider in it. `options` are named as those of
    obelisk.compile: target, precision, granularity, dispatch, search_seconds, threads, verify, verify_seconds, compiler, cache, memory_limit,
    batch_invariant, watchdog."""
    found = devices()
    import onnxruntime
    made = base if base is not None else onnxruntime.SessionOptions()
    made.add_provider_for_devices(found, {name: str(int(value)) if isinstance(value, bool) else str(value) for name, value in options.items()})
    return made
