"""Rules and alarms side by side: what a code or name stands for, whichever of the two has it."""

from __future__ import annotations

from difflib import get_close_matches

from leadline.alarms import Alarm, all_alarms
from leadline.errors import InputError
from leadline.rules import Rule, all_rules

Check = Rule | Alarm


def all_checks() -> tuple[Check, ...]:
    """Every rule, then every alarm, each ordered by code."""
    return (*all_rules(), *all_alarms())


def find_check(wanted: str) -> Check:
    """The rule or alarm with this code or name, in small letters or large."""
    keys = {key.lower(): each for each in all_checks() for key in (each.code, each.name)}
    if wanted.lower() in keys:
        return keys[wanted.lower()]
    close = get_close_matches(wanted.lower(), keys, n=1, cutoff=0.5)
    near = keys[close[0]] if close else None
    raise InputError(
        expected="the code or name of a rule",
        got=repr(wanted),
        fix=f"did you mean {near.code} ({near.name})?" if near else "`leadline rules` lists them",
    )
