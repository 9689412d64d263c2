"""Tiny models of transformers, built offline, in the configuration of a public bug report."""

from __future__ import annotations

import importlib
import inspect
from typing import Any

import torch
from torch import Tensor

from benchmarks.wiring.known import SIZES, VOCABULARY
from benchmarks.zoo.huggingface import build_with
from benchmarks.zoo.small_configs import small
from leadline import Case

SAMPLES, TOKENS = 3, 16
TEXT = {"d_model": 32, "decoder_layers": 2, "encoder_layers": 1, "vocab_size": VOCABULARY}
BART = {
    **TEXT,
    "encoder_attention_heads": 4,
    "decoder_attention_heads": 4,
    "encoder_ffn_dim": 64,
    "decoder_ffn_dim": 64,
    "max_position_embeddings": 64,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "decoder_start_token_id": 1,
}


def package() -> Any:
    """The version of transformers that is first on the path."""
    return importlib.import_module("transformers")


def tokens(length: int = TOKENS) -> Tensor:
    return torch.randint(5, VOCABULARY, (SAMPLES, length))


def speech(kind: str, name: str) -> Case:
    """A speech model that makes the inputs of its decoder from the labels."""
    case = build_with(kind, "speech", name, small)
    inputs = {key: value for key, value in case.inputs.items() if key != "labels"}
    inputs = {key: torch.cat([value, value[:1].flip(1)]) for key, value in inputs.items()}
    return Case(case.model, {**inputs, "labels": tokens(14)})


def florence() -> Case:
    """A captioning model: four image features in front of the prompt, the answer in the labels."""
    config = package().Florence2Config(
        text_config={"model_type": "bart", **BART},
        vision_config={
            "depths": [1, 1],
            "patch_size": [7, 3],
            "patch_stride": [4, 2],
            "patch_padding": [3, 1],
            "patch_prenorm": [False, True],
            "embed_dim": [16, 32],
            "num_heads": [2, 2],
            "num_groups": [2, 2],
            "window_size": 4,
            "projection_dim": 32,
            "max_temporal_embeddings": 4,
            "max_position_embeddings": 10,
        },
        image_token_id=4,
        is_encoder_decoder=True,
    )
    model = package().Florence2ForConditionalGeneration(config)
    images = torch.randn(SAMPLES, 3, 32, 32)
    features = model.model.get_image_features(images[:1])
    features = getattr(features, "pooler_output", features)
    image_tokens = torch.full((SAMPLES, features[0].shape[-2]), 4)
    prompt = torch.cat([image_tokens, tokens(6)], dim=1)
    return Case(model, {"input_ids": prompt, "pixel_values": images, "labels": tokens(14)})


def formula_net() -> Case:
    """A formula reader; its documentation trains it with the target as `input_ids` and as `labels`."""
    config = package().PPFormulaNetConfig(
        text_config={**BART, "hidden_size": 32},
        vision_config={
            "hidden_size": 32,
            "output_channels": 16,
            "num_hidden_layers": 1,
            "num_attention_heads": 2,
            "image_size": 64,
            "global_attn_indexes": [0],
            "window_size": 2,
            "mlp_dim": 32,
            "post_conv_in_channels": 16,
            "post_conv_mid_channels": 16,
            "post_conv_out_channels": 32,
            "decoder_hidden_size": 32,
        },
    )
    model = package().PPFormulaNetForConditionalGeneration(config)
    target = tokens(14)
    images = torch.randn(SAMPLES, 3, 64, 64)
    return Case(model, {"pixel_values": images, "input_ids": target, "labels": target.clone()})


def vision_encoder_decoder() -> Case:
    """A small ViT with a small GPT-2 that attends to it."""
    made = package()
    encoder = made.ViTConfig(
        hidden_size=32,
        num_hidden_layers=1,
        num_attention_heads=4,
        intermediate_size=64,
        image_size=32,
        patch_size=16,
    )
    decoder = made.GPT2Config(
        vocab_size=VOCABULARY,
        n_embd=32,
        n_layer=2,
        n_head=4,
        n_positions=32,
        is_decoder=True,
        add_cross_attention=True,
        bos_token_id=1,
        eos_token_id=2,
    )
    config = made.VisionEncoderDecoderConfig.from_encoder_decoder_configs(encoder, decoder)
    config.decoder_start_token_id, config.pad_token_id = 1, 0
    model = made.VisionEncoderDecoderModel(config)
    return Case(model, {"pixel_values": torch.randn(SAMPLES, 3, 32, 32), "labels": tokens(14)})


