"""Derivatives and other operations that AOTAutograd leaves as one and PyTorch's exporter does not know, in operations that it does."""
from __future__ import annotations

import functools
from typing import Any, Callable, Dict, List, Optional, Sequence, Tuple

import torch

aten = torch.ops.aten


def _convolution_backward(
    grad: torch.Tensor, x: torch.Tensor, w: torch.Tensor, bias_sizes: Optional[Sequence[int]], stride: Sequence[int], padding: Sequence[int],
    dilation: Sequence[int], transposed: bool, output_padding: Sequence[int], groups: int, wanted: Sequence[bool],
) -> Tuple[Optional[torch.Tensor], Optional[torch.Tensor], Optional[torch.Tensor]]:
    """The derivative of a convolution by its input is the transposed one, and by its weights a convolution of the input with the
    derivative of the output, where the batch is what channels were:

        grad_w[o, c, k] = sum over n, t of x[n, c, k·dilation + t·stride - padding] · grad[n, o, t]
    """
    if transposed:
        return NotImplemented
    spatial = x.dim() - 2

    def each(values: Sequence[int]) -> List[int]:
        return list(values) if len(values) == spatial else list(values) * spatial
    stride, padding, dilation = each(stride), each(padding), each(dilation)
    by_x = by_w = by_bias = None
    if wanted[0]:
        rest = [x.shape[2 + d] - ((grad.shape[2 + d] - 1) * stride[d] - 2 * padding[d] + dilation[d] * (w.shape[2 + d] - 1) + 1) for d in range(spatial)]
        by_x = aten.convolution.default(grad, w, None, stride, padding, dilation, True, rest, groups)
    if wanted[1]:
        batch, channels = x.shape[0], x.shape[1] // groups
        places = list(range(3, 3 + spatial))
        images = x.reshape(batch, groups, channels, *x.shape[2:]).permute(2, 1, 0, *places).reshape(channels, groups * batch, *x.shape[2:])
        by_w = aten.convolution.default(images, grad.transpose(0, 1), None, dilation, padding, stride, False, [0] * spatial, groups)
        for d in range(spatial):  # positions of the input that no window reaches
            by_w = by_w.narrow(2 + d, 0, w.shape[2 + d])
        by_w = by_w.transpose(0, 1)
    if wanted[2]:
        by_bias = grad.sum([0, *range(2, 2 + spatial)])
    return by_x, by_w, by_bias


def _attention_scores(q: torch.Tensor, k: torch.Tensor, bias: Optional[torch.Tensor], causal: bool, factor: float) -> torch.Tensor:
    """What softmax is taken of: [batch, heads, rows of q, rows of k]. `bias`: added, or what may be seen."""
    scores = (q * factor) @ k.transpose(-2, -1)
    if bias is not None:
        scores = scores.masked_fill(~bias, -torch.inf) if bias.dtype == torch.bool else scores + bias
    if causal:
        seen = torch.ones(q.shape[-2], k.shape[-2], dtype=torch.bool, device=q.device).tril()
        scores = scores.masked_fill(~seen, -torch.inf)
    return scores


def _attention_backward(
    grad: torch.Tensor, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, bias: Optional[torch.Tensor], out: torch.Tensor, causal: bool,
    scale: Optional[float],
) -> Any:
    """Softmax attention without dropout; probabilities are computed again."""
    if k.shape[1] != q.shape[1]:
        return NotImplemented
    factor = q.shape[-1] ** -0.5 if scale is None else scale
    q32, k32, v32, grad32 = (each.float() if each.dtype in (torch.float16, torch.bfloat16) else each for each in (q, k, v, grad))
    p = torch.softmax(_attention_scores(q32, k32, bias, causal, factor), -1)
    by_p = grad32 @ v32.transpose(-2, -1)
    by_scores = p * (by_p - (grad32 * out.to(grad32.dtype)).sum(-1, keepdim=True))
    by_q, by_k, by_v = by_scores @ k32 * factor, by_scores.transpose(-2, -1) @ q32 * factor, p.transpose(-2, -1) @ grad32
    return by_q.to(q.dtype), by_k.to(k.dtype), by_v.to(v.dtype), by_scores


def _flash_for_cpu_backward(grad: Any, q: Any, k: Any, v: Any, out: Any, logsumexp: Any, dropout_p: float, is_causal: bool, *,
                            attn_mask: Optional[torch.Tensor] = None, scale: Optional[float] = None) -> Any:
    if dropout_p:
        return NotImplemented
    made = _attention_backward(grad, q, k, v, attn_mask, out, is_causal, scale)
    return made if made is NotImplemented else made[:3]


