"""Hugging Face architectures for benchmarks/theory_accuracy.py, built offline with their own initialization."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator

from benchmarks.theory_builders import (
    CLASSES,
    MEDIUM,
    TINY,
    VOCABULARY,
    Built,
    Size,
    bart_options,
    made,
    pictures,
    t5_options,
    texts,
    translations,
)
from benchmarks.theory_newer_models import (
    mixtures,
    more_encoders,
    more_pairs,
    more_vision,
    plain_decoders,
    recurrences,
)


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
    bart, t5 = bart_options(s), t5_options(s)
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


FAMILIES = (
    _decoders,
    _encoders,
    _pairs,
    _vision,
    plain_decoders,
    mixtures,
    recurrences,
    more_encoders,
    more_pairs,
    more_vision,
)


def architectures() -> Iterator[tuple[str, Callable[[], Built]]]:
    """Return the name and the builder of each architecture, tiny ones first."""
    for size, chosen in ((TINY, None), (MEDIUM, MEDIUM_ONES)):
        for family in FAMILIES:
            for name, build in family(size).items():
                if chosen is None or name in chosen:
                    yield f"{name} {size.name}", build


def half(name: str) -> str:
    """Return "seen" or "held-out" for an architecture: rules may be derived from the misses of seen ones only.

    The first bit of a hash of the class name decides, so that all sizes of a class are in one half.
    """
    first_byte = hashlib.sha256(name.split()[0].encode()).digest()[0]
    return "seen" if first_byte < 128 else "held-out"
