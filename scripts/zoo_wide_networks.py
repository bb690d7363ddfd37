"""The networks of the wide zoo: what torchvision, timm and transformers define, small.

    NETWORKS[NAME] -> Wide; NETWORKS[NAME].make() -> zoo_models.Network with static shapes

OBELISK_ZOO_PICTURES=N in the environment: pictures of N x N for networks that take any size.

Importing this needs no PyTorch; making a network does. Weights come later (zoo_weights.py).
"""
import os
import re
from dataclasses import dataclass
from typing import Callable


@dataclass(frozen=True)
class Wide:
    library: str           # torchvision · timm · transformers
    make: Callable
    exporter: str = "dynamo"
    quick: bool = True     # small enough for a dozen in a few minutes
    family: str = ""       # timm's module
    refused: str = ""      # the reason that must stand in Obelisk's refusal; it runs where this is empty


NETWORKS = {}


def add(library, name, make, **options):
    NETWORKS[f"{library}.{name}"] = Wide(library, make, **options)


def network(module, inputs, outputs):
    from zoo_models import Network
    return Network(module, inputs, outputs, [{}])


def value(*dims, kind="normal", high=0):
    from zoo_models import Input
    return Input(dims, kind, high)


def side_of(size, options):
    """Of a picture; a network whose options name a size takes no other."""
    fixed = "img_size" in options or "image_size" in options
    return size if fixed else int(os.environ.get("OBELISK_ZOO_PICTURES", size))


# ---- torchvision -------------------------------------------------------------------------------
def torchvision_scores(function, size, options):
    size = side_of(size, options)

    def make():
        import zoo_models  # noqa: F401 — names the operators of torchvision's compiled part
        import torchvision.models
        module = getattr(torchvision.models, function)(weights=None, **options)
        return network(module, {"image": value(1, 3, size, size, kind="picture")}, ["scores"])
    return make


def torchvision_segments(function, size):
    def make():
        import zoo_models  # noqa: F401
        import torch
        import torchvision.models.segmentation as models

        class Segments(torch.nn.Module):
            def __init__(self):
                super().__init__()
                self.inner = getattr(models, function)(
                    weights=None, weights_backbone=None, num_classes=8)

            def forward(self, image):
                return self.inner(image)["out"]

        return network(Segments(), {"image": value(1, 3, size, size, kind="picture")}, ["scores"])
    return make


def torchvision_video(function, size, frames):
    def make():
        import zoo_models  # noqa: F401
        import torchvision.models.video as models
        return network(getattr(models, function)(weights=None),
                       {"frames": value(1, 3, frames, size, size, kind="picture")}, ["scores"])
    return make


OLD_INIT = {"init_weights": False}  # the other way takes minutes; the weights are replaced anyway
for _name, _size, _options in [
    ("alexnet", 96, {}),
    ("convnext_tiny", 64, {}),
    ("densenet121", 64, {}),
    ("efficientnet_b0", 64, {}),
    ("efficientnet_v2_s", 64, {}),
    ("googlenet", 96, {**OLD_INIT, "aux_logits": False}),
    ("inception_v3", 96, {**OLD_INIT, "aux_logits": False}),
    ("maxvit_t", 224, {}),
    ("mnasnet0_5", 64, {}),
    ("mobilenet_v2", 64, {}),
    ("mobilenet_v3_small", 64, {}),
    ("regnet_x_400mf", 64, {}),
    ("regnet_y_400mf", 64, {}),
    ("resnet18", 64, {}),
    ("resnext50_32x4d", 64, {}),
    ("shufflenet_v2_x0_5", 64, {}),
    ("shufflenet_v2_x1_0", 64, {}),
    ("squeezenet1_0", 64, {}),
    ("swin_t", 64, {}),
    ("swin_v2_t", 64, {}),
    ("vgg11", 64, OLD_INIT),
    ("vgg11_bn", 64, OLD_INIT),
    ("vit_b_32", 64, {"image_size": 64}),
]:
    add("torchvision", _name, torchvision_scores(_name, _size, _options),
        quick=_name not in ("maxvit_t", "vgg11", "vgg11_bn", "vit_b_32", "wide_resnet50_2"))
for _name in ("deeplabv3_mobilenet_v3_large", "lraspp_mobilenet_v3_large", "deeplabv3_resnet50",
              "fcn_resnet50"):
    add("torchvision", _name, torchvision_segments(_name, 64), quick="mobilenet" in _name)
for _name, _size, _frames in [("r3d_18", 48, 4), ("s3d", 224, 16), ("swin3d_t", 64, 4)]:
    add("torchvision", _name, torchvision_video(_name, _size, _frames), quick=False)


# a few as the older exporter spells them
for _name in ("resnet18", "mobilenet_v3_small", "shufflenet_v2_x0_5", "swin_t", "efficientnet_b0"):
    add("torchvision", f"{_name}-torchscript",
        torchvision_scores(_name, 64, {}), exporter="torchscript")


# ---- timm --------------------------------------------------------------------------------------
def timm_scores(model, size, options):
    size = side_of(size, options)

    def make():
        import zoo_models  # noqa: F401
        import timm
        module = timm.create_model(model, pretrained=False, num_classes=50, **options)
        return network(module, {"image": value(1, 3, size, size, kind="picture")}, ["scores"])
    return make


