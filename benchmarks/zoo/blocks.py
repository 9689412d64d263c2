"""Small Transformer variants from x-transformers, torchscale and vit-pytorch."""

from __future__ import annotations

import importlib
import importlib.util
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from benchmarks.zoo.architecture import Architecture, labels
from leadline import Case

WIDTH, DEPTH, HEADS, WORDS, TIME, BATCH, CLASSES, SIDE = 64, 4, 4, 99, 24, 4, 5, 32


def architectures() -> Iterator[Architecture]:
    libraries: tuple[tuple[str, str, dict[str, Callable[[], Case]]], ...] = (
        ("x_transformers", "x-transformers", _x_transformers()),
        ("torchscale", "torchscale", _torchscale()),
        ("vit_pytorch", "vit-pytorch", _vit_pytorch()),
    )
    for module, origin, models in libraries:
        if importlib.util.find_spec(module) is not None:
            for name, build in models.items():
                yield Architecture(name=f"{origin}/{name}", origin=origin, build=build)


def next_token_loss(logits: Tensor, target: Tensor) -> Tensor:
    return nn.functional.cross_entropy(logits[:, :-1].flatten(0, 1).float(), target[:, 1:].flatten())


def language_case(model: nn.Module) -> Case:
    text = torch.randint(0, WORDS, (BATCH, TIME))
    return Case(model, text, text.clone(), next_token_loss)


def encoder_case(model: nn.Module) -> Case:
    """A token at each place that the text does not tell: an encoder sees the next ones, so it is not asked for them."""
    return Case(model, torch.randint(0, WORDS, (BATCH, TIME)), labels(WORDS, BATCH, TIME), token_loss)


def token_loss(logits: Tensor, target: Tensor) -> Tensor:
    return nn.functional.cross_entropy(logits.flatten(0, 1).float(), target.flatten())


def image_case(model: nn.Module, side: int = SIDE) -> Case:
    return Case(model, torch.randn(BATCH, 3, side, side), labels(CLASSES, BATCH), nn.functional.cross_entropy)


def _x_transformers() -> dict[str, Callable[[], Case]]:
    variants: dict[str, dict[str, Any]] = {
        "plain": {},
        "rotary": {"rotary_pos_emb": True},
        "alibi": {"alibi_pos_bias": True},
        "t5 bias": {"rel_pos_bias": True},
        "rmsnorm, swiglu": {"use_rmsnorm": True, "ff_glu": True, "ff_swish": True},
        "post-norm": {"pre_norm": False},
        "sandwich norm": {"sandwich_norm": True},
        "macaron": {"macaron": True},
        "sandwich order": {"sandwich_coef": 1},
        "qk-norm": {"attn_qk_norm": True, "attn_qk_norm_dim_scale": True},
        "talking heads": {"attn_pre_talking_heads": True, "attn_post_talking_heads": True},
        "scaled residual": {"scale_residual": True},
        "gated residual": {"gate_residual": True},
        "zero-init branches": {"zero_init_branch_output": True},
        "one key-value head": {"attn_one_kv_head": True},
        "memory keys": {"attn_num_mem_kv": 4},
        "shift tokens": {"shift_tokens": 1},
        "relu squared": {"ff_relu_squared": True},
        "layer scale": {"use_layerscale": True},
    }
    return {name: partial(_x_decoder, options) for name, options in variants.items()}


