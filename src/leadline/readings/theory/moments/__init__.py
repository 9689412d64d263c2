"""The moment rules, one file per family of ops, collected from this folder and bound to ops by `leadline.ops.table`."""

from __future__ import annotations

import sys
from functools import cache

from leadline.collect import collect
from leadline.ops.table import find_op
from leadline.readings.theory.moment_rule import MomentRule


@cache
def moment_rules() -> dict[str, MomentRule]:
    """Every moment rule by its name; raises ValueError if two rules have the same name."""
    rules: dict[str, MomentRule] = {}
    for rule in collect(sys.modules[__name__], MomentRule):
        if rule.name in rules:
            raise ValueError(f"two moment rules are named {rule.name!r}")
        rules[rule.name] = rule
    return rules


def find_moment_rule(op_name: str) -> MomentRule | None:
    """The rule of an op; None if it is neutral or unknown."""
    row = find_op(op_name)
    return None if row is None or row.moment_rule is None else moment_rules().get(row.moment_rule)
