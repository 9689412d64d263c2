"""Records to strict JSON and back, with nothing lost.

JSON has no NaN or infinity, so these travel as the strings "NaN", "Infinity" and "-Infinity".
"""

from __future__ import annotations

import json
import math
from typing import Any, TypeVar

import msgspec

from leadline.errors import SchemaError

R = TypeVar("R")

LONGEST_NUMBER = (
    20  # digits and a sign: no count of ours is longer (derived: 2^63), and no float could hold some
)


def encode(record: msgspec.Struct) -> str:
    """The record as strict JSON (no bare NaN), with nothing lost."""
    return json.dumps(spell(msgspec.to_builtins(record)), allow_nan=False, separators=(",", ":"))


def decode(text: str, kind: type[R], schema: str) -> R:
    """The record that `encode` wrote. Raises SchemaError if the text is damaged, foreign or too new."""
    data = parse(text)
    found = data.get("schema") if isinstance(data, dict) else None
    if found != schema:
        raise SchemaError(_wrong_schema(found, schema))
    try:
        return msgspec.convert(data, kind, strict=False)
    except (msgspec.ValidationError, UnicodeError) as error:  # half a character cannot even be quoted
        raise SchemaError(f"damaged {schema} record: {error}") from None


def parse(text: str) -> Any:
    """JSON as builtins. Raises SchemaError for what is none, or holds a number that no writer of ours writes."""
    try:
        return json.loads(text, parse_int=_whole)
    except (ValueError, RecursionError) as error:
        raise SchemaError(
            f"not JSON ({error}); was the file cut short or written by something else?"
        ) from None


def _whole(digits: str) -> int:
    if len(digits) > LONGEST_NUMBER:
        raise ValueError(f"a whole number of {len(digits)} digits")
    return int(digits)


def _wrong_schema(found: object, schema: str) -> str:
    kind, _, version = schema.partition("/")
    if isinstance(found, str) and found.startswith(f"{kind}/"):
        return (
            f"this file has schema {found!r}; this version of leadline reads {kind} version {version}. "
            "Upgrade leadline, or write the file again."
        )
    return f"expected a record with schema {schema!r}, got {found!r}; is this another kind of file?"


def spell(data: Any) -> Any:
    """`data`, made of builtins, with every float that JSON cannot write replaced by its name."""
    if isinstance(data, float):
        return spell_float(data)
    if isinstance(data, dict):
        return {key: spell(item) for key, item in data.items()}
    if isinstance(data, list | tuple):
        return [spell(item) for item in data]
    return data


def spell_float(number: float) -> float | str:
    """The number itself, or its name if JSON cannot write it."""
    if math.isfinite(number):
        return number
    return "NaN" if math.isnan(number) else "Infinity" if number > 0 else "-Infinity"
