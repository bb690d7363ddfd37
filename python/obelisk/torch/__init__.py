"""`torch.compile(model, backend="obelisk")`.

    import torch
    fast = torch.compile(model, backend="obelisk")     # nothing of obelisk has to be imported
    with torch.no_grad():
        scores = fast(pixels)

    import obelisk.torch
    print(obelisk.torch.report())                      # what runs as programs of Obelisk, and why the rest does not

Graphs that cannot be compiled run eagerly, and so does a program whose first answers are not PyTorch's; the logger
`obelisk.torch` says why. `options={...}` of `torch.compile` takes those of `obelisk.torch.Options` and the keywords
of `obelisk.compile`.
"""
from __future__ import annotations

from typing import Any, Callable, Mapping, Optional, Sequence

import torch

from ._backend import Options, compile_graphs
from ._report import Graph, Report, report, reset

__all__ = ["Graph", "Options", "Report", "backend", "report", "reset"]


def backend(graph: "torch.fx.GraphModule", inputs: Sequence[Any], *, options: Optional[Mapping[str, Any]] = None, mode: Optional[str] = None,
            dynamic: Optional[bool] = None) -> Callable[..., Any]:
    """Dynamo's interface of a backend: called by `torch.compile`."""
    return compile_graphs(graph, inputs, Options.of(options))


def _register() -> None:
    from torch._dynamo.backends import registry
    if "obelisk" not in registry._COMPILER_FNS and registry._BACKENDS.get("obelisk") is None:
        registry.register_backend(compiler_fn=backend, name="obelisk")


_register()
