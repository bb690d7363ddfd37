"""A model: a program, or, where dimensions are not known, a program for each shape that it is called with."""
from __future__ import annotations

import os
import threading
from typing import Any, Callable, Dict, List, Mapping, NamedTuple, Optional, Sequence, Tuple, Union

import numpy as np

from . import _obelisk
from ._errors import UsageError

Source = Union[str, "os.PathLike[str]", bytes, Any]
Extent = Union[int, Tuple[int, int]]
Shapes = Mapping[str, Union[Extent, Sequence[int]]]

#: NumPy's names of element types; others are handed over as bytes of their width.
_NUMPY = {"f64": "float64", "f32": "float32", "f16": "float16", "i64": "int64", "i32": "int32", "i16": "int16",
          "i8": "int8", "u64": "uint64", "u32": "uint32", "u16": "uint16", "u8": "uint8", "b1": "bool"}
_ML_DTYPES = {"bf16": "bfloat16", "f8e4m3fn": "float8_e4m3fn", "f8e4m3fnuz": "float8_e4m3fnuz", "f8e5m2": "float8_e5m2",
              "f8e5m2fnuz": "float8_e5m2fnuz", "f8e8m0": "float8_e8m0fnu"}
_NAMES = {**_NUMPY, **_ML_DTYPES}


class Port(NamedTuple):
    """An input or an output: dense, row-major."""
    name: str
    type: str  # "f32", ...
    shape: Tuple[Union[int, str], ...]  # a name, or "?", where the extent is not known

    @property
    def dtype(self) -> np.dtype:
        """NumPy's type of an element."""
        if self.type in _NUMPY:
            return np.dtype(_NUMPY[self.type])
        if self.type in _ML_DTYPES:
            try:
                import ml_dtypes
            except ImportError:
                raise UsageError(f"'{self.name}' is {self.type}, which NumPy has only with the package ml_dtypes",
                                 hint="pip install ml_dtypes") from None
            return np.dtype(getattr(ml_dtypes, _ML_DTYPES[self.type]))
        raise UsageError(f"'{self.name}' is {self.type}, which no array of NumPy holds")


def _ports(ports: List[Tuple[str, str, List[int]]]) -> Tuple[Port, ...]:
    return tuple(Port(name, kind, tuple(shape)) for name, kind, shape in ports)


def _is_torch(array: Any) -> bool:
    return type(array).__module__.split(".")[0] == "torch"


def _on_gpu(array: Any) -> bool:
    device = getattr(array, "__dlpack_device__", None)
    return device is not None and int(device()[0]) in (2, 13)  # kDLCUDA, kDLCUDAManaged


class _Program:
    """One compiled program: shapes are known. Each thread that runs it has a context of its own."""

    def __init__(self, inside: "_obelisk.Model", threads: int) -> None:
        self.inside = inside
        self.inputs, self.outputs = _ports(inside.inputs), _ports(inside.outputs)
        self._threads = threads
        self._own = threading.local()

    def context(self) -> "_obelisk.Context":
        if not hasattr(self._own, "context"):
            self._own.context = _obelisk.Context(self.inside, self._threads)
        return self._own.context

    def run(self, feed: Mapping[str, Any], into: Optional[Mapping[str, Any]] = None) -> List[Any]:
        context = self.context()
        kept = []  # what is bound lives until the run is over
        first = next(iter(feed.values()), None)
        for port in self.inputs:
            array = feed[port.name]
            if isinstance(array, (int, float, bool, list, tuple)):
                array = np.asarray(array, port.dtype)
            array = _dense(array)
            _bind(context.bind_input, context.bind_input_at, port, array)
            kept.append(array)
        outputs: List[Any] = []
        late = [port.name for port in self.outputs if -1 in port.shape]  # of a size that data decides, made on the host
        for port in self.outputs:
            given = (into or {}).get(port.name)
            if port.name in late:
                if given is not None:
                    raise UsageError(f"the size of output '{port.name}' depends on data", hint="take what run() gives")
                outputs.append(None)
                continue
            out = given if given is not None else _empty(port, None if late else first)
            _bind(context.bind_output, context.bind_output_at, port, out)
            outputs.append(out)
        if late:
            context.run()
            for at, port in enumerate(self.outputs):
                if port.name in late:
                    made = np.frombuffer(context.output_copy(port.name), port.dtype)
                    outputs[at] = made.reshape(context.output_shape(port.name)).copy()
            return [_like(out, first) for out in outputs]
        if self.inside.gpu >= 0 and kept and all(map(_on_gpu, kept + outputs)):
            context.run_on(_stream(kept[0]))
        else:
            context.run()
        return outputs


