"""From a Hugging Face config (a file, a dict or the object) to the class of the model it describes."""

from __future__ import annotations

import json
from collections.abc import Mapping
from difflib import get_close_matches
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from leadline.errors import InputError
from leadline.records.files import read_text

HEADS = (  # in this order: a head with a loss of its own, the one the type is pretrained with first
    "AutoModelForCausalLM",
    "AutoModelForMaskedLM",
    "AutoModelForSeq2SeqLM",
    "AutoModelForImageClassification",
    "AutoModelForCTC",
    "AutoModelForSpeechSeq2Seq",
    "AutoModelForSequenceClassification",
    "AutoModelForImageTextToText",
    "AutoModel",
)

MOST_LAYERS = 10_000  # ours: they are built one by one; the deepest published networks have some 1000
MOST_WORDS = 2**31 - 1  # ours: ids of tokens are kept in 32 bits by most tokenisers
BATCHED = "batched_mm"  # the name transformers has for it


def read_config(origin: Any) -> Any:
    """The config object; of a path, a dict, or such an object, which is copied."""
    _check_installed()
    from transformers import AutoConfig, PretrainedConfig

    if isinstance(origin, PretrainedConfig):
        return type(origin).from_dict(origin.to_dict())
    fields = dict(origin) if isinstance(origin, Mapping) else _read_file(Path(origin))
    kind = fields.pop("model_type", None)
    _check_type(kind, origin)
    try:
        return AutoConfig.for_model(kind, **fields)
    except Exception as error:  # each config class has errors of its own
        raise InputError(
            expected=f"a config that transformers accepts for model_type {kind!r}",
            got=" ".join(str(error).split()),
            fix="compare it with the config that transformers writes: config.save_pretrained(folder)",
        ) from error


def model_class(config: Any) -> Any:
    """The class of the model: the one the config names, else the head its type is pretrained with."""
    import transformers

    known = [getattr(transformers, str(name), None) for name in config.architectures or ()]
    named = [
        each for each in known if isinstance(each, type) and issubclass(each, transformers.PreTrainedModel)
    ]
    if named:
        return named[0]
    for head in HEADS:
        mapping = getattr(transformers, head)._model_mapping
        if type(config) in mapping:
            found = mapping[type(config)]
            return found[0] if isinstance(found, tuple | list) else found
    raise InputError(
        expected="a config of a model that can be built from it alone",
        got=f"model_type {config.model_type!r}, for which transformers has no such model",
        fix='name the class in the config, for instance "architectures": ["LlamaForCausalLM"]',
    )


def build_model(config: Any) -> Any:
    """The model in training mode.

    Experts of a mixture run batched: each token takes along the weights of its experts. The other ways look at how
    many tokens each expert got, or ask for half precision. Mixtures that know no such choice stay as they are.
    """
    _check_size(config, "num_hidden_layers", range(MOST_LAYERS + 1))
    _check_size(config, "vocab_size", range(1, MOST_WORDS + 1))
    config.use_cache = False
    found = model_class(config)
    if found._can_set_experts_implementation():
        config._experts_implementation = BATCHED
    return found._from_config(config).train()


def _check_size(config: Any, name: str, possible: range) -> None:
    amount = getattr(config, name, None)
    if isinstance(amount, int) and amount not in possible:
        raise InputError(
            expected=f"a config with a {name} of {possible.start} to {possible.stop - 1}",
            got=str(amount),
            fix="correct the config",
        )


def _check_installed() -> None:
    if find_spec("transformers") is None:
        raise InputError(
            expected="the package transformers, to build a model from its config",
            got="no such package",
            fix="pip install 'leadline[huggingface]'",
        )


def _read_file(path: Path) -> dict[str, Any]:
    try:
        fields = json.loads(read_text(path, "a config file"))
    except (ValueError, RecursionError) as error:
        raise InputError(
            expected="a config file in JSON",
            got=f"{str(path)!r}: {error}",
            fix="check the file; was it cut short?",
        ) from None
    if not isinstance(fields, dict):
        raise InputError(
            expected="a config: a JSON object with a model_type",
            got=f"{str(path)!r}, a JSON {type(fields).__name__}",
            fix="pass the config.json of a Hugging Face model",
        )
    return fields


def _check_type(kind: Any, origin: Any) -> None:
    from transformers import CONFIG_MAPPING

    if isinstance(kind, str) and kind in CONFIG_MAPPING:
        return
    where = "the dict" if isinstance(origin, Mapping) else repr(str(origin))
    close = get_close_matches(str(kind), CONFIG_MAPPING, n=1)
    raise InputError(
        expected="a config with a model_type that transformers knows",
        got=f"{where} has {'no model_type' if kind is None else f'model_type {kind!r}'}",
        fix=f"did you mean {close[0]!r}?"
        if close
        else "pass the config.json of a Hugging Face model; models with code of their own need a factory: "
        "leadline check --no-weights file.py:factory",
    )
