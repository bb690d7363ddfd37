"""The exported networks' definitions: random weights, the published architectures' shapes.

Each entry of MODELS is a function that returns a Network. Only shapes and operators matter here;
weights are random from a fixed seed, with the norms' statistics moved off their neutral values, so
that a dropped scale or a swapped mean shows in the answer.
"""
import contextlib
import importlib.util
import pathlib
from dataclasses import dataclass, field

import torch
import torch.nn.functional as F
from gpu_models import lively
from torch import nn

def name_torchvision_operators():
    """torchvision without its compiled part: these operators' names are all that its import needs
    (transformers imports it too, where it is installed). The library must outlive the import."""
    found = importlib.util.find_spec("torchvision")
    for part in pathlib.Path(found.origin).parent.glob("_C*.so") if found else ():
        with contextlib.suppress(OSError):  # built for a CUDA that is not here
            torch.ops.load_library(part)
            return None
    library = torch.library.Library("torchvision", "DEF")
    for name in ("nms", "qnms"):
        library.define(f"{name}(Tensor boxes, Tensor scores, float threshold) -> Tensor")
    return library


_torchvision_names = name_torchvision_operators()


@dataclass
class Input:
    """One input: its dimensions (a number, or a name bound by each of the network's shapes)."""
    dims: tuple
    kind: str = "normal"  # normal · ids (int64, below `high`) · ones_mask · prefix_mask
    high: int = 0


@dataclass
class Network:
    module: nn.Module
    inputs: dict       # name -> Input, in the order of forward's arguments
    outputs: list      # names
    shapes: list       # [{dimension name: size}], two or more
    tolerance: float = 1e-4
    # output name -> {axis: dimension name}, for TorchScript
    derived: dict = field(default_factory=dict)
    unrolled: tuple = ()  # dimensions that the dynamo exporter can only write at one size


# ---- text --------------------------------------------------------------------------------------
def bert(layers, hidden, heads, inner):
    from transformers import BertConfig, BertModel

    class Encoder(nn.Module):
        def __init__(self):
            super().__init__()
            config = BertConfig(
                hidden_size=hidden,
                num_hidden_layers=layers,
                num_attention_heads=heads,
                intermediate_size=inner,
                attn_implementation="sdpa",
            )
            self.bert = BertModel(config)

        def forward(self, input_ids, attention_mask, token_type_ids):
            result = self.bert(input_ids=input_ids, attention_mask=attention_mask,
                               token_type_ids=token_type_ids)
            return result.last_hidden_state, result.pooler_output

    tokens = ("batch", "sequence")
    return Network(Encoder(), {"input_ids": Input(tokens, "ids", 30522),
                               "attention_mask": Input(tokens, "prefix_mask"),
                               "token_type_ids": Input(tokens, "ids", 2)},
                   ["last_hidden_state", "pooler_output"],
                   [dict(batch=1, sequence=128), dict(batch=3, sequence=17)])


def gpt2():
    from transformers import GPT2Config, GPT2LMHeadModel

    class Prefill(nn.Module):
        def __init__(self):
            super().__init__()
            self.gpt = GPT2LMHeadModel(GPT2Config(attn_implementation="sdpa", use_cache=False))

        def forward(self, input_ids, attention_mask):
            mask = attention_mask
            if torch.jit.is_tracing():
                # The TorchScript exporter cannot write transformers' own causal mask, so it gets
                # the finished one: [batch, 1, sequence, sequence], 0 or the lowest float.
                length = input_ids.shape[1]
                causal = torch.ones(length, length, dtype=torch.long).tril()
                seen = causal[None, None] * attention_mask[:, None, None, :]
                mask = (1.0 - seen.float()) * torch.finfo(torch.float32).min
            return self.gpt(input_ids=input_ids, attention_mask=mask).logits

    tokens = ("batch", "sequence")
    return Network(Prefill(), {"input_ids": Input(tokens, "ids", 50257),
                               "attention_mask": Input(tokens, "ones_mask")}, ["logits"],
                   [dict(batch=1, sequence=64), dict(batch=2, sequence=9)])


def t5_encoder():
    from transformers import T5Config, T5EncoderModel

    class Encoder(nn.Module):
        def __init__(self):
            super().__init__()
            self.t5 = T5EncoderModel(
                T5Config(d_model=512, d_kv=64, d_ff=2048, num_layers=6, num_heads=8)
            )

        def forward(self, input_ids, attention_mask):
            return self.t5(input_ids=input_ids, attention_mask=attention_mask).last_hidden_state

    tokens = ("batch", "sequence")
    return Network(
        Encoder(),
        {"input_ids": Input(tokens, "ids", 32128), "attention_mask": Input(tokens, "prefix_mask")},
        ["last_hidden_state"],
        [dict(batch=1, sequence=96), dict(batch=2, sequence=21)],
    )


