"""Networks for measurements on a GPU, with random weights: only shapes move the clock.

    MODELS[NAME]()   -> (torch module in eval mode, example inputs, names of the inputs)

Built where they are needed, from PyTorch (and torchvision for its networks), so that nothing large
travels. `export` writes the ONNX file that Obelisk reads.
"""
import warnings

import torch
from torch import nn
from torch.nn import functional as F


class EncoderLayer(nn.Module):
    """Attention and a feed-forward part, each normalised after its residual, as BERT has them."""

    def __init__(self, width, heads, inner):
        super().__init__()
        self.heads = heads
        self.query, self.key, self.value, self.output = (nn.Linear(width, width) for _ in range(4))
        self.up, self.down = nn.Linear(width, inner), nn.Linear(inner, width)
        self.norm_attention, self.norm_output = (nn.LayerNorm(width, eps=1e-12) for _ in range(2))

    def forward(self, x, mask):
        batch, length, width = x.shape
        def split(t):
            return t.view(batch, length, self.heads, -1).transpose(1, 2)
        seen = F.scaled_dot_product_attention(split(self.query(x)), split(self.key(x)),
                                              split(self.value(x)), attn_mask=mask)
        x = self.norm_attention(x + self.output(seen.transpose(1, 2).reshape(batch, length, width)))
        return self.norm_output(x + self.down(F.gelu(self.up(x))))


class Encoder(nn.Module):
    """Words, positions and segments, layers, and a pooled first token: MiniLM and BERT by their numbers."""

    def __init__(self, layers, width, heads, inner, words=30522, positions=512):
        super().__init__()
        self.words, self.positions = nn.Embedding(words, width), nn.Embedding(positions, width)
        self.segments, self.norm = nn.Embedding(2, width), nn.LayerNorm(width, eps=1e-12)
        self.layers = nn.ModuleList(EncoderLayer(width, heads, inner) for _ in range(layers))
        self.pool = nn.Linear(width, width)

    def forward(self, ids, mask):
        places = torch.arange(ids.shape[1], device=ids.device)
        x = self.norm(self.words(ids) + self.positions(places)[None] + self.segments(torch.zeros_like(ids)))
        hidden = (1.0 - mask[:, None, None, :].to(x.dtype)) * -10000.0
        for layer in self.layers:
            x = layer(x, hidden)
        return x, torch.tanh(self.pool(x[:, 0]))


def encoder(layers, width, heads, inner, batch, length):
    def make():
        ids = torch.randint(0, 30000, (batch, length))
        mask = torch.ones(batch, length, dtype=torch.long)
        return Encoder(layers, width, heads, inner), (ids, mask), ("ids", "mask")
    return make


def lively(model):
    """With weights that keep the size of what goes through: as PyTorch makes them a convolution with ReLU leaves 0.4 of it, and after twenty an answer is its last bias."""
    for part in model.modules():
        if isinstance(part, nn.Conv2d):
            nn.init.kaiming_normal_(part.weight, nonlinearity="relu")
    return model


def picture(batch, size):
    """Large shapes and some noise: of noise alone every picture's means, and so a classifier's answers, are alike."""
    shapes = F.interpolate(torch.randn(batch, 3, 7, 7), size=(size, size), mode="bilinear")
    return shapes + 0.3 * torch.randn(batch, 3, size, size)


def vision(name, size=224, batch=1, **options):
    def make():
        import torchvision.models
        model = getattr(torchvision.models, name)(weights=None, **options)
        if options.get("init_weights") is False:
            lively(model)
        if name.startswith("vit"):  # begins with a head of zeros: every answer would be zero
            nn.init.normal_(model.heads.head.weight, std=0.02)
        return model, (picture(batch, size),), ("image",)
    return make


