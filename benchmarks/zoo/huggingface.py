"""Every model type of transformers that has a head we know, one exhibit each, built offline from a small config."""

from __future__ import annotations

import importlib
from collections.abc import Iterator
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from benchmarks.zoo.architecture import Exhibit, energy, floats
from benchmarks.zoo.batches import class_labels, feed
from benchmarks.zoo.small_configs import WAYS
from leadline import Case

HEADS = {  # in the order in which a model type that has several gets one
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
ONE_CLASS_EACH = ("image", "audio", "video")  # heads with one label a sample
LARGEST = 12_000_000  # parameters; above, a check of a few dozen passes takes a minute


def exhibits() -> Iterator[Exhibit]:
    for kind, (head, name) in chosen().items():
        yield Exhibit(name=f"hf/{kind}", origin="transformers", build=partial(build, kind, head, name))


def chosen() -> dict[str, tuple[str, str]]:
    """Of each model type, the head it is checked with and the class that has it."""
    auto = importlib.import_module("transformers.models.auto.modeling_auto")
    found: dict[str, tuple[str, str]] = {}
    for head, mapping in HEADS.items():
        for kind, name in getattr(auto, mapping).items():
            found.setdefault(kind, (head, name if isinstance(name, str) else name[0]))
    return found


def build(kind: str, head: str, name: str) -> Case:
    """The first small configuration with which the model can be built and runs; else the first failure."""
    failures = []
    for way in WAYS.values():
        try:
            case = assembled(kind, head, name, way)
            case.model(**case.inputs)
        except Exception as error:  # somebody else's constructors: anything may come
            failures.append(error)
        else:
            return case
    raise failures[0]


def assembled(kind: str, head: str, name: str, way: Any) -> Case:
    transformers = importlib.import_module("transformers")
    config_class = transformers.CONFIG_MAPPING[kind]
    config = way(config_class, **SPECIAL.get(kind, {}))
    kind_of_model = getattr(transformers, name)
    if (size := size_of(kind_of_model, config)) > LARGEST:
        raise ValueError(f"{size / 1e6:.0f} million parameters after shrinking")
    model = kind_of_model(config)
    given = feed(model, head)
    if "labels" in given:
        return Case(model, given)
    if head in ONE_CLASS_EACH:
        return Case(model, given, class_labels(model), loss=classes)
    return Case(model, given, loss=energy)


def classes(output: Any, targets: Tensor) -> Tensor:
    """Cross-entropy of the first tensor: the loss of a classifier whose package leaves the loss to others."""
    return F.cross_entropy(next(iter(floats(output))), targets)


def size_of(kind: type, config: Any) -> int:
    """Parameters of the model, before anything of that size is made; 0 if it cannot be built without memory."""
    try:
        with torch.device("meta"):
            return sum(each.numel() for each in kind(config).parameters())
    except Exception:  # the real build says what is wrong, if something is
        return 0


SPECIAL: dict[str, dict[str, Any]] = {
    "jamba": {"attn_layer_period": 2, "attn_layer_offset": 1},
    "esm": {"vocab_size": 99},
    "audio-spectrogram-transformer": {"max_length": 64, "num_mel_bins": 32},
}
"""Fields of architectures whose parts constrain each other in a way that their names do not tell."""
