"""The key of a cell: a hash of what decides its result, so that equal work is found again wherever it was done."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from typing import Any

from leadline.errors import InputError
from leadline.records.codec import spell

Settings = Mapping[str, Any]

LETTERS = 20  # of the hash, 80 bits: two of a billion cells share a key with probability 4e-7 (derived)


def key_of(settings: Settings, version: str) -> str:
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
    return hashlib.sha256(text.encode()).hexdigest()[:LETTERS]
