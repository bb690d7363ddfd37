"""Whether a program's answers are those of PyTorch, as far as the arithmetic of the model's own element types can say."""
from __future__ import annotations

import math
from typing import Any, List, Optional, Sequence, Tuple

import torch

#: A difference of so many units of the element type's precision, relative to the output's scale, is rounding whatever the model is.
PLAIN_ROUNDING = 32
#: How many times the distance of eager's own answer from the answer in f64 a program's may have.
CONDITIONING = 4

_LOW = (torch.float32, torch.float16, torch.bfloat16)


def in_double(graph: torch.fx.GraphModule, arguments: Sequence[Any]) -> List[Any]:
    """What the graph means, with all of its floating-point arithmetic in f64."""
    class Double(torch.fx.Interpreter):
        def run_node(self, node: torch.fx.Node) -> Any:
            if node.op == "get_attr":
                return _double(super().run_node(node))
            return super().run_node(node)

        def call_function(self, target: Any, args: Any, kwargs: Any) -> Any:
            args, kwargs = torch.fx.node.map_aggregate((args, kwargs), lambda a: torch.float64 if a in _LOW else a)
            return super().call_function(target, args, kwargs)
    return list(Double(graph).run(*(_double(a) for a in arguments)))


def _double(value: Any) -> Any:
    return value.double() if isinstance(value, torch.Tensor) and value.dtype in _LOW else value


def _distance(a: torch.Tensor, b: torch.Tensor, scale: float) -> float:
    """The largest difference, relative to `scale`; infinities and NaN have to be the same ones."""
    a, b = a.double(), b.double()
    finite = torch.isfinite(b)
    if not torch.equal(finite, torch.isfinite(a)) or not torch.equal(torch.nan_to_num(a[~finite], nan=7.0), torch.nan_to_num(b[~finite], nan=7.0)):
        return math.inf
    difference = (a - b)[finite].abs()
    return float(difference.max()) / scale if difference.numel() else 0.0


def compare(made: Sequence[Any], eager: Sequence[Any], graph: torch.fx.GraphModule, arguments: Sequence[Any],
            precision: float = 0.0) -> Tuple[float, Optional[str]]:
    """(the largest error, None) or (the error, what is wrong). `precision` is that of the arithmetic where the program's is coarser than
    the model's, and 0 elsewhere. An answer beyond plain rounding is judged by the graph in f64: it may be as far from that as
    CONDITIONING times eager's."""
    largest, exact = 0.0, None
    for index, (mine, theirs) in enumerate(zip(made, eager)):
        if not isinstance(theirs, torch.Tensor):
            if mine != theirs:
                return math.inf, f"output {index} is {mine}, eager's is {theirs}"
            continue
        if mine.shape != theirs.shape or mine.dtype != theirs.dtype:
            return math.inf, f"output {index} is {mine.dtype}{list(mine.shape)}, eager's is {theirs.dtype}{list(theirs.shape)}"
        if not theirs.is_floating_point():
            if torch.equal(mine, theirs):
                continue
            exact = exact or _exact(graph, arguments)
            if exact is None or not bool(((mine == theirs) | (mine == exact[index])).all()):
                return math.inf, f"{int((mine != theirs).sum())} of {mine.numel()} integers of output {index} differ from eager's"
            continue
        finite = theirs[torch.isfinite(theirs)]
        scale = float(finite.abs().max()) if finite.numel() else 1.0
        scale = scale or 1.0
        error = _distance(mine, theirs, scale)
        tolerance = PLAIN_ROUNDING * max(torch.finfo(theirs.dtype).eps, precision)
        if error > tolerance:
            exact = exact or _exact(graph, arguments)
            if exact is None:
                return error, f"output {index} differs from eager's by {error:.1e} of its scale, rounding explains {tolerance:.1e}"
            own = _distance(theirs, exact[index], scale)
            error = _distance(mine, exact[index], scale)
            if error > max(tolerance, CONDITIONING * own):
                return error, f"output {index} is {error:.1e} of its scale from the answer in f64, eager's is {own:.1e}"
        largest = max(largest, error)
    return largest, None


def _exact(graph: torch.fx.GraphModule, arguments: Sequence[Any]) -> Optional[List[Any]]:
    try:
        return in_double(graph, arguments)
    except Exception:  # kernels that have no f64: eager's answer alone decides then
        return None
