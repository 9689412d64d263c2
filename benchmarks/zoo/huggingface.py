"""One architecture per model type of transformers with a known head, built offline from a small configuration."""

from __future__ import annotations

import importlib
from collections.abc import Iterator
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from benchmarks.zoo.architecture import Architecture, energy, floats
from benchmarks.zoo.batches import class_labels, make_inputs
from benchmarks.zoo.small_configs import CONFIG_SIZES
from leadline import Case

HEADS = {  # by priority: a model type gets the first of its heads
    "seq2seq": "MODEL_FOR_SEQ_TO_SEQ_CAUSAL_LM_MAPPING_NAMES",
    "speech": "MODEL_FOR_SPEECH_SEQ_2_SEQ_MAPPING_NAMES",
    "masked": "MODEL_FOR_MASKED_LM_MAPPING_NAMES",
    "causal": "MODEL_FOR_CAUSAL_LM_MAPPING_NAMES",
    "ctc": "MODEL_FOR_CTC_MAPPING_NAMES",
    "image": "MODEL_FOR_IMAGE_CLASSIFICATION_MAPPING_NAMES",
    "audio": "MODEL_FOR_AUDIO_CLASSIFICATION_MAPPING_NAMES",
    "video": "MODEL_FOR_VIDEO_CLASSIFICATION_MAPPING_NAMES",
    "segmentation": "MODEL_FOR_SEMANTIC_SEGMENTATION_MAPPING_NAMES",
    "base": "MODEL_MAPPING_NAMES",
}
CLASSIFICATION_HEADS = ("image", "audio", "video")  # one label per sample
# Heuristic: with more parameters a check, which needs a few dozen passes, takes more than a minute.
MAX_PARAMETERS = 12_000_000


def architectures() -> Iterator[Architecture]:
    for kind, (head, name) in model_types().items():
        yield Architecture(name=f"hf/{kind}", origin="transformers", build=partial(build, kind, head, name))


def model_types() -> dict[str, tuple[str, str]]:
    """Return the head and the model class to check, by model type."""
    auto = importlib.import_module("transformers.models.auto.modeling_auto")
    heads: dict[str, tuple[str, str]] = {}
    for head, mapping in HEADS.items():
        for kind, name in _class_names(auto, mapping).items():
            heads.setdefault(kind, (head, name if isinstance(name, str) else name[0]))
    return heads


def _class_names(auto: Any, mapping: str) -> dict[str, Any]:
    """Return class names by model type; early releases have classes by configuration class, or no such mapping."""
    if hasattr(auto, mapping):
        return dict(getattr(auto, mapping))
    classes = getattr(auto, mapping.removesuffix("_NAMES"), {})
    listed = {
        config.model_type: kind if isinstance(kind, tuple) else (kind,) for config, kind in classes.items()
    }
    return {kind: found[0].__name__ for kind, found in listed.items()}


def build(kind: str, head: str, name: str) -> Case:
    """Build the model from the first small configuration that works; otherwise raise the first error."""
    failures = []
    for make_config in CONFIG_SIZES.values():
        try:
            case = build_with(kind, head, name, make_config)
            case.model(**case.inputs)
        except Exception as error:  # a third-party constructor may raise anything
            failures.append(error)
        else:
            return case
    raise failures[0]


def build_with(kind: str, head: str, name: str, make_config: Any) -> Case:
    transformers = importlib.import_module("transformers")
    config_class = transformers.CONFIG_MAPPING[kind]
    config = make_config(config_class, **REQUIRED_FIELDS.get(kind, {}))
    model_class = getattr(transformers, name)
    if (size := parameter_count(model_class, config)) > MAX_PARAMETERS:
        raise ValueError(f"{size / 1e6:.0f} million parameters after shrinking")
    model = model_class(config)
    inputs = make_inputs(model, head)
    if "labels" in inputs:
        return Case(model, inputs)
    if head in CLASSIFICATION_HEADS:
        return Case(model, inputs, class_labels(model), loss=first_tensor_cross_entropy)
    return Case(model, inputs, loss=energy)


def first_tensor_cross_entropy(output: Any, targets: Tensor) -> Tensor:
    """Return the cross-entropy of the first output tensor, for classifiers that come without a loss."""
    return F.cross_entropy(next(iter(floats(output))), targets)


def parameter_count(kind: type, config: Any) -> int:
    """Return the number of parameters without allocating them; 0 if the meta device fails."""
    try:
        with torch.device("meta"):
            return sum(each.numel() for each in kind(config).parameters())
    except Exception:  # the real build will raise a better error
        return 0


REQUIRED_FIELDS: dict[str, dict[str, Any]] = {
    "jamba": {"attn_layer_period": 2, "attn_layer_offset": 1},
    "bert-generation": {"is_decoder": True},
    "esm": {"vocab_size": 99},
    "audio-spectrogram-transformer": {"max_length": 64, "num_mel_bins": 32},
}
"""Fields of architectures whose parts constrain each other in ways that their names do not show."""
