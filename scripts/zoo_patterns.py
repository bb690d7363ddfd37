#!/usr/bin/env python3
"""Shows that what PyTorch's exporters write of one pattern is raised to the same ops.

Small modules, one a pattern (a norm, an activation, attention in its kinds, a rotary embedding,
three projections), are exported by both exporters at several operator sets. `obelisk compile --to`
stops behind the passes that raise patterns; the ops there, but for moves, must be those that stand
beside the module. Prints a line a file; the exit is 1 when one differs. Needs PyTorch (.venv-zoo).
src/passes/test/exported.ir keeps such graphs as text, so that the ordinary tests need none.
"""
import argparse
import collections
import contextlib
import json
import logging
import os
import re
import subprocess
import sys
import warnings
from pathlib import Path
from xml.sax.saxutils import quoteattr

import torch
import torch.nn.functional as F
from torch import nn

ROOT = Path(__file__).resolve().parent.parent
BEHIND = "merge_qkv"  # the last pass that raises
SPELLINGS = [("torchscript", 13), ("torchscript", 17), ("dynamo", 18), ("dynamo", 20),
             ("dynamo", 23)]
# What the TorchScript exporter has no spelling for; the same by hand stands beside each.
ONLY_DYNAMO = {"rms_norm", "attention_groups"}
MOVES = {"Reshape", "Transpose", "Expand", "Split", "Slice", "Concat", "Unsqueeze", "Squeeze",
         "Cast", "Identity", "Flatten"}


def function(body):
    """A module whose forward is `body`."""
    class Function(nn.Module):
        def forward(self, *inputs):
            return body(*inputs)

    return Function()


class RootMeanSquare(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.weight = nn.Parameter(torch.linspace(0.8, 1.2, width))

    def forward(self, x):
        wide = x.float()
        scaled = wide * torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + 1e-5)
        return self.weight * scaled.to(x.dtype)


class Projections(nn.Module):
    """Three products of one input, and attention over their heads."""

    def __init__(self, width=4, heads=2):
        super().__init__()
        self.heads = heads
        self.q, self.k, self.v = (nn.Linear(width, width) for _ in range(3))

    def split(self, x):
        return x.view(x.shape[0], x.shape[1], self.heads, -1).transpose(1, 2)

    def forward(self, x):
        q, k, v = self.split(self.q(x)), self.split(self.k(x)), self.split(self.v(x))
        out = F.scaled_dot_product_attention(q, k, v).transpose(1, 2)
        return out.reshape(x.shape)


class SelfAttention(nn.Module):
    def __init__(self):
        super().__init__()
        self.attention = nn.MultiheadAttention(4, 2, batch_first=True)

    def forward(self, x):
        return self.attention(x, x, x, need_weights=False)[0]


def tanh_gelu(x):
    return 0.5 * x * (1.0 + torch.tanh(0.7978845608028654 * (x + 0.044715 * torch.pow(x, 3.0))))


def eager(q, k, v, mask=None):
    scores = torch.matmul(q, k.transpose(-1, -2)) * q.shape[-1] ** -0.5
    if mask is not None:
        scores = scores + mask
    return torch.matmul(torch.softmax(scores, dim=-1, dtype=torch.float32).to(q.dtype), v)


def filled(q, k, v, hidden):
    scores = torch.matmul(q, k.transpose(-1, -2)) / 2.0
    return torch.matmul(torch.softmax(scores.masked_fill(hidden, float("-inf")), -1), v)


def triangle(q, k, v):
    seen = torch.tril(torch.ones(q.shape[-2], k.shape[-2], dtype=torch.bool))
    return F.scaled_dot_product_attention(q, k, v, attn_mask=seen)


def repeat_heads(x, times):
    batch, heads, length, size = x.shape
    return x[:, :, None].expand(batch, heads, times, length, size).reshape(
        batch, heads * times, length, size)


def cached(q, k, v, past_k, past_v):
    keys, values = torch.cat((past_k, k), dim=2), torch.cat((past_v, v), dim=2)
    attended = F.scaled_dot_product_attention(q, repeat_heads(keys, 2), repeat_heads(values, 2))
    return attended, keys, values


def rotate_half(x):
    first, second = x.chunk(2, dim=-1)
    return torch.cat((-second, first), dim=-1)


def rotate_slices(x):
    half = x.shape[-1] // 2
    return torch.cat((-x[..., half:], x[..., :half]), dim=-1)


def rotary(rotate):
    def body(x, angles):
        both = torch.cat((angles, angles), dim=-1)[:, None]
        return x * both.cos() + rotate(x) * both.sin()

    return function(body)