class Crnn(nn.Module):
    """Text in pictures: seven convolutions, two layers of LSTM in both directions."""

    def __init__(self, classes=37):
        super().__init__()
        layers, inputs = [], 1
        plan = [
            (64, (2, 2)),
            (128, (2, 2)),
            (256, None),
            (256, (2, 1)),
            (512, None),
            (512, (2, 1)),
            (512, None),
        ]
        for k, (outputs, pool) in enumerate(plan):
            last = k == len(plan) - 1
            layers.append(nn.Conv2d(inputs, outputs, 2 if last else 3, padding=0 if last else 1))
            if k in (2, 4, 6):
                layers.append(nn.BatchNorm2d(outputs))
            layers.append(nn.ReLU())
            if pool == (2, 2):
                layers.append(nn.MaxPool2d(2, 2))
            elif pool:
                layers.append(nn.MaxPool2d((2, 2), (2, 1), (0, 1)))
            inputs = outputs
        self.convolutions = nn.Sequential(*layers)
        self.recurrent = nn.LSTM(512, 256, 2, bidirectional=True)
        self.classes = nn.Linear(512, classes)
        nn.init.normal_(self.classes.weight, std=0.3)  # so that classes differ

    def forward(self, x):
        columns = self.convolutions(x).squeeze(2).permute(2, 0, 1)
        return F.log_softmax(self.classes(self.recurrent(columns)[0]), -1)


class DeepFm(nn.Module):
    """Click prediction: a factorisation machine beside a perceptron over the same embeddings."""

    def __init__(self, fields=39, values=10000, width=16, hidden=(400, 400, 400)):
        super().__init__()
        self.linear, self.factors = nn.Embedding(fields * values, 1), nn.Embedding(
            fields * values, width
        )
        for table in (self.linear, self.factors):  # so that the sigmoid tells answers apart
            nn.init.normal_(table.weight, std=0.1)
        layers, inputs = [], fields * width
        for outputs in hidden:
            layers += [nn.Linear(inputs, outputs), nn.ReLU()]
            inputs = outputs
        self.deep = nn.Sequential(*layers, nn.Linear(inputs, 1))

    def forward(self, ids):
        factors = self.factors(ids)
        total = factors.sum(1)
        pairs = 0.5 * (total * total - (factors * factors).sum(1)).sum(1, keepdim=True)
        return torch.sigmoid(self.linear(ids).sum(1) + pairs + self.deep(factors.flatten(1)))


