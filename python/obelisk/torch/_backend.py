"""The compiler that AOTAutograd calls with graphs of ATen operations, and the callables that it gets back."""
from __future__ import annotations

import functools
import threading
import time
from collections import Counter, OrderedDict
from typing import Any, Callable, Dict, List, Mapping, NamedTuple, Optional, Sequence, Set, Tuple

import torch

from .. import _model
from .._errors import Error, UsageError
from . import _decompositions, _export, _parts, _report, _verify

aten = torch.ops.aten
_EPS = {"fp16": 2.0 ** -10, "bf16": 2.0 ** -7, "tf32": 2.0 ** -10}


class Options(NamedTuple):
    """What `torch.compile(..., options={...})` may say; the keywords of `obelisk.compile` beside these."""
    verify: str = "once"  # each program's first call beside eager; "always": every call; "never"
    fallback: bool = True  # what cannot be compiled runs eagerly; False: an exception instead
    freeze: bool = True  # parameters of inference are constants; when one changes it becomes an input
    programs: int = 64  # of one graph, for so many combinations of shapes; the one that was not used for longest goes first
    training: bool = True  # forward and backward graphs are compiled, too; False: they run eagerly
    target: str = "auto"  # "auto": the device on which the tensors lie
    precision: str = "keep"  # on a GPU tf32 where PyTorch's switches allow it
    compile: Mapping[str, Any] = {}  # all other keywords

    @classmethod
    def of(cls, given: Optional[Mapping[str, Any]]) -> "Options":
        own: Dict[str, Any] = {}
        rest: Dict[str, Any] = {}
        known = ("granularity", "dispatch", "search_seconds", "threads", "memory_limit", "batch_invariant", "watchdog", "compiler", "cache")
        for name, value in (given or {}).items():
            if name in cls._fields and name != "compile":
                own[name] = value
            elif name in known:
                rest[name] = value
            else:
                names = [field for field in cls._fields if field != "compile"] + list(known)
                raise UsageError(f"the backend 'obelisk' has no option '{name}'; its options: " + ", ".join(names))
        if own.get("verify", "once") not in ("once", "always", "never"):
            raise UsageError(f"verify is '{own['verify']}', not once, always or never")
        return cls(compile=rest, **own)


_TYPES = {"f64": torch.float64, "f32": torch.float32, "f16": torch.float16, "bf16": torch.bfloat16, "i64": torch.int64, "i32": torch.int32,
          "i16": torch.int16, "i8": torch.int8, "u8": torch.uint8, "b1": torch.bool,
          **{name: getattr(torch, kind) for name, kind in (
              ("u16", "uint16"), ("u32", "uint32"), ("u64", "uint64"), ("f8e4m3fn", "float8_e4m3fn"), ("f8e4m3fnuz", "float8_e4m3fnuz"),
              ("f8e5m2", "float8_e5m2"), ("f8e5m2fnuz", "float8_e5m2fnuz"), ("f8e8m0", "float8_e8m0fnu")) if hasattr(torch, kind)}}


class _Input(NamedTuple):
    """An argument as a program takes it."""
    name: str
    argument: int
    shape: torch.Size
    dtype: torch.dtype


