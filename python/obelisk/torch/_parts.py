"""A graph some of whose operations no program can do: the others are programs, as few as their order allows, and PyTorch runs the rest."""
from __future__ import annotations

import operator
from typing import Any, Callable, Dict, List, Mapping

import torch
from torch.fx.passes.infra.partitioner import CapabilityBasedPartitioner
from torch.fx.passes.operator_support import OperatorSupportBase

from . import _report


class _Supported(OperatorSupportBase):
    def __init__(self, refusal: Callable[[torch.fx.Node], str]) -> None:
        self._refusal = refusal

    def is_node_supported(self, submodules: Mapping[str, torch.nn.Module], node: torch.fx.Node) -> bool:
        if node.op != "call_function":
            return False
        if node.target is operator.getitem:  # with the operation that makes the tuple
            return self.is_node_supported(submodules, node.args[0])
        return not self._refusal(node)


class _Part(torch.nn.Module):
    def __init__(self, compiled: Callable[[List[Any]], List[Any]], single: bool) -> None:
        super().__init__()
        self._compiled, self._single = compiled, single

    def forward(self, *arguments: Any) -> Any:
        made = self._compiled(list(arguments))
        return made[0] if self._single else made


class Parts:
    """`compiled(graph)` makes a callable of each part."""

    def __init__(self, graph: torch.fx.GraphModule, report: "_report.Graph", refusal: Callable[[torch.fx.Node], str],
                 compiled: Callable[[torch.fx.GraphModule], Any]) -> None:
        copy = torch.fx.Graph()
        values: Dict[torch.fx.Node, torch.fx.Node] = {}
        copy.output(copy.graph_copy(graph.graph, values))
        module = torch.fx.GraphModule(graph, copy)
        partitioner = CapabilityBasedPartitioner(module, _Supported(refusal))
        module = partitioner.fuse_partitions(partitioner.propose_partitions(), prefix="program_")
        self.parts: List[Any] = []
        for node in module.graph.nodes:
            if node.op == "call_module" and node.target.startswith("program_"):
                part = module.get_submodule(node.target)
                self.parts.append(compiled(part))
                setattr(module, node.target, _Part(self.parts[-1], not isinstance(part.graph.output_node().args[0], (tuple, list))))
        self._module = module
        report.parts = len(self.parts)
        report.eager_nodes = sum(node.op == "call_function" and node.target is not operator.getitem for node in module.graph.nodes)
        self._report = report
        for reason in dict.fromkeys(filter(None, map(refusal, graph.graph.nodes))):
            _report.refuse(report, reason)

    @property
    def missing(self) -> List[str]:
        return [name for part in self.parts for name in part.missing]

    def __call__(self, arguments: List[Any]) -> Any:
        given = list(arguments)
        arguments.clear()
        if not self.parts:
            self._report.eager_calls += 1
        return self._module(*given)