def normal(*shape):
    return torch.randn(shape, generator=torch.Generator().manual_seed(1))


X = [(2, 3, 4)]
Q, KV = (1, 4, 3, 4), (1, 2, 3, 4)
ONE, PAST, NEW = (1, 4, 1, 4), (1, 2, 5, 4), (1, 2, 1, 4)
hidden = torch.tensor([[False, False, True]]).expand(3, 3).contiguous()
# Rows without a key give zeros, which exporters spell out up to operator set 22.
GUARDED = "Attention IsNaN Where", "Attention"
# pattern -> (module, inputs: shapes or tensors, the ops that it is; several where sets differ)
PATTERNS = {
    "layer_norm": (nn.LayerNorm(4), X, "LayerNormalization"),
    "layer_norm_two_axes": (nn.LayerNorm((3, 4)), X, "LayerNormalization"),
    "layer_norm_plain": (nn.LayerNorm(4, elementwise_affine=False), X, "LayerNormalization"),
    "rms_norm": (nn.RMSNorm(4, eps=1e-5), X, "RMSNormalization"),
    "rms_norm_by_hand": (RootMeanSquare(4), X, "RMSNormalization"),
    "gelu": (nn.GELU(), X, "Gelu"),
    "gelu_tanh": (nn.GELU("tanh"), X, "Gelu"),
    "gelu_tanh_by_hand": (function(tanh_gelu), X, "Gelu"),
    "silu": (nn.SiLU(), X, "Swish"),
    "silu_by_hand": (function(lambda x: x * torch.sigmoid(x)), X, "Swish"),
    "hard_swish": (nn.Hardswish(), X, "HardSwish"),
    "hard_swish_by_hand": (function(lambda x: x * F.relu6(x + 3) / 6), X, "HardSwish"),
    "softmax_added_mask": (function(lambda x, mask: torch.softmax(x + mask, -1)),
                           [(2, 3, 4), (3, 4)], "MaskedSoftmax"),
    "softmax_scaled_mask": (function(lambda x, mask: torch.softmax(x / 3.0 + mask, 1)),
                            [(2, 3, 4), (2, 1, 4)], "MaskedSoftmax"),
    "softmax_subtracted_mask": (function(lambda x, mask: F.softmax(x - mask * 1e4, -1)),
                                [(2, 3, 4), (4,)], "MaskedSoftmax Mul Neg"),
    "softmax_filled": (function(lambda x, seen: torch.softmax(
        x.masked_fill(seen, float("-inf")), -1)), [Q[:2] + (3, 3), hidden], "MaskedSoftmax"),
    "softmax_chosen": (function(lambda x, seen: torch.softmax(
        torch.where(seen, x * 0.5, torch.finfo(x.dtype).min), -1)),
        [Q[:2] + (3, 3), hidden], "MaskedSoftmax"),
    "attention": (function(F.scaled_dot_product_attention), [Q, Q, Q], "Attention"),
    "attention_eager": (function(eager), [Q, Q, Q], "Attention"),
    "attention_causal": (function(lambda q, k, v: F.scaled_dot_product_attention(
        q, k, v, is_causal=True)), [Q, Q, Q], "Attention"),
    "attention_triangle": (function(triangle), [Q, Q, Q], GUARDED),
    "attention_added_mask": (function(F.scaled_dot_product_attention),
                             [Q, Q, Q, (1, 1, 3, 3)], "Attention"),
    "attention_eager_mask": (function(eager), [Q, Q, Q, (1, 1, 3, 3)], "Attention"),
    "attention_filled": (function(filled), [Q, Q, Q, hidden], "Attention Not"),
    "attention_groups": (function(lambda q, k, v: F.scaled_dot_product_attention(
        q, k, v, enable_gqa=True)), [Q, KV, KV], "Attention"),
    "attention_groups_by_hand": (function(lambda q, k, v: eager(
        q, repeat_heads(k, 2), repeat_heads(v, 2))), [Q, KV, KV], "Attention"),
    "attention_cache": (function(cached), [ONE, NEW, NEW, PAST, PAST], "Attention"),
    "rotary_chunks": (rotary(rotate_half), [Q, (1, 3, 2)], "Cos RotaryEmbedding Sin"),
    "rotary_slices": (rotary(rotate_slices), [Q, (1, 3, 2)], "Cos RotaryEmbedding Sin"),
    "merged_qkv": (Projections(), X, "Add Attention MatMul"),
    "multihead": (SelfAttention(), X, "Add Attention Gemm MatMul"),
}


