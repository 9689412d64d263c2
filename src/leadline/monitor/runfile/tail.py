"""The tail of a run file: the steps since the last transaction, in a file beside it that costs less to write.

Storing a few steps in a transaction takes about 0.3 ms of processor time. To do so 25 times per second, so that a kill
loses little, would take most of the default budget of a watch. So the writer appends steps to the tail as they come,
which takes a fraction of that, and makes a transaction once per second.

    header   MAGIC, and the token of the writer
    record   number, length and checksum of what follows; then the numbers of one or more steps as MessagePack

Records are numbered. Each transaction stores how many of them it and the earlier ones hold, so every record is applied
once: by the next writer of the file, and by each reader of a file whose writer is dead. A writer that is alive is never
more than a second behind.
"""

from __future__ import annotations

import contextlib
import struct
import zlib
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import BinaryIO

import msgspec

from leadline.monitor.runfile.queue import NumberedSteps, ScalarColumns, StepNumbers

MAGIC = b"LEALTAIL"
RECORD = struct.Struct("<QII")
# Derived: a token is 32 hexadecimal digits.
TOKEN_BYTES = 32
HEADER_BYTES = len(MAGIC) + TOKEN_BYTES
# Heuristic: bytes after which a transaction is made at once; half a second of 1000 layers at 150 steps per second.
MAX_TAIL_BYTES = 4 * 2**20

_encoder = msgspec.msgpack.Encoder()
_decoder = msgspec.msgpack.Decoder(StepNumbers | ScalarColumns)


def tail_path(path: Path) -> Path:
    return path.with_name(path.name + "-tail")


class TailWriter:
    """Appends to the tail of a run file. Every method may raise OSError, after which the tail is not used."""

    def __init__(self, path: Path, token: str) -> None:
        self.path, self.last_number = tail_path(path), 0
        self.path.unlink(missing_ok=True)  # a writer that lost the file may still hold the old one
        self._file: BinaryIO = open(self.path, "xb", buffering=0)  # noqa: SIM115  (`close` closes it)
        self._file.write(MAGIC + token.encode())

    def append(self, steps: Iterable[NumberedSteps]) -> None:
        """Write these steps in one call of the system; they survive a kill when it returns."""
        records = []
        for number, each in steps:
            content = _encoder.encode(each)
            records += [RECORD.pack(number, len(content), zlib.crc32(content)), content]
            self.last_number = number
        self._file.write(b"".join(records))

    @property
    def is_full(self) -> bool:
        return self._file.tell() > MAX_TAIL_BYTES

    def forget(self, stored: int) -> None:
        """Empty the tail if the transactions so far hold everything in it."""
        if self.last_number <= stored and self._file.tell() > HEADER_BYTES:
            self._file.truncate(HEADER_BYTES)
            self._file.seek(HEADER_BYTES)

    def remove(self) -> None:
        self._file.close()
        self.path.unlink()

    def close(self) -> None:
        with contextlib.suppress(OSError):
            self._file.close()


def read_tail(path: Path, token: str, stored: int) -> list[StepNumbers | ScalarColumns]:
    """Return what the writer with this token appended after so many records; a record cut off by a kill is left out."""
    try:
        content = tail_path(path).read_bytes()
    except OSError:
        return []
    if content[:HEADER_BYTES] != MAGIC + token.encode():
        return []
    return [_decoder.decode(body) for number, body in _records(content) if number > stored]


def _records(content: bytes) -> Iterator[tuple[int, bytes]]:
    start = HEADER_BYTES
    while start + RECORD.size <= len(content):
        number, size, checksum = RECORD.unpack_from(content, start)
        start += RECORD.size + size
        body = content[start - size : start]
        if len(body) < size or zlib.crc32(body) != checksum:
            return
        yield number, body