class _Program:
    """A compiled model and which arguments it reads. It gets addresses, so that what lies behind them is checked here."""

    def __init__(self, model: "_model.Model", open_: Sequence[Tuple[str, int]], arguments: Sequence[Any], outputs: Sequence[Any],
                 memory: Mapping[str, torch.Tensor]) -> None:
        self._program = model.program_for({})
        self._memory = memory  # which the program reads for as long as it lives
        named = dict(open_)
        self.inputs: List[_Input] = []
        for port in self._program.inputs:
            index = named[port.name]
            _check_alike(port, arguments[index])
            self.inputs.append(_Input(port.name, index, torch.Size(port.shape), _TYPES[port.type]))
        self._bytes = [arguments[each.argument].nbytes for each in self.inputs]
        self.on_gpu = self._program.inside.gpu >= 0
        self.device = torch.device("cuda", self._program.inside.gpu) if self.on_gpu else torch.device("cpu")
        self.outputs = []
        for port, like in zip(self._program.outputs, outputs):
            _check_alike(port, like)
            dense = like.is_contiguous() or not _is_dense(like)
            self.outputs.append((port.name, tuple(like.shape), like.dtype, like.device, None if dense else like.stride()))
        self._makes_cuda = any(device.type == "cuda" for _, _, _, device, _ in self.outputs)
        # By output: the place of its input, of those that only change a part of an argument, where it lies.
        place = {each.name: k for k, each in enumerate(self.inputs)}
        self.updates = {output: place[of] for output, (of, updates) in self._program.inside.in_place.items() if updates}

    def __call__(self, arguments: Sequence[Any], in_place: bool = True) -> List[torch.Tensor]:
        """The outputs. With `in_place`, those that update an argument are the argument itself, where its memory allows it."""
        # PyTorch's stream orders the program behind what makes its inputs, and takes the GPU's memory only.
        on_stream = self.on_gpu and (self._makes_cuda or any(arguments[each.argument].is_cuda for each in self.inputs))
        where = self.device if on_stream else torch.device("cpu")
        kept, inputs, moved = [], [], set()  # moved: places of inputs that are not the caller's memory
        for k, (name, index, shape, dtype) in enumerate(self.inputs):
            tensor = arguments[index]
            if tensor.dtype is not dtype or tensor.shape != shape:
                raise UsageError(f"'{name}' is {tensor.dtype} {tuple(tensor.shape)}, not {dtype} {tuple(shape)}")
            at = tensor.data_ptr()
            if tensor.is_cuda != on_stream or not tensor.is_contiguous() or (self.on_gpu and at % 16):
                tensor = tensor.detach().to(where, memory_format=torch.contiguous_format, copy=True)
                at = tensor.data_ptr()
                moved.add(k)
            kept.append(tensor)
            inputs.append(at)
        in_place = in_place and bool(self.updates) and _lie_apart(inputs, self._bytes)
        made, outputs, updated = [], [], {}
        for k, (name, shape, dtype, device, _) in enumerate(self.outputs):
            at = self.updates.get(name) if in_place else None
            if at is not None and at not in moved:
                updated[k] = arguments[self.inputs[at].argument]
                made.append(updated[k])
                outputs.append(inputs[at])
            else:
                tensor = torch.empty(shape, dtype=dtype, device=where)
                made.append(tensor)
                outputs.append(tensor.data_ptr())
        self._program.context().run_at(inputs, outputs, torch.cuda.current_stream(self.device).cuda_stream if on_stream else None)
        for k, (_, shape, dtype, device, stride) in enumerate(self.outputs):
            if k in updated:
                continue
            if stride is not None:  # as eager's answer lies in memory
                made[k] = torch.empty_strided(shape, stride, dtype=dtype, device=device).copy_(made[k])
            elif made[k].device != device:
                made[k] = made[k].to(device)
        return made


def _check_alike(port: "_model.Port", tensor: torch.Tensor) -> None:
    if _TYPES.get(port.type) is not tensor.dtype or tuple(port.shape) != tuple(tensor.shape):
        raise _export.Refused(f"'{port.name}' of the program is {port.type} {tuple(port.shape)}, PyTorch's {tensor.dtype} {tuple(tensor.shape)}")


def _lie_apart(starts: Sequence[int], sizes: Sequence[int]) -> bool:
    """Whether no two of these dense tensors share a byte."""
    end = 0
    for start, size in sorted(zip(starts, sizes)):
        if size and start < end:
            return False
        end = max(end, start + size)
    return True


def _is_dense(tensor: torch.Tensor) -> bool:
    """Whether its elements fill their memory, in whatever order of dimensions."""
    expected = 1
    for stride, extent in sorted((s, e) for s, e in zip(tensor.stride(), tensor.shape) if e != 1):
        if stride != expected:
            return False
        expected *= extent
    return True


