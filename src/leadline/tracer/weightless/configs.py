"""Build the model that a Hugging Face config describes, and a batch of the right shapes."""

from __future__ import annotations

import inspect
import json
from collections.abc import Mapping
from dataclasses import dataclass
from difflib import get_close_matches
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from leadline.case import Case
from leadline.errors import InputError, install_extra
from leadline.records import Gap
from leadline.records.codec import read_text
from leadline.tracer.values import tensors_in
from leadline.tracer.weightless.distribution import real_tensors

# In order of preference: classes with a loss of their own. A type that has a masked language model is an encoder, also
# if transformers can run it as a decoder.
AUTO_CLASSES = (
    "AutoModelForMaskedLM",
    "AutoModelForCausalLM",
    "AutoModelForSeq2SeqLM",
    "AutoModelForImageClassification",
    "AutoModelForCTC",
    "AutoModelForSpeechSeq2Seq",
    "AutoModelForSequenceClassification",
    "AutoModelForImageTextToText",
    "AutoModel",
)

# Heuristic: layers are built one by one; the deepest published networks have about 1000.
MAX_LAYERS = 10_000
# Heuristic: most tokenizers hold token ids in 32 bits.
MAX_VOCABULARY = 2**31 - 1
# Heuristic: share of equal characters of two names; one typo or another separator in 7 or more leaves 0.85.
MIN_NAME_LIKENESS = 0.85
BATCHED_EXPERTS = "batched_mm"  # the name in transformers


def read_config(origin: Any) -> Any:
    """Return the config object for a path, a dict, or a config object, which is copied."""
    _check_installed()
    from transformers import AutoConfig, PretrainedConfig  # an optional dependency

    if isinstance(origin, PretrainedConfig):
        return type(origin).from_dict(origin.to_dict())
    fields = dict(origin) if isinstance(origin, Mapping) else _read_file(Path(origin))
    kind = fields.pop("model_type", None)
    _check_type(kind, origin)
    try:
        return AutoConfig.for_model(kind, **fields)
    except Exception as error:  # each config class raises its own errors
        raise InputError(
            expected=f"a config that transformers accepts for model_type {kind!r}",
            got=" ".join(str(error).split()),
            fix="compare it with a config that transformers writes: config.save_pretrained(folder)",
        ) from error


def model_class(config: Any) -> Any:
    """Return the class that the config names, or else the one that its type is pretrained with.

    The pretraining class itself counts if it is also in one of `AUTO_CLASSES`; others need labels of their own.
    """
    import transformers  # an optional dependency

    known = [getattr(transformers, str(name), None) for name in config.architectures or ()]
    named = [
        each for each in known if isinstance(each, type) and issubclass(each, transformers.PreTrainedModel)
    ]
    if named:
        return named[0]
    candidates = [each for head in AUTO_CLASSES for each in _classes_for(config, head)]
    pretrained = [each for each in _classes_for(config, "AutoModelForPreTraining") if each in candidates]
    if pretrained or candidates:
        return (pretrained or candidates)[0]
    raise InputError(
        expected="a config of a model that can be built from it alone",
        got=f"model_type {config.model_type!r}, for which transformers has no such model",
        fix='name the class in the config, for example "architectures": ["LlamaForCausalLM"]',
    )


def _classes_for(config: Any, head: str) -> list[Any]:
    """The classes that an auto class of transformers has for this type."""
    import transformers  # an optional dependency

    mapping = getattr(transformers, head)._model_mapping
    if type(config) not in mapping:
        return []
    classes = mapping[type(config)]
    return list(classes) if isinstance(classes, tuple | list) else [classes]


def build_model(config: Any) -> Any:
    """Return the model in training mode.

    The experts of a mixture run batched: each token gathers the weights of its experts. The other implementations read
    how many tokens each expert got, or need half precision. Mixtures without this choice stay as they are.
    """
    _check_size(config, "num_hidden_layers", range(MAX_LAYERS + 1))
    _check_size(config, "vocab_size", range(1, MAX_VOCABULARY + 1))
    config.use_cache = False
    kind = model_class(config)
    if kind._can_set_experts_implementation():
        config._experts_implementation = BATCHED_EXPERTS
    return kind._from_config(config).train()


def _check_size(config: Any, name: str, possible: range) -> None:
    amount = getattr(config, name, None)
    if isinstance(amount, int) and amount not in possible:
        raise InputError(
            expected=f"a config with a {name} of {possible.start} to {possible.stop - 1}",
            got=str(amount),
            fix=f"correct {name} in the config",
        )


def _check_installed() -> None:
    if find_spec("transformers") is None:
        raise InputError(
            expected="the package transformers, to build a model from its config",
            got="it is not installed",
            fix=install_extra("huggingface"),
        )


def _read_file(path: Path) -> dict[str, Any]:
    try:
        fields = json.loads(read_text(path, "a config file"))
    except (ValueError, RecursionError) as error:
        raise InputError(
            expected="a config file in JSON",
            got=f"{str(path)!r}: {error}",
            fix="check whether the file was truncated",
        ) from None
    if not isinstance(fields, dict):
        raise InputError(
            expected="a config: a JSON object with a model_type",
            got=f"{str(path)!r}, a JSON {type(fields).__name__}",
            fix="pass the config.json of a Hugging Face model",
        )
    return fields