@contextlib.contextmanager
def silence():
    """A refusal of the TorchScript exporter prints pages, from C++ too."""
    sys.stdout.flush()
    kept = os.dup(1)
    with open(os.devnull, "w") as nowhere:
        os.dup2(nowhere.fileno(), 1)
    try:
        yield
    finally:
        sys.stdout.flush()
        os.dup2(kept, 1)
        os.close(kept)


def export(module, inputs, exporter, opset, path):
    names = [f"in{k}" for k in range(len(inputs))]
    with torch.no_grad(), silence():
        torch.onnx.export(module, tuple(inputs), str(path), dynamo=exporter == "dynamo",
                          opset_version=opset, input_names=names,
                          **({"external_data": False, "verbose": False}
                             if exporter == "dynamo" else {}))


def raised(program, path):
    """The ops of a model behind the passes that raise, sorted, without moves."""
    words = [program, "compile", path, "--to", BEHIND, "--json"]
    run = subprocess.run([str(word) for word in words], capture_output=True, text=True)
    if run.returncode:
        return f"exit {run.returncode}: {run.stderr.strip()[-300:]}"
    text = json.loads(run.stdout)["text"]
    ops = re.findall(r"^  %.* = (?:[\w.]+\.)?(\w+)\(", text, re.MULTILINE)
    return " ".join(sorted(op for op in ops if op not in MOVES))


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("names", nargs="*", help=f"patterns (all without): {', '.join(PATTERNS)}")
    parser.add_argument("--output-dir", type=Path, default=ROOT / "build" / "zoo_patterns")
    parser.add_argument("--program", type=Path, default=ROOT / "build" / "bin" / "obelisk")
    parser.add_argument("--junit", type=Path, metavar="FILE")
    arguments = parser.parse_args()
    warnings.simplefilter("ignore")
    logging.disable(logging.WARNING)
    torch.backends.mha.set_fastpath_enabled(False)
    torch.manual_seed(0)
    arguments.output_dir.mkdir(parents=True, exist_ok=True)
    rows = []
    for name in arguments.names or PATTERNS:
        module, shapes, wanted = PATTERNS[name]
        module.eval()
        inputs = [one if isinstance(one, torch.Tensor) else normal(*one) for one in shapes]
        for exporter, opset in SPELLINGS:
            path = arguments.output_dir / f"{name}.{exporter}{opset}.onnx"
            label = f"{exporter} {opset}"
            try:
                export(module, inputs, exporter, opset, path)
            except Exception as error:  # an exporter may raise anything; its reason is printed
                reason = " ".join(re.sub(r"\x1b\[[0-9;]*m", "", str(error)).split())[:160]
                print(f"{'-':7}{name:26}{label:16}not written: {reason}", flush=True)
                rows.append((name, label, None, reason))
                continue
            got = raised(arguments.program, path)
            good = got == wanted if isinstance(wanted, str) else got in wanted
            rows.append((name, label, good, got))
            print(f"{'ok' if good else 'FAILED':7}{name:26}{label:16}{got}"
                  + ("" if good else f", wanted {wanted}"), flush=True)
    # A pattern that an exporter wrote at none of its operator sets has shown nothing.
    written = collections.Counter((name, label.split()[0]) for name, label, good, _ in rows
                                  if good is not None)
    for name in arguments.names or PATTERNS:
        for exporter in ("torchscript", "dynamo"):
            needed = exporter == "dynamo" or name not in ONLY_DYNAMO
            if needed and not written[name, exporter]:
                rows.append((name, exporter, False, "not written at any operator set"))
                print(f"{'FAILED':7}{name:26}{exporter}: not written at any operator set")
    failed = [row for row in rows if row[2] is False]
    if arguments.junit:
        results = {None: "<skipped message={}/>", False: "<failure message={}/>", True: ""}
        body = "".join(f"<testcase classname={quoteattr(name)} name={quoteattr(label)}>"
                       + results[good].format(quoteattr(note)) + "</testcase>\n"
                       for name, label, good, note in rows)
        arguments.junit.parent.mkdir(parents=True, exist_ok=True)
        skipped = sum(row[2] is None for row in rows)
        arguments.junit.write_text(f'<testsuite name="zoo_patterns" tests="{len(rows)}" failures='
                                   f'"{len(failed)}" errors="0" skipped="{skipped}">\n{body}'
                                   "</testsuite>\n")
    print(f"patterns: {sum(row[2] is True for row in rows)} of "
          f"{sum(row[2] is not None for row in rows)} raised alike, PyTorch {torch.__version__}")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