class DecoderLayer(nn.Module):
    """One token of a decoder with grouped queries. In ONNX its cache comes as tensors, which the new key and value are joined to; PyTorch
    writes them in place, into buffers that `keep` fills with the same."""

    def __init__(self, width, heads, groups, size, inner):
        super().__init__()
        self.heads, self.groups, self.size = heads, groups, size
        self.qkv = nn.Linear(width, (heads + 2 * groups) * size, bias=False)
        self.output = nn.Linear(heads * size, width, bias=False)
        self.gate, self.up = nn.Linear(width, inner, bias=False), nn.Linear(
            width, inner, bias=False
        )
        self.down = nn.Linear(inner, width, bias=False)
        self.norm_attention, self.norm_inner = (nn.Parameter(torch.ones(width)) for _ in range(2))

    def keep(self, keys, values):
        for name, old in (("keys", keys), ("values", values)):
            self.register_buffer(name, F.pad(old, (0, 0, 0, 1)))
        self.register_buffer("place", torch.tensor([keys.shape[2]]))

    @staticmethod
    def norm(x, scale):
        wide = x.float()
        return (wide * torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + 1e-5)).to(x.dtype) * scale

    def forward(self, x, cosine, sine, keys, values):
        batch = x.shape[0]
        def turn(t):
            half = self.size // 2
            return t * cosine + torch.cat([-t[..., half:], t[..., :half]], -1) * sine
        sizes = [self.heads * self.size, self.groups * self.size, self.groups * self.size]
        q, k, v = self.qkv(self.norm(x, self.norm_attention)).split(sizes, -1)
        q = turn(q.view(batch, 1, self.heads, self.size).transpose(1, 2))
        k = turn(k.view(batch, 1, self.groups, self.size).transpose(1, 2))
        v = v.view(batch, 1, self.groups, self.size).transpose(1, 2)
        if torch.onnx.is_in_onnx_export():
            keys, values = torch.cat([keys, k], 2), torch.cat([values, v], 2)
        else:
            keys, values = self.keys.index_copy_(2, self.place, k), self.values.index_copy_(2, self.place, v)
        q = q.reshape(batch, self.groups, self.heads // self.groups, self.size)
        seen = F.scaled_dot_product_attention(q, keys, values)
        x = x + self.output(seen.reshape(batch, 1, -1))
        inner = self.norm(x, self.norm_inner)
        return x + self.down(F.silu(self.gate(inner)) * self.up(inner))


class Decoder(nn.Module):

    def __init__(
        self, layers=16, width=2048, heads=32, groups=8, size=64, inner=8192, words=128256
    ):
        super().__init__()
        self.words = nn.Embedding(words, width)
        self.layers = nn.ModuleList(
            DecoderLayer(width, heads, groups, size, inner) for _ in range(layers)
        )
        self.scale = nn.Parameter(torch.ones(width))

    def forward(self, ids, cosine, sine, keys, values):
        x = self.words(ids)
        for k, layer in enumerate(self.layers):
            x = layer(x, cosine, sine, keys[k], values[k])
        return F.linear(DecoderLayer.norm(x, self.scale), self.words.weight)


def decoder(context, layers=16, groups=8, size=64):
    def make():
        cache = [torch.randn(layers, 1, groups, context - 1, size) for _ in range(2)]
        inputs = (
            torch.randint(0, 1000, (1, 1)),
            torch.rand(1, 1, 1, size),
            torch.rand(1, 1, 1, size),
            *cache,
        )
        model = Decoder(layers=layers)
        for layer, keys, values in zip(model.layers, *cache):
            layer.keep(keys, values)
        return model, inputs, ("ids", "cosine", "sine", "keys", "values")
    return make


class Rows(nn.Module):
    """One op that is all memory traffic, over rows x columns."""

    def __init__(self, kind, columns):
        super().__init__()
        self.kind = kind
        self.scale, self.bias = nn.Parameter(torch.rand(columns)), nn.Parameter(torch.rand(columns))

    def forward(self, x, y=None):
        if self.kind == "layernorm":
            return F.layer_norm(x, x.shape[-1:], self.scale, self.bias)
        if self.kind == "rmsnorm":
            return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 1e-5) * self.scale
        if self.kind == "softmax":
            return torch.softmax(x, -1)
        if self.kind == "gelu":
            return F.gelu(x + self.bias) + y
        if self.kind == "transpose":
            return x.t().contiguous()
        return x.sum(0 if self.kind == "columnsum" else -1)


def rows(kind, count, columns, half=False):
    def make():
        module, inputs = Rows(kind, columns), [torch.randn(count, columns) for _ in range(2 if kind == "gelu" else 1)]
        if half:
            module, inputs = module.half(), [x.half() for x in inputs]
        return module, tuple(inputs), ("x", "y")[: len(inputs)]
    return make


# ---- networks of unequal branches: what --dispatch is measured with ----
def timm_picture(name, size, batch=1):
    def make():
        import timm
        return lively(timm.create_model(name, pretrained=False)), (picture(batch, size),), ("image",)
    return make


class T5(nn.Module):
    """Encoder and decoder of T5-small's shape, tokens of both given."""

    def __init__(self):
        super().__init__()
        import transformers
        config = transformers.T5Config(vocab_size=32128, d_model=512, d_kv=64, d_ff=2048, num_layers=6,
                                       num_heads=8, use_cache=False, attn_implementation="eager")
        self.inner = transformers.T5Model(config)

    def forward(self, ids, targets):
        return self.inner(input_ids=ids, decoder_input_ids=targets, use_cache=False)[0]


def t5(batch=1, length=128):
    def make():
        ids = [torch.randint(0, 32000, (batch, length)) for _ in range(2)]
        return T5(), tuple(ids), ("ids", "targets")
    return make


