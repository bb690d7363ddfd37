"""all-MiniLM-L6-v2 in PyTorch, the other side of the demo on a GPU: torch_peer.py runs it.

    write(FOLDER, feeds)     minilm.npz (weights and inputs) and minilm.torch.py beside minilm.onnx,
                             for any Python that has PyTorch and NumPy; wants what minilm.py wants
    make(FOLDER)             (module, inputs, names), there
"""

from pathlib import Path

import numpy as np

SCRIPT = """import sys
sys.path.insert(0, {scripts!r})
import minilm_torch
def make():
    return minilm_torch.make({folder!r})
"""
NAMES = ("input_ids", "attention_mask", "token_type_ids")


def write(folder, feeds):
    import minilm
    from safetensors.numpy import load_file
    weights = load_file(minilm.package_dir() / "model.safetensors")
    arrays = {name.removeprefix("bert."): array for name, array in weights.items()}
    np.savez(Path(folder) / "minilm.npz", **arrays, **{f"feed.{n}": feeds[n] for n in NAMES})
    here = str(Path(__file__).resolve().parent)
    (Path(folder) / "minilm.torch.py").write_text(SCRIPT.format(scripts=here, folder=str(folder)))


def make(folder):
    import torch
    from torch import nn
    from torch.nn import functional as F

    kept = np.load(Path(folder) / "minilm.npz")

    class Layer(nn.Module):
        """A layer of BERT by the names of its weights."""

        def __init__(self, prefix):
            super().__init__()
            def linear(name):
                weight = torch.from_numpy(kept[f"{prefix}.{name}.weight"])
                made = nn.Linear(weight.shape[1], weight.shape[0])
                made.weight.data = weight
                made.bias.data = torch.from_numpy(kept[f"{prefix}.{name}.bias"])
                return made
            self.query, self.key, self.value = (
                linear(f"attention.self.{n}") for n in ("query", "key", "value")
            )
            self.output, self.up, self.down = (
                linear(n) for n in ("attention.output.dense", "intermediate.dense", "output.dense")
            )
            self.norm_attention = norm(f"{prefix}.attention.output.LayerNorm")
            self.norm_output = norm(f"{prefix}.output.LayerNorm")

        def forward(self, x, mask):
            batch, length, width = x.shape
            def split(t):
                return t.view(batch, length, 12, width // 12).transpose(1, 2)
            seen = F.scaled_dot_product_attention(
                split(self.query(x)), split(self.key(x)), split(self.value(x)), attn_mask=mask
            )
            seen = seen.transpose(1, 2).reshape(batch, length, width)
            x = self.norm_attention(x + self.output(seen))
            return self.norm_output(x + self.down(F.gelu(self.up(x))))

    def norm(prefix):
        made = nn.LayerNorm(len(kept[f"{prefix}.weight"]), eps=1e-12)
        made.weight.data = torch.from_numpy(kept[f"{prefix}.weight"])
        made.bias.data = torch.from_numpy(kept[f"{prefix}.bias"])
        return made

    def table(name):
        return nn.Embedding.from_pretrained(torch.from_numpy(kept[f"embeddings.{name}.weight"]))

    class MiniLm(nn.Module):
        def __init__(self):
            super().__init__()
            self.words, self.positions = table("word_embeddings"), table("position_embeddings")
            self.kinds, self.norm = table("token_type_embeddings"), norm("embeddings.LayerNorm")
            self.layers = nn.ModuleList(Layer(f"encoder.layer.{k}") for k in range(6))

        def forward(self, ids, mask, kinds):
            x = self.words(ids) + self.positions.weight[: ids.shape[1]] + self.kinds(kinds)
            x = self.norm(x)
            lowest = torch.finfo(x.dtype).min
            hidden = (1.0 - mask[:, None, None, :].to(x.dtype)) * lowest
            for layer in self.layers:
                x = layer(x, hidden)
            return x

    inputs = tuple(torch.from_numpy(kept[f"feed.{name}"]) for name in NAMES)
    return MiniLm().eval(), inputs, NAMES