class _Entry(NamedTuple):
    """What runs for one combination of shapes."""
    program: Optional[_Program]  # None: eager
    frozen: Tuple[Tuple[int, torch.Tensor, int], ...] = ()  # argument, the tensor, its version when it was read
    numbers: Mapping[int, Any] = {}  # outputs that are numbers
    reason: str = ""
    precision: str = "keep"  # that the program was compiled with

    def fits(self, arguments: Sequence[Any]) -> bool:
        for index, tensor, version in self.frozen:
            now = arguments[index]
            if (now is not tensor and now.data_ptr() != tensor.data_ptr()) or now._version != version:
                return False
        return True


class CompiledGraph:
    """One graph, called with the list of its arguments (which it empties, as AOTAutograd wants it)."""

    def __init__(self, graph: torch.fx.GraphModule, kind: str, options: Options, constant: Set[str], report: "_report.Graph",
                 written: Sequence[int] = ()) -> None:
        """`written`: arguments that the caller overwrites with the first outputs, as many, once they are there."""
        self._options = options
        self._eager = graph
        placeholders = [node for node in graph.graph.nodes if node.op == "placeholder"]
        self._position = {node: index for index, node in enumerate(placeholders)}
        self._constant = {index for node, index in self._position.items() if node.name in constant and options.freeze}
        returned = graph.graph.output_node().args[0]
        self._single = not isinstance(returned, (tuple, list))
        self._outputs = [returned] if self._single else list(returned)
        self.report = report
        self.missing: List[str] = []  # operations that turned out to have no translation
        # By shapes; each shape's differ in the constants that they hold, for modules of one class share a graph.
        self._entries: "OrderedDict[Tuple[Any, ...], List[_Entry]]" = OrderedDict()
        self._failed: Dict[Tuple[Any, ...], _Entry] = {}  # programs whose first call failed
        self._lock = threading.RLock()
        self._whole = "training is left to eager (options={'training': False})" if kind != "inference" and not options.training else ""
        self._views = _views_among(self._outputs)
        # What some operation computes, once each; other outputs are arguments, views or constants.
        roots = [self._views[out][0] if out in self._views else out for out in self._outputs]
        self._computed = list(dict.fromkeys(
            node for node in roots if isinstance(node, torch.fx.Node) and node.op != "placeholder" and isinstance(node.meta.get("val"), torch.Tensor)))
        place = {node: k for k, node in enumerate(self._computed)}
        self._order = [place[out] for out in self._outputs] if all(
            isinstance(out, torch.fx.Node) and out in place and out not in self._views for out in self._outputs) else None
        # Of those that nobody else gets: the argument that is overwritten with it.
        alone = Counter(roots)
        self._written = {out: index for out, index in zip(self._outputs, written)
                         if out in self._computed and alone[out] == 1 and _is_alike(out, placeholders[index])}
        self._ranges: List[Tuple[Any, Any]] = []
        self._inner = self._tensors_only() if self._computed and not self._whole else None
        # Without symbolic shapes Dynamo's guards have looked at all that a signature would.
        self._symbolic = any(not isinstance(node.meta.get("val"), torch.Tensor) or _is_symbolic(node.meta["val"]) for node in placeholders)

    def _tensors_only(self) -> torch.fx.GraphModule:
        """The graph that computes the tensors among the outputs, for export."""
        copy = torch.fx.Graph()
        values: Dict[torch.fx.Node, torch.fx.Node] = {}
        copy.graph_copy(self._eager.graph, values)
        for node, index in self._written.items():
            if node.target is aten.index_put.default and self._position.get(node.args[0]) == index:
                _name_all_axes(copy, values[node])
        copy.output(tuple(values[node] for node in self._computed))
        copy.eliminate_dead_code()
        self._used = {self._position[node] for node, made in values.items() if node.op == "placeholder" and made.users}
        for node in copy.nodes:
            if node.op != "call_function" or not isinstance(node.target, torch._ops.OpOverload):
                continue
            about = node.meta.get("val")
            # The exporter sums 16-bit numbers in f32 and forgets to convert the result unless the type is asked for.
            if isinstance(about, torch.Tensor) and about.dtype in (torch.float16, torch.bfloat16) and _argument(node, "dtype", 0) is None:
                node.kwargs = {**node.kwargs, "dtype": about.dtype}
            # The exporter's own conversion of `number - tensor` fails where the tensor is converted.
            if node.target is aten.rsub.Scalar and len(node.args) == 2 and node.args[0].meta["val"].dtype != about.dtype:
                with copy.inserting_before(node):
                    converted = copy.call_function(aten._to_copy.default, (node.args[0],), {"dtype": about.dtype})
                    negative = copy.call_function(aten.neg.default, (converted,))
                    node.replace_all_uses_with(copy.call_function(aten.add.Tensor, (negative, node.args[1])))
                copy.erase_node(node)
                continue
            # A program reads at the nearest valid index where PyTorch raises.
            if node.target is aten.embedding.default and node.args[1].op == "placeholder":
                self._ranges.append((node.args[1], node.args[0].meta["val"].shape[0]))
        places = {made: self._position[node] for node, made in values.items() if node.op == "placeholder"}
        self._ranges = [(places[node], int(rows)) for node, rows in self._ranges if isinstance(rows, int)]
        return torch.fx.GraphModule(self._eager, copy)

    @staticmethod
    def computes(graph: torch.fx.GraphModule) -> bool:
        """Whether any tensor comes out that is not an argument or a view of one."""
        outputs = graph.graph.output_node().args[0]
        views = _views_among(outputs)
        return any(isinstance(out, torch.fx.Node) and views.get(out, (out,))[0].op != "placeholder" and isinstance(out.meta.get("val"), torch.Tensor)
                   for out in outputs)

    # ---- calls ----
    def __call__(self, arguments: List[Any]) -> Any:
        given = list(arguments)
        arguments.clear()
        if not self._computed:
            return self._eagerly(given)
        if self._whole:
            return self._run_eagerly(given, self._whole)
        key = self._signature(given) if self._symbolic else ()
        entry = next((each for each in self._entries.get(key, ()) if each.fits(given)), None)
        for index, rows in self._ranges:
            if given[index].is_cpu and given[index].numel():
                low, high = torch.aminmax(given[index])
                if low < 0 or high >= rows:
                    return self._run_eagerly(given, "an index is out of range")
        if entry is None:
            entry, answers = self._make(key, given)
            if answers is not None:
                return answers
        if entry.program is None:
            return self._run_eagerly(given, entry.reason)
        try:
            made = entry.program(given, self._options.verify != "always")
        except Error as error:  # an index out of range, say: eager says what PyTorch says of it
            if entry.program.updates:  # arguments may be half written
                raise
            return self._run_eagerly(given, f"a call failed: {error}")
        if self._options.verify == "always":
            return self._verified(key, entry, made, given)
        self.report.compiled_calls += 1
        return self._assemble(made, entry, given)

    def _signature(self, arguments: Sequence[Any]) -> Tuple[Any, ...]:
        return tuple(tuple(a.shape) if isinstance(a, torch.Tensor) else (type(a), a) for a in arguments)

    def _run_eagerly(self, arguments: Sequence[Any], reason: str) -> Any:
        if not self._options.fallback:
            raise UsageError(f"a graph cannot run compiled: {reason}", hint="options={'fallback': True} lets PyTorch run it")
        _report.refuse(self.report, reason)
        self.report.eager_calls += 1
        return self._eagerly(arguments)

    def _eagerly(self, arguments: Sequence[Any]) -> List[Any]:
        answer = self._eager(*arguments)
        return [answer] if self._single else answer

    def _assemble(self, made: Sequence[torch.Tensor], entry: _Entry, arguments: Sequence[Any]) -> List[Any]:
        if self._order is not None:
            return [made[k] for k in self._order]
        computed = dict(zip(self._computed, made))

        def value(index: int, out: Any) -> Any:
            if index in entry.numbers:
                return entry.numbers[index]
            if not isinstance(out, torch.fx.Node):
                return out
            root, chain = self._views.get(out, (out, ()))
            tensor = arguments[self._position[root]] if root.op == "placeholder" else computed[root]
            for node in chain:
                tensor = node.target(tensor, *node.args[1:], **node.kwargs)
            return tensor
        return [value(index, out) for index, out in enumerate(self._outputs)]

    # ---- compiling ----
    def _make(self, key: Tuple[Any, ...], arguments: Sequence[Any]) -> Tuple[_Entry, Optional[List[Any]]]:
        """The entry, and the answers of this call where they were computed on the way."""
        with self._lock:
            beside = self._entries.setdefault(key, [])
            for each in beside:
                if each.fits(arguments):  # another thread has just been here
                    return each, None
            changed = {index for each in beside for index, tensor, version in each.frozen
                       if arguments[index].data_ptr() == tensor.data_ptr() and arguments[index]._version != version}
            if changed:
                _report.logger.info("%d parameters of a graph of %d operations have changed and are inputs from now on", len(changed), self.report.nodes)
                self._constant -= changed
                beside[:] = [each for each in beside if not any(index in changed for index, _, _ in each.frozen)]
            tried = self._failed.pop(key, None)
            try:
                entry = tried if tried and tried.fits(arguments) else self._compile(arguments)
            except (_export.Refused, Error) as error:
                entry = _Entry(None, reason=str(error))
            except Exception as error:  # an exporter may raise anything
                entry = _Entry(None, reason="export: " + _export.reason_of(error))
                self.missing += _export.without_translation(error)
            numbers = [index for index, out in enumerate(self._outputs)
                       if isinstance(out, torch.fx.Node) and out.op != "placeholder" and not isinstance(out.meta.get("val"), torch.Tensor)]
            answers = None
            if entry.program is not None and (numbers or self._options.verify != "never"):
                try:
                    made = entry.program(arguments, in_place=False)  # eager reads them, too
                except Error as error:  # perhaps because of these arguments: the program has a second chance
                    failed = _Entry(None, reason=f"a call failed: {error}")
                    if tried is None:
                        self._failed[key] = entry
                    else:
                        beside.append(failed)
                    return failed, None
                eager = self._eagerly(arguments)
                entry = entry._replace(numbers={index: eager[index] for index in numbers})
                entry, answers = self._judge(entry, made, eager, arguments)
            beside.append(entry)
            self._entries.move_to_end(key)
            while sum(map(len, self._entries.values())) > max(1, self._options.programs):
                oldest, entries = next(iter(self._entries.items()))
                entries.pop(0)
                if not entries:
                    del self._entries[oldest]
            self.report.programs = sum(each.program is not None for entries in self._entries.values() for each in entries)
            return entry, answers

    def _judge(self, entry: _Entry, made: Sequence[torch.Tensor], eager: Sequence[Any], arguments: Sequence[Any]) -> Tuple[_Entry, List[Any]]:
        mine = self._assemble(made, entry, arguments)
        if self._options.verify != "never":
            error, wrong = _verify.compare(mine, eager, self._eager, arguments, _EPS.get(entry.precision, 0))
            if wrong:
                entry = _Entry(None, reason="wrong: " + wrong)
                return entry, self._answer_of(eager, entry)
            self.report.max_error = max(self.report.max_error, error)
        self.report.compiled_calls += 1
        return entry, mine

    def _answer_of(self, eager: Sequence[Any], entry: _Entry) -> List[Any]:
        if not self._options.fallback:
            raise UsageError(f"a graph cannot run compiled: {entry.reason}")
        _report.refuse(self.report, entry.reason)
        self.report.eager_calls += 1
        return list(eager)

    def _verified(self, key: Tuple[Any, ...], entry: _Entry, made: Sequence[torch.Tensor], arguments: Sequence[Any]) -> List[Any]:
        entry, answers = self._judge(entry, made, self._eagerly(arguments), arguments)
        if entry.program is None:
            self._entries[key] = [entry]
        return answers

    def _compile(self, arguments: Sequence[Any]) -> _Entry:
        assert self._inner is not None
        for index in self._used:
            if isinstance(arguments[index], torch.Tensor):
                _check(arguments[index])
        tensors = [index for index in sorted(self._used) if isinstance(arguments[index], torch.Tensor)]
        # Tensors that were made in inference mode do not say when they change.
        frozen = [index for index in tensors if index in self._constant and not arguments[index].is_inference()]
        open_ = [index for index in tensors if index not in frozen]
        device = _device_of([arguments[index] for index in tensors], [node.meta["val"] for node in self._computed])
        target = self._options.target
        if target == "auto":
            target = "cpu" if device.type == "cpu" else f"cuda:{device.index or 0}"
        precision = self._options.precision
        if precision == "keep" and target != "cpu" and _allows_tf32([arguments[index] for index in tensors]):
            precision = "tf32"
        start = time.monotonic()
        exported, outputs = _export.export_static(self._inner, arguments, open_, frozen)
        self.report.export_seconds += time.monotonic() - start
        start = time.monotonic()
        name_of = {index: name for name, index in zip(exported.inputs, open_)}
        in_place = {name: name_of[self._written[node]] for name, node in zip(exported.outputs, self._computed)
                    if self._written.get(node) in name_of}
        model = _export.compile_exported(exported, {
            "target": target, "precision": precision, "verify": False, "host_tail": False,
            **({"in_place": in_place} if in_place else {}), **self._options.compile})
        self.report.compile_seconds += time.monotonic() - start
        self.report.weight_bytes = sum(arguments[index].nbytes for index in frozen)
        self.report.shared_bytes = sum(tensor.nbytes for tensor in exported.memory.values())
        program = _Program(model, list(zip(exported.inputs, open_)), arguments, outputs, exported.memory)
        self.report.updated_bytes = sum(arguments[program.inputs[at].argument].nbytes for at in program.updates.values())
        return _Entry(program, tuple((index, arguments[index], arguments[index]._version) for index in frozen), precision=precision)