def _dense(array: Any) -> Any:
    if isinstance(array, np.ndarray):
        return array if array.flags.c_contiguous else np.ascontiguousarray(array)
    if _is_torch(array):
        return array.detach().contiguous()
    if not hasattr(array, "__dlpack__") and not hasattr(array, "__array_interface__"):
        raise UsageError(f"a {type(array).__name__} is no array", hint="NumPy arrays, or tensors with __dlpack__")
    return array if hasattr(array, "__dlpack__") else np.asarray(array)


def _bind(bind: Callable[..., None], bind_at: Callable[..., None], port: Port, array: Any) -> None:
    if isinstance(array, np.ndarray) and port.type not in _NUMPY:
        if array.dtype != port.dtype or array.shape != port.shape:
            raise UsageError(f"'{port.name}' wants {port.type}{list(port.shape)}, the array is {array.dtype}{list(array.shape)}")
        return bind_at(port.name, array.ctypes.data, array.nbytes)
    bind(port.name, array)


def _empty(port: Port, like: Any) -> Any:
    """Memory for an output, of the library that the first input is of."""
    if like is not None and _is_torch(like):
        import torch
        return torch.empty(port.shape, dtype=getattr(torch, _NAMES[port.type]), device=like.device)
    return np.empty(port.shape, port.dtype)


def _like(out: Any, like: Any) -> Any:
    """An array as a tensor where `like` is one."""
    if like is None or not _is_torch(like) or not isinstance(out, np.ndarray):
        return out
    import torch
    return torch.from_numpy(out).to(like.device)


def _stream(array: Any) -> int:
    """The stream that the library of this tensor works on now."""
    if _is_torch(array):
        import torch
        return torch.cuda.current_stream(array.device).cuda_stream
    if type(array).__module__.split(".")[0] == "cupy":
        import cupy
        return cupy.cuda.get_current_stream().ptr
    return 0


class Model:
    """A compiled network. Call it with its inputs, in their order or by name:

        y = model(x)              one output: the array; several: a tuple
        y = model(tokens=t, mask=m)

    Outputs are NumPy arrays, or tensors of PyTorch where the first input is one; on a GPU they lie
    there, and the call returns before the work on PyTorch's current stream is done. Any number of
    threads may call a model.

    Where dimensions are not bound, a program is compiled for each shape that comes, once; `programs`
    counts them, and weights in files are mapped, not copied.
    """

    def __init__(self, source: Optional[Tuple[str, Any]], options: Dict[str, Any], progress: Optional[Callable[[str, float], Any]],
                 description: Optional[Dict[str, Any]], ranges: Dict[str, Tuple[int, int]], program: Optional[_Program],
                 kept: Any = None) -> None:
        self._source, self._options, self._progress, self._ranges = source, options, progress, ranges
        self._programs: Dict[Tuple, _Program] = {}
        self._kept = kept  # memory of weights that are not the model's own
        self._lock = threading.Lock()
        self._only = program
        if program is not None:
            self.inputs, self.outputs = program.inputs, program.outputs
        else:
            assert description is not None
            self.inputs, self.outputs = (
                tuple(Port(name, kind, tuple(int(d) if d.isdigit() else options.get("dimensions", {}).get(d, d) for d in shape or ()))
                      for name, kind, shape in description[way] if name not in options.get("values", {}))
                for way in ("inputs", "outputs"))

    # ---- running ----
    def __call__(self, *arrays: Any, **named: Any) -> Any:
        names = [port.name for port in self.inputs]
        if len(arrays) > len(names):
            raise UsageError(f"the model has {len(names)} inputs, {len(arrays)} were given")
        feed = dict(zip(names, arrays))
        for name, array in named.items():
            if name in feed:
                raise UsageError(f"input '{name}' is given twice")
            feed[name] = array
        outputs = self.run(feed)
        return outputs[0] if len(outputs) == 1 else tuple(outputs)

    def run(self, feed: Mapping[str, Any], into: Optional[Mapping[str, Any]] = None) -> List[Any]:
        """All outputs in their order; those named in `into` are written there."""
        names = [port.name for port in self.inputs]
        for name in feed:
            if name not in names:
                raise UsageError(f"the model has no input '{name}'", hint="its inputs: " + ", ".join(names))
        missing = [name for name in names if name not in feed]
        if missing:
            raise UsageError(f"no array is given for input '{missing[0]}'", hint="its inputs: " + ", ".join(names))
        return self.program_for(feed).run(feed, into)

    def program_for(self, feed: Mapping[str, Any]) -> _Program:
        """The program for arrays of these shapes, compiled when it is not there."""
        if self._only is not None:
            return self._only
        shapes = {port.name: tuple(int(d) for d in np.shape(feed[port.name])) for port in self.inputs}
        key = tuple(shapes.values())
        with self._lock:  # one compile at a time; the others find it
            if key not in self._programs:
                self._check(shapes)
                self._programs[key] = self._compile({**self._options.get("shapes", {}), **{name: list(shape) for name, shape in shapes.items()}})
            return self._programs[key]

    def _check(self, shapes: Dict[str, Tuple[int, ...]]) -> None:
        for port in self.inputs:
            shape = shapes[port.name]
            if port.shape and len(port.shape) != len(shape):
                raise UsageError(f"input '{port.name}' has {len(port.shape)} dimensions, the array has {len(shape)}")
            for wanted, extent in zip(port.shape, shape):
                low, high = self._ranges.get(str(wanted), (0, extent))
                if not low <= extent <= high:
                    raise UsageError(f"dimension '{wanted}' is {extent} in input '{port.name}', declared are {low} to {high}")

    def _compile(self, shapes: Dict[str, List[int]]) -> _Program:
        assert self._source is not None
        kind, what = self._source
        options = {**self._options, "shapes": shapes}
        make = _obelisk.Model.compile_file if kind == "file" else _obelisk.Model.compile_bytes
        return _Program(make(what, options, self._progress), options.get("threads", 0))

    # ---- what it is ----
    @property
    def programs(self) -> int:
        """How many there are: one, or one for each shape that was met."""
        return 1 if self._only else len(self._programs)

    def _fixed(self) -> "_obelisk.Model":
        if self._only is None:
            raise UsageError("the model's dimensions are not all bound: there is a program for each shape", hint="shapes={...} in obelisk.compile")
        return self._only.inside

    def save(self, path: Optional[Union[str, "os.PathLike[str]"]] = None) -> Optional[bytes]:
        """Writes the compiled file, or gives its bytes where no path is named."""
        if path is None:
            return self._fixed().save_bytes()
        self._fixed().save_file(os.fspath(path))
        return None

    @property
    def name(self) -> str:
        return self._fixed().name

    @property
    def target(self) -> str:
        """"cpu", or the GPU's architecture."""
        return self._fixed().target

    @property
    def gpu(self) -> int:
        """Which GPU; -1 of a CPU."""
        return self._fixed().gpu

    @property
    def workspace_bytes(self) -> int:
        """That each thread takes, besides inputs and outputs."""
        return self._fixed().workspace_bytes

    @property
    def verification(self) -> Optional[Dict[str, Any]]:
        """What comparing with the reference found; None where it was not done, and `unverified` says why."""
        return self._fixed().verification

    @property
    def unverified(self) -> str:
        return self._fixed().unverified

    @property
    def slow_ops(self) -> List[str]:
        """Ops that run by their slow reference; mostly none."""
        return self._fixed().slow_ops

    def __repr__(self) -> str:
        ports = ", ".join(f"{port.name}: {port.type}{list(port.shape)}" for port in self.inputs)
        made = ", ".join(f"{port.name}: {port.type}{list(port.shape)}" for port in self.outputs)
        return f"<obelisk.Model ({ports}) -> ({made})>"


