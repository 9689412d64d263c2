"""The alarms, one file each: sicknesses of training that show while it runs. `all_alarms()` finds them."""

from __future__ import annotations

import sys
from functools import cache

from leadline.alarms.alarm import Alarm, Symptom, alarm
from leadline.alarms.desk import Desk
from leadline.alarms.history import History, Layout
from leadline.collect import collect
from leadline.errors import RuleError

__all__ = ["Alarm", "Desk", "History", "Layout", "Symptom", "alarm", "all_alarms"]


@cache
def all_alarms() -> tuple[Alarm, ...]:
    """Every built-in alarm, ordered by code."""
    found = sorted(collect(sys.modules[__name__], Alarm), key=lambda each: each.code)
    for key in ("code", "name"):
        seen = [getattr(each, key) for each in found]
        for value in seen:
            if seen.count(value) > 1:
                raise RuleError(f"two alarms have the {key} {value!r}: give one of them another")
    return tuple(found)