def sized(size, **options):
    """Of architectures that are made for one size of picture."""
    return size, {"img_size": size, **options}


# Whose files have more than 100 MB, or whose graphs some thousands of nodes.
LARGE = ("coat_tiny", "dm_nfnet_f0", "hrnet_w18_small", "inception_resnet_v2", "inception_v4",
         "mobilenetv5_base", "nasnetalarge", "nextvit_small", "rdnet_tiny", "resnet50_clip",
         "samvit_base_patch16_224", "sequencer2d_s", "tresnet_m", "vit_base_patch16_siglip_224")
for _family, _name, _size, _options in [
    ("beit", "beit_base_patch16_224", *sized(64, depth=3)),
    ("byoanet", "botnet26t_256", *sized(128)),
    ("byoanet", "halonet26t", 256, {}),
    ("byoanet", "lambda_resnet26t", 128, {}),
    ("byoanet", "lambda_resnet26rpt_256", *sized(128)),
    ("byobnet", "bat_resnext26ts", 256, {}),
    ("byobnet", "gcresnext26ts", 64, {}),
    ("byobnet", "mobileone_s0", 64, {}),
    ("byobnet", "regnetz_b16", 64, {}),
    ("byobnet", "repvgg_a0", 64, {}),
    ("byobnet", "resnet50_clip", *sized(64)),
    ("cait", "cait_xxs24_224", *sized(64, depth=3)),
    ("coat", "coat_tiny", 64, {"img_size": 64}),
    ("convit", "convit_tiny", *sized(64, depth=11)),
    ("convmixer", "convmixer_1024_20_ks9_p14", 64, {}),
    ("convnext", "convnext_atto", 64, {}),
    ("convnext", "convnextv2_atto", 64, {}),
    ("cpubone", "cpubone_nano", 64, {}),
    ("crossvit", "crossvit_tiny_240", 240, {}),
    ("csatv2", "csatv2", 256, {}),
    ("cspnet", "cspdarknet53", 64, {}),
    ("cspnext", "cspnext_tiny", 64, {}),
    ("davit", "davit_tiny", 64, {}),
    ("deit", "deit_tiny_distilled_patch16_224", *sized(64, depth=3)),
    ("densenet", "densenetblur121d", 64, {}),
    ("dla", "dla46_c", 64, {}),
    ("dla", "dla60_res2net", 64, {}),
    ("dpn", "dpn48b", 64, {}),
    ("edgenext", "edgenext_xx_small", 64, {}),
    ("efficientformer", "efficientformer_l1", 224, {}),
    ("efficientformer_v2", "efficientformerv2_s0", 224, {}),
    ("efficientnet", "efficientnet_lite0", 64, {}),
    ("efficientnet", "mixnet_s", 64, {}),
    ("efficientnet", "tinynet_e", 64, {}),
    ("efficientnet", "mobilenetv4_conv_small", 64, {}),
    ("efficientnet", "mobilenetv4_hybrid_medium", 96, {}),
    ("efficientvim", "efficientvim_m1", 224, {}),
    ("efficientvit_mit", "efficientvit_b0", 64, {}),
    ("efficientvit_msra", "efficientvit_m0", *sized(224)),
    ("eva", "eva02_tiny_patch14_224", *sized(70, depth=3)),
    ("fasternet", "fasternet_t0", 64, {}),
    ("fastvit", "fastvit_t8", 64, {}),
    ("focalnet", "focalnet_tiny_srf", 64, {}),
    ("gcvit", "gcvit_xxtiny", *sized(128)),
    ("ghostnet", "ghostnet_050", 64, {}),
    ("ghostnet", "ghostnetv2_100", 64, {}),
    ("hardcorenas", "hardcorenas_a", 64, {}),
    ("hgnet", "hgnet_tiny", 64, {}),
    ("hiera", "hiera_tiny_224", 224, {}),
    ("hieradet_sam2", "sam2_hiera_tiny", 128, {}),
    ("hrnet", "hrnet_w18_small", 64, {}),
    ("iformer", "iformer_t", 64, {}),
    ("inception_next", "inception_next_atto", 64, {}),
    ("inception_resnet_v2", "inception_resnet_v2", 96, {}),
    ("inception_v4", "inception_v4", 96, {}),
    ("lcnetv2", "lcnetv2_small", 64, {}),
    ("levit", "levit_128s", *sized(224)),
    ("lowformer", "lowformer_b0", 64, {}),
    ("mambaout", "mambaout_femto", 64, {}),
    ("maxxvit", "coatnet_nano_cc_224", *sized(128)),
    ("maxxvit", "maxvit_rmlp_pico_rw_256", *sized(128)),
    ("metaformer", "poolformer_s12", 64, {}),
    ("metaformer", "caformer_s18", 64, {}),
    ("mlp_mixer", "mixer_s32_224", *sized(64)),
    ("mlp_mixer", "gmlp_ti16_224", *sized(64)),
    ("mlp_mixer", "resmlp_12_224", *sized(64)),
    ("mobilenetv3", "lcnet_035", 64, {}),
    ("mobilenetv3", "fbnetv3_b", 64, {}),
    ("mobilenetv5", "mobilenetv5_base", 64, {}),
    ("mobilevit", "mobilevit_xxs", 64, {}),
    ("mobilevit", "mobilevitv2_050", 64, {}),
    ("mvitv2", "mvitv2_tiny", *sized(64)),
    ("nasnet", "nasnetalarge", 64, {}),
    ("naflexvit", "naflexvit_base_patch16_gap", 64, {"depth": 3}),
    ("nest", "nest_tiny", 224, {}),
    ("nextvit", "nextvit_small", 64, {}),
    ("nfnet", "dm_nfnet_f0", 64, {}),
    ("nfnet", "nf_ecaresnet26", 64, {}),
    ("pit", "pit_ti_224", *sized(224)),
    ("pvt_v2", "pvt_v2_b0", 64, {}),
    ("rdnet", "rdnet_tiny", 64, {}),
    ("regnet", "regnetx_002", 64, {}),
    ("regnet", "regnety_002", 64, {}),
    ("repghost", "repghostnet_050", 64, {}),
    ("repvit", "repvit_m0_9", 64, {}),
    ("res2net", "res2net50_48w_2s", 64, {}),
    ("resnest", "resnest14d", 64, {}),
    ("resnet", "resnet10t", 64, {}),
    ("resnet", "ecaresnet26t", 64, {}),
    ("resnetv2", "resnetv2_18", 64, {}),
    ("resnetv2", "resnetv2_50x1_bit", 64, {}),
    ("rexnet", "rexnet_100", 64, {}),
    ("selecsls", "selecsls42", 64, {}),
    ("senet", "legacy_seresnet18", 64, {}),
    ("sequencer", "sequencer2d_s", *sized(64)),
    ("shvit", "shvit_s1", 64, {}),
    ("sknet", "skresnet18", 64, {}),
    ("starnet", "starnet_s050", 64, {}),
    ("swiftformer", "swiftformer_xs", 64, {}),
    ("swin_transformer", "swin_tiny_patch4_window7_224", 224, {}),
    ("swin_transformer_v2", "swinv2_tiny_window8_256", *sized(128)),
    ("swin_transformer_v2_cr", "swinv2_cr_tiny_224", *sized(128)),
    ("tiny_vit", "tiny_vit_5m_224", 64, {}),
    ("tnt", "tnt_s_patch16_224", *sized(64, depth=3)),
    ("tresnet", "tresnet_m", 64, {}),
    ("twins", "twins_pcpvt_small", 64, {}),
    ("twins", "twins_svt_small", 64, {}),
    ("visformer", "visformer_tiny", *sized(64)),
    ("vision_transformer", "vit_tiny_patch16_224", *sized(64, depth=3)),
    ("vision_transformer", "vit_base_patch16_siglip_224", *sized(64, depth=2)),
    ("vision_transformer_hybrid", "vit_tiny_r_s16_p8_224", *sized(64, depth=3)),
    ("vision_transformer_relpos", "vit_relpos_small_patch16_224", *sized(64, depth=3)),
    ("vision_transformer_sam", "samvit_base_patch16_224", *sized(64, depth=3)),
    ("vitamin", "vitamin_small_224", *sized(64)),
    ("volo", "volo_d1_224", *sized(64)),
    ("vovnet", "ese_vovnet19b_slim", 64, {}),
    ("xception", "legacy_xception", 96, {}),
    ("xception_aligned", "xception41p", 64, {}),
    ("xcit", "xcit_nano_12_p16_224", *sized(64, depth=3)),
]:
    add("timm", _name, timm_scores(_name, _size, _options), family=_family,
        quick=_size <= 96 and _name not in LARGE)


