"""A graph of ATen operations as an ONNX model whose shapes are all known."""
from __future__ import annotations

import contextlib
import copy
import gc
import io
import logging
import re
import threading
import types
import warnings
from typing import Any, Callable, Dict, List, NamedTuple, Optional, Sequence, Tuple, TypeVar

import torch

from .. import _model
from .._errors import UnsupportedError

T = TypeVar("T")
OPSET = 20  # the newest that PyTorch's exporter writes without converting

_one_at_a_time = threading.Lock()  # exporters patch the interpreter while they work


class Refused(Exception):
    """Why a graph cannot be a program."""


class Exported(NamedTuple):
    model: bytes
    inputs: List[str]  # names, in the order of the arguments
    outputs: List[str]
    memory: Dict[str, torch.Tensor]  # external data by location, in PyTorch's memory


def reason_of(error: BaseException) -> str:
    """The innermost exception in one plain line: the exporters wrap theirs in pages of advice."""
    while error.__cause__:
        error = error.__cause__
    text = re.sub(r"\x1b\[[0-9;]*m", "", f"{type(error).__name__}: {error}")
    return " ".join(text.split())[:240]


def without_translation(error: Optional[BaseException]) -> List[str]:
    """Operations that the exporter says it has no translation for."""
    found: List[str] = []
    while error is not None:
        found += [f"{op}.{overload}" for op, overload in re.findall(r"No ONNX function found for <OpOverload\(op='([\w.]+)', overload='(\w+)'\)>", str(error))]
        error = error.__cause__
    return list(dict.fromkeys(found))


def on_a_plain_thread(function: Callable[[], T]) -> T:
    """Runs a function where none of the caller's modes (autograd, dispatch, tracing) are on: those are a thread's own. Meanwhile Python
    does not look for cycles: an exporter makes many objects and drops few, and one search passes through all that the process has."""
    answer: List[T] = []
    thrown: List[BaseException] = []

    def work() -> None:
        try:
            with torch.no_grad():
                answer.append(function())
        except BaseException as error:  # handed to the thread that waits
            thrown.append(error)
    collects = gc.isenabled()
    gc.disable()
    try:
        thread = threading.Thread(target=work)
        thread.start()
        thread.join()
    finally:
        if collects:
            gc.enable()
    if thrown:
        raise thrown[0]
    return answer[0]


@contextlib.contextmanager
def _silent():
    """The exporters write to their loggers and warn of what they do themselves."""
    loggers = [logging.getLogger(name) for name in ("torch.onnx", "onnx_ir", "onnxscript")]
    levels = [logger.level for logger in loggers]
    for logger in loggers:
        logger.setLevel(logging.ERROR)
    try:
        with warnings.catch_warnings(), contextlib.redirect_stdout(io.StringIO()):
            warnings.simplefilter("ignore")
            yield
    finally:
        for logger, level in zip(loggers, levels):
            logger.setLevel(level)


_translations: Dict[Any, Any] = {}  # the exporter's own tables, by what they were asked for with


@contextlib.contextmanager
def _translations_once():
    """torch.onnx makes its table of translations anew with each model, and reads the source of all of them for a name that it does not
    use. Here it gets a copy of the first one, made without that. Where its insides are others than these, it does as it always does."""
    try:
        from onnxscript.values import TracedOnnxFunction
        from torch.onnx._internal.exporter._registration import ONNXRegistry
        make, parsed = ONNXRegistry.__dict__["from_torchlib"], TracedOnnxFunction.__dict__["function_ir"]
        if not isinstance(make, classmethod) or not isinstance(parsed, property):
            raise AttributeError
    except (ImportError, KeyError, AttributeError):
        yield
        return

    def from_torchlib(*args: Any, **kwargs: Any) -> Any:
        key = (*args, *sorted(kwargs.items()))
        if key not in _translations:
            TracedOnnxFunction.function_ir = property(lambda self: types.SimpleNamespace(domain=self.opset.domain))
            try:
                _translations[key] = make.__get__(None, ONNXRegistry)(*args, **kwargs)
            finally:
                TracedOnnxFunction.function_ir = parsed
        registry = copy.copy(_translations[key])
        registry.functions = {op: list(known) for op, known in registry.functions.items()}
        return registry
    ONNXRegistry.from_torchlib = staticmethod(from_torchlib)
    try:
        yield
    finally:
        ONNXRegistry.from_torchlib = make


