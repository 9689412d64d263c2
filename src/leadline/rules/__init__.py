"""The rules, one file each. `all_rules()` finds them; users may pass further ones to `leadline.check`."""

from __future__ import annotations

import sys
from functools import cache

from leadline.collect import collect
from leadline.errors import RuleError
from leadline.rules.rule import Rule, Symptom, rule

__all__ = ["Rule", "Symptom", "all_rules", "rule"]


@cache
def all_rules() -> tuple[Rule, ...]:
    """Every built-in rule, ordered by code."""
    found = sorted(collect(sys.modules[__name__], Rule), key=lambda each: each.code)
    for key in ("code", "name"):
        seen = [getattr(each, key) for each in found]
        for value in seen:
            if seen.count(value) > 1:
                raise RuleError(f"two rules have the {key} {value!r}: give one of them another")
    return tuple(found)
