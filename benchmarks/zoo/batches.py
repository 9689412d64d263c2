"""Builds a batch for any Hugging Face model from its forward signature and its configuration."""

from __future__ import annotations

import inspect
from typing import Any

import torch
from torch import Tensor, nn

from benchmarks.zoo.architecture import labels
from benchmarks.zoo.small_configs import IMAGE_SIDE, VOCABULARY, parts

BATCH, TOKENS, SAMPLES, FRAMES = 2, 16, 4000, 64
Inputs = dict[str, Any]


def make_inputs(model: nn.Module, head: str) -> Inputs:
    """Return keyword arguments for one pass, with labels if the head has a loss that takes them."""
    parameters = inspect.signature(model.forward).parameters
    main = getattr(model, "main_input_name", "input_ids")
    inputs: Inputs = {main: _main_input(model, main)} if main in parameters else {}
    for name, make in _OTHER_INPUTS.items():
        required = name in parameters and parameters[name].default is inspect.Parameter.empty
        if required and name not in inputs:
            inputs[name] = make(model)
    if "decoder_input_ids" in parameters and head not in _OWN_DECODER_START and "input_ids" in inputs:
        inputs["decoder_input_ids"] = tokens(model)
    if "labels" in parameters and head in _LABELS:
        inputs["labels"] = _LABELS[head](model, inputs)
    return inputs


def class_labels(model: nn.Module) -> Tensor:
    return labels(model.config.num_labels, BATCH)


def tokens(model: nn.Module) -> Tensor:
    return torch.randint(5, _first_field(model, "vocab_size", VOCABULARY) - 12, (BATCH, TOKENS))


def image(model: nn.Module) -> Tensor:
    size = _first_field(model, "image_size", IMAGE_SIDE)
    height, width = size if isinstance(size, list | tuple) else (size, size)
    channels = _first_field(model, "num_channels", 3)
    return torch.randn(BATCH, channels if isinstance(channels, int) else 3, height, width)


def video(model: nn.Module) -> Tensor:
    frames = _first_field(model, "num_frames", 4)
    return torch.stack([image(model) for _ in range(frames)], dim=1)


def spectrogram(model: nn.Module) -> Tensor:
    """Return log-mel features: for Whisper a fixed length with bins first, otherwise bins last."""
    bins = _first_field(model, "num_mel_bins", 0) or _first_field(model, "input_feat_per_channel", 0)
    positions = _first_field(model, "max_source_positions", 0)
    if positions and _is_whisper(model):
        return torch.randn(BATCH, bins or 80, 2 * positions)
    return torch.randn(BATCH, FRAMES, bins or _first_field(model, "feature_projection_input_dim", 80))


def _is_whisper(model: nn.Module) -> bool:
    return any(path.endswith("encoder.conv1") for path, _ in model.named_modules())


def _main_input(model: nn.Module, name: str) -> Tensor:
    if name in ("input_ids", "decoder_input_ids", "inputs"):
        return tokens(model)
    if name == "pixel_values":
        return video(model) if isinstance(getattr(model.config, "num_frames", None), int) else image(model)
    if name in ("pixel_values_videos", "videos"):
        return video(model)
    if name == "input_features":
        return spectrogram(model)
    if name == "input_values":
        bins, length = (getattr(model.config, each, None) for each in ("num_mel_bins", "max_length"))
        return torch.randn(BATCH, length, bins) if bins and length else torch.randn(BATCH, SAMPLES)
    if name == "past_values":
        return torch.randn(
            BATCH, _first_field(model, "context_length", 32), _first_field(model, "num_input_channels", 1)
        )
    if name == "inputs_embeds":
        return torch.randn(BATCH, TOKENS, _first_field(model, "hidden_size", 64))
    raise ValueError(f"cannot build a batch for a main input called {name!r}")


def _first_field(model: nn.Module, field: str, default: Any) -> Any:
    """Return the field of the configuration, or of the first of its parts that has it."""
    values = (getattr(part, field, None) for part in parts(model.config))
    return next((each for each in values if each is not None), default)


def _target_text(model: nn.Module, inputs: Inputs) -> Tensor:
    """Return a shorter text for a separate decoder, or the input text if both share one stream."""
    separate = getattr(model.config, "is_encoder_decoder", False) or "input_ids" not in inputs
    return tokens(model)[:, :8].contiguous() if separate else inputs["input_ids"].clone()


_OWN_DECODER_START = {"seq2seq", "speech"}
_OTHER_INPUTS = {
    "input_ids": tokens,
    "pixel_values": image,
    "bbox": lambda model: torch.zeros(BATCH, TOKENS, 4, dtype=torch.long),
}
_LABELS = {
    "causal": lambda model, inputs: inputs["input_ids"].clone(),
    "masked": lambda model, inputs: tokens(model),
    "seq2seq": lambda model, inputs: _target_text(model, inputs),
    "speech": lambda model, inputs: _target_text(model, inputs),
    "ctc": lambda model, inputs: labels(20, BATCH, 3) + 5,
    "image": lambda model, inputs: class_labels(model),
    "audio": lambda model, inputs: class_labels(model),
    "video": lambda model, inputs: class_labels(model),
    "segmentation": lambda model, inputs: labels(
        model.config.num_labels, BATCH, *inputs["pixel_values"].shape[-2:]
    ),
}