def _check_type(kind: Any, origin: Any) -> None:
    from transformers import CONFIG_MAPPING  # an optional dependency

    if isinstance(kind, str) and kind in CONFIG_MAPPING:
        return
    where = "the dict" if isinstance(origin, Mapping) else repr(str(origin))
    name = kind if isinstance(kind, str) else ""
    one_typo = 1 - 1 / max(len(name), 2)  # the likeness that a wrong or a swapped character leaves
    close = get_close_matches(name, CONFIG_MAPPING, n=1, cutoff=min(MIN_NAME_LIKENESS, one_typo))
    raise InputError(
        expected="a config with a model_type that transformers knows",
        got=f"{where} has {'no model_type' if kind is None else f'model_type {kind!r}'}",
        fix=f"did you mean {close[0]!r}?"
        if close
        else f"this transformers knows {len(CONFIG_MAPPING.keys())} types; list them with python -c "
        "'import transformers; print(*transformers.CONFIG_MAPPING)'. A model with custom code needs a factory: "
        "leadline check --no-weights file.py:factory",
    )


# A batch for a Hugging Face model, from its config and the signature of its forward.
#
# Token ids and labels are assumed to be uniform over their range; pixels, waveforms and features, standard normal.

# Derived: any fixed seed, so that a prediction can be repeated.
SEED = 0
# Heuristic: a quarter of a second at 16 kHz.
WAVEFORM_SAMPLES = 4000
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
    """The size of the assumed batch."""

    batch: int = 2
    tokens: int = 64


def make_case(model: Any, sizes: Sizes) -> tuple[Case, tuple[Gap, ...]]:
    """Return a case for the model, and what was assumed. Integer tensors are real; floating-point ones may be fake."""
    generator = torch.Generator().manual_seed(SEED)
    accepted = inspect.signature(model.forward).parameters
    inputs = _inputs(model, accepted, sizes, generator)
    labels = _labels(model, accepted, inputs, generator)
    assumed = "token ids and labels uniform over their range, everything else standard normal"
    shapes = {**inputs, **labels}
    names = tuple(f"{name} {tuple(each.shape)}" for name, each in shapes.items() if isinstance(each, Tensor))
    notes = [Gap(what="the batch", why=f"no batch was given; assumed: {assumed}", where=names)]
    if labels:
        return Case(model, {**inputs, **labels}), tuple(notes)
    notes.append(
        Gap(
            what="the loss",
            why="the model has no loss of its own; the sum of squares of its output is used instead",
        )
    )
    return Case(model, inputs, loss=sum_of_squares), tuple(notes)


def sum_of_squares(output: Any) -> Tensor:
    """Return the sum of squares of the first floating-point tensor in the output that requires a gradient."""
    candidates = [each for each in tensors_in(output) if each.is_floating_point() and each.requires_grad]
    if not candidates:
        raise InputError(
            expected="an output with a floating-point tensor that depends on the parameters",
            got="an output without such a tensor",
            fix="name a class with a loss in the config's architectures, or write a factory",
        )
    return candidates[0].square().sum()


def _inputs(model: Any, accepted: Any, sizes: Sizes, generator: torch.Generator) -> dict[str, Tensor]:
    config, batch = model.config, sizes.batch
    inputs: dict[str, Tensor] = {}
    if "input_ids" in accepted and model.main_input_name != "input_features":
        inputs["input_ids"] = _tokens(_text(config), sizes, generator)
    if "pixel_values" in accepted:
        inputs["pixel_values"] = torch.randn(batch, *_image_shape(config))
    if "input_values" in accepted:
        inputs["input_values"] = torch.randn(batch, WAVEFORM_SAMPLES)
    if "input_features" in accepted:
        inputs["input_features"] = torch.randn(batch, *_feature_shape(config))
    if model.main_input_name not in inputs:
        raise InputError(
            expected="a model that reads token ids, pixels, a waveform or audio features",
            got=f"{type(model).__name__}, which reads {model.main_input_name}",
            fix="write a factory that returns the model and its batch: leadline check --no-weights file.py:factory",
        )
    return inputs


def _tokens(config: Any, sizes: Sizes, generator: torch.Generator) -> Tensor:
    longest = getattr(config, "max_position_embeddings", None) or sizes.tokens
    shape = (sizes.batch, min(sizes.tokens, longest))
    return _random_integers(config.vocab_size, shape, generator)


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
        return {"labels": _random_integers(config.num_labels, (first.shape[0],), generator)}
    if any(part in name for part in _BY_TOKEN):
        kinds = config.num_labels if "TokenClassification" in name else _text(config).vocab_size
        ids = inputs.get("input_ids")
        shape = tuple(ids.shape) if ids is not None else (first.shape[0], 16)
        return {"labels": _random_integers(kinds, shape, generator)}
    return {}


def _text(config: Any) -> Any:
    return config.get_text_config() if hasattr(config, "get_text_config") else config


def _random_integers(below: int, shape: tuple[int, ...], generator: torch.Generator) -> Tensor:
    """Return a real tensor even in a fake-tensor context, because a model may read its ids (padding, masks)."""
    with real_tensors():
        return torch.randint(below, shape, generator=generator)


def _image_shape(config: Any) -> tuple[int, int, int]:
    vision = getattr(config, "vision_config", config)
    size = getattr(vision, "image_size", None) or 224
    height, width = (size, size) if isinstance(size, int) else tuple(size)[-2:]
    return getattr(vision, "num_channels", 3), height, width


def _feature_shape(config: Any) -> tuple[int, int]:
    return getattr(config, "num_mel_bins", 80), 2 * getattr(config, "max_source_positions", 1500)