def conv_relu(inputs, outputs, kernel=3, stride=1, groups=1):
    return nn.Sequential(nn.Conv2d(inputs, outputs, kernel, stride, kernel // 2, groups=groups, bias=False),
                         nn.BatchNorm2d(outputs), nn.ReLU())


class Unet(nn.Module):
    """Down and up four times, with a bridge at each size."""

    def __init__(self, width=32):
        super().__init__()
        widths = [width * 2**k for k in range(5)]
        self.down = nn.ModuleList(nn.Sequential(conv_relu(a, b), conv_relu(b, b))
                                  for a, b in zip([3, *widths], widths))
        self.up = nn.ModuleList(nn.ConvTranspose2d(b, a, 2, 2) for a, b in zip(widths, widths[1:]))
        self.join = nn.ModuleList(nn.Sequential(conv_relu(2 * a, a), conv_relu(a, a)) for a in widths[:-1])
        self.last = nn.Conv2d(width, 8, 1)

    def forward(self, x):
        bridges = []
        for k, part in enumerate(self.down):
            x = part(F.max_pool2d(x, 2) if k else x)
            bridges.append(x)
        for up, join, bridge in reversed(list(zip(self.up, self.join, bridges))):
            x = join(torch.cat([bridge, up(x)], 1))
        return self.last(x)


class RandomlyWired(nn.Module):
    """Stages whose nodes (separable convolutions) are wired by a random graph: each adds up to three
    earlier ones (after Xie et al. 2019)."""

    def __init__(self, nodes=16, width=64, stages=3):
        super().__init__()
        import random
        generator = random.Random(1)
        self.first = nn.Sequential(conv_relu(3, width // 2, stride=2), conv_relu(width // 2, width, stride=2))
        self.stages, self.wires, self.ends = nn.ModuleList(), [], nn.ModuleList()
        for stage in range(stages):
            wide = width * 2**stage
            self.wires.append([generator.sample(range(k + 1), min(k + 1, generator.randint(1, 3)))
                               for k in range(nodes)])
            self.stages.append(nn.ModuleList(
                nn.Sequential(nn.Conv2d(wide, wide, 3, 1, 1, groups=wide, bias=False), conv_relu(wide, wide, 1))
                for _ in range(nodes)))
            self.ends.append(conv_relu(wide, 2 * wide, stride=2))
        self.last = nn.Linear(width * 2**stages, 1000)

    def forward(self, x):
        x = self.first(x)
        for nodes, wires, end in zip(self.stages, self.wires, self.ends):
            made, used = [x], set()
            for node, wire in zip(nodes, wires):
                used.update(wire)
                made.append(node(sum(made[k] for k in wire)))
            ends = [made[k] for k in range(len(made)) if k not in used]
            x = end(sum(ends) / len(ends))
        return self.last(x.mean((2, 3)))


class Towers(nn.Module):
    """A recommender of many towers of unequal depth and width over features of their own, joined at the end."""

    def __init__(self, towers=24, features=64):
        super().__init__()
        self.features = features
        self.towers = nn.ModuleList()
        for k in range(towers):
            width, depth = 128 << k % 3, 1 + k % 5
            sizes = [features] + [width] * depth + [32]
            self.towers.append(nn.Sequential(*(
                part for a, b in zip(sizes, sizes[1:]) for part in (nn.Linear(a, b), nn.ReLU()))))
        self.last = nn.Sequential(nn.Linear(32 * towers, 256), nn.ReLU(), nn.Linear(256, 1))

    def forward(self, x):
        parts = x.split(self.features, 1)
        return self.last(torch.cat([tower(part) for tower, part in zip(self.towers, parts)], 1))


def branches(batch):
    """Opara's six networks, of which four stand above, and more of the kind."""
    old = {"init_weights": False, "transform_input": False}
    return {
        f"googlenet_b{batch}": vision("googlenet", batch=batch, aux_logits=False, **old),
        f"inception_b{batch}": vision("inception_v3", 299, batch=batch, aux_logits=True, **old),
        f"nasnet_b{batch}": timm_picture("nasnetalarge", 331, batch),
        f"pnasnet_b{batch}": timm_picture("pnasnet5large", 331, batch),
        f"inception_resnet_b{batch}": timm_picture("inception_resnet_v2", 299, batch),
        f"hrnet_b{batch}": timm_picture("hrnet_w18", 224, batch),
        f"t5_b{batch}": t5(batch),
        f"bert_b{batch}": encoder(12, 768, 12, 3072, batch, 128),
        f"deepfm_b{batch}": lambda: (DeepFm(), (torch.randint(0, 390000, (batch, 39)),), ("ids",)),
        f"unet_b{batch}": lambda: (lively(Unet()), (picture(batch, 256),), ("image",)),
        f"wired_b{batch}": lambda: (lively(RandomlyWired()), (picture(batch, 224),), ("image",)),
        f"towers_b{batch}": lambda: (Towers(), (torch.randn(batch, 24 * 64),), ("features",)),
    }


MODELS = {
    **{name: make for batch in (1, 2, 4, 8, 16, 32) for name, make in branches(batch).items()},
    "minilm_b1": encoder(6, 384, 12, 1536, 1, 128),
    "bert_b1": encoder(12, 768, 12, 3072, 1, 128),
    "bert_b8": encoder(12, 768, 12, 3072, 8, 128),
    "vit_b1": vision("vit_b_16"),
    "resnet18_b1": vision("resnet18"),
    "mobilenet_b1": vision("mobilenet_v2"),
    "resnet50_b1": vision("resnet50"),
    "resnet50_b8": vision("resnet50", batch=8),
    "googlenet_b1": vision(
        "googlenet", init_weights=False, aux_logits=False, transform_input=False
    ),
    "inception_b1": vision(
        "inception_v3", 299, init_weights=False, aux_logits=True, transform_input=False
    ),
    "crnn_b1": lambda: (lively(Crnn()), (torch.randn(1, 1, 32, 100),), ("image",)),
    "deepfm_b1": lambda: (DeepFm(), (torch.randint(0, 390000, (1, 39)),), ("ids",)),
    "deepfm_b512": lambda: (DeepFm(), (torch.randint(0, 390000, (512, 39)),), ("ids",)),
    "llama1b_decode": decoder(1024),
    # memory traffic alone: bench/results tells the share of the copy bandwidth
    "layernorm_8192": rows("layernorm", 8192, 8192),
    "rmsnorm_8192": rows("rmsnorm", 8192, 8192),
    "softmax_8192": rows("softmax", 8192, 8192),
    "gelu_8192": rows("gelu", 8192, 8192),
    "rowsum_64x30000": rows("rowsum", 64, 30000),
    "rowsum_750000x32": rows("rowsum", 750000, 32),
    "columnsum_8192": rows("columnsum", 8192, 8192),
    "rowsum_2x1000000": rows("rowsum", 2, 1000000),
    "rowsum_1x4000000": rows("rowsum", 1, 4000000),
    "columnsum_32768x64": rows("columnsum", 32768, 64),
    "transpose_8192": rows("transpose", 8192, 8192),
    "layernorm_16384": rows("layernorm", 4096, 16384),
    # the same of 16 bits, to be run with --precision keep
    "layernorm_8192_f16": rows("layernorm", 8192, 8192, half=True),
    "rmsnorm_8192_f16": rows("rmsnorm", 8192, 8192, half=True),
    "softmax_8192_f16": rows("softmax", 8192, 8192, half=True),
    "gelu_8192_f16": rows("gelu", 8192, 8192, half=True),
    "rowsum_64x30000_f16": rows("rowsum", 64, 30000, half=True),
    "rowsum_750000x32_f16": rows("rowsum", 750000, 32, half=True),
    "columnsum_8192_f16": rows("columnsum", 8192, 8192, half=True),
    "transpose_8192_f16": rows("transpose", 8192, 8192, half=True),
    "layernorm_4096_f16": rows("layernorm", 16384, 4096, half=True),
    "layernorm_16384_f16": rows("layernorm", 4096, 16384, half=True),
    "softmax_32768_f16": rows("softmax", 2048, 32768, half=True),
}


def make(name, seed=0):
    torch.manual_seed(seed)
    module, inputs, names = MODELS[name]()
    return module.eval(), inputs, names


def export(name, path, seed=0):
    """Writes the network as ONNX, in f32, and returns how many bytes it has. Another seed: other weights and inputs."""
    module, inputs, names = make(name, seed)
    torch.backends.mha.set_fastpath_enabled(False)  # the fused operator has no ONNX form
    with torch.no_grad(), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        torch.onnx.export(module, inputs, str(path), input_names=list(names), opset_version=17,
                          dynamo=False, do_constant_folding=True)
    return path.stat().st_size
