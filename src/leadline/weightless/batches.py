"""A batch for a Hugging Face model, from its config and its forward: shapes as they must be, numbers as assumed.

Token ids are uniform over the vocabulary, so are labels; everything that is measured (pixels, waveforms, features)
is standard normal.
"""

from __future__ import annotations

import inspect
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from leadline.case import Case
from leadline.errors import InputError
from leadline.records import Gap
from leadline.tracing.ledger import tensors_in
from leadline.weightless.law import real

SEED = 0
WAVE = 4000  # samples of a waveform: a quarter of a second at 16 kHz; ours
_BY_SAMPLE = (
    "ForSequenceClassification",
    "ForImageClassification",
    "ForVideoClassification",
    "ForAudioFrame",
)
_BY_TOKEN = (
    "LMHeadModel",
    "ForCausalLM",
    "ForMaskedLM",
    "ForConditionalGeneration",
    "ForTokenClassification",
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Sizes:
    """How large a batch to assume."""

    batch: int = 2
    tokens: int = 64


def make_case(model: Any, sizes: Sizes) -> tuple[Case, tuple[Gap, ...]]:
    """A case for the model, and what was assumed. Whole numbers are real tensors; inside a session floats are fake."""
    generator = torch.Generator().manual_seed(SEED)
    accepted = inspect.signature(model.forward).parameters
    inputs = _inputs(model, accepted, sizes, generator)
    labels = _labels(model, accepted, inputs, generator)
    assumed = "token ids and labels uniform over their range, everything else standard normal"
    shapes = {**inputs, **labels}
    names = tuple(f"{name} {tuple(each.shape)}" for name, each in shapes.items() if isinstance(each, Tensor))
    notes = [Gap(what="the batch", why=f"none was given: {assumed}", where=names)]
    if labels:
        return Case(model, {**inputs, **labels}), tuple(notes)
    notes.append(
        Gap(what="the loss", why="the model has none of its own: the sum of squares of its output stands in")
    )
    return Case(model, inputs, loss=sum_of_squares), tuple(notes)


def sum_of_squares(output: Any) -> Tensor:
    """A stand-in for a loss: of the first floating tensor in the output that has a gradient."""
    found = [each for each in tensors_in(output) if each.is_floating_point() and each.requires_grad]
    if not found:
        raise InputError(
            expected="an output with a floating tensor that depends on the parameters",
            got="an output without one",
            fix="name a class with a loss in the config's architectures, or write a factory",
        )
    return found[0].square().sum()


def _inputs(model: Any, accepted: Any, sizes: Sizes, generator: torch.Generator) -> dict[str, Tensor]:
    config, batch = model.config, sizes.batch
    made: dict[str, Tensor] = {}
    if "input_ids" in accepted and model.main_input_name != "input_features":
        made["input_ids"] = _tokens(_text(config), sizes, generator)
    if "pixel_values" in accepted:
        made["pixel_values"] = torch.randn(batch, *_picture(config))
    if "input_values" in accepted:
        made["input_values"] = torch.randn(batch, WAVE)
    if "input_features" in accepted:
        made["input_features"] = torch.randn(batch, *_features(config))
    if model.main_input_name not in made:
        raise InputError(
            expected="a model that reads token ids, pixels, a waveform or audio features",
            got=f"{type(model).__name__}, which reads {model.main_input_name}",
            fix="write a factory that makes its batch: leadline check --no-weights file.py:factory",
        )
    return made


def _tokens(config: Any, sizes: Sizes, generator: torch.Generator) -> Tensor:
    longest = getattr(config, "max_position_embeddings", None) or sizes.tokens
    shape = (sizes.batch, min(sizes.tokens, longest))
    return _whole_numbers(config.vocab_size, shape, generator)


def _labels(
    model: nn.Module, accepted: Any, inputs: dict[str, Tensor], generator: torch.Generator
) -> dict[str, Any]:
    name, config = type(model).__name__, getattr(model, "config", None)
    if "return_loss" in accepted and len(inputs) > 1:
        return {"return_loss": True}
    if "labels" not in accepted or config is None:
        return {}
    first = next(iter(inputs.values()))
    if any(part in name for part in _BY_SAMPLE):
        return {"labels": _whole_numbers(config.num_labels, (first.shape[0],), generator)}
    if any(part in name for part in _BY_TOKEN):
        kinds = config.num_labels if "TokenClassification" in name else _text(config).vocab_size
        ids = inputs.get("input_ids")
        shape = tuple(ids.shape) if ids is not None else (first.shape[0], 16)
        return {"labels": _whole_numbers(kinds, shape, generator)}
    return {}


def _text(config: Any) -> Any:
    return config.get_text_config() if hasattr(config, "get_text_config") else config


def _whole_numbers(below: int, shape: tuple[int, ...], generator: torch.Generator) -> Tensor:
    """Real numbers, also where tensors have none: a model may look at its ids (padding, masks)."""
    with real():
        return torch.randint(below, shape, generator=generator)


def _picture(config: Any) -> tuple[int, int, int]:
    vision = getattr(config, "vision_config", config)
    size = getattr(vision, "image_size", None) or 224
    height, width = (size, size) if isinstance(size, int) else tuple(size)[-2:]
    return getattr(vision, "num_channels", 3), height, width


def _features(config: Any) -> tuple[int, int]:
    return getattr(config, "num_mel_bins", 80), 2 * getattr(config, "max_source_positions", 1500)
