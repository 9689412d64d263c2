"""The cells of a sweep: their keys, their outcomes, and what an executor is."""

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

KEY_LENGTH = 20  # of the hash, 80 bits: two of a billion cells share a key with probability 4e-7 (derived)


def cell_key(settings: Settings, version: str) -> str:
    """Equal for equal settings, in whatever order they are written, and the same note on the code's version.

    `version` names what the settings do not say: the meaning of the work. Change it when the same settings would give
    another result.
    """
    try:
        text = json.dumps(spell([version, dict(settings)]), sort_keys=True, allow_nan=False)
    except TypeError as error:
        raise InputError(
            expected="settings of a cell made of numbers, words, lists and dicts",
            got=f"{settings!r} ({error})",
            fix="name things in the settings, and look them up in the work itself",
        ) from None
    return hashlib.sha256(text.encode()).hexdigest()[:KEY_LENGTH]


# What may become of a cell, and what an executor is.

Bundle = Sequence[Settings]
"""Cells that one worker does at once, because together they cost less."""
Work = Callable[[Bundle], Sequence[Any]]
"""From cells to their results, made of numbers, words, lists and dicts. Must be importable by name for workers."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Success:
    """The work returned."""

    results: Sequence[Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkError:
    """The work raised: doing it again would too."""

    error: str
    traceback: str


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerDeath:
    """The process that did the work, or one beside it, ended without a result: worth another try."""

    reason: str


Outcome = Success | WorkError | WorkerDeath
Executor = Callable[[Work, Sequence[Bundle]], Iterator[tuple[int, Outcome]]]


def run_bundle(work: Work, bundle: Bundle) -> Success | WorkError:
    """Do the work here. An error of the work is an outcome; an interruption is not."""
    try:
        return Success(results=work(bundle))
    except Exception as error:
        told = f"{type(error).__name__}: {error}"
        return WorkError(error=told, traceback=traceback.format_exc())


def run_numbered_bundle(work: Work, index: int, bundle: Bundle) -> tuple[int, Success | WorkError]:
    """The same for executors whose results come in any order."""
    return index, run_bundle(work, bundle)
