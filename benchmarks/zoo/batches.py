"""A batch for any Hugging Face model, from the arguments of its forward and its configuration."""

from __future__ import annotations

import inspect
from typing import Any

import torch
from torch import Tensor, nn

from benchmarks.zoo.architecture import labels
from benchmarks.zoo.small_configs import PICTURE, WORDS, parts

BATCH, TOKENS, SAMPLES, FRAMES = 2, 16, 4000, 64
Feed = dict[str, Any]


def feed(model: nn.Module, head: str) -> Feed:
    """Keyword arguments for one pass; labels where the head has a loss that takes them."""
    wanted = inspect.signature(model.forward).parameters
    main = getattr(model, "main_input_name", "input_ids")
    given: Feed = {main: _main(model, main)} if main in wanted else {}
    for name, make in _ALSO.items():
        required = name in wanted and wanted[name].default is inspect.Parameter.empty
        if required and name not in given:
            given[name] = make(model)
    if "decoder_input_ids" in wanted and head not in _OWN_DECODER_START and "input_ids" in given:
        given["decoder_input_ids"] = tokens(model)
    if "labels" in wanted and head in _LABELS:
        given["labels"] = _LABELS[head](model, given)
    return given


def class_labels(model: nn.Module) -> Tensor:
    return labels(model.config.num_labels, BATCH)


def tokens(model: nn.Module) -> Tensor:
    return torch.randint(5, _first(model, "vocab_size", WORDS) - 12, (BATCH, TOKENS))


def picture(model: nn.Module) -> Tensor:
    size = _first(model, "image_size", PICTURE)
    height, width = size if isinstance(size, list | tuple) else (size, size)
    channels = _first(model, "num_channels", 3)
    return torch.randn(BATCH, channels if isinstance(channels, int) else 3, height, width)


def film(model: nn.Module) -> Tensor:
    frames = _first(model, "num_frames", 4)
    return torch.stack([picture(model) for _ in range(frames)], dim=1)


def spectrum(model: nn.Module) -> Tensor:
    """Log-mel features: Whisper's fixed length with bins first, or any length with bins last."""
    bins = _first(model, "num_mel_bins", 0) or _first(model, "input_feat_per_channel", 0)
    positions = _first(model, "max_source_positions", 0)
    if positions and _whisper(model):
        return torch.randn(BATCH, bins or 80, 2 * positions)
    return torch.randn(BATCH, FRAMES, bins or _first(model, "feature_projection_input_dim", 80))


def _whisper(model: nn.Module) -> bool:
    return any(path.endswith("encoder.conv1") for path, _ in model.named_modules())


def _main(model: nn.Module, name: str) -> Tensor:
    if name in ("input_ids", "decoder_input_ids", "inputs"):
        return tokens(model)
    if name == "pixel_values":
        return film(model) if isinstance(getattr(model.config, "num_frames", None), int) else picture(model)
    if name in ("pixel_values_videos", "videos"):
        return film(model)
    if name == "input_features":
        return spectrum(model)
    if name == "input_values":
        bins, length = (getattr(model.config, each, None) for each in ("num_mel_bins", "max_length"))
        return torch.randn(BATCH, length, bins) if bins and length else torch.randn(BATCH, SAMPLES)
    if name == "past_values":
        return torch.randn(BATCH, _first(model, "context_length", 32), _first(model, "num_input_channels", 1))
    if name == "inputs_embeds":
        return torch.randn(BATCH, TOKENS, _first(model, "hidden_size", 64))
    raise ValueError(f"no batch is known for a main input called {name!r}")


def _first(model: nn.Module, field: str, otherwise: Any) -> Any:
    """The field of the configuration, or of the first of its parts that has it."""
    found = (getattr(part, field, None) for part in parts(model.config))
    return next((each for each in found if each is not None), otherwise)


def _target(model: nn.Module, given: Feed) -> Tensor:
    """A shorter text for a decoder of its own; the text itself where tokens of both sides share one stream."""
    apart = getattr(model.config, "is_encoder_decoder", False) or "input_ids" not in given
    return tokens(model)[:, :8].contiguous() if apart else given["input_ids"].clone()


_OWN_DECODER_START = {"seq2seq", "speech"}
_ALSO = {
    "input_ids": tokens,
    "pixel_values": picture,
    "bbox": lambda model: torch.zeros(BATCH, TOKENS, 4, dtype=torch.long),
}
_LABELS = {
    "causal": lambda model, given: given["input_ids"].clone(),
    "masked": lambda model, given: tokens(model),
    "seq2seq": lambda model, given: _target(model, given),
    "speech": lambda model, given: _target(model, given),
    "ctc": lambda model, given: labels(20, BATCH, 3) + 5,
    "image": lambda model, given: class_labels(model),
    "audio": lambda model, given: class_labels(model),
    "video": lambda model, given: class_labels(model),
    "segmentation": lambda model, given: labels(
        model.config.num_labels, BATCH, *given["pixel_values"].shape[-2:]
    ),
}