def _x_decoder(options: dict[str, Any]) -> Case:
    x = importlib.import_module("x_transformers")
    body = x.Decoder(dim=WIDTH, depth=DEPTH, heads=HEADS, attn_dim_head=WIDTH // HEADS, **options)
    return language_case(x.TransformerWrapper(num_tokens=WORDS, max_seq_len=TIME, attn_layers=body))


class TokenModel(nn.Module):
    """A torchscale stack between an embedding and a head; the stack returns tuples or dictionaries."""

    def __init__(self, body: nn.Module, *, encoder: bool) -> None:
        super().__init__()
        self.embedding, self.body = nn.Embedding(WORDS, WIDTH), body
        self.head, self.encoder = nn.Linear(WIDTH, WORDS), encoder

    def forward(self, text: Tensor) -> Tensor:
        embedded = self.embedding(text)
        if self.encoder:
            return self.head(self.body(src_tokens=None, token_embeddings=embedded)["encoder_out"])
        return self.head(self.body(text, token_embeddings=embedded, features_only=True)[0])


def _torchscale() -> dict[str, Callable[[], Case]]:
    names = {"side": "encoder", "embed_dim": WIDTH, "ffn_embed_dim": 2 * WIDTH, "attention_heads": HEADS}
    encoders = {
        "encoder": {},
        "encoder, deepnorm": {"deepnorm": True},
        "encoder, sub-LN": {"subln": True},
        "encoder, pre-norm": {"encoder_normalize_before": True},
    }
    decoders = {
        "decoder": {},
        "decoder, deepnorm": {"deepnorm": True},
        "decoder, sub-LN": {"subln": True},
        "decoder, xpos": {"xpos_rel_pos": True},
    }
    stacks = {name: partial(_scale_stack, names, "encoder", options) for name, options in encoders.items()}
    stacks |= {name: partial(_scale_stack, names, "decoder", options) for name, options in decoders.items()}
    return {**stacks, "retnet": _retnet}


def _scale_stack(names: dict[str, Any], side: str, options: dict[str, Any]) -> Case:
    config = importlib.import_module("torchscale.architecture.config")
    stack = importlib.import_module(f"torchscale.architecture.{side}")
    sizes = {f"{side}_{key}": value for key, value in names.items() if key != "side"}
    stack_config = getattr(config, f"{side.title()}Config")(
        vocab_size=WORDS, no_output_layer=True, **sizes, **{f"{side}_layers": DEPTH}, **options
    )
    model = TokenModel(getattr(stack, side.title())(stack_config), encoder=side == "encoder")
    return encoder_case(model) if side == "encoder" else language_case(model)


def _retnet() -> Case:
    config = importlib.import_module("torchscale.architecture.config").RetNetConfig
    body = importlib.import_module("torchscale.architecture.retnet").RetNetDecoder
    sizes = {"decoder_embed_dim": WIDTH, "decoder_value_embed_dim": WIDTH, "decoder_ffn_embed_dim": 2 * WIDTH}
    retnet_config = config(
        vocab_size=WORDS,
        no_output_layer=True,
        decoder_layers=DEPTH,
        decoder_retention_heads=HEADS,
        **sizes,
    )
    return language_case(TokenModel(body(retnet_config), encoder=False))


def _vit_pytorch() -> dict[str, Callable[[], Case]]:
    patches = {"image_size": SIDE, "patch_size": 8, "num_classes": CLASSES, "dim": WIDTH, "heads": HEADS}
    flat = {**patches, "depth": DEPTH, "mlp_dim": 2 * WIDTH}
    return {
        "ViT": partial(_vit, "vit_pytorch", "ViT", flat),
        "SimpleViT": partial(_vit, "vit_pytorch", "SimpleViT", flat),
        "DeepViT": partial(_vit, "vit_pytorch.deepvit", "DeepViT", flat),
        "CaiT": partial(_vit, "vit_pytorch.cait", "CaiT", {**flat, "cls_depth": 2}),
        "parallel ViT": partial(_vit, "vit_pytorch.parallel_vit", "ViT", flat),
        "ViT with registers": partial(_vit, "vit_pytorch.simple_vit_with_register_tokens", "SimpleViT", flat),
        "SimpleViT, QK norm": partial(_vit, "vit_pytorch.simple_vit_with_qk_norm", "SimpleViT", flat),
        "normalised ViT": partial(_vit, "vit_pytorch.normalized_vit", "nViT", {**flat, "dim_head": 16}),
        "LeViT": partial(
            _vit,
            "vit_pytorch.levit",
            "LeViT",
            {
                "image_size": 64,
                "num_classes": CLASSES,
                "stages": 3,
                "dim": (32, 48, 64),
                "depth": 2,
                "heads": (2, 3, 4),
                "mlp_mult": 2,
            },
        ),
        "CvT": partial(
            _vit,
            "vit_pytorch.cvt",
            "CvT",
            {"num_classes": CLASSES, "s1_emb_dim": 16, "s2_emb_dim": 32, "s3_emb_dim": 64, "s3_depth": 2},
        ),
        "CCT": partial(
            _vit,
            "vit_pytorch.cct",
            "CCT",
            {
                "img_size": SIDE,
                "embedding_dim": WIDTH,
                "n_conv_layers": 1,
                "num_layers": DEPTH,
                "num_heads": HEADS,
                "mlp_ratio": 2.0,
                "num_classes": CLASSES,
                "positional_embedding": "learnable",
            },
        ),
        "XCiT": partial(
            _vit, "vit_pytorch.xcit", "XCiT", {**flat, "cls_depth": 2, "local_patch_kernel_size": 3}
        ),
        "MobileViT": partial(
            _vit,
            "vit_pytorch.mobile_vit",
            "MobileViT",
            {
                "image_size": (64, 64),
                "dims": [64, 80, 96],
                "channels": [16, 16, 24, 24, 48, 48, 64, 64, 80, 80, 320],
                "num_classes": CLASSES,
            },
        ),
    }


def _vit(module: str, name: str, options: dict[str, Any]) -> Case:
    model = getattr(importlib.import_module(module), name)(**options)
    side = options.get("image_size", options.get("img_size", 64))
    return image_case(model, side if isinstance(side, int) else side[0])
