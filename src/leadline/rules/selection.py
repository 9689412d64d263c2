"""Choosing rules by code or name: what counts, what does not, and what was meant by a misspelt one."""

from __future__ import annotations

from collections.abc import Sequence
from difflib import get_close_matches
from typing import Protocol

from leadline.errors import InputError
from leadline.rules import Rule, all_rules


class Named(Protocol):
    """What has a code and a name: a rule, an alarm."""

    @property
    def code(self) -> str: ...
    @property
    def name(self) -> str: ...


def find_rule(wanted: str) -> Rule:
    """The rule with this code or name, in small letters or large."""
    keys = {key.lower(): each for each in all_rules() for key in (each.code, each.name)}
    if wanted.lower() in keys:
        return keys[wanted.lower()]
    raise InputError(expected="the code or name of a rule", got=repr(wanted), fix=_nearest(wanted, keys))


def dropped(
    select: Sequence[str], ignore: Sequence[str], among: Sequence[Named] | None = None
) -> frozenset[str]:
    """Codes of the rules that do not count. Entries are beginnings of codes ("B", "B20") or names of rules.

    Without `select` all rules are selected. The more exact entry wins: `select` B201 with `ignore` B keeps B201 only.
    `among` are rules and whatever else has a code; without it, the rules.
    """
    known = all_rules() if among is None else among
    selected = [_beginning(entry, known) for entry in select] or [""]
    ignored = [_beginning(entry, known) for entry in ignore]
    return frozenset(each.code for each in known if _depth(each.code, selected) <= _depth(each.code, ignored))


def _beginning(entry: str, known: Sequence[Named]) -> str:
    """The beginning of a code that an entry means. One that no rule has is a mistake, and would silently do nothing."""
    wanted = entry.strip()
    if wanted and any(each.code.startswith(wanted.upper()) for each in known):
        return wanted.upper()
    return next((each.code for each in known if each.name == wanted.lower()), "") or find_rule(wanted).code


def _depth(code: str, beginnings: Sequence[str]) -> int:
    """Letters of the longest entry that matches; -1 if none does."""
    return max((len(each) for each in beginnings if code.startswith(each)), default=-1)


def _nearest(wanted: str, keys: dict[str, Rule]) -> str:
    close = get_close_matches(wanted.lower(), keys, n=1, cutoff=0.5)
    near = keys[close[0]] if close else None
    return f"did you mean {near.code} ({near.name})?" if near else "`leadline rules` lists them"