def _device_of(tensors: Sequence[torch.Tensor], outputs: Sequence[torch.Tensor]) -> torch.device:
    """Where a graph runs: where the tensors lie that it takes. Those of no dimensions may lie on the host beside a GPU's; a graph that takes
    no others, or nothing, runs where its outputs are wanted."""
    devices = ({tensor.device for tensor in tensors if tensor.dim()} or {tensor.device for tensor in tensors if tensor.device.type != "cpu"}
               or {tensor.device for tensor in outputs if tensor.device.type != "cpu"})
    if len(devices) > 1:
        raise _export.Refused("its tensors lie on several devices: " + ", ".join(sorted(map(str, devices))))
    return next(iter(devices), torch.device("cpu"))


def _allows_tf32(tensors: Sequence[torch.Tensor]) -> bool:
    """Whether PyTorch itself may round the operands of all products of these tensors to tf32. Its two switches, for matrices and for
    convolutions, must agree, and all floating-point tensors be f32, for a program has one precision."""
    try:
        allowed = torch.backends.cuda.matmul.allow_tf32 and torch.backends.cudnn.allow_tf32
    except RuntimeError:  # the switches of PyTorch 2.9 and later were set, and the older ones may not be read any more
        allowed = torch.backends.cuda.matmul.fp32_precision == torch.backends.cudnn.conv.fp32_precision == "tf32"
    return bool(allowed) and {tensor.dtype for tensor in tensors if tensor.is_floating_point()} == {torch.float32}


