"""Random weights that let a network's answer depend on its input, and on every layer of it.

Networks as their libraries make them begin where training wants them: branches that end in zeros,
scales of 1e-6, weights so small that after twenty layers nothing is left of the input. Any mistake
hides there. `enliven` gives every parameter a value that keeps the size of what goes through, and
`calibrate` sets the statistics of batch norms to those of what they see.
"""
import torch
from torch import nn

CONVOLUTIONS = (nn.Conv1d, nn.Conv2d, nn.Conv3d)
TRANSPOSED = (nn.ConvTranspose1d, nn.ConvTranspose2d, nn.ConvTranspose3d)


def is_norm(part):
    return "norm" in type(part).__name__.lower()


def own_parameters(part):
    return [(name, parameter) for name, parameter in part.named_parameters(recurse=False)
            if parameter.is_floating_point()]


def enliven(module, seed=1):
    """New values for every parameter, in the order of the module's parts; returns the module."""
    generator = torch.Generator().manual_seed(seed)

    def normal(tensor, deviation):
        tensor.copy_(torch.randn(tensor.shape, generator=generator) * deviation)

    def uniform(tensor, low, high):
        tensor.copy_(torch.rand(tensor.shape, generator=generator) * (high - low) + low)

    with torch.no_grad():
        for part in module.modules():
            weight, bias = (getattr(part, name, None) for name in ("weight", "bias"))
            if isinstance(part, CONVOLUTIONS + TRANSPOSED) and type(part).__name__.startswith("Conv"):
                inputs = weight[0].numel()
                if isinstance(part, TRANSPOSED):  # each output element meets weight / stride of them
                    inputs = weight.numel() // weight.shape[1] // max(1, part.stride[0] ** 2)
                # What a ReLU halves; a channel's own filter is rarely before one.
                gain = 1 if inputs == weight[0, 0].numel() else 2
                normal(weight, (gain / inputs) ** 0.5)
                if bias is not None:
                    uniform(bias, -0.1, 0.1)
            elif isinstance(part, nn.Linear) or type(part).__name__ == "Conv1D":
                inputs = weight.shape[1] if isinstance(part, nn.Linear) else weight.shape[0]
                normal(weight, inputs ** -0.5)
                if bias is not None:
                    uniform(bias, -0.1, 0.1)
            elif isinstance(part, nn.Embedding):
                normal(weight, 1)
            else:
                for name, parameter in own_parameters(part):
                    low, high = parameter.min().item(), parameter.max().item()
                    if is_norm(part) and parameter is weight:
                        # Some norms multiply by 1 + weight, which begins as zeros.
                        uniform(parameter, high - 0.2, high + 0.2)
                    elif is_norm(part) and parameter is bias:
                        uniform(parameter, -0.1, 0.1)
                    elif low == high and abs(low) < 0.2:  # scales of residuals, tokens, positions
                        uniform(parameter, 0.2, 0.5)
                    elif low == high:
                        uniform(parameter, 0.8 * low, 1.2 * low)
                    elif parameter.dim() > 1 and ("weight" in name or "proj" in name):
                        # of attention, of experts: whichever of the two axes is summed over
                        normal(parameter, (parameter.shape[-1] * parameter.shape[-2]) ** -0.25)
                    elif parameter.std() < 0.05:  # tokens, positions, relative positions
                        normal(parameter, 0.2)
    return module


def calibrate(module, samples):
    """Gives batch norms statistics by which what they see gets size 1 while the module answers; in
    order, so that each sees what the norms before it leave. `samples`: tuples of arguments, put
    together to one batch where the module takes it.

    The means are small and know nothing of what is seen: a norm that takes away the mean it sees,
    before a ReLU, makes a difference of two inputs (and so every rounding error) 1.2 times as large
    (Yang et al., A Mean Field Theory of Batch Normalization), and fifty of them make f16
    meaningless, as they do not in trained networks. Channels that hardly differ keep a floor."""
    def see(part, inputs):
        if part.running_mean is None:
            return
        x = inputs[0].transpose(0, 1).flatten(1)
        square = x.square().mean(1)
        square = torch.maximum(square, 0.3 * square.mean() + 1e-6)
        part.running_mean.copy_(0.1 * torch.arange(len(square)).cos() * square.sqrt())
        part.running_var.copy_(square)

    hooks = [part.register_forward_pre_hook(see) for part in module.modules()
             if isinstance(part, nn.modules.batchnorm._BatchNorm)]
    with torch.no_grad():
        try:
            module(*(torch.cat(tensors) for tensors in zip(*samples)))
        except Exception:  # what depends on the size of the batch
            module(*samples[0])
    for hook in hooks:
        hook.remove()
    return module
