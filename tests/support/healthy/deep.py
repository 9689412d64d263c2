"""Healthy deep networks: every sound residual scheme of `leadline.nn`, and Hugging Face models at initialization."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from leadline import nn as blocks
from leadline.case import Case

VOCABULARY = 61
MASK = 2
SOUND = (  # all rows but "none" and "post", which are not for depth, and those that need a data-dependent first pass
    "pre", "deepnorm", "deepnorm-adam", "residual-sqrt", "residual-linear", "keel", "peri", "sandwich", "res-post",
    "layernorm-scaling", "gpt2-init", "layerscale", "rezero", "skipinit", "t-fixup", "magneto", "mix", "b2t",
)  # fmt: skip
SIZE = {"hidden_size": 64, "num_hidden_layers": 4, "num_attention_heads": 4, "intermediate_size": 128}


def entropy(logits: Tensor, targets: Tensor) -> Tensor:
    return F.cross_entropy(logits.flatten(0, 1), targets.flatten())


def language_model(scheme: str, depth: int = 6) -> Case:
    model = blocks.LanguageModel(VOCABULARY, 64, 4, depth, scheme=scheme)
    ids = torch.randint(0, VOCABULARY, (4, 16))
    return Case(model, ids, ids.roll(-1, 1), entropy, torch.optim.AdamW(model.parameters(), lr=1e-3))


def deep_mlp(scheme: str, depth: int) -> Case:
    model = blocks.MLP(64, 64, depth, 10, scheme=scheme)
    x, y = torch.randn(32, 64), torch.randint(0, 10, (32,))
    return Case(model, x, y, F.cross_entropy, torch.optim.AdamW(model.parameters(), lr=1e-3))


def deep_resnet(scheme: str, depth: int) -> Case:
    model = blocks.ResNet(3, 8, depth, 10, scheme=scheme)
    x, y = torch.randn(8, 3, 16, 16), torch.randint(0, 10, (8,))
    return Case(model, x, y, F.cross_entropy, torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9))


def trained(model: nn.Module, batch: dict[str, Tensor], lr: float = 3e-4) -> Case:
    return Case(model.train(), batch, optimizer=torch.optim.AdamW(model.parameters(), lr=lr))


def hugging_face() -> Iterator[tuple[str, Callable[[Any], Case]]]:
    """Name and maker of each; the maker gets the transformers package."""
    yield (
        "gpt2",
        lambda t: _language(
            t.GPT2LMHeadModel,
            t.GPT2Config(vocab_size=VOCABULARY, n_positions=32, n_embd=64, n_layer=4, n_head=4),
        ),
    )
    yield (
        "gpt2 12 layers",
        lambda t: _language(
            t.GPT2LMHeadModel,
            t.GPT2Config(vocab_size=VOCABULARY, n_positions=32, n_embd=64, n_layer=12, n_head=4),
        ),
    )
    yield (
        "bert",
        lambda t: _masked_language(
            t.BertForMaskedLM, t.BertConfig(vocab_size=VOCABULARY, max_position_embeddings=32, **SIZE)
        ),
    )
    yield (
        "llama",
        lambda t: _language(
            t.LlamaForCausalLM, t.LlamaConfig(vocab_size=VOCABULARY, num_key_value_heads=2, **SIZE)
        ),
    )
    yield (
        "qwen2",
        lambda t: _language(
            t.Qwen2ForCausalLM, t.Qwen2Config(vocab_size=VOCABULARY, num_key_value_heads=2, **SIZE)
        ),
    )
    yield (
        "mistral",
        lambda t: _language(
            t.MistralForCausalLM, t.MistralConfig(vocab_size=VOCABULARY, num_key_value_heads=2, **SIZE)
        ),
    )
    yield (
        "roberta",
        lambda t: _masked_language(
            t.RobertaForMaskedLM, t.RobertaConfig(vocab_size=VOCABULARY, max_position_embeddings=40, **SIZE)
        ),
    )
    yield (
        "albert",
        lambda t: _masked_language(
            t.AlbertForMaskedLM,
            t.AlbertConfig(vocab_size=VOCABULARY, embedding_size=32, max_position_embeddings=32, **SIZE),
        ),
    )
    yield (
        "mamba",
        lambda t: _language(
            t.MambaForCausalLM,
            t.MambaConfig(vocab_size=VOCABULARY, hidden_size=64, num_hidden_layers=4, state_size=8),
        ),
    )
    yield (
        "t5",
        lambda t: _translation(
            t.T5ForConditionalGeneration,
            t.T5Config(
                vocab_size=VOCABULARY,
                d_model=64,
                d_kv=16,
                d_ff=128,
                num_layers=3,
                num_heads=4,
                decoder_start_token_id=0,
            ),
        ),
    )
    yield (
        "vit",
        lambda t: _vision(
            t.ViTForImageClassification, t.ViTConfig(image_size=32, patch_size=8, num_labels=10, **SIZE)
        ),
    )
    yield (
        "resnet",
        lambda t: _vision(
            t.ResNetForImageClassification,
            t.ResNetConfig(
                embedding_size=16, hidden_sizes=[16, 32], depths=[2, 2], layer_type="basic", num_labels=10
            ),
        ),
    )
    yield (
        "convnext",
        lambda t: _vision(
            t.ConvNextForImageClassification,
            t.ConvNextConfig(hidden_sizes=[16, 32], depths=[2, 2], num_stages=2, num_labels=10),
        ),
    )
    yield "whisper", _whisper


def _language(kind: Any, config: Any) -> Case:
    """A model that shifts its labels itself."""
    ids = torch.randint(3, VOCABULARY, (4, 16))
    return trained(kind(config), {"input_ids": ids, "labels": ids})


def _masked_language(kind: Any, config: Any) -> Case:
    """A model that sees all tokens but those it is asked for."""
    ids = torch.randint(3, VOCABULARY, (4, 16))
    is_hidden = torch.rand(ids.shape) < 0.3
    inputs, labels = ids.masked_fill(is_hidden, MASK), ids.masked_fill(~is_hidden, -100)
    return trained(kind(config), {"input_ids": inputs, "labels": labels})


def _translation(kind: Any, config: Any) -> Case:
    ids, labels = torch.randint(3, VOCABULARY, (2, 4, 16))
    return trained(kind(config), {"input_ids": ids, "labels": labels})


def _vision(kind: Any, config: Any) -> Case:
    labels = torch.randint(0, 10, (4,))
    return trained(kind(config), {"pixel_values": torch.randn(4, 3, 32, 32), "labels": labels})


def _whisper(t: Any) -> Case:
    config = t.WhisperConfig(
        vocab_size=VOCABULARY, d_model=64, encoder_layers=2, decoder_layers=2, encoder_attention_heads=4,
        decoder_attention_heads=4, encoder_ffn_dim=128, decoder_ffn_dim=128, num_mel_bins=16, max_source_positions=32,
        max_target_positions=16, pad_token_id=0, bos_token_id=1, eos_token_id=2, decoder_start_token_id=1,
        suppress_tokens=None, begin_suppress_tokens=None,
    )  # fmt: skip
    batch = {"input_features": torch.randn(2, 16, 64), "labels": torch.randint(3, VOCABULARY, (2, 8))}
    return trained(t.WhisperForConditionalGeneration(config), batch)


def _transformers(make: Callable[[Any], Case]) -> Callable[[], Case]:
    return lambda: make(pytest.importorskip("transformers"))


HEALTHY: dict[str, Callable[[], Case]] = {
    **{f"language model {scheme}": (lambda scheme=scheme: language_model(scheme)) for scheme in SOUND},
    "language model residual-linear 32": lambda: language_model("residual-linear", 32),
    "language model pre 16": lambda: language_model("pre", 16),
    "mlp residual-sqrt 48": lambda: deep_mlp("residual-sqrt", 48),
    "mlp rezero 32": lambda: deep_mlp("rezero", 32),
    "mlp fixup 24": lambda: deep_mlp("fixup", 24),
    "resnet pre 9": lambda: deep_resnet("pre", 9),
    "resnet skipinit 9": lambda: deep_resnet("skipinit", 9),
    "resnet fixup 9": lambda: deep_resnet("fixup", 9),
    **{f"hugging face {name}": _transformers(make) for name, make in hugging_face()},
}  # fmt: skip