def _check(tensor: torch.Tensor) -> None:
    if type(tensor) not in (torch.Tensor, torch.nn.Parameter):
        raise _export.Refused(f"an argument is a {type(tensor).__name__}")
    if tensor.is_complex() or tensor.is_quantized or tensor.layout != torch.strided:
        raise _export.Refused(f"an argument is {tensor.dtype}, {tensor.layout}")
    if tensor.device.type not in ("cpu", "cuda"):
        raise _export.Refused(f"an argument lies on the device '{tensor.device}'")
    if tensor.is_conj() or tensor.is_neg():
        raise _export.Refused("an argument is a lazy conjugate or negative")


_WHOLE_VIEWS = {aten.view.default, aten.permute.default, aten.transpose.int, aten.t.default, aten.unsqueeze.default, aten.squeeze.default,
                aten.squeeze.dim, aten.squeeze.dims, aten.alias.default, aten.detach.default}
_PART_VIEWS = {aten.slice.Tensor, aten.select.int, aten.expand.default, aten.as_strided.default, aten.diagonal.default}


def _views_among(outputs: Sequence[Any]) -> Dict[torch.fx.Node, Tuple[torch.fx.Node, Tuple[torch.fx.Node, ...]]]:
    """Outputs that are taken as views of what is computed: (of what, by which operations). They share memory as eager's do, with each
    other and with arguments; a part of something that nobody else sees is computed alone."""
    found: Dict[torch.fx.Node, Tuple[torch.fx.Node, Tuple[torch.fx.Node, ...]]] = {}
    for out in outputs:
        if not isinstance(out, torch.fx.Node) or not isinstance(out.meta.get("val"), torch.Tensor):
            continue
        chain: List[torch.fx.Node] = []
        node = out
        while node.op == "call_function" and node.target in _WHOLE_VIEWS | _PART_VIEWS and node.all_input_nodes == [node.args[0]]:
            chain.insert(0, node)
            node = node.args[0]
        found[out] = node, tuple(chain)
    seen = Counter(root for root, _ in found.values())
    return {out: (root, chain) for out, (root, chain) in found.items() if chain and (
        root.op == "placeholder" or seen[root] > 1 or all(node.target in _WHOLE_VIEWS for node in chain))}


