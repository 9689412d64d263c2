"""Hugging Face architectures for benchmarks/theory_accuracy.py, built offline with their own initialization."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
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


def _decoders(s: Size) -> dict[str, Callable[[], Built]]:
    same = [
        "LlamaForCausalLM",
        "MistralForCausalLM",
        "Qwen2ForCausalLM",
        "Qwen3ForCausalLM",
        "GemmaForCausalLM",
        "Gemma2ForCausalLM",
        "PhiForCausalLM",
        "Phi3ForCausalLM",
        "StableLmForCausalLM",
        "OlmoForCausalLM",
        "Olmo2ForCausalLM",
        "Starcoder2ForCausalLM",
        "CohereForCausalLM",
        "GraniteForCausalLM",
        "GPTNeoXForCausalLM",
    ]
    few = {"head_dim": s.width // s.heads, "num_key_value_heads": s.heads // 2}
    models = {name: lambda name=name: texts(made(name, {**s.text, **few})) for name in same}
    gpt = {
        "vocab_size": VOCABULARY,
        "n_positions": 64,
        "n_embd": s.width,
        "n_layer": s.layers,
        "n_head": s.heads,
    }
    return models | {
        "GPT2LMHeadModel": lambda: texts(made("GPT2LMHeadModel", gpt)),
        "GPTJForCausalLM": lambda: texts(made("GPTJForCausalLM", {**gpt, "rotary_dim": 8})),
        "CodeGenForCausalLM": lambda: texts(made("CodeGenForCausalLM", {**gpt, "rotary_dim": 8})),
        "GPTNeoForCausalLM": lambda: texts(
            made(
                "GPTNeoForCausalLM",
                {
                    "vocab_size": VOCABULARY,
                    "hidden_size": s.width,
                    "num_layers": s.layers,
                    "num_heads": s.heads,
                    "max_position_embeddings": 64,
                    "attention_types": [[["global", "local"], s.layers // 2]],
                },
            )
        ),
        "OPTForCausalLM": lambda: texts(
            made("OPTForCausalLM", {**s.text, "ffn_dim": 4 * s.width, "word_embed_proj_dim": s.width})
        ),
        "BloomForCausalLM": lambda: texts(
            made(
                "BloomForCausalLM",
                {"vocab_size": VOCABULARY, "hidden_size": s.width, "n_layer": s.layers, "n_head": s.heads},
            )
        ),
        "FalconForCausalLM": lambda: texts(made("FalconForCausalLM", s.text)),
        "MptForCausalLM": lambda: texts(
            made(
                "MptForCausalLM",
                {
                    "vocab_size": VOCABULARY,
                    "d_model": s.width,
                    "n_layers": s.layers,
                    "n_heads": s.heads,
                    "max_seq_len": 64,
                },
            )
        ),
        "XGLMForCausalLM": lambda: texts(
            made(
                "XGLMForCausalLM",
                {
                    "vocab_size": VOCABULARY,
                    "d_model": s.width,
                    "num_layers": s.layers,
                    "attention_heads": s.heads,
                    "ffn_dim": 2 * s.width,
                },
            )
        ),
        "MixtralForCausalLM": lambda: texts(
            made("MixtralForCausalLM", {**s.text, "num_local_experts": 4, "num_key_value_heads": 2})
        ),
        "MambaForCausalLM": lambda: texts(
            made(
                "MambaForCausalLM",
                {
                    "vocab_size": VOCABULARY,
                    "hidden_size": s.width,
                    "num_hidden_layers": s.layers,
                    "state_size": 8,
                },
            )
        ),
    }


def _encoders(s: Size) -> dict[str, Callable[[], Built]]:
    same = [
        "BertForMaskedLM",
        "RobertaForMaskedLM",
        "ElectraForMaskedLM",
        "ErnieForMaskedLM",
        "MPNetForMaskedLM",
        "RoFormerForMaskedLM",
        "ModernBertForMaskedLM",
        "NystromformerForMaskedLM",
        "ConvBertForMaskedLM",
        "DebertaForMaskedLM",
        "LayoutLMForMaskedLM",
    ]
    models = {name: lambda name=name: texts(made(name, s.text)) for name in same}
    return models | {
        "AlbertForMaskedLM": lambda: texts(
            made("AlbertForMaskedLM", {**s.text, "embedding_size": s.width // 2})
        ),
        "FNetForMaskedLM": lambda: texts(made("FNetForMaskedLM", s.text)),
        "DistilBertForMaskedLM": lambda: texts(
            made(
                "DistilBertForMaskedLM",
                {
                    "vocab_size": VOCABULARY,
                    "dim": s.width,
                    "n_layers": s.layers,
                    "n_heads": s.heads,
                    "hidden_dim": 2 * s.width,
                    "max_position_embeddings": 64,
                },
            )
        ),
    }


def _pairs(s: Size) -> dict[str, Callable[[], Built]]:
    bart = {
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
    t5 = {
        "vocab_size": VOCABULARY,
        "d_model": s.width,
        "d_kv": s.width // s.heads,
        "d_ff": 2 * s.width,
        "num_layers": s.layers,
        "num_heads": s.heads,
        "decoder_start_token_id": 0,
    }
    return {
        "T5ForConditionalGeneration": lambda: translations(made("T5ForConditionalGeneration", t5)),
        "BartForConditionalGeneration": lambda: translations(made("BartForConditionalGeneration", bart)),
        "MBartForConditionalGeneration": lambda: translations(made("MBartForConditionalGeneration", bart)),
        "PegasusForConditionalGeneration": lambda: translations(
            made("PegasusForConditionalGeneration", bart)
        ),
        "MarianMTModel": lambda: translations(made("MarianMTModel", bart, "MarianConfig")),
        "M2M100ForConditionalGeneration": lambda: translations(made("M2M100ForConditionalGeneration", bart)),
    }


def _vision(s: Size) -> dict[str, Callable[[], Built]]:
    patches = {**s.hidden, "image_size": 32, "patch_size": 4, "num_labels": CLASSES}
    same = [f"{family}ForImageClassification" for family in ("ViT", "DeiT", "Beit", "Dinov2")]
    models = {name: lambda name=name: pictures(made(name, patches)) for name in same}
    stages = [s.width // 2, s.width, s.width, 2 * s.width]
    depths = [1, 1, max(s.layers - 2, 1), 1]
    return models | {
        "ConvNextForImageClassification": lambda: pictures(
            made(
                "ConvNextForImageClassification",
                {"hidden_sizes": stages, "depths": depths, "num_labels": CLASSES},
            ),
            64,
        ),
        "ResNetForImageClassification": lambda: pictures(
            made(
                "ResNetForImageClassification",
                {
                    "embedding_size": 32,
                    "hidden_sizes": [2 * each for each in stages],
                    "depths": depths,
                    "num_labels": CLASSES,
                },
            ),
            64,
        ),
        "RegNetForImageClassification": lambda: pictures(
            made(
                "RegNetForImageClassification",
                {"hidden_sizes": stages, "depths": depths, "groups_width": 16, "num_labels": CLASSES},
            ),
            64,
        ),
        "SwinForImageClassification": lambda: pictures(
            made(
                "SwinForImageClassification",
                {
                    "image_size": 64,
                    "embed_dim": s.width // 2,
                    "depths": [2, 2],
                    "num_heads": [2, 4],
                    "window_size": 4,
                    "num_labels": CLASSES,
                },
            ),
            64,
        ),
        "PoolFormerForImageClassification": lambda: pictures(
            made(
                "PoolFormerForImageClassification",
                {"hidden_sizes": stages, "depths": depths, "num_labels": CLASSES},
            ),
            64,
        ),
        "MobileNetV2ForImageClassification": lambda: pictures(
            made("MobileNetV2ForImageClassification", {"image_size": 64, "num_labels": CLASSES}), 64
        ),
    }


MEDIUM_ONES = [
    "GPT2LMHeadModel",
    "LlamaForCausalLM",
    "Qwen2ForCausalLM",
    "BertForMaskedLM",
    "RobertaForMaskedLM",
    "T5ForConditionalGeneration",
    "BartForConditionalGeneration",
    "ViTForImageClassification",
    "ConvNextForImageClassification",
    "OPTForCausalLM",
]


def architectures() -> Iterator[tuple[str, Callable[[], Built]]]:
    """Return the name and the builder of each architecture, tiny ones first."""
    for size, chosen in ((TINY, None), (MEDIUM, MEDIUM_ONES)):
        for family in (_decoders, _encoders, _pairs, _vision):
            for name, build in family(size).items():
                if chosen is None or name in chosen:
                    yield f"{name} {size.name}", build
