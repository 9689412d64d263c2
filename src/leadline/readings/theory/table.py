"""All moment rules by op name, and the ops that carry no signal."""

from __future__ import annotations

from functools import cache
from typing import Literal

from leadline.collect import collect
from leadline.ops import family_of
from leadline.readings.theory import moments
from leadline.readings.theory.rule import Rule

NEUTRAL = frozenset({"index", "create"})
"""Families of the op table whose results carry no signal: comparisons, indices, constants."""

Standing = Literal["rule", "neutral", "unknown"]


@cache
def rules() -> dict[str, Rule]:
    """The rule of each canonical op name; two rules for one name are an error."""
    table: dict[str, Rule] = {}
    for rule in collect(moments, Rule):
        for name in rule.names:
            if name in table:
                raise ValueError(f"two moment rules own the op {name!r}")
            table[name] = rule
    return table


def standing(name: str) -> Standing:
    """Whether theory has a rule for an op, leaves it out as carrying no signal, or does not know it."""
    if name in rules():
        return "rule"
    family = family_of(name)
    return "neutral" if family is not None and family.kind in NEUTRAL else "unknown"
