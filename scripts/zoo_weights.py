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
    return [p for p in part.parameters(recurse=False) if p.is_floating_point()]


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
                normal(weight, (2 / inputs) ** 0.5)
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
                for parameter in own_parameters(part):
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
                    elif parameter.std() < 0.05:  # tokens, positions, relative positions
                        normal(parameter, 0.2)
    return module


def calibrate(module, samples):
    """Gives batch norms the statistics of what they see while the module answers; in order, so that
    each sees what the norms before it leave. `samples`: tuples of arguments, put together to one
    batch where the module takes it. Channels that hardly differ keep a floor."""
    def see(part, inputs):
        if part.running_mean is None:
            return
        x = inputs[0].transpose(0, 1).flatten(1)
        floor = 0.05 * x.square().mean() + 1e-6
        part.running_mean.copy_(x.mean(1))
        part.running_var.copy_(torch.maximum(x.var(1, correction=0), floor))

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
