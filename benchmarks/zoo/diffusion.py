"""UNets, Transformers and autoencoders of diffusers, each with two small stages."""

from __future__ import annotations

import importlib
from collections.abc import Iterator
from functools import partial
from typing import Any

import torch
from torch import Tensor

from benchmarks.zoo.architecture import Architecture, noise_target_loss
from leadline import Case

BATCH, SIDE, WIDTH = 2, 16, 32


def architectures() -> Iterator[Architecture]:
    for name, (options, make) in MODELS.items():
        yield Architecture(
            name=f"diffusers/{name}", origin="diffusers", build=partial(build, name, options, make)
        )


def build(name: str, options: dict[str, Any], make: Any) -> Case:
    model = getattr(importlib.import_module("diffusers"), name)(**options)
    inputs = {**make(), "return_dict": False}
    with torch.no_grad():
        shape = model(**inputs)[0].shape
    return Case(model, inputs, torch.randn(shape), noise_target_loss)


def image(channels: int) -> Tensor:
    return torch.randn(BATCH, channels, SIDE, SIDE)


def steps() -> Tensor:
    return torch.randint(0, 1000, (BATCH,))


def words(width: int = WIDTH, length: int = 7) -> Tensor:
    return torch.randn(BATCH, length, width)


STAGES = {"block_out_channels": (WIDTH, 2 * WIDTH), "layers_per_block": 1, "norm_num_groups": 8}
PATCHES = {
    "num_attention_heads": 4,
    "attention_head_dim": 8,
    "in_channels": 4,
    "num_layers": 3,
    "patch_size": 2,
}

MODELS: dict[str, tuple[dict[str, Any], Any]] = {
    "UNet2DModel": (
        {
            **STAGES,
            "sample_size": SIDE,
            "in_channels": 3,
            "out_channels": 3,
            "attention_head_dim": 8,
            "down_block_types": ("DownBlock2D", "AttnDownBlock2D"),
            "up_block_types": ("AttnUpBlock2D", "UpBlock2D"),
        },
        lambda: {"sample": image(3), "timestep": steps()},
    ),
    "UNet2DConditionModel": (
        {
            **STAGES,
            "sample_size": SIDE,
            "cross_attention_dim": WIDTH,
            "attention_head_dim": 8,
            "down_block_types": ("DownBlock2D", "CrossAttnDownBlock2D"),
            "up_block_types": ("CrossAttnUpBlock2D", "UpBlock2D"),
        },
        lambda: {"sample": image(4), "timestep": steps(), "encoder_hidden_states": words()},
    ),
    "UNet1DModel": (
        {
            "block_out_channels": (WIDTH, WIDTH, 2 * WIDTH),
            "sample_size": 64,
            "extra_in_channels": 2 * WIDTH,  # the time embedding is concatenated to the signal
            "in_channels": 2,
            "out_channels": 2,
        },
        lambda: {"sample": torch.randn(BATCH, 2, 64), "timestep": steps()},
    ),
    "AutoencoderKL": (
        {
            **STAGES,
            "down_block_types": ("DownEncoderBlock2D",) * 2,
            "up_block_types": ("UpDecoderBlock2D",) * 2,
        },
        lambda: {"sample": image(3)},
    ),
    "VQModel": (
        {
            **STAGES,
            "down_block_types": ("DownEncoderBlock2D",) * 2,
            "up_block_types": ("UpDecoderBlock2D",) * 2,
            "num_vq_embeddings": 32,
        },
        lambda: {"sample": image(3)},
    ),
    "DiTTransformer2DModel": (
        {**PATCHES, "sample_size": SIDE, "norm_num_groups": 4},
        lambda: {
            "hidden_states": image(4),
            "timestep": steps(),
            "class_labels": torch.randint(0, 1000, (BATCH,)),
        },
    ),
    "SD3Transformer2DModel": (
        {
            **PATCHES,
            "sample_size": SIDE,
            "joint_attention_dim": WIDTH,
            "caption_projection_dim": WIDTH,
            "pooled_projection_dim": WIDTH,
            "out_channels": 4,
            "pos_embed_max_size": SIDE,
        },
        lambda: {
            "hidden_states": image(4),
            "encoder_hidden_states": words(),
            "pooled_projections": torch.randn(BATCH, WIDTH),
            "timestep": steps(),
        },
    ),
    "FluxTransformer2DModel": (
        {
            "patch_size": 1,
            "in_channels": 8,
            "num_layers": 2,
            "num_single_layers": 2,
            "attention_head_dim": 16,
            "num_attention_heads": 2,
            "joint_attention_dim": WIDTH,
            "pooled_projection_dim": WIDTH,
            "axes_dims_rope": [4, 4, 8],
        },
        lambda: {
            "hidden_states": torch.randn(BATCH, 16, 8),
            "encoder_hidden_states": words(),
            "pooled_projections": torch.randn(BATCH, WIDTH),
            "timestep": torch.rand(BATCH),
            "img_ids": torch.zeros(16, 3),
            "txt_ids": torch.zeros(7, 3),
        },
    ),
    "PriorTransformer": (
        {"num_attention_heads": 2, "attention_head_dim": 16, "num_layers": 3, "embedding_dim": WIDTH},
        lambda: {
            "hidden_states": torch.randn(BATCH, WIDTH),
            "timestep": steps(),
            "proj_embedding": torch.randn(BATCH, WIDTH),
            "encoder_hidden_states": words(length=77),
        },
    ),
}
