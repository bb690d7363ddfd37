"""What became of the graphs that Dynamo handed over: counted, and written to the logger `obelisk.torch`."""
from __future__ import annotations

import dataclasses
import logging
import threading
from collections import Counter
from typing import Dict, List, Optional

logger = logging.getLogger("obelisk.torch")


@dataclasses.dataclass
class Graph:
    """One graph of Dynamo's."""
    kind: str  # "inference", "forward" or "backward"
    nodes: int  # operations in it
    programs: int = 0  # compiled: one for each combination of shapes that came
    compiled_calls: int = 0
    eager_calls: int = 0
    reasons: Dict[str, int] = dataclasses.field(default_factory=dict)  # why calls ran eagerly, and how many did
    parts: int = 1  # that are compiled; 0 of a graph which runs eagerly
    eager_nodes: int = 0  # operations that are left to PyTorch
    max_error: float = 0  # that the first calls showed, beside eager: relative to the scale of the output
    export_seconds: float = 0
    compile_seconds: float = 0
    weight_bytes: int = 0  # of parameters that programs hold as constants
    shared_bytes: int = 0  # of these, read from PyTorch's memory
    updated_bytes: int = 0  # of arguments that programs update where they lie, in part

    @property
    def state(self) -> str:
        """"compiled", "in parts", "eager", or "not called"."""
        if not self.compiled_calls:
            return "eager" if self.eager_calls or self.reasons else "not called"
        return "compiled" if not self.reasons and not self.eager_nodes else "in parts"


class Report(List[Graph]):
    """The graphs, in the order in which they came. `print(report)` is for people."""

    @property
    def compiled(self) -> int:
        """Graphs that ran as programs of Obelisk from their first operation to their last."""
        return sum(graph.state == "compiled" for graph in self)

    @property
    def reasons(self) -> Dict[str, int]:
        """Why something ran eagerly, and how many graphs say so."""
        return dict(Counter(reason for graph in self for reason in graph.reasons))

    def __str__(self) -> str:
        lines = [f"{len(self)} graphs, {self.compiled} compiled whole"]
        for graph in self:
            lines.append(f"  {graph.kind}, {graph.nodes} operations: {graph.state}; {graph.programs} programs, {graph.compiled_calls} calls, "
                         f"{graph.eager_calls} eager; largest error {graph.max_error:.1e}")
            lines += [f"    {reason}" for reason in graph.reasons]
        return "\n".join(lines)


_graphs: Report = Report()
_lock = threading.Lock()


def add(graph: Graph) -> None:
    with _lock:
        _graphs.append(graph)


def report() -> Report:
    """The graphs so far. Each says how many programs it has, how often it ran as one, and why it did not."""
    with _lock:
        return Report(_graphs)


def reset() -> None:
    """Forgets them; programs stay."""
    with _lock:
        _graphs.clear()


def refuse(graph: Graph, reason: str, log: Optional[bool] = True) -> None:
    """Notes that something of a graph runs eagerly; each reason of a graph is logged once."""
    if reason not in graph.reasons and log:
        logger.warning("a graph of %d operations (%s) does not run compiled as a whole: %s", graph.nodes, graph.kind, reason)
    graph.reasons[reason] = graph.reasons.get(reason, 0) + 1
