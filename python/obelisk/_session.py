"""A session of the shape of ONNX Runtime's, so that a program changes one line."""
from __future__ import annotations

from typing import Any, Dict, List, Mapping, NamedTuple, Optional, Sequence, Tuple, Union

import numpy as np

from ._errors import UsageError
from ._model import Model, Port, Source, compile, load

_ORT = {"f64": "double", "f32": "float", "f16": "float16", "bf16": "bfloat16", "b1": "bool", "i64": "int64", "i32": "int32",
        "i16": "int16", "i8": "int8", "u64": "uint64", "u32": "uint32", "u16": "uint16", "u8": "uint8"}


class NodeArg(NamedTuple):
    name: str
    type: str  # "tensor(float)", ...
    shape: List[Union[int, str, None]]  # a name, or None, where the extent is not known


class SessionOptions:
    """Takes what programs set; `intra_op_num_threads` is heeded, other attributes are kept and mean nothing here."""

    def __init__(self) -> None:
        self.intra_op_num_threads = 0


class IOBinding:
    """Inputs and outputs in memory that the caller chooses, for `InferenceSession.run_with_iobinding`."""

    def __init__(self, session: "InferenceSession") -> None:
        self._session = session
        self._inputs: Dict[str, Any] = {}
        self._outputs: Dict[str, Any] = {}
        self._made: List[Any] = []

    def bind_cpu_input(self, name: str, array: np.ndarray) -> None:
        self._inputs[name] = array

    def bind_input(self, name: str, tensor: Any) -> None:
        """A tensor with __dlpack__, used in place."""
        self._inputs[name] = tensor

    def bind_output(self, name: str, tensor: Any = None) -> None:
        """A tensor that is written in place; without one the session makes an array."""
        if not isinstance(tensor, (type(None), str)):
            self._outputs[name] = tensor

    def clear_binding_inputs(self) -> None:
        self._inputs.clear()

    def clear_binding_outputs(self) -> None:
        self._outputs.clear()

    def get_outputs(self) -> List[Any]:
        return list(self._made)

    def copy_outputs_to_cpu(self) -> List[np.ndarray]:
        return [made if isinstance(made, np.ndarray) else made.cpu().numpy() for made in self._made]


class InferenceSession:
    """`run(names, feed)` as ONNX Runtime's does. The model is compiled when it is made, or, where dimensions are not known, for each
    shape that comes. `providers` is accepted and ignored but for one that names CUDA, which asks for a GPU; further keywords go to
    `obelisk.compile`."""

    def __init__(self, path_or_bytes: Source, sess_options: Optional[SessionOptions] = None, providers: Optional[Sequence[Any]] = None,
                 provider_options: Any = None, **keywords: Any) -> None:
        names = [each[0] if isinstance(each, tuple) else each for each in providers or ()]
        if any("CUDA" in name or "Tensorrt" in name for name in names):
            keywords.setdefault("target", "cuda")
        elif names and names[0] == "CPUExecutionProvider":
            keywords.setdefault("target", "cpu")
        if sess_options is not None and sess_options.intra_op_num_threads > 0:
            keywords.setdefault("threads", sess_options.intra_op_num_threads)
        is_compiled = (bytes(path_or_bytes[:3]) == b"OBK" if isinstance(path_or_bytes, (bytes, bytearray, memoryview))
                       else str(path_or_bytes).endswith(".obk"))
        self.model: Model = (load if is_compiled else compile)(path_or_bytes, **keywords)

    @staticmethod
    def _args(ports: Tuple[Port, ...]) -> List[NodeArg]:
        return [NodeArg(port.name, f"tensor({_ORT.get(port.type, port.type)})", [None if d in ("?", -1) else d for d in port.shape]) for port in ports]

    def get_inputs(self) -> List[NodeArg]:
        return self._args(self.model.inputs)

    def get_outputs(self) -> List[NodeArg]:
        return self._args(self.model.outputs)

    def get_providers(self) -> List[str]:
        return ["ObeliskExecutionProvider"]

    def run(self, output_names: Optional[Sequence[str]], input_feed: Mapping[str, Any], run_options: Any = None) -> List[Any]:
        """The named outputs, all where None are named."""
        names = [port.name for port in self.model.outputs]
        for name in output_names or ():
            if name not in names:
                raise UsageError(f"the model has no output '{name}'", hint="its outputs: " + ", ".join(names))
        made = dict(zip(names, self.model.run(input_feed)))
        return [made[name] for name in output_names or names]

    def io_binding(self) -> IOBinding:
        return IOBinding(self)

    def run_with_iobinding(self, binding: IOBinding, run_options: Any = None) -> None:
        binding._made = self.model.run(binding._inputs, binding._outputs)