def _efficient_backward(grad: Any, q: Any, k: Any, v: Any, attn_bias: Any, out: Any, logsumexp: Any, philox_seed: Any, philox_offset: Any,
                        dropout_p: float, grad_input_mask: Sequence[bool], is_causal: bool = False, *, scale: Optional[float] = None) -> Any:
    if dropout_p:
        return NotImplemented
    made = _attention_backward(grad, q, k, v, attn_bias, out, is_causal, scale)
    if made is NotImplemented:
        return made
    by_bias = made[3].sum_to_size(attn_bias.shape).to(attn_bias.dtype) if attn_bias is not None and grad_input_mask[3] else None
    return (*made[:3], by_bias)


def _cudnn_backward(grad: Any, q: Any, k: Any, v: Any, out: Any, logsumexp: Any, philox_seed: Any, philox_offset: Any, attn_bias: Any,
                    cum_seq_q: Any, cum_seq_k: Any, max_q: int, max_k: int, dropout_p: float, is_causal: bool, *,
                    scale: Optional[float] = None) -> Any:
    return _flash_for_cpu_backward(grad, q, k, v, out, logsumexp, dropout_p, is_causal, attn_mask=attn_bias, scale=scale)


def _flash_backward(grad: Any, q: Any, k: Any, v: Any, out: Any, logsumexp: Any, cum_seq_q: Any, cum_seq_k: Any, max_q: int, max_k: int,
                    dropout_p: float, is_causal: bool, philox_seed: Any, philox_offset: Any, *, scale: Optional[float] = None) -> Any:
    return _flash_for_cpu_backward(grad, q, k, v, out, logsumexp, dropout_p, is_causal, scale=scale)