def _is_alike(one: torch.fx.Node, other: torch.fx.Node) -> bool:
    a, b = one.meta.get("val"), other.meta.get("val")
    return isinstance(a, torch.Tensor) and isinstance(b, torch.Tensor) and a.dtype == b.dtype and a.shape == b.shape and a.device == b.device


def _name_all_axes(graph: torch.fx.Graph, node: torch.fx.Node) -> None:
    """Gives an `index_put` of several indices one for each axis in front of the last of them. `x[i, :, j] = y` is for the exporter an
    update of x with its axes in another order; this is one of x itself, which a program does where x lies. What `y` is broadcast to stays the
    same: PyTorch puts the shape of the indices first where axes without one lie between them, and else where they stand."""
    x, given = node.args[0].meta["val"], list(node.args[1])
    last = max((axis for axis, index in enumerate(given) if index is not None), default=-1)
    given = given[:last + 1]
    indices = {axis: index for axis, index in enumerate(given) if index is not None}
    without = [axis for axis in range(last) if axis not in indices]
    about = [index.meta["val"] for index in indices.values()]
    kinds = {index.dtype for index in about}
    if len(indices) < 2 or not without or len(kinds) > 1 or not kinds <= {torch.int32, torch.int64} or any(
            not isinstance(extent, int) for each in (x, *about) for extent in each.shape):
        return
    between = without[-1] > min(indices)
    behind = 0 if between else max(index.dim() for index in about)  # axes of the indices that follow those without one
    with graph.inserting_before(node):
        for place, axis in enumerate(without):
            rows = graph.call_function(aten.arange.default, (x.shape[axis],), {"dtype": about[0].dtype, "device": about[0].device})
            given[axis] = graph.call_function(aten.view.default, (rows, [x.shape[axis]] + [1] * (len(without) - 1 - place + behind)))
        if between:
            for axis, index in indices.items():
                given[axis] = graph.call_function(aten.reshape.default, (index, [*index.meta["val"].shape] + [1] * len(without)))
    node.args = (node.args[0], given, *node.args[2:])