class _Static(torch.nn.Module):
    """The graph with all but some of its arguments fixed: tensors that are constants, and Python's numbers."""

    def __init__(self, graph: torch.fx.GraphModule, arguments: Sequence[Any], open_: Sequence[int], frozen: Sequence[int]) -> None:
        super().__init__()
        self.graph_module = graph
        self._open = list(open_)
        self._frozen = list(frozen)
        self._fixed = [None if index in open_ or index in frozen else argument for index, argument in enumerate(arguments)]
        for index in frozen:
            self.register_buffer(f"weight_{index}", arguments[index])

    def forward(self, *tensors: torch.Tensor) -> Tuple[torch.Tensor, ...]:
        arguments = list(self._fixed)
        for index, tensor in zip(self._open, tensors):
            arguments[index] = tensor
        for index in self._frozen:
            arguments[index] = getattr(self, f"weight_{index}")
        return tuple(self.graph_module(*arguments))


def to_onnx(program: torch.export.ExportedProgram, share: bool = True) -> Exported:
    """The model of an exported program. With `share`, large parameters are named instead of written: external data whose location is
    a key of `memory`."""
    import onnx_ir

    with _silent(), _translations_once():
        made = torch.onnx.export(program, dynamo=True, opset_version=OPSET, optimize=False, verbose=False)
    graph = made.model.graph
    memory: Dict[str, torch.Tensor] = {}
    state = {**program.state_dict, **program.constants}
    for name, value in list(graph.initializers.items()) if share else ():
        tensor = state.get(name)
        if isinstance(tensor, torch.Tensor) and tensor.is_contiguous() and tensor.nbytes >= 1024 and value.const_value is not None:
            if tensor.device.type != "cpu":
                tensor = tensor.cpu()
            memory[name] = tensor.detach()
            value.const_value = onnx_ir.ExternalTensor(name, 0, tensor.nbytes, value.const_value.dtype, shape=value.const_value.shape,
                                                       name=name, base_dir="")
    inputs = [value.name for value in graph.inputs]
    outputs = [value.name for value in graph.outputs]
    return Exported(onnx_ir.to_proto(made.model).SerializeToString(), inputs, outputs, memory)


def export_static(graph: torch.fx.GraphModule, arguments: Sequence[Any], open_: Sequence[int], frozen: Sequence[int]) -> Tuple[Exported, Any]:
    """The model of a graph for arguments of these shapes, and what its outputs are like (tensors without memory)."""
    def work() -> Tuple[Exported, Any]:
        detached = [a.detach() if isinstance(a, torch.Tensor) else a for a in arguments]
        module = _Static(graph, detached, open_, frozen)
        with _silent():
            program = torch.export.export(module, tuple(detached[index] for index in open_), strict=False)
        outputs = [node.meta["val"] if isinstance(node, torch.fx.Node) else node
                   for node in program.graph_module.graph.output_node().args[0]]
        return to_onnx(program), outputs
    with _one_at_a_time:
        return on_a_plain_thread(work)


def compile_exported(exported: Exported, options: Dict[str, Any]) -> "_model.Model":
    """Compiles what `to_onnx` gave, all of whose shapes are known."""
    memory = {location: (tensor.data_ptr(), tensor.nbytes) for location, tensor in exported.memory.items()}
    threads = options.get("threads", 0)
    return _model.Model(None, {}, None, None, {}, _model._Program(
        _model._obelisk.Model.compile_bytes(exported.model, {**options, **({"memory": memory} if memory else {})}, None), threads))


def of_program(program: torch.export.ExportedProgram) -> Exported:
    """For `obelisk.compile(program)`."""
    def work() -> Exported:
        about = program.run_decompositions({}).graph_signature  # what is written in place is known only without operations that do so
        written = [*about.buffers_to_mutate.values(), *about.user_inputs_to_mutate.values()]
        if written:
            raise UnsupportedError(f"the exported program writes to '{written[0]}'", hint="torch.compile(model, backend=\"obelisk\") does that")
        return to_onnx(program)
    try:
        with _one_at_a_time:
            return on_a_plain_thread(work)
    except UnsupportedError:
        raise
    except Exception as error:  # an exporter may raise anything
        raise UnsupportedError(f"PyTorch's exporter cannot write the program: {reason_of(error)}") from error
