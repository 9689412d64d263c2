"""The text of a file from anywhere: no more of it than a record may have, in the encodings that shells write."""

from __future__ import annotations

import codecs
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO

from leadline.errors import InputError

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
