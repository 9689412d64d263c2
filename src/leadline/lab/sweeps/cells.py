"""The cells of a sweep: their keys, their outcomes, and the type of an executor."""

from __future__ import annotations

import hashlib
import json
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from leadline.errors import InputError
from leadline.records.codec import spell

Settings = Mapping[str, Any]

# Derived: 20 hexadecimal digits are 80 bits; two of a billion cells share a key with probability 4e-7.
KEY_LENGTH = 20


def cell_key(settings: Settings, version: str) -> str:
    """Return a key that is the same for equal settings in any order and the same `version`.

    `version` stands for the meaning of the work, which the settings do not contain. Change it when the same settings
    would give a different result.
    """
    try:
        text = json.dumps(spell([version, dict(settings)]), sort_keys=True, allow_nan=False)
    except TypeError as error:
        raise InputError(
            expected="cell settings made of numbers, strings, lists and dicts",
            got=f"{settings!r} ({error})",
            fix="put names into the settings and look the objects up inside the work function",
        ) from None
    return hashlib.sha256(text.encode()).hexdigest()[:KEY_LENGTH]


# The outcomes of a bundle, and the type of an executor.

Bundle = Sequence[Settings]
"""Cells that one worker runs together because that is cheaper."""
Work = Callable[[Bundle], Sequence[Any]]
"""A function from cells to their results (numbers, strings, lists and dicts). Workers must be able to import it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Success:
    """The work returned results."""

    results: Sequence[Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkError:
    """The work raised an error; running it again would raise it again."""

    error: str
    traceback: str


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerDeath:
    """The worker process, or another one in its pool, died without a result; the work can be tried again."""

    reason: str


Outcome = Success | WorkError | WorkerDeath
Executor = Callable[[Work, Sequence[Bundle]], Iterator[tuple[int, Outcome]]]


def run_bundle(work: Work, bundle: Bundle) -> Success | WorkError:
    """Run the work in this process. An exception becomes an outcome; KeyboardInterrupt does not."""
    try:
        return Success(results=work(bundle))
    except Exception as error:
        return WorkError(error=f"{type(error).__name__}: {error}", traceback=traceback.format_exc())


def run_numbered_bundle(work: Work, index: int, bundle: Bundle) -> tuple[int, Success | WorkError]:
    """Run the work and return its index too, for executors that finish in any order."""
    return index, run_bundle(work, bundle)