def _attention(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, bias: Optional[torch.Tensor], causal: bool,
               scale: Optional[float]) -> Tuple[torch.Tensor, torch.Tensor]:
    """Softmax attention without dropout, and the logarithms of the sums of each row's exponentials: [batch, heads, rows of q, 1]."""
    if k.shape[1] != q.shape[1]:  # heads that share keys
        k, v = (x.repeat_interleave(q.shape[1] // x.shape[1], 1) for x in (k, v))
    scores = _attention_scores(q, k, bias, causal, q.shape[-1] ** -0.5 if scale is None else scale)
    return torch.softmax(scores, -1) @ v, torch.logsumexp(scores.float(), -1, keepdim=True)


# What PyTorch takes for attention on a GPU. Its exporter has no translation of cuDNN's, and in some releases one of the others that fails.
def _cudnn_attention(q: Any, k: Any, v: Any, attn_bias: Any, compute_log_sumexp: bool, dropout_p: float = 0.0, is_causal: bool = False,
                     return_debug_mask: bool = False, *, scale: Optional[float] = None) -> Any:
    if dropout_p or return_debug_mask:
        return NotImplemented
    out, sums = _attention(q, k, v, attn_bias, is_causal, scale)
    seed = torch.zeros((), dtype=torch.int64, device=q.device)
    return out, sums if compute_log_sumexp else None, None, None, q.shape[2], k.shape[2], seed, seed, None


def _efficient_attention(q: Any, k: Any, v: Any, attn_bias: Any, compute_log_sumexp: bool, dropout_p: float = 0.0, is_causal: bool = False, *,
                         scale: Optional[float] = None) -> Any:
    if dropout_p:
        return NotImplemented
    out, sums = _attention(q, k, v, attn_bias, is_causal, scale)
    seed = torch.zeros((), dtype=torch.int64, device=q.device)
    return out, sums.squeeze(-1) if compute_log_sumexp else sums.new_empty((*sums.shape[:2], 0)), seed, seed


def _flash_attention(q: Any, k: Any, v: Any, dropout_p: float = 0.0, is_causal: bool = False, return_debug_mask: bool = False, *,
                     scale: Optional[float] = None) -> Any:
    if dropout_p or return_debug_mask:
        return NotImplemented
    out, sums = _attention(q, k, v, None, is_causal, scale)
    seed = torch.zeros((), dtype=torch.int64, device=q.device)
    return out, sums.squeeze(-1), None, None, q.shape[2], k.shape[2], seed, seed, out.new_empty(0)


def _histc(x: torch.Tensor, bins: int = 100, min: float = 0, max: float = 0) -> Any:
    """A histogram of integers, which PyTorch has on a GPU and its exporter does not translate: how many tokens a router sends to each
    expert. As PyTorch computes it there: bounds are integers, a bin is (x - min) * bins / (max - min) rounded down, and `max` itself is in
    the last one."""
    if x.is_floating_point() or x.dtype == torch.bool:
        return NotImplemented
    flat, low, high = x.reshape(-1).to(torch.int64), int(min), int(max)
    if low >= high:  # of equal bounds PyTorch takes those of the elements
        return NotImplemented
    if high - low == bins - 1:  # a bin for each integer
        bin_of = flat - low
    else:
        inside = (flat >= low) & (flat <= high)
        bin_of = torch.where(inside, ((flat - low) * bins // (high - low)).clamp(max=bins - 1), -1)
    return (bin_of.unsqueeze(-1) == torch.arange(bins, device=x.device)).sum(0).to(x.dtype)


_MOST_GROUPED_ROWS = 256  # chosen: of more, multiplying by all matrices would take longer than reading them


def _grouped_mm(x: torch.Tensor, w: torch.Tensor, offs: Optional[torch.Tensor] = None, bias: Optional[torch.Tensor] = None,
                out_dtype: Optional[torch.dtype] = None) -> Any:
    """The product of each group of rows of x, [rows, k], by a matrix of its own of w, [groups, k, n]: the experts of a mixture. `offs`: the
    row behind the last one of each group, ascending; rows behind all groups give zeros. It is one product, of x with a place for each group
    in its rows, zeros but for that of the row's group:

        [rows, groups·k] @ [groups·k, n]
    """
    if x.dim() != 2 or w.dim() != 3 or offs is None or bias is not None or x.shape[0] > _MOST_GROUPED_ROWS:
        return NotImplemented
    groups, k, n = w.shape
    at = torch.arange(x.shape[0], device=x.device).unsqueeze(-1)
    ends = offs.to(torch.int64)
    mine = (at < ends) & (at >= torch.cat([ends.new_zeros(1), ends[:-1]]))
    out = torch.where(mine.unsqueeze(-1), x.unsqueeze(1), 0).reshape(-1, groups * k) @ w.reshape(groups * k, n)
    return out if out_dtype is None else out.to(out_dtype)


@functools.cache
def _inference() -> Dict[Any, Callable[..., Any]]:
    known = torch._decomp.get_decompositions(
        [getattr(aten, name) for name in ("_native_batch_norm_legit_functional", "native_batch_norm", "cudnn_batch_norm",
                                          "_batch_norm_with_update_functional") if hasattr(aten, name)])
    for name, attention in (("cudnn", _cudnn_attention), ("efficient", _efficient_attention), ("flash", _flash_attention)):
        op = getattr(aten, f"_scaled_dot_product_{name}_attention", None)
        if op is not None:
            known[op.default] = attention
    known[aten.histc.default] = _histc
    if hasattr(aten, "_grouped_mm"):
        known[aten._grouped_mm.default] = _grouped_mm
    return known


def inference() -> Dict[Any, Callable[..., Any]]:
    """AOTAutograd's table. The exporter's own translation of a batch norm takes it for one in inference always."""
    theirs = getattr(torch.ops.transformers, "grouped_mm_fallback", None)  # there once transformers (5) is imported
    return _inference() | ({} if theirs is None else {theirs.default: _grouped_mm})


@functools.cache
def _training() -> Dict[Any, Callable[..., Any]]:
    known = {op: decomposition for op, decomposition in torch._decomp.decomposition_table.items() if "_backward" in str(op)}
    if hasattr(aten, "_scaled_dot_product_cudnn_attention_backward"):
        known[aten._scaled_dot_product_cudnn_attention_backward.default] = _cudnn_backward
    return {
        **known,
        aten.convolution_backward.default: _convolution_backward,
        aten._scaled_dot_product_flash_attention_for_cpu_backward.default: _flash_for_cpu_backward,
        aten._scaled_dot_product_efficient_attention_backward.default: _efficient_backward,
        aten._scaled_dot_product_flash_attention_backward.default: _flash_backward,
    }


def training() -> Dict[Any, Callable[..., Any]]:
    """AOTAutograd's table for graphs that are trained."""
    return inference() | _training()
