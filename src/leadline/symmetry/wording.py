"""Generators in words, in the user's parameter names."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping

MOST_NAMES = 6  # ours: longer lists are cut, the rest counted


def describe(exponents: Mapping[str, int]) -> str:
    """One sentence: what is multiplied, and what is divided for it."""
    up = {name: each for name, each in exponents.items() if each > 0}
    down = {name: -each for name, each in exponents.items() if each < 0}
    if not down:
        return f"{_list(up)}: {'free alone' if len(up) == 1 else 'free together'}"
    return f"{_list(up)} against {_list(down)}"


def _list(exponents: Mapping[str, int]) -> str:
    grouped: dict[tuple[str, int], list[str]] = {}
    for name, exponent in exponents.items():
        grouped.setdefault((re.sub(r"\d+", "*", name), exponent), []).append(name)
    words = [_one(names, pattern, power) for (pattern, power), names in grouped.items()]
    hidden = len(words) - MOST_NAMES
    return ", ".join(words[:MOST_NAMES]) + (f" and {hidden} more" if hidden > 0 else "")


def _one(names: list[str], pattern: str, exponent: int) -> str:
    power = f"^{exponent}" if exponent != 1 else ""
    return f"{names[0]}{power}" if len(names) == 1 else f"{len(names)} x {pattern}{power}"


def summary(names: Iterable[str]) -> str:
    """A list of names, alike ones counted."""
    return _list(dict.fromkeys(names, 1))
