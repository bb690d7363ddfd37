"""What the processes of the wide zoo need, imported once by the server that they are forks of."""
import zoo_models  # noqa: F401 — first: names the operators of torchvision's compiled part
import onnxscript  # noqa: F401
import timm  # noqa: F401
import torch.onnx._internal.exporter._core  # noqa: F401
import torchvision  # noqa: F401
import transformers.modeling_utils  # noqa: F401
import zoo_wide_check  # noqa: F401
import zoo_wide_export  # noqa: F401
