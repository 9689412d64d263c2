"""Norm placement and streams of published architectures are as in their papers; tiny configurations, random weights."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

import leadline
from leadline.readings.structure import Structure, read_structure

VOCABULARY = 13
TEXT = {
    "vocab_size": VOCABULARY,
    "hidden_size": 8,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "intermediate_size": 16,
    "max_position_embeddings": 16,
    "pad_token_id": 0,
}
BACKBONE = {
    key: TEXT[key] for key in ("hidden_size", "num_hidden_layers", "num_attention_heads", "intermediate_size")
}
SEQ2SEQ = {
    "vocab_size": VOCABULARY,
    "d_model": 8,
    "encoder_layers": 2,
    "decoder_layers": 2,
    "encoder_attention_heads": 2,
    "decoder_attention_heads": 2,
    "encoder_ffn_dim": 16,
    "decoder_ffn_dim": 16,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "decoder_start_token_id": 1,
}


def build(model: str, config: str, **settings: object) -> nn.Module:
    import transformers

    torch.manual_seed(0)
    return getattr(transformers, model)(getattr(transformers, config)(**settings)).train()


def tokens(length: int = 6) -> Tensor:
    return torch.arange(2 * length).view(2, length) % VOCABULARY


def structure(model: nn.Module, **inputs: object) -> Structure:
    return read_structure(leadline.trace(model, inputs))


def placements(found: Structure) -> Counter[str]:
    return Counter(block.residual.placement for block in found.blocks if block.residual is not None)


LANGUAGE: dict[str, tuple[Callable[[], nn.Module], dict[str, int]]] = {
    "OLMo 2": (lambda: build("Olmo2ForCausalLM", "Olmo2Config", **TEXT), {"output": 4}),
    "Gemma 2": (
        lambda: build("Gemma2ForCausalLM", "Gemma2Config", head_dim=4, num_key_value_heads=1, **TEXT),
        {"sandwich": 4},
    ),
    "GPT-NeoX, parallel": (lambda: build("GPTNeoXForCausalLM", "GPTNeoXConfig", **TEXT), {"pre": 2}),
    "Phi, parallel": (lambda: build("PhiForCausalLM", "PhiConfig", **TEXT), {"pre": 2}),
    "Qwen 3": (
        lambda: build("Qwen3ForCausalLM", "Qwen3Config", head_dim=4, num_key_value_heads=1, **TEXT),
        {"pre": 4},
    ),
    "Mamba": (
        lambda: build(
            "MambaForCausalLM",
            "MambaConfig",
            vocab_size=VOCABULARY,
            hidden_size=8,
            num_hidden_layers=2,
            state_size=4,
            pad_token_id=0,
        ),
        {"pre": 2},
    ),
    "ALBERT, one shared layer": (
        lambda: build("AlbertForMaskedLM", "AlbertConfig", embedding_size=8, **TEXT),
        {"post": 4},
    ),
    "ELECTRA": (lambda: build("ElectraForMaskedLM", "ElectraConfig", embedding_size=8, **TEXT), {"post": 4}),
}


@pytest.mark.filterwarnings("ignore::DeprecationWarning:transformers", "ignore::FutureWarning:transformers")
@pytest.mark.parametrize("name", LANGUAGE)
def test_placement_in_a_language_model_is_as_published(name: str):
    make, expected = LANGUAGE[name]
    found = structure(make(), input_ids=tokens(), labels=tokens())
    assert placements(found) == expected
    assert len(found.streams) == 1
    assert not any(block.bypassed for block in found.blocks)


VISION: dict[str, tuple[Callable[[], nn.Module], dict[str, int]]] = {
    "ResNet": (
        lambda: build(
            "ResNetForImageClassification",
            "ResNetConfig",
            embedding_size=8,
            hidden_sizes=[8, 16],
            depths=[2, 2],
            layer_type="basic",
        ),
        {"output": 4},
    ),
    "ConvNeXt, norm inside the branch": (
        lambda: build(
            "ConvNextForImageClassification",
            "ConvNextConfig",
            hidden_sizes=[8, 16],
            depths=[2, 2],
            num_stages=2,
        ),
        {"none": 4},
    ),
    "Swin": (
        lambda: build(
            "SwinForImageClassification",
            "SwinConfig",
            image_size=16,
            patch_size=2,
            embed_dim=8,
            depths=[2, 2],
            num_heads=[2, 2],
            window_size=4,
        ),
        {"pre": 8},
    ),
}


@pytest.mark.filterwarnings("ignore:torch.meshgrid:UserWarning")
@pytest.mark.parametrize("name", VISION)
def test_placement_in_a_vision_model_is_as_published(name: str):
    make, expected = VISION[name]
    size = 16 if name == "Swin" else 32
    found = structure(make(), pixel_values=torch.randn(2, 3, size, size), labels=torch.tensor([0, 1]))
    assert placements(found) == expected


def test_bart_has_post_norm_in_both_of_its_streams():
    model = build("BartForConditionalGeneration", "BartConfig", max_position_embeddings=16, **SEQ2SEQ)
    found = structure(model, input_ids=tokens(6), labels=tokens(4))
    assert len(found.streams) == 2
    assert placements(found) == {"post": 10}


def test_whisper_has_pre_norm_and_a_stream_for_sound_and_one_for_text():
    model = build(
        "WhisperForConditionalGeneration",
        "WhisperConfig",
        num_mel_bins=4,
        max_source_positions=8,
        max_target_positions=16,
        **SEQ2SEQ,
    )
    found = structure(model, input_features=torch.randn(2, 4, 16), labels=tokens(4))
    assert {stream.input for stream in found.streams} == {"input_features", "labels"}
    assert placements(found) == {"pre": 10}


def test_clip_has_a_stream_for_images_and_one_for_text():
    model = build(
        "CLIPModel",
        "CLIPConfig",
        text_config={**TEXT, "eos_token_id": 12},
        vision_config={**BACKBONE, "image_size": 8, "patch_size": 4},
        projection_dim=8,
    )
    found = structure(model, input_ids=tokens(), pixel_values=torch.randn(2, 3, 8, 8), return_loss=True)
    assert {stream.input for stream in found.streams} == {"input_ids", "pixel_values"}
    assert placements(found) == {"pre": 8}