class RootMeanSquare(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(width))

    def forward(self, x):
        wide = x.float()
        return self.weight * (wide * torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + 1e-5)).to(
            x.dtype
        )


def rotate_half(x):
    first, second = x.chunk(2, dim=-1)
    return torch.cat((-second, first), dim=-1)


class LlamaLayer(nn.Module):
    def __init__(self, width, heads, groups, size, inner):
        super().__init__()
        self.heads, self.groups, self.size = heads, groups, size
        self.q_proj = nn.Linear(width, heads * size, bias=False)
        self.k_proj = nn.Linear(width, groups * size, bias=False)
        self.v_proj = nn.Linear(width, groups * size, bias=False)
        self.o_proj = nn.Linear(heads * size, width, bias=False)
        self.gate_proj = nn.Linear(width, inner, bias=False)
        self.up_proj = nn.Linear(width, inner, bias=False)
        self.down_proj = nn.Linear(inner, width, bias=False)
        self.input_norm = RootMeanSquare(width)
        self.post_norm = RootMeanSquare(width)

    def forward(self, x, cos, sin, past_key, past_value):
        batch, tokens, _ = x.shape
        y = self.input_norm(x)
        query = self.q_proj(y).view(batch, tokens, self.heads, self.size).transpose(1, 2)
        key = self.k_proj(y).view(batch, tokens, self.groups, self.size).transpose(1, 2)
        value = self.v_proj(y).view(batch, tokens, self.groups, self.size).transpose(1, 2)
        query = query * cos + rotate_half(query) * sin
        key = key * cos + rotate_half(key) * sin
        key = torch.cat((past_key, key), dim=2)
        value = torch.cat((past_value, value), dim=2)
        repeat = self.heads // self.groups

        def widen(t):
            length = t.shape[2]
            spread = t[:, :, None].expand(batch, self.groups, repeat, length, self.size)
            return spread.reshape(batch, self.heads, length, self.size)

        scores = torch.matmul(query, widen(key).transpose(2, 3)) * self.size ** -0.5
        share = torch.softmax(scores, dim=-1, dtype=torch.float32).to(query.dtype)
        context = torch.matmul(share, widen(value)).transpose(1, 2).reshape(batch, tokens, -1)
        x = x + self.o_proj(context)
        y = self.post_norm(x)
        return x + self.down_proj(F.silu(self.gate_proj(y)) * self.up_proj(y)), key, value


class LlamaDecode(nn.Module):
    """One decoding step: a token, its position, and the cache of keys and values of every layer."""

    def __init__(self, layers=4, width=1024, heads=16, groups=4, inner=2816, vocab=32000):
        super().__init__()
        size = width // heads
        self.embed_tokens = nn.Embedding(vocab, width)
        self.layers = nn.ModuleList(
            LlamaLayer(width, heads, groups, size, inner) for _ in range(layers)
        )
        self.norm = RootMeanSquare(width)
        self.lm_head = nn.Linear(width, vocab, bias=False)
        frequencies = 1.0 / (500000.0 ** (torch.arange(0, size, 2).float() / size))
        self.register_buffer("frequencies", frequencies)

    def forward(self, input_ids, position_ids, *past):
        angles = position_ids[:, :, None].float() * self.frequencies[None, None, :]
        angles = torch.cat((angles, angles), dim=-1)[:, None]
        cos, sin = angles.cos(), angles.sin()
        x = self.embed_tokens(input_ids)
        present = []
        for index, layer in enumerate(self.layers):
            x, key, value = layer(x, cos, sin, past[2 * index], past[2 * index + 1])
            present += [key, value]
        return self.lm_head(self.norm(x[:, -1:])), *present


def llama_decode(layers=4, groups=4, size=64):
    inputs = {"input_ids": Input(("batch", 1), "ids", 32000),
              "position_ids": Input(("batch", 1), "ids", 2048)}
    outputs, derived = ["logits"], {}
    for layer in range(layers):
        for part in ("key", "value"):
            inputs[f"past_key_values.{layer}.{part}"] = Input(("batch", groups, "past", size))
            outputs.append(f"present.{layer}.{part}")
            derived[outputs[-1]] = {0: "batch", 2: "past_plus_1"}
    return Network(LlamaDecode(layers), inputs, outputs,
                   [dict(batch=1, past=127), dict(batch=2, past=31)], derived=derived)