def _is_symbolic(tensor: torch.Tensor) -> bool:
    return any(isinstance(extent, torch.SymInt) for extent in (*tensor.shape, *tensor.stride()))


def _argument(node: torch.fx.Node, name: str, otherwise: Any = None) -> Any:
    """What an operation is called with, or its default; `otherwise` where it has no such argument."""
    for index, argument in enumerate(node.target._schema.arguments):
        if argument.name == name:
            return node.kwargs.get(name, node.args[index] if index < len(node.args) else argument.default_value)
    return otherwise


def _refusal(node: torch.fx.Node, missing: Sequence[str] = ()) -> str:
    """Why no program can do an operation; "" where one may."""
    if node.op != "call_function" or isinstance(node.target, torch._ops.HigherOrderOperator):
        return "" if node.op != "call_function" else f"{node.target} has graphs inside"
    if not isinstance(node.target, torch._ops.OpOverload):
        return ""
    if torch.Tag.nondeterministic_seeded in node.target.tags and _argument(node, "dropout_p") != 0:
        return f"{node.target} draws random numbers"
    if node.target._schema.is_mutable:
        return f"{node.target} writes to its argument"
    if str(node.target) in missing:
        return f"PyTorch's exporter has no translation of {node.target}"
    return ""


def _constant_arguments() -> List[int]:
    """Which arguments of the graph that AOTAutograd compiles now are parameters or buffers that the graph does not write to."""
    context = torch._guards.TracingContext.try_get()
    about = context.fw_metadata if context is not None else None
    if about is None:
        return []
    written = {index for index, info in enumerate(about.input_info) if info.mutates_data}
    return [index for index in about.static_input_indices if index not in written]


