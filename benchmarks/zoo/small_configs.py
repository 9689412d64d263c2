"""Shrinks the configuration of any Hugging Face architecture; a field's name says what size it is.

Widths become 64 with 4 heads of 16, stacks 4 layers deep, vocabularies 99 tokens, images 64 pixels wide. No size is
increased. A fixed `initializer_range` is increased so that range x sqrt(width), which determines the signal, stays
that of the stock architecture.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from typing import Any

WIDTH, HEADS, LAYERS, VOCABULARY, IMAGE_SIDE, LENGTH = 64, 4, 4, 99, 64, 64
# Heuristic: the widest stage of a pyramid gets the same width as a Transformer here.
MAX_STAGE_WIDTH = 64

# Maximum by field name: the first pattern that matches counts, and 0 leaves the field alone.
_MAX_SIZES: tuple[tuple[str, int], ...] = (
    (
        r"type_vocab_size|num_channels|num_labels|spatial_merge|_stride$|kernel|_token|num_classes|pad_.*_to",
        0,
    ),
    (r"codebook_size", 64),
    (r"vocab_size$|vocab$|^num_embeddings$|entity_vocab_size", VOCABULARY),
    (r"(experts_per_tok|moe_topk|num_experts_per_token|moe_k|top_?k)$", 2),
    (r"^(num_|n_)?(routed_|local_|moe_)?(num_)?experts$", 4),
    (r"^(n_group|topk_group)$", 1),
    (r"(key_value|kv)_heads$|_kv_heads?$", 2),
    (r"heads$|^n_head$|attention_head$", HEADS),
    (r"head_dim$|head_size$|^d_kv$|attention_head_size|channels_per_head|^qk_\w+_dim$|rotary_dim$", 16),
    (r"lora_rank$|_rank$", 16),
    (r"_per_block$", 2),
    (r"(^|_)(layers?|n_layer|depth|blocks)$|num_\w*layers$|^n_layers?$", LAYERS),
    (
        r"intermediate_size|ffn_dim|^d_ff$|n_inner|mlp_dim|ffn_hidden|feedforward|inner_dim|ffn_size",
        2 * WIDTH,
    ),
    (r"^window_size$", 2),
    (r"max_\w*position|n_positions|^context_length$|max_seq|^n_ctx$|max_length|^block_size$|window", LENGTH),
    (r"image_size$|img_size$|^size$", IMAGE_SIDE),
    (r"^patch_size$", 16),
    (r"hidden_size|^d_\w+$|n_embd|embed_dim|hidden_dim|embedding_size|_dim$|^dim$|width$|_size$", WIDTH),
    (r"channels?$|filters$|_features$", WIDTH),
)
_DEPTHS = re.compile(r"depths?$|layers$|num_blocks|layer_config")
_NOT_WIDTHS = re.compile(
    r"kernel|stride|size_divisor|pad|dilation|ratio|indices|features$|idx|heads|pool|window|strides"
)

Fields = dict[str, Any]


def small(config_class: type, **fields_given: Any) -> Any:
    """Return a small instance of the class; `fields_given` are used unchanged."""
    stock = config_class()
    fields = {**_fields(stock), **fields_given}
    return within_vocabulary(config_class(**fields))


def shallow(config_class: type, **fields_given: Any) -> Any:
    """Return an instance with stock widths but few layers, tokens and positions, for models that cannot shrink."""
    stock = config_class()
    counts = {
        name: value
        for name, value in _fields(stock).items()
        if isinstance(value, int) and value in (LAYERS, VOCABULARY, LENGTH)
    }
    return within_vocabulary(config_class(**{**counts, **fields_given}))


def _fields(stock: Any) -> Fields:
    """Return only the fields that must change to get a small instance."""
    changes: Fields = {}
    lengths = {len(value) for value in vars(stock).values() if _is_sizes(value)}
    for name, value in vars(stock).items():
        if name.startswith("_") or name in _GENERAL or (name.endswith("layers") and _counts(value, lengths)):
            continue  # another field lists these layers one by one, so their number is fixed
        changed = _nested(value) if hasattr(value, "model_type") else reduced_value(name, value)
        if changed is not None and changed != value:
            changes[name] = changed
    return _consistent({**changes, **_special_tokens(stock)}, stock)


def _special_tokens(stock: Any) -> Fields:
    """Return distinct ids inside the small vocabulary for special tokens that lie outside it."""
    high = [
        name
        for name, value in vars(stock).items()
        if re.search(r"_token_(id|index)$", name) and type(value) is int and value >= VOCABULARY
    ]
    return {name: VOCABULARY - 1 - place % (VOCABULARY // 2) for place, name in enumerate(high)}


_GENERAL = {
    "id2label",
    "label2id",
    "architectures",
    "transformers_version",
    "torch_dtype",
    "dtype",
    "num_labels",
}


def _counts(value: Any, lengths: set[int]) -> bool:
    return isinstance(value, int) and value in lengths


def _nested(config: Any) -> Fields:
    """Return the small configuration of a part, as a dictionary."""
    return small(type(config)).to_dict()


def reduced_value(name: str, value: Any) -> Any:
    """Return the value that a field of this name gets, or None to leave it."""
    if isinstance(value, bool) or value is None:
        return None
    if isinstance(value, int):
        largest = next((size for pattern, size in _MAX_SIZES if re.search(pattern, name)), 0)
        return largest if 0 < largest < value else None
    if _is_sizes(value):
        return _reduced_list(name, value)
    if isinstance(value, list) and len(value) > LAYERS and all(isinstance(each, str) for each in value):
        return condense_layer_kinds(value) if "type" in name or "layers" in name else None
    return None


def condense_layer_kinds(kinds: list[str]) -> list[str]:
    """Return `LAYERS` of the layer kinds, in order, with every kind at least once."""
    first = {kinds.index(kind) for kind in kinds}
    rest = [place for place in range(len(kinds)) if place not in first]
    chosen = sorted([*sorted(first), *rest][:LAYERS])
    return [kinds[place] for place in chosen]


def _is_sizes(value: Any) -> bool:
    return isinstance(value, list | tuple) and len(value) > 0 and all(type(each) is int for each in value)


def _reduced_list(name: str, values: Any) -> Any:
    """Return stage depths of 1, or stage widths shrunk in proportion so that they still divide each other."""
    if _DEPTHS.search(name):
        return type(values)(min(each, 1) for each in values)
    if name.endswith("image_size"):
        return type(values)(min(each, IMAGE_SIDE) for each in values)
    if _NOT_WIDTHS.search(name) or max(values) <= MAX_STAGE_WIDTH:
        return None
    factor = max(1, max(values) // MAX_STAGE_WIDTH)
    return type(values)(max(8, 8 * round(each / factor / 8)) for each in values)


def _consistent(fields: Fields, stock: Any) -> Fields:
    """Return the fields with dependent sizes adjusted: key-value heads, initializer range, stage widths."""
    for name in ("initializer_range", "init_std", "initializer_std"):
        wide, narrow = _width_of(stock, fields)
        old = getattr(stock, name, None)
        if isinstance(old, float) and 0 < narrow < wide and old < 0.5:
            fields[name] = old * math.sqrt(wide / narrow)
    heads = getattr(stock, "num_heads", None)
    if isinstance(heads, list | tuple) and isinstance(getattr(stock, "embed_dim", None), int):
        fields["embed_dim"] = 8 * heads[0]
    shared = getattr(stock, "num_key_value_heads", None) != getattr(stock, "num_attention_heads", 0)
    if not shared and "num_attention_heads" in fields:
        fields["num_key_value_heads"] = fields["num_attention_heads"]
    return fields


def _width_of(stock: Any, fields: Fields) -> tuple[int, int]:
    """Return the stock width and the small width, or those of the first part if the whole has none."""
    for name in ("hidden_size", "d_model", "n_embd", "embed_dim", "hidden_dim"):
        old = getattr(stock, name, None)
        if isinstance(old, int) and name in fields:
            return old, fields[name]
    inner = (
        _width_of(getattr(stock, name), value) for name, value in fields.items() if isinstance(value, dict)
    )
    return next((widths for widths in inner if widths[1]), (0, 0))


_DISABLED_FIELDS = ("use_cache",)  # nothing is generated
_SPECIAL_TOKENS = ("pad_token_id", "bos_token_id", "eos_token_id", "decoder_start_token_id")


def within_vocabulary(config: Any) -> Any:
    """Special tokens keep their distinctness and get numbers that the small vocabulary has; none is missing."""
    for part in parts(config):
        for name in _DISABLED_FIELDS:
            if getattr(part, name, False):
                setattr(part, name, False)
        for place, name in enumerate(_SPECIAL_TOKENS):
            if getattr(part, name, None) is None:
                setattr(part, name, place)
        words = getattr(part, "vocab_size", None)
        if not isinstance(words, int):
            continue
        special = [name for name in vars(part) if re.search(r"_token_(id|index)$", name)]
        for place, name in enumerate(special):
            number = getattr(part, name)
            if isinstance(number, int) and number >= words:
                setattr(part, name, words - 1 - place % (words // 2))
            if isinstance(number, list):
                setattr(part, name, [min(each, words - 1) for each in number])
    return config


def parts(config: Any) -> list[Any]:
    """Return the configuration and those of its parts."""
    inner = [each for value in vars(config).values() if hasattr(value, "model_type") for each in parts(value)]
    return [config, *inner]


CONFIG_SIZES: dict[str, Callable[..., Any]] = {"small": small, "shallow": shallow}
