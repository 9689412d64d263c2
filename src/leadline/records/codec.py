"""Encode records as strict JSON and decode them without loss; read text files of any origin."""

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

# Derived: digits and sign of the largest 64-bit integer; no count that Leadline writes is longer.
MAX_INTEGER_LENGTH = 20


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
    """Return the record as strict JSON (no bare NaN), without loss except for `Unsaved` values."""
    data = msgspec.to_builtins(record, enc_hook=_mark_unsaved)
    return json.dumps(spell(data), allow_nan=False, separators=(",", ":"))


def _mark_unsaved(value: object) -> str:
    if isinstance(value, Unsaved):
        return UNSAVED_MARK
    raise NotImplementedError(f"records cannot hold a {type(value).__qualname__}")


def decode(text: str, kind: type[R], schema: str) -> R:
    """Return the record that `encode` wrote. Raises SchemaError if the text is damaged, of another kind, or too new."""
    data = parse(text)
    found = data.get("schema") if isinstance(data, dict) else None
    if found != schema:
        raise SchemaError(_wrong_schema(found, schema))
    try:
        return msgspec.convert(data, kind, strict=False)
    except (
        msgspec.ValidationError,
        UnicodeError,
    ) as error:  # UnicodeError: half a surrogate pair cannot be quoted
        raise SchemaError(f"damaged {schema} record: {error}") from None


def parse(text: str) -> Any:
    """Return JSON as builtins. Raises SchemaError if the text is not JSON or holds an integer that is too long."""
    try:
        return json.loads(text, parse_int=_whole)
    except (ValueError, RecursionError) as error:
        raise SchemaError(
            f"not JSON ({error}); check whether the file was truncated or written by another program"
        ) from None


def _whole(digits: str) -> int:
    if len(digits) > MAX_INTEGER_LENGTH:
        raise ValueError(f"an integer of {len(digits)} digits")
    return int(digits)


def _wrong_schema(found: object, schema: str) -> str:
    kind, _, version = schema.partition("/")
    if isinstance(found, str) and found.startswith(f"{kind}/"):
        return (
            f"this file has schema {found!r}; this version of leadline reads {kind} version {version}. "
            "Upgrade leadline, or write the file again."
        )
    return (
        f"expected a record with schema {schema!r}, got {found!r}; check whether this is another kind of file"
    )


def spell(data: Any) -> Any:
    """Return `data`, made of builtins, with each float that JSON cannot write replaced by its name."""
    if isinstance(data, float):
        return spell_float(data)
    if isinstance(data, dict):
        return {key: spell(item) for key, item in data.items() if item is not UNSAVED_MARK}
    if isinstance(data, list | tuple):
        return [spell(item) for item in data]
    return data


def spell_float(number: float) -> float | str:
    """Return the number itself, or its name if JSON cannot write it."""
    if math.isfinite(number):
        return number
    return "NaN" if math.isnan(number) else "Infinity" if number > 0 else "-Infinity"


# Text files: of limited size, in the encodings that shells write.

# Heuristic: a report of 1000 layers has 2 MB; this limit stops reading a device that never ends.
MAX_FILE_BYTES = 256 * 2**20
CHUNK_BYTES = 2**20
# Byte order marks; redirection with `>` in some shells writes UTF-16.
ENCODINGS = {
    codecs.BOM_UTF8: "utf-8-sig",
    codecs.BOM_UTF16_LE: "utf-16",
    codecs.BOM_UTF16_BE: "utf-16",
}


def read_text(path: Path, what: str, *, errors: str = "strict") -> str:
    """Return the text of a file that should be `what`. Raises InputError with the path if it cannot be read."""
    try:
        with path.open("rb") as file:
            return read_stream(file, errors=errors)
    except (OSError, ValueError) as error:  # ValueError: also for an impossible file name
        raise InputError(
            expected=f"{what} that can be read",
            got=f"{str(path)!r}: {getattr(error, 'strerror', None) or error}",
            fix=f"check the path, which is relative to {Path.cwd()}, and the content of the file",
        ) from None


def read_stream(stream: BinaryIO, *, errors: str = "strict") -> str:
    """Return the text of a stream. Raises OSError or ValueError if it cannot be read, is too long, or is not text."""
    data = b"".join(_parts(stream))
    encoding = next((name for mark, name in ENCODINGS.items() if data.startswith(mark)), "utf-8")
    return data.decode(encoding, errors)


def _parts(stream: BinaryIO) -> Iterator[bytes]:
    size = 0
    while part := stream.read(CHUNK_BYTES):
        size += len(part)
        if size > MAX_FILE_BYTES:
            raise ValueError(f"more than {MAX_FILE_BYTES} bytes")
        yield part