# ---- speech ------------------------------------------------------------------------------------
class ConformerLayer(nn.Module):
    def __init__(self, width, heads, kernel):
        super().__init__()
        self.heads = heads
        self.before = self.feed_forward(width)
        self.after = self.feed_forward(width)
        self.norm_attention = nn.LayerNorm(width)
        self.qkv = nn.Linear(width, 3 * width)
        self.out = nn.Linear(width, width)
        self.norm_conv = nn.LayerNorm(width)
        self.expand = nn.Conv1d(width, 2 * width, 1)
        self.depthwise = nn.Conv1d(width, width, kernel, padding=kernel // 2, groups=width)
        self.norm_batch = nn.BatchNorm1d(width)
        self.shrink = nn.Conv1d(width, width, 1)
        self.norm = nn.LayerNorm(width)

    @staticmethod
    def feed_forward(width):
        return nn.Sequential(nn.LayerNorm(width), nn.Linear(width, 4 * width), nn.SiLU(),
                             nn.Linear(4 * width, width))

    def forward(self, x):
        batch, frames, width = x.shape
        x = x + 0.5 * self.before(x)
        y = self.qkv(self.norm_attention(x)).view(batch, frames, 3, self.heads, width // self.heads)
        query, key, value = y.permute(2, 0, 3, 1, 4).unbind(0)
        y = F.scaled_dot_product_attention(query, key, value)
        x = x + self.out(y.transpose(1, 2).reshape(batch, frames, width))
        y = F.glu(self.expand(self.norm_conv(x).transpose(1, 2)), dim=1)
        y = self.shrink(F.silu(self.norm_batch(self.depthwise(y))))
        x = x + y.transpose(1, 2)
        x = x + 0.5 * self.after(x)
        return self.norm(x)


class Conformer(nn.Module):
    def __init__(self, bands=80, width=144, layers=4, heads=4, kernel=31, classes=128):
        super().__init__()
        self.subsample = nn.Sequential(nn.Conv2d(1, width, 3, 2), nn.ReLU(),
                                       nn.Conv2d(width, width, 3, 2), nn.ReLU())
        self.project = nn.Linear(width * (((bands - 1) // 2 - 1) // 2), width)
        self.layers = nn.ModuleList(ConformerLayer(width, heads, kernel) for _ in range(layers))
        self.classify = nn.Linear(width, classes)

    def forward(self, features):
        y = self.subsample(features[:, None])
        y = self.project(y.transpose(1, 2).flatten(2))
        for layer in self.layers:
            y = layer(y)
        return F.log_softmax(self.classify(y), dim=-1)


def conformer():
    return Network(Conformer(), {"features": Input(("batch", "frames", 80))}, ["log_probabilities"],
                   [dict(batch=1, frames=200), dict(batch=2, frames=83)],
                   derived={"log_probabilities": {0: "batch", 1: "steps"}})


# ---- vision ------------------------------------------------------------------------------------
def vision(name, size, sizes, **options):
    def make():
        import torchvision.models
        module = getattr(torchvision.models, name)(weights=None, **options)
        if options.get("init_weights") is False:
            lively(module)
        if name.startswith("vit"):  # its head starts as zeros, which any mistake before it passes
            nn.init.normal_(module.heads.head.weight, std=0.05)
        free = any("size" in shape for shape in sizes)
        dims = ("batch", 3, "height", "width") if free else ("batch", 3, size, size)
        shapes = [
            dict(
                batch=s["batch"],
                **(dict(height=s.get("size", size), width=s.get("size", size)) if free else {}),
            )
            for s in sizes
        ]
        return Network(module, {"image": Input(dims)}, ["scores"], shapes)
    return make


class Crnn(nn.Module):
    """Seven convolutions, then two bidirectional LSTM layers over the columns of a text line."""

    def __init__(self, classes=37):
        super().__init__()
        widths = [1, 64, 128, 256, 256, 512, 512, 512]
        parts = []
        for index in range(7):
            last = index == 6
            parts.append(
                nn.Conv2d(widths[index], widths[index + 1], 2 if last else 3, 1, 0 if last else 1)
            )
            if index in (2, 4, 6):
                parts.append(nn.BatchNorm2d(widths[index + 1]))
            parts.append(nn.ReLU())
            if index in (0, 1):
                parts.append(nn.MaxPool2d(2, 2))
            if index in (3, 5):
                parts.append(nn.MaxPool2d((2, 2), (2, 1), (0, 1)))
        self.features = nn.Sequential(*parts)
        self.lstm = nn.LSTM(512, 256, num_layers=2, bidirectional=True)
        self.classify = nn.Linear(512, classes)
        nn.init.normal_(self.classify.weight, std=0.3)  # so that classes differ

    def forward(self, image):
        columns = self.features(image).squeeze(2).permute(2, 0, 1)
        return F.log_softmax(self.classify(self.lstm(columns)[0]), dim=-1)


def crnn():
    return Network(lively(Crnn()), {"image": Input(("batch", 1, 32, "width"))}, ["log_probabilities"],
                   [dict(batch=1, width=100), dict(batch=3, width=160)],
                   derived={"log_probabilities": {0: "steps", 1: "batch"}},
                   unrolled=("width",))  # that exporter writes an LSTM step by step


class UNet(nn.Module):
    def __init__(self, channels=3, classes=2, widths=(32, 64, 128, 256)):
        super().__init__()
        self.down = nn.ModuleList()
        before = channels
        for width in widths:
            self.down.append(self.block(before, width))
            before = width
        self.up = nn.ModuleList()
        self.join = nn.ModuleList()
        for width in reversed(widths[:-1]):
            self.up.append(nn.ConvTranspose2d(before, width, 2, stride=2))
            self.join.append(self.block(2 * width, width))
            before = width
        self.head = nn.Conv2d(before, classes, 1)

    @staticmethod
    def block(before, after):
        return nn.Sequential(
            nn.Conv2d(before, after, 3, padding=1, bias=False),
            nn.BatchNorm2d(after),
            nn.ReLU(),
            nn.Conv2d(after, after, 3, padding=1, bias=False),
            nn.GroupNorm(8, after),
            nn.SiLU(),
        )

    def forward(self, image):
        kept, x = [], image
        for index, block in enumerate(self.down):
            x = block(x if index == 0 else F.max_pool2d(x, 2))
            kept.append(x)
        for up, join, skip in zip(self.up, self.join, reversed(kept[:-1])):
            x = join(torch.cat((up(x), skip), dim=1))
        x = F.interpolate(self.head(x), scale_factor=2.0, mode="bilinear", align_corners=False)
        return torch.sigmoid(x)


def unet():
    return Network(UNet(), {"image": Input(("batch", 3, "height", "width"))}, ["mask"],
                   [dict(batch=1, height=96, width=96), dict(batch=2, height=64, width=112)],
                   derived={"mask": {0: "batch", 2: "height_x2", 3: "width_x2"}})


# ---- recommendation ----------------------------------------------------------------------------
class DeepFm(nn.Module):
    def __init__(self, fields=39, vocab=10000, size=16, hidden=(400, 400, 400)):
        super().__init__()
        self.linear = nn.Embedding(fields * vocab, 1)
        self.factors = nn.Embedding(fields * vocab, size)
        width, parts = fields * size, []
        for after in hidden:
            parts += [nn.Linear(width, after), nn.ReLU()]
            width = after
        self.deep = nn.Sequential(*parts, nn.Linear(width, 1))

    def forward(self, ids):
        factors = self.factors(ids)
        total = factors.sum(dim=1)
        pairs = 0.5 * (total * total - (factors * factors).sum(dim=1)).sum(dim=1, keepdim=True)
        return torch.sigmoid(self.linear(ids).sum(dim=1) + pairs + self.deep(factors.flatten(1)))


def deepfm():
    return Network(DeepFm(), {"ids": Input(("batch", 39), "ids", 390000)}, ["probability"],
                   [dict(batch=1), dict(batch=64)])


MODELS = {
    "bert-base": lambda: bert(12, 768, 12, 3072),
    "resnet18": vision("resnet18", 224, [dict(batch=1, size=224), dict(batch=2, size=160)]),
    "resnet50": vision("resnet50", 224, [dict(batch=1, size=224), dict(batch=2, size=192)]),
    "vit-b16": vision("vit_b_16", 224, [dict(batch=1), dict(batch=2)]),
    "deepfm": deepfm,
    "crnn": crnn,
    "googlenet": vision("googlenet", 224, [dict(batch=1), dict(batch=2)], init_weights=False,
                        aux_logits=False, transform_input=False),
    "minilm": lambda: bert(6, 384, 12, 1536),
    "llama-decode": llama_decode,
    "gpt2": gpt2,
    "t5-encoder": t5_encoder,
    "unet": unet,
    "conformer": conformer,
    "inception-v3": vision("inception_v3", 299, [dict(batch=1), dict(batch=2)], init_weights=False,
                           aux_logits=True, transform_input=False),
}
