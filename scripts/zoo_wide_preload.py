"""What the processes of the wide zoo need, imported and warmed up once by the server that they are
forks of: the first export of a process takes three times as long as the next."""
import logging
import warnings

import zoo_models  # noqa: F401 — first: names the operators of torchvision's compiled part
import timm  # noqa: F401
import torch
import torchvision  # noqa: F401
import transformers.modeling_utils  # noqa: F401
import zoo_wide_check  # noqa: F401
import zoo_wide_export  # noqa: F401

torch.set_num_threads(1)  # no threads may be there when forks are made
with warnings.catch_warnings(), torch.no_grad():
    warnings.simplefilter("ignore")
    logging.disable(logging.WARNING)
    torch.onnx.export(torch.nn.Sequential(torch.nn.Conv2d(1, 2, 3), torch.nn.Flatten()),
                      (torch.zeros(1, 1, 4, 4),), dynamo=True, opset_version=20, verbose=False)
    logging.disable(logging.NOTSET)
