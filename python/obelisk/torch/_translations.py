"""ATen operations that PyTorch's ONNX exporter has no translation for, in operators of ONNX."""
from __future__ import annotations

import functools
from typing import Any, Callable, Dict


@functools.cache
def translations() -> Dict[Callable[..., Any], Callable[..., Any]]:
    """The table for `torch.onnx.export(custom_translation_table=...)`."""
    return {}