def _source(model: Source) -> Tuple[str, Any]:
    if isinstance(model, (bytes, bytearray, memoryview)):
        return "bytes", bytes(model)
    if hasattr(model, "SerializeToString"):  # an onnx.ModelProto
        return "bytes", model.SerializeToString()
    if type(model).__module__.startswith("torch.export"):
        from .torch import _export
        return "exported", _export.of_program(model)
    try:
        return "file", os.fspath(model)
    except TypeError:
        raise UsageError(f"a {type(model).__name__} is no model",
                         hint="a path, the bytes of an .onnx file, an onnx.ModelProto, or a torch.export.ExportedProgram") from None


def compile(  # noqa: A001
    model: Source,
    target: str = "auto",
    precision: str = "keep",
    shapes: Optional[Shapes] = None,
    *,
    values: Optional[Mapping[str, Union[int, Sequence[int]]]] = None,
    granularity: str = "auto",
    dispatch: str = "",
    search_seconds: float = 0,
    threads: int = 0,
    verify: bool = True,
    verify_seconds: float = 10,
    memory_limit: int = 0,
    batch_invariant: bool = False,
    watchdog: bool = False,
    compiler: str = "",
    cache: str = "",
    folder: str = "",
    in_place: Optional[Mapping[str, str]] = None,
    progress: Optional[Callable[[str, float], Any]] = None,
) -> Model:
    """Compiles a network.

    model            a path (.onnx, or a graph as text, .ir), the bytes of an .onnx file, an onnx.ModelProto, or a
                     torch.export.ExportedProgram, whose parameters are read in place and are to stay as they are
    target           "auto": a GPU where one and its compiler are, else the CPU; "cpu"; "cuda", "cuda:1"; an architecture ("sm_90a")
    precision        "keep" the model's arithmetic, or "fp32", "tf32", "fp16", "bf16"; inputs and outputs keep their types
    shapes           of inputs, {"pixels": (8, 3, 224, 224)}; of symbolic dimensions, {"batch": 8}; a pair is a range, {"seq": (1, 512)}.
                     What is not bound here is taken from the arrays of a call: a program for each shape, compiled once.
    values           of inputs that shapes depend on
    granularity      of a GPU: "mono" (one kernel), "stitch" (a graph of stitched kernels), "op" (a kernel an op), "auto" (the quickest)
    dispatch         of such a graph: which kernels may run beside which: "waves", "sequential", "nimble", "opara", "critical", "auto" (the
                     quickest, measured); on a CPU the same of its works; "": "auto" on a CPU and on a machine with the GPU, else "waves"
    search_seconds   of "auto": for a search over orders, lanes and kernels for fewer SMs, whose result is kept
    threads          workers of a CPU; 0: one a core
    verify           answers are compared with the reference: AccuracyError when they are too far off
    verify_seconds   that the comparison may take
    memory_limit     bytes of a GPU's memory; 0: what there is
    compiler         the C++ compiler of a CPU's programs; "": g++ or clang++, found on the PATH
    cache            folder of the object cache; "": the user's; "off": none
    folder           of a model in memory: where its external data lies
    in_place         outputs that take the memory of an input of the same type, {"present": "past"}: `run(feed, into={"present": feed["past"]})`
                     updates it there. With other memory, or none, the input is copied first and keeps its value
    progress         called with the name of a step and how much of it is done, in [0, 1]
    """
    kind, what = _source(model)
    options: Dict[str, Any] = {
        "target": target, "precision": precision, "granularity": granularity, "dispatch": dispatch,
        "search_seconds": search_seconds, "threads": threads, "verify": verify, "verify_seconds": verify_seconds, "memory_limit": memory_limit, "batch_invariant": batch_invariant, "watchdog": watchdog,
        "compiler": compiler, "cache": cache, "folder": folder, "in_place": dict(in_place or {}),
        "values": {name: [value] if isinstance(value, int) else list(value) for name, value in (values or {}).items()}}
    kept: Any = None
    if kind == "exported":
        kept = what.memory  # tensors that the program reads in place
        options["memory"] = {location: (tensor.data_ptr(), tensor.nbytes) for location, tensor in kept.items()}
        kind, what = "bytes", what.model
    if kind == "file" and str(what).endswith(".ir"):
        return Model(None, options, progress, None, {}, _Program(_obelisk.Model.compile_file(what, options, progress), threads))
    about = _obelisk.describe_file(what) if kind == "file" else _obelisk.describe_bytes(what)
    bound: Dict[str, List[int]] = {}
    dimensions: Dict[str, int] = {}
    ranges: Dict[str, Tuple[int, int]] = {}
    inputs = {name: shape for name, _, shape in about["inputs"]}
    for name, extent in (shapes or {}).items():
        if name in inputs:
            bound[name] = [int(d) for d in ([extent] if isinstance(extent, int) else extent)]  # type: ignore[union-attr]
        elif isinstance(extent, (int, np.integer)):
            dimensions[name] = int(extent)
        elif len(extent) == 2 and name in about["symbols"]:
            ranges[name] = (int(extent[0]), int(extent[1]))
        else:
            raise UsageError(f"the model has no input and no symbolic dimension '{name}'",
                             hint="its inputs: " + ", ".join(inputs) + "; its symbolic dimensions: " + ", ".join(about["symbols"]))
    options["shapes"], options["dimensions"] = bound, dimensions
    known = {**{symbol: extent for name, shape in bound.items() for symbol, extent in zip(inputs[name] or (), shape)}, **dimensions}
    open_ = [name for name, shape in inputs.items()
             if name not in bound and name not in options["values"] and (shape is None or any(not d.isdigit() and d not in known for d in shape))]
    if open_:
        return Model((kind, what), options, progress, about, ranges, None, kept)
    make = _obelisk.Model.compile_file if kind == "file" else _obelisk.Model.compile_bytes
    return Model(None, options, progress, None, {}, _Program(make(what, options, progress), threads), kept)


def load(
    model: Union[str, "os.PathLike[str]", bytes],
    *,
    portable: bool = False,
    gpu: int = 0,
    memory_limit: int = 0,
    threads: int = 0,
    compiler: str = "",
    cache: str = "",
) -> Model:
    """Opens a compiled file (.obk), or its bytes. It carries machine code and is trusted as a program is; `portable` does not run
    that code: all checksums are looked at, and the graph inside is compiled again."""
    kind, what = _source(model)
    make = _obelisk.Model.open_file if kind == "file" else _obelisk.Model.open_bytes
    return Model(None, {}, None, None, {}, _Program(make(what, portable, gpu, memory_limit, compiler, cache), threads))