# ---- transformers ------------------------------------------------------------------------------
SMALL = dict(vocab_size=211, hidden_size=64, num_hidden_layers=2, num_attention_heads=4,
             intermediate_size=128, max_position_embeddings=64)
WORDS = 211


def wrapped(model, inputs, outputs, call=None):
    """A module that takes its inputs in order and gives a tuple of the named outputs."""
    import torch

    class Wrapped(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.model = model

        def forward(self, *values):
            named = dict(zip(inputs, values))
            if call:
                return call(self.model, named)
            result = self.model(**named)
            return tuple(getattr(result, name) for name in outputs)

    return network(Wrapped(), inputs, list(outputs))


def transformer(model, config, inputs, outputs, call=None, **sizes):
    """`inputs` and `sizes` are functions or plain values: they need PyTorch only when called."""
    def make():
        import zoo_models  # noqa: F401
        import transformers
        made = getattr(transformers, model)(getattr(transformers, config)(**sizes)).eval()
        return wrapped(made, inputs(), outputs, call)
    return make


def words(length=12, mask=True, high=WORDS):
    def inputs():
        given = {"input_ids": value(2, length, kind="ids", high=high)}
        if mask:
            given["attention_mask"] = value(2, length, kind="prefix_mask")
        return given
    return inputs


def encoder(name, model, length=12, mask=True, outputs=("last_hidden_state",), exporter="dynamo",
            config=None, **sizes):
    stem = config or model.removesuffix("Model") + "Config"
    add("transformers", name, transformer(model, stem, words(length, mask), outputs, **sizes),
        exporter=exporter)


def decoder(name, model, length=12, exporter="dynamo", config=None, mask=True, refused="", **sizes):
    """All tokens at once, no cache."""
    stem = config or model.removesuffix("ForCausalLM").removesuffix("LMHeadModel") + "Config"
    add("transformers", name, transformer(model, stem, words(length, mask), ("logits",),
                                          use_cache=False, **sizes), exporter=exporter, refused=refused)


def cached(name, model, layers=2, heads=2, size=16, past=9, steps=1, **sizes):
    """One step of a decoder: a token, and the keys and values of those before it."""
    def inputs():
        given = {"input_ids": value(1, steps, kind="ids", high=WORDS),
                 "position_ids": value(1, steps, kind="count", high=past)}
        for layer in range(layers):
            for part in ("key", "value"):
                given[f"past.{layer}.{part}"] = value(1, heads, past, size)
        return given

    def call(model, named):
        import transformers
        kept = transformers.DynamicCache()
        for k in range(layers):
            kept.update(named[f"past.{k}.key"], named[f"past.{k}.value"], k)
        result = model(input_ids=named["input_ids"], position_ids=named["position_ids"],
                       past_key_values=kept, use_cache=True)
        filled = result.past_key_values.layers
        return result.logits, *(part for layer in filled for part in (layer.keys, layer.values))

    outputs = ["logits", *(f"present.{layer}.{part}" for layer in range(layers)
                           for part in ("key", "value"))]
    stem = model.removesuffix("ForCausalLM").removesuffix("LMHeadModel") + "Config"
    add("transformers", name, transformer(model, stem, inputs, outputs, call, **sizes))


def both(name, model, inputs, outputs, config=None, **sizes):
    """An encoder and a decoder, or several kinds of input."""
    stem = config or model.removesuffix("Model").removesuffix("ForConditionalGeneration") + "Config"
    add("transformers", name, transformer(model, stem, inputs, outputs, **sizes))


def to_decoder(high=WORDS):
    return lambda: {"input_ids": value(2, 12, kind="ids", high=high),
                    "attention_mask": value(2, 12, kind="prefix_mask"),
                    "decoder_input_ids": value(2, 7, kind="ids", high=high)}


def seen(name, model, size=64, outputs=("last_hidden_state",), exporter="dynamo", refused="", **sizes):
    stem = re.sub("(Model|For[A-Z][A-Za-z]+)$", "", model)
    add("transformers", name, transformer(
        model, stem + "Config",
        lambda: {"pixel_values": value(1, 3, size, size, kind="picture")}, outputs, **sizes),
        exporter=exporter, refused=refused)


def heard(name, model, length=4000, outputs=("last_hidden_state",), **sizes):
    add("transformers", name, transformer(
        model, model.removesuffix("Model") + "Config",
        lambda: {"input_values": value(1, length, kind="wave")}, outputs, **sizes))


PATCHES = dict(hidden_size=64, num_hidden_layers=2, num_attention_heads=4, intermediate_size=128,
               image_size=64, patch_size=16)
GROUPED = {**SMALL, "num_key_value_heads": 2}

# encoders of text
encoder("bert", "BertModel", **SMALL)
encoder("bert-torchscript", "BertModel", exporter="torchscript", **SMALL)
encoder("roberta", "RobertaModel", **SMALL)
encoder("xlm-roberta", "XLMRobertaModel", **SMALL)
encoder("camembert", "CamembertModel", **SMALL)
encoder("albert", "AlbertModel", embedding_size=32, **SMALL)
encoder("electra", "ElectraModel", embedding_size=32, **SMALL)
encoder("distilbert", "DistilBertModel", vocab_size=WORDS, dim=64, n_layers=2, n_heads=4,
        hidden_dim=128, max_position_embeddings=64)
encoder("distilbert-torchscript", "DistilBertModel", exporter="torchscript", vocab_size=WORDS,
        dim=64, n_layers=2, n_heads=4, hidden_dim=128, max_position_embeddings=64)
encoder("deberta", "DebertaModel", relative_attention=True, pos_att_type=["c2p", "p2c"],
        max_relative_positions=16, type_vocab_size=0, **SMALL)
encoder("deberta-v2", "DebertaV2Model", relative_attention=True, pos_att_type=["c2p", "p2c"],
        position_buckets=8, max_relative_positions=16, type_vocab_size=0, share_att_key=True,
        norm_rel_ebd="layer_norm", position_biased_input=False, **SMALL)
encoder("mpnet", "MPNetModel", **SMALL)
encoder("xlnet", "XLNetModel", vocab_size=WORDS, d_model=64, n_layer=2, n_head=4, d_inner=128)
encoder("funnel", "FunnelModel", vocab_size=WORDS, block_sizes=[1, 1], d_model=64, n_head=4,
        d_head=16, d_inner=128)
encoder("fnet", "FNetModel", mask=False, **{key: size for key, size in SMALL.items()
                                            if key != "num_attention_heads"})
encoder("squeezebert", "SqueezeBertModel", embedding_size=64, **SMALL)
encoder("mobilebert", "MobileBertModel", embedding_size=32, intra_bottleneck_size=32,
        true_hidden_size=32, **SMALL)
encoder("modernbert", "ModernBertModel", length=24, pad_token_id=0, bos_token_id=1, eos_token_id=2,
        cls_token_id=1, sep_token_id=2, local_attention=8, reference_compile=False,
        attn_implementation="sdpa", **SMALL)
encoder("roformer", "RoFormerModel", embedding_size=32, **SMALL)
encoder("convbert", "ConvBertModel", embedding_size=32, **SMALL)
encoder("nystromformer", "NystromformerModel", length=16, num_landmarks=4, segment_means_seq_len=16,
        **SMALL)
encoder("ernie", "ErnieModel", **SMALL)
encoder("rembert", "RemBertModel", input_embedding_size=32, output_embedding_size=32, **SMALL)
encoder("megatron-bert", "MegatronBertModel", **SMALL)
encoder("esm", "EsmModel", pad_token_id=1, mask_token_id=2, position_embedding_type="rotary",
        **SMALL)
encoder("big-bird", "BigBirdModel", attention_type="original_full", **SMALL)
encoder("longformer", "LongformerModel", length=16, attention_window=[8, 8], **SMALL)
encoder("canine", "CanineModel", length=32, hidden_size=64, num_hidden_layers=2,
        num_attention_heads=4, intermediate_size=128, max_position_embeddings=64,
        num_hash_buckets=128, local_transformer_stride=8)
encoder("xlm", "XLMModel", vocab_size=WORDS, emb_dim=64, n_layers=2, n_heads=4,
        max_position_embeddings=64)
encoder("ibert", "IBertModel", quant_mode=False, **SMALL)
encoder("layoutlm", "LayoutLMModel", **SMALL)
encoder("t5-encoder", "T5EncoderModel", config="T5Config", vocab_size=WORDS, d_model=64, d_kv=16,
        d_ff=128, num_layers=2, num_heads=4)
encoder("yoso", "YosoModel", use_expectation=True, **SMALL)
encoder("mra", "MraModel", length=64, approx_mode="full", block_per_row=2, **SMALL)
encoder("bert-generation", "BertGenerationEncoder", config="BertGenerationConfig", **SMALL)
encoder("xmod", "XmodModel", default_language="en_XX", **SMALL)
encoder("roc-bert", "RoCBertModel", mask=True, enable_pronunciation=False, enable_shape=False, **SMALL)

# decoders, all tokens at once
decoder("gpt2", "GPT2LMHeadModel", vocab_size=WORDS, n_embd=64, n_layer=2, n_head=4, n_positions=64)
decoder("gpt-neo", "GPTNeoForCausalLM", vocab_size=WORDS, hidden_size=64, num_layers=2,
        attention_types=[[["global", "local"], 1]], num_heads=4, window_size=8,
        max_position_embeddings=64)
decoder("gpt-neox", "GPTNeoXForCausalLM", **SMALL)
decoder("gpt-j", "GPTJForCausalLM", vocab_size=WORDS, n_embd=64, n_layer=2, n_head=4, rotary_dim=8,
        n_positions=64)
decoder("opt", "OPTForCausalLM", vocab_size=WORDS, hidden_size=64, num_hidden_layers=2, ffn_dim=128,
        num_attention_heads=4, max_position_embeddings=64, word_embed_proj_dim=64)
decoder("bloom", "BloomForCausalLM", vocab_size=WORDS, hidden_size=64, n_layer=2, n_head=4)
decoder("bloom-torchscript", "BloomForCausalLM", exporter="torchscript", vocab_size=WORDS,
        hidden_size=64, n_layer=2, n_head=4)
decoder("mpt", "MptForCausalLM", vocab_size=WORDS, d_model=64, n_layers=2, n_heads=4, max_seq_len=64)
decoder("llama", "LlamaForCausalLM", **GROUPED)
decoder("mistral", "MistralForCausalLM", sliding_window=8, **GROUPED)
decoder("qwen2", "Qwen2ForCausalLM", **GROUPED)
decoder("qwen3", "Qwen3ForCausalLM", head_dim=16, **GROUPED)
decoder("gemma", "GemmaForCausalLM", head_dim=16, **GROUPED)
decoder("gemma2", "Gemma2ForCausalLM", head_dim=16, sliding_window=8, **GROUPED)
decoder("gemma3", "Gemma3ForCausalLM", config="Gemma3TextConfig", head_dim=16, sliding_window=8,
        **GROUPED)
decoder("phi", "PhiForCausalLM", **SMALL)
decoder("phi3", "Phi3ForCausalLM", pad_token_id=0, **GROUPED)
decoder("falcon", "FalconForCausalLM", vocab_size=WORDS, hidden_size=64, num_hidden_layers=2,
        num_attention_heads=4, max_position_embeddings=64)
decoder("starcoder2", "Starcoder2ForCausalLM", **GROUPED)
decoder("cohere", "CohereForCausalLM", **GROUPED)
decoder("xglm", "XGLMForCausalLM", vocab_size=WORDS, d_model=64, num_layers=2, attention_heads=4,
        ffn_dim=128, max_position_embeddings=64)
decoder("gpt-bigcode", "GPTBigCodeForCausalLM", vocab_size=WORDS, n_embd=64, n_layer=2, n_head=4,
        n_positions=64)
decoder("ctrl", "CTRLLMHeadModel", vocab_size=WORDS, n_embd=64, n_layer=2, n_head=4, dff=128,
        n_positions=64)
add("transformers", "openai-gpt", transformer(
    "OpenAIGPTLMHeadModel", "OpenAIGPTConfig", words(), ("logits",), vocab_size=WORDS, n_embd=64,
    n_layer=2, n_head=4, n_positions=64))

# decoders, one token and its cache
cached("gpt2-cache", "GPT2LMHeadModel", heads=4, vocab_size=WORDS, n_embd=64, n_layer=2, n_head=4,
       n_positions=64)
cached("llama-cache", "LlamaForCausalLM", **GROUPED)
cached("qwen3-cache", "Qwen3ForCausalLM", head_dim=16, **GROUPED)
cached("mistral-cache-chunk", "MistralForCausalLM", steps=4, **GROUPED)
cached("gpt-neox-cache", "GPTNeoXForCausalLM", heads=4, **SMALL)
cached("phi3-cache", "Phi3ForCausalLM", pad_token_id=0, **GROUPED)

# mixtures of experts, state spaces and other recurrences
EXPERTS = dict(num_experts_per_tok=2, moe_intermediate_size=64)
decoder("mixtral", "MixtralForCausalLM", num_local_experts=4, **GROUPED)
decoder("qwen2-moe", "Qwen2MoeForCausalLM", num_experts=4, shared_expert_intermediate_size=64,
        **EXPERTS, **GROUPED)
decoder("gpt-oss", "GptOssForCausalLM", num_local_experts=4, head_dim=16, sliding_window=8,
        num_experts_per_tok=2, **GROUPED)
encoder("qwen3-vl-moe", "Qwen3VLMoeTextModel", num_experts=4, head_dim=16,
        rope_scaling={"rope_type": "default", "mrope_section": [4, 2, 2]}, **EXPERTS, **GROUPED)
decoder("granitemoe", "GraniteMoeForCausalLM", refused="split (input 1) depends on data",
        num_local_experts=4, num_experts_per_tok=2, **GROUPED)
decoder("jetmoe", "JetMoeForCausalLM", refused="split (input 1) depends on data", vocab_size=WORDS, hidden_size=64, num_hidden_layers=2,
        num_key_value_heads=2, kv_channels=16, intermediate_size=64, num_local_experts=4)
decoder("llama4", "Llama4ForCausalLM", config="Llama4TextConfig", num_local_experts=4, head_dim=16,
        intermediate_size_mlp=128, attention_chunk_size=8, **{**GROUPED, "pad_token_id": 0})
decoder("mamba", "MambaForCausalLM", mask=False, vocab_size=WORDS, hidden_size=32, state_size=8,
        num_hidden_layers=2)
decoder("mamba2", "Mamba2ForCausalLM", mask=False, vocab_size=WORDS, hidden_size=32, state_size=8,
        num_hidden_layers=2, num_heads=4, head_dim=16, expand=2, n_groups=1, chunk_size=8)
decoder("falcon-mamba", "FalconMambaForCausalLM", mask=False, vocab_size=WORDS, hidden_size=32,
        state_size=8, num_hidden_layers=2)
decoder("rwkv", "RwkvForCausalLM", mask=False, vocab_size=WORDS, hidden_size=32, num_hidden_layers=2,
        attention_hidden_size=32, intermediate_size=64, context_length=16)
decoder("recurrent-gemma", "RecurrentGemmaForCausalLM", vocab_size=WORDS, hidden_size=64,
        num_hidden_layers=3, num_attention_heads=4, intermediate_size=128, lru_width=64,
        attention_window_size=8)
decoder("lfm2", "Lfm2ForCausalLM", layer_types=["conv", "full_attention"], **GROUPED)

# encoder and decoder
both("t5", "T5Model", to_decoder(), ("last_hidden_state",), vocab_size=WORDS, d_model=64, d_kv=16,
     d_ff=128, num_layers=2, num_heads=4, use_cache=False)
BART = dict(vocab_size=WORDS, d_model=64, encoder_layers=2, decoder_layers=2,
            encoder_attention_heads=4, decoder_attention_heads=4, encoder_ffn_dim=128,
            decoder_ffn_dim=128, max_position_embeddings=64, use_cache=False)
both("bart", "BartModel", to_decoder(), ("last_hidden_state",), **BART)
both("marian", "MarianModel", to_decoder(), ("last_hidden_state",), pad_token_id=0,
     decoder_start_token_id=0, **BART)
both("led", "LEDModel", lambda: {"input_ids": value(1, 16, kind="ids", high=WORDS),
                                "decoder_input_ids": value(1, 7, kind="ids", high=WORDS)},
     ("last_hidden_state",), attention_window=8, max_encoder_position_embeddings=64,
     max_decoder_position_embeddings=64, **{key: size for key, size in BART.items()
                                            if key != "max_position_embeddings"})
both("prophetnet", "ProphetNetModel", to_decoder(), ("last_hidden_state",), vocab_size=WORDS,
     hidden_size=64, num_encoder_layers=2, num_decoder_layers=2, num_encoder_attention_heads=4,
     num_decoder_attention_heads=4, encoder_ffn_dim=128, decoder_ffn_dim=128,
     max_position_embeddings=64, use_cache=False)
both("whisper", "WhisperModel", lambda: {"input_features": value(1, 20, 64),
                                         "decoder_input_ids": value(1, 7, kind="ids", high=WORDS)},
     ("last_hidden_state",), num_mel_bins=20, max_source_positions=32, max_target_positions=32,
     pad_token_id=0, bos_token_id=0, eos_token_id=0, decoder_start_token_id=0,
     **{key: size for key, size in BART.items() if key != "max_position_embeddings"})
both("speech-to-text", "Speech2TextModel",
     lambda: {"input_features": value(1, 40, 20),
              "decoder_input_ids": value(1, 7, kind="ids", high=WORDS)},
     ("last_hidden_state",), input_feat_per_channel=20, conv_channels=64, max_source_positions=64,
     max_target_positions=32, **{key: size for key, size in BART.items()
                                 if key != "max_position_embeddings"})

# pictures
seen("vit", "ViTModel", **PATCHES)
seen("vit-torchscript", "ViTModel", exporter="torchscript", **PATCHES)
seen("deit", "DeiTModel", **PATCHES)
seen("beit", "BeitModel", use_relative_position_bias=True, **PATCHES)
seen("dinov2", "Dinov2Model", **PATCHES)
seen("dinov3-vit", "DINOv3ViTModel", num_register_tokens=2, **PATCHES)
seen("yolos", "YolosForObjectDetection", outputs=("logits", "pred_boxes"), num_detection_tokens=5,
     **{**PATCHES, "image_size": [64, 64]})
seen("swin", "SwinModel", image_size=64, embed_dim=24, depths=[2, 2], num_heads=[2, 4],
     window_size=4)
seen("swinv2", "Swinv2Model", image_size=64, embed_dim=24, depths=[2, 2], num_heads=[2, 4],
     window_size=4)
seen("segformer", "SegformerForSemanticSegmentation", outputs=("logits",), depths=[1, 1, 1, 1],
     hidden_sizes=[16, 32, 40, 64], decoder_hidden_size=32)
seen("convnext", "ConvNextModel", depths=[1, 1, 1, 1], hidden_sizes=[16, 32, 40, 64])
seen("convnextv2", "ConvNextV2Model", depths=[1, 1, 1, 1], hidden_sizes=[16, 32, 40, 64])
seen("poolformer", "PoolFormerModel", depths=[1, 1, 1, 1], hidden_sizes=[16, 32, 40, 64])
seen("mobilevit", "MobileViTModel", hidden_sizes=[24, 32, 40], neck_hidden_sizes=[
    16, 16, 16, 24, 24, 32, 64])
seen("levit", "LevitModel", image_size=64, hidden_sizes=[32, 48, 64], num_attention_heads=[2, 3, 4],
     depths=[1, 1, 1], key_dim=[16, 16, 16])
seen("pvt", "PvtModel", image_size=64, depths=[1, 1, 1, 1], hidden_sizes=[16, 32, 40, 64])
seen("cvt", "CvtModel", embed_dim=[16, 32, 48], num_heads=[1, 2, 3], depth=[1, 2, 3])
seen("dpt", "DPTForDepthEstimation", outputs=("predicted_depth",), neck_hidden_sizes=[16, 16, 24, 24],
     backbone_out_indices=[0, 1, 2, 3], fusion_hidden_size=16, **{**PATCHES, "num_hidden_layers": 4})
seen("swin2sr", "Swin2SRForImageSuperResolution", size=32, outputs=("reconstruction",),
     image_size=32, embed_dim=24, depths=[1, 1], num_heads=[2, 2], window_size=4)
seen("resnet", "ResNetModel", embedding_size=16, hidden_sizes=[16, 24, 32, 48], depths=[1, 1, 1, 1])
seen("regnet", "RegNetModel", embedding_size=16, hidden_sizes=[16, 24, 32, 48], depths=[1, 1, 1, 1],
     groups_width=8)
seen("focalnet", "FocalNetModel", image_size=64, embed_dim=16, depths=[1, 1, 1, 1])
seen("hiera", "HieraModel", image_size=[64, 64], embed_dim=16, depths=[1, 1, 1, 1],
     num_heads=[1, 2, 4, 8])
seen("vit-mae", "ViTMAEModel", refused="it draws random numbers", mask_ratio=0.0, **PATCHES)
seen("vit-msn", "ViTMSNModel", **PATCHES)
seen("textnet", "TextNetModel")
seen("siglip-vision", "SiglipVisionModel", **PATCHES)
seen("clip-vision", "CLIPVisionModel", outputs=("last_hidden_state", "pooler_output"), **PATCHES)
add("transformers", "clip", transformer(
    "CLIPModel", "CLIPConfig", lambda: {
        "input_ids": value(2, 12, kind="ids", high=WORDS),
        "pixel_values": value(2, 3, 64, 64, kind="picture"),
        "attention_mask": value(2, 12, kind="prefix_mask")},
    ("logits_per_image", "text_embeds", "image_embeds"), projection_dim=32,
    text_config={**SMALL, "eos_token_id": 1}, vision_config=PATCHES))
add("transformers", "vilt", transformer(
    "ViltModel", "ViltConfig", lambda: {
        "input_ids": value(1, 12, kind="ids", high=WORDS),
        "pixel_values": value(1, 3, 64, 64, kind="picture")},
    ("last_hidden_state",), max_image_length=-1, **SMALL, image_size=64, patch_size=16))
add("transformers", "videomae", transformer(
    "VideoMAEModel", "VideoMAEConfig",
    lambda: {"pixel_values": value(1, 4, 3, 64, 64, kind="picture")}, ("last_hidden_state",),
    num_frames=4, **PATCHES))
add("transformers", "timesformer", transformer(
    "TimesformerModel", "TimesformerConfig",
    lambda: {"pixel_values": value(1, 4, 3, 64, 64, kind="picture")}, ("last_hidden_state",),
    num_frames=4, **PATCHES))
add("transformers", "vivit", transformer(
    "VivitModel", "VivitConfig",
    lambda: {"pixel_values": value(1, 4, 3, 64, 64, kind="picture")}, ("last_hidden_state",),
    num_frames=4, tubelet_size=[2, 16, 16], **{key: size for key, size in PATCHES.items()
                                               if key != "patch_size"}))
add("transformers", "detr", transformer(
    "DetrForObjectDetection", "DetrConfig",
    lambda: {"pixel_values": value(1, 3, 64, 64, kind="picture")}, ("logits", "pred_boxes"),
    use_timm_backbone=True, use_pretrained_backbone=False, backbone="resnet18", num_queries=5,
    d_model=64, encoder_layers=2, decoder_layers=2, encoder_attention_heads=4,
    decoder_attention_heads=4, encoder_ffn_dim=128, decoder_ffn_dim=128))
add("transformers", "mobilenet-v2", transformer(
    "MobileNetV2Model", "MobileNetV2Config",
    lambda: {"pixel_values": value(1, 3, 64, 64, kind="picture")}, ("last_hidden_state",),
    depth_multiplier=0.5))
add("transformers", "efficientnet", transformer(
    "EfficientNetModel", "EfficientNetConfig",
    lambda: {"pixel_values": value(1, 3, 64, 64, kind="picture")}, ("last_hidden_state",),
    width_coefficient=0.5, depth_coefficient=0.5, hidden_dim=640, image_size=64))

# sounds
CONVOLVED = dict(hidden_size=64, num_hidden_layers=2, num_attention_heads=4, intermediate_size=128,
                 conv_dim=[32, 32, 32], conv_stride=[5, 4, 4], conv_kernel=[10, 6, 4],
                 num_conv_pos_embeddings=16, num_conv_pos_embedding_groups=4)
heard("wav2vec2", "Wav2Vec2Model", **CONVOLVED)
heard("wav2vec2-layer-norm", "Wav2Vec2Model", feat_extract_norm="layer", do_stable_layer_norm=True,
      **CONVOLVED)
heard("hubert", "HubertModel", **CONVOLVED)
heard("wavlm", "WavLMModel", **CONVOLVED)
heard("unispeech", "UniSpeechModel", **CONVOLVED)
heard("data2vec-audio", "Data2VecAudioModel", **{**CONVOLVED, "num_conv_pos_embeddings": 2})
heard("sew", "SEWModel", squeeze_factor=2, **CONVOLVED)
heard("wav2vec2-conformer", "Wav2Vec2ConformerModel", **CONVOLVED)
add("transformers", "audio-spectrogram", transformer(
    "ASTModel", "ASTConfig", lambda: {"input_values": value(1, 64, 32)},
    ("last_hidden_state", "pooler_output"), max_length=64, num_mel_bins=32,
    **{key: size for key, size in PATCHES.items() if key != "image_size"}))
add("transformers", "encodec", transformer(
    "EncodecModel", "EncodecConfig", lambda: {"input_values": value(1, 1, 1280, kind="wave")},
    ("hidden",), lambda model, named: (model.encoder(named["input_values"]),), num_filters=8,
    hidden_size=32, num_lstm_layers=1, upsampling_ratios=[4, 4], codebook_dim=32),
    exporter="torchscript")
add("transformers", "vits-text", transformer(
    "VitsModel", "VitsConfig", lambda: {"input_ids": value(1, 12, kind="ids", high=38)},
    ("last_hidden_state",), lambda model, named: (model.text_encoder(
        input_ids=named["input_ids"], padding_mask=named["input_ids"][..., None] * 0.0 + 1.0,
        return_dict=True).last_hidden_state,), hidden_size=64,
    num_hidden_layers=2, num_attention_heads=2, ffn_dim=128, flow_size=64))

# series
add("transformers", "patchtst", transformer(
    "PatchTSTModel", "PatchTSTConfig", lambda: {"past_values": value(2, 64, 3)},
    ("last_hidden_state",), num_input_channels=3, context_length=64, patch_length=8, patch_stride=8,
    d_model=32, num_hidden_layers=2, num_attention_heads=4, ffn_dim=64))
add("transformers", "patchtsmixer", transformer(
    "PatchTSMixerModel", "PatchTSMixerConfig", lambda: {"past_values": value(2, 64, 3)},
    ("last_hidden_state",), num_input_channels=3, context_length=64, patch_length=8, patch_stride=8,
    d_model=16, num_layers=2))