def _written_arguments(graph: torch.fx.GraphModule) -> List[int]:
    """Which arguments of that graph AOTAutograd overwrites after a call, with the graph's first outputs."""
    context = torch._guards.TracingContext.try_get()
    about = context.fw_metadata if context is not None else None
    placeholders = sum(node.op == "placeholder" for node in graph.graph.nodes)
    if about is None or about.tokens or placeholders != len(about.input_info):
        return []
    return list(about.mutated_inp_runtime_indices)


def compile_graphs(graph: torch.fx.GraphModule, inputs: Sequence[Any], options: Options) -> Callable[..., Any]:
    """Dynamo's graph through AOTAutograd: without mutation and aliasing, and with its derivative where one is wanted."""
    from functorch.compile import min_cut_rematerialization_partition
    from torch._dynamo.backends.common import aot_autograd

    def compiler(kind: str, graph: torch.fx.GraphModule, inputs: Sequence[Any]) -> Callable[..., Any]:
        names = [node.name for node in graph.graph.nodes if node.op == "placeholder"]
        constant = {names[index] for index in _constant_arguments()} if kind == "inference" else set()
        report = _report.Graph(kind, sum(node.op == "call_function" for node in graph.graph.nodes))
        missing: List[str] = []

        written = _written_arguments(graph) if kind == "inference" else []

        def part(graph: torch.fx.GraphModule) -> CompiledGraph:
            return CompiledGraph(graph, kind, options, constant, report)

        def whole(graph: torch.fx.GraphModule) -> CompiledGraph:
            return CompiledGraph(graph, kind, options, constant, report, written)

        def in_parts() -> _parts.Parts:
            return _parts.Parts(graph, report, functools.partial(_refusal, missing=missing), part)
        split = options.fallback and (options.training or kind == "inference")
        refusals = [reason for reason in map(_refusal, graph.graph.nodes) if reason]
        if refusals and not split and not options.fallback:
            raise UsageError(f"a graph cannot run compiled: {refusals[0]}")
        if CompiledGraph.computes(graph):
            _report.add(report)
        runner = [in_parts() if refusals and split else whole(graph)]

        def call(arguments: List[Any]) -> Any:  # a function, for Dynamo wraps those of backward graphs and keeps their attributes
            answer = runner[0](arguments)
            if split and set(runner[0].missing) - set(missing):
                missing.extend(runner[0].missing)
                report.reasons.clear()
                runner[0] = in_parts()
            return answer
        call._boxed_call = True  # type: ignore[attr-defined]
        return call

    trained = torch.is_grad_enabled() and any(isinstance(each, torch.Tensor) and each.requires_grad for each in inputs)
    return aot_autograd(
        fw_compiler=functools.partial(compiler, "forward"), bw_compiler=functools.partial(compiler, "backward"),
        inference_compiler=functools.partial(compiler, "inference"), decompositions=_decompositions.training() if trained else _decompositions.inference(),
        partition_fn=min_cut_rematerialization_partition)(graph, inputs)