def paligemma(padding: int) -> Case:
    """A caption after an image and a prompt, padded on the left in one sample."""
    made = package()
    text = {
        "model_type": "gemma",
        "vocab_size": VOCABULARY,
        "hidden_size": 32,
        "intermediate_size": 64,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 1,
        "head_dim": 8,
        "pad_token_id": 0,
    }
    vision = {
        "model_type": "siglip_vision_model",
        "hidden_size": 32,
        "intermediate_size": 64,
        "num_hidden_layers": 1,
        "num_attention_heads": 4,
        "image_size": 32,
        "patch_size": 16,
        "projection_dim": 32,
    }
    config = made.PaliGemmaConfig(
        text_config=text, vision_config=vision, image_token_index=4, projection_dim=32, pad_token_id=0
    )
    model = made.PaliGemmaForConditionalGeneration(config)
    images = torch.full((SAMPLES, 4), 4)
    prompt, caption = tokens(4), tokens(18)
    ids = torch.cat([images, prompt, caption], dim=1)
    kinds = torch.cat([torch.zeros(SAMPLES, 8), torch.ones(SAMPLES, 18)], dim=1).long()
    mask = torch.ones_like(ids)
    if padding:
        empty = torch.zeros(SAMPLES, padding).long()
        ids, kinds, mask = (torch.cat([empty, each], dim=1) for each in (ids, kinds, mask))
        # Two samples have more to say, so only the last one keeps its padding.
        ids[:-1, :padding], mask[:-1, :padding] = tokens(padding)[:-1], 1
    labels = torch.where(kinds == 1, ids, torch.full_like(ids, -100))
    batch = {"input_ids": ids, "attention_mask": mask, "labels": labels}
    if "token_type_ids" in inspect.signature(model.forward).parameters:  # not in its first release
        batch["token_type_ids"] = kinds
    return Case(model, {**batch, "pixel_values": torch.randn(SAMPLES, 3, 32, 32)})


def padded_text(prefix: str, **fields: Any) -> Case:
    """A causal language model whose samples are padded on the left, with a mask and without labels on the padding."""
    config = getattr(package(), f"{prefix}Config")(**{**SIZES, **fields})
    model = getattr(package(), f"{prefix}ForCausalLM")(config)
    ids = torch.randint(3, VOCABULARY, (SAMPLES, TOKENS))
    mask = torch.ones_like(ids)
    for sample, padding in enumerate((4, 2, 0)):
        ids[sample, :padding], mask[sample, :padding] = 0, 0
    labels = torch.where(mask == 1, ids, torch.full_like(ids, -100))
    return Case(model, {"input_ids": ids, "attention_mask": mask, "labels": labels})


def long_text(prefix: str, length: int, **fields: Any) -> Case:
    """A causal language model in bfloat16 on sequences of twice as many tokens as it has prepared positions for."""
    sizes = {**SIZES, "max_position_embeddings": length // 2, **fields}
    config = getattr(package(), f"{prefix}Config")(**sizes)
    model = getattr(package(), f"{prefix}ForCausalLM")(config).bfloat16()
    ids = torch.randint(3, VOCABULARY, (2, length))
    return Case(model, {"input_ids": ids, "labels": ids.clone()})


def regression(prefix: str, **fields: Any) -> Case:
    """A text model that predicts one number per sample."""
    config = getattr(package(), f"{prefix}Config")(**{**SIZES, "num_labels": 1, **fields})
    model = getattr(package(), f"{prefix}ForSequenceClassification")(config)
    ids = torch.randint(3, VOCABULARY, (8, TOKENS))
    return Case(model, {"input_ids": ids, "attention_mask": torch.ones_like(ids), "labels": torch.randn(8)})


def xglm() -> Case:
    config = package().XGLMConfig(
        vocab_size=VOCABULARY,
        d_model=32,
        ffn_dim=64,
        num_layers=2,
        attention_heads=4,
        max_position_embeddings=64,
        pad_token_id=0,
    )
    ids = tokens()
    return Case(package().XGLMForCausalLM(config), {"input_ids": ids, "labels": ids.clone()})


def mixtral() -> Case:
    """Experts with the auxiliary loss that keeps their load even."""
    config = package().MixtralConfig(
        **SIZES,
        num_key_value_heads=2,
        num_local_experts=4,
        num_experts_per_tok=2,
        output_router_logits=True,
        router_aux_loss_coef=0.1,
        sliding_window=None,
    )
    ids = tokens()
    return Case(package().MixtralForCausalLM(config), {"input_ids": ids, "labels": ids.clone()})
