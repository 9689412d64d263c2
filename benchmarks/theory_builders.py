"""How the Hugging Face architectures of benchmarks/theory_models.py are built: sizes, options and inputs."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

VOCABULARY = 512
BATCH = 4
LENGTH = 32
CLASSES = 10

Built = tuple[nn.Module, dict[str, Any]]


@dataclass(frozen=True)
class Size:
    """The widths and the depth of one configuration."""

    name: str
    width: int
    layers: int
    heads: int

    @property
    def hidden(self) -> dict[str, int]:
        """Return the sizes under the names that most configurations use."""
        return {
            "hidden_size": self.width,
            "num_hidden_layers": self.layers,
            "num_attention_heads": self.heads,
            "intermediate_size": 2 * self.width,
        }

    @property
    def text(self) -> dict[str, int]:
        return {"vocab_size": VOCABULARY, "max_position_embeddings": 64, **self.hidden}


TINY = Size("tiny", 64, 2, 4)
MEDIUM = Size("medium", 256, 6, 8)


def made(model: str, options: dict[str, Any], config: str | None = None) -> nn.Module:
    """Return the model of that class, from the configuration of the same family."""
    import transformers

    family = (
        config
        or re.sub(
            "(For(CausalLM|MaskedLM|ConditionalGeneration|ImageClassification)|LMHeadModel)$", "", model
        )
        + "Config"
    )
    special = {"pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2}
    settings = getattr(transformers, family)(**{**special, **options})
    built: nn.Module = getattr(transformers, model)(settings)
    return built.train()


def tokens(length: int = LENGTH) -> torch.Tensor:
    return torch.randint(3, VOCABULARY, (BATCH, length), generator=torch.Generator().manual_seed(1))


def texts(model: nn.Module) -> Built:
    return model, {"input_ids": tokens(), "labels": tokens()}


def translations(model: nn.Module) -> Built:
    return model, {"input_ids": tokens(), "labels": tokens(LENGTH // 2)}


def pictures(model: nn.Module, side: int = 32) -> Built:
    generator = torch.Generator().manual_seed(1)
    pixels = torch.randn(BATCH, 3, side, side, generator=generator)
    return model, {"pixel_values": pixels, "labels": torch.arange(BATCH) % CLASSES}


def bart_options(s: Size) -> dict[str, Any]:
    return {
        "vocab_size": VOCABULARY,
        "d_model": s.width,
        "encoder_layers": s.layers,
        "decoder_layers": s.layers,
        "encoder_attention_heads": s.heads,
        "decoder_attention_heads": s.heads,
        "encoder_ffn_dim": 2 * s.width,
        "decoder_ffn_dim": 2 * s.width,
        "max_position_embeddings": 64,
        "decoder_start_token_id": 2,
    }


def t5_options(s: Size) -> dict[str, Any]:
    return {
        "vocab_size": VOCABULARY,
        "d_model": s.width,
        "d_kv": s.width // s.heads,
        "d_ff": 2 * s.width,
        "num_layers": s.layers,
        "num_heads": s.heads,
        "decoder_start_token_id": 0,
    }
