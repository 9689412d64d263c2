"""Records to strict JSON and back, with nothing lost; and the text of a file from anywhere."""

from __future__ import annotations

import codecs
import json
import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any, BinaryIO, TypeVar

import msgspec

from leadline.errors import InputError, SchemaError

R = TypeVar("R")

UNSAVED_MARK = "unsaved"
"""Stands for an Unsaved value in builtins until `spell` drops it; compared by identity, so text never matches."""

LONGEST_NUMBER = (
    20  # digits and a sign: no count of ours is longer (derived: 2^63), and no float could hold some
)


class Unsaved:
    """A value that stays in this process: `encode` leaves out the field that holds it, and `==` ignores it."""

    __slots__ = ("value",)

    def __init__(self, value: Any) -> None:
        self.value = value

    def __eq__(self, other: object) -> bool:
        return True

    def __hash__(self) -> int:
        return 0


def encode(record: msgspec.Struct) -> str:
    """The record as strict JSON (no bare NaN), with nothing lost except what is `Unsaved`."""
    data = msgspec.to_builtins(record, enc_hook=_mark_unsaved)
    return json.dumps(spell(data), allow_nan=False, separators=(",", ":"))


def _mark_unsaved(value: object) -> str:
    if isinstance(value, Unsaved):
        return UNSAVED_MARK
    raise NotImplementedError(f"records cannot hold a {type(value).__qualname__}")


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
        return {key: spell(item) for key, item in data.items() if item is not UNSAVED_MARK}
    if isinstance(data, list | tuple):
        return [spell(item) for item in data]
    return data


def spell_float(number: float) -> float | str:
    """The number itself, or its name if JSON cannot write it."""
    if math.isfinite(number):
        return number
    return "NaN" if math.isnan(number) else "Infinity" if number > 0 else "-Infinity"


# The text of a file from anywhere: no more of it than a record may have, in the encodings that shells write.

MOST_BYTES = 256 * 2**20  # ours: a report of 1000 layers has 2 MB; a device that never ends is left here
CHUNK = 2**20
MARKS = {  # a mark at the start of a file says how it is written; `>` of some shells writes UTF-16
    codecs.BOM_UTF8: "utf-8-sig",
    codecs.BOM_UTF16_LE: "utf-16",
    codecs.BOM_UTF16_BE: "utf-16",
}


def read_text(path: Path, what: str, *, errors: str = "strict") -> str:
    """The text of a file that is meant to be `what`. Raises InputError with the path for all that it is not."""
    try:
        with path.open("rb") as file:
            return read_stream(file, errors=errors)
    except (OSError, ValueError) as error:  # also of a name that no file can have
        raise InputError(
            expected=f"{what} that can be read",
            got=f"{str(path)!r}: {getattr(error, 'strerror', None) or error}",
            fix=f"check the path and what is in the file; it is looked up from {Path.cwd()}",
        ) from None


def read_stream(stream: BinaryIO, *, errors: str = "strict") -> str:
    """The text of a stream. Raises OSError or ValueError if it cannot be read, is too long or no text."""
    data = b"".join(_parts(stream))
    encoding = next((name for mark, name in MARKS.items() if data.startswith(mark)), "utf-8")
    return data.decode(encoding, errors)


def _parts(stream: BinaryIO) -> Iterator[bytes]:
    size = 0
    while part := stream.read(CHUNK):
        size += len(part)
        if size > MOST_BYTES:
            raise ValueError(f"more than {MOST_BYTES} bytes")
        yield part
