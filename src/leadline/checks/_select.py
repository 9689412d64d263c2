"""Collect all checks, and choose among them by code, prefix or name."""

from __future__ import annotations

from collections.abc import Sequence
from difflib import get_close_matches
from functools import cache
from importlib import import_module

from leadline.checks._check import Check
from leadline.collect import collect
from leadline.errors import InputError, RuleError


@cache
def model_checks() -> tuple[Check, ...]:
    """Every built-in check of a model, ordered by code."""
    return _collected("leadline.checks.model")


@cache
def run_checks() -> tuple[Check, ...]:
    """Every built-in check of a training run, ordered by code."""
    return _collected("leadline.checks.run")


def all_checks() -> tuple[Check, ...]:
    """Every model check, then every run check, each ordered by code."""
    return (*model_checks(), *run_checks())


def _collected(package: str) -> tuple[Check, ...]:
    checks = sorted(collect(import_module(package), Check), key=lambda each: each.code)
    for key in ("code", "name"):
        values = [getattr(each, key) for each in checks]
        for value in values:
            if values.count(value) > 1:
                raise RuleError(f"two checks have the {key} {value!r}: give one of them another")
    return tuple(checks)


def find_check(wanted: str, among: Sequence[Check] | None = None) -> Check:
    """The check with this code or name, in lower or upper case. Without `among`, any built-in check."""
    known = all_checks() if among is None else among
    keys = {key.lower(): each for each in known for key in (each.code, each.name)}
    if wanted.lower() in keys:
        return keys[wanted.lower()]
    raise InputError(expected="the code or name of a check", got=repr(wanted), fix=_nearest(wanted, keys))


def unselected_codes(
    select: Sequence[str], ignore: Sequence[str], among: Sequence[Check] | None = None
) -> frozenset[str]:
    """Codes of the checks that do not count. Entries are prefixes of codes ("B", "B20") or names of checks.

    Without `select` all checks are selected. The more exact entry wins: `select` B201 with `ignore` B keeps only B201.
    Without `among`, the checks are the built-in model checks.
    """
    known = model_checks() if among is None else among
    selected = [_prefix(entry, known) for entry in select] or [""]
    ignored = [_prefix(entry, known) for entry in ignore]
    return frozenset(
        each.code for each in known if _match_length(each.code, selected) <= _match_length(each.code, ignored)
    )


def _prefix(entry: str, known: Sequence[Check]) -> str:
    """The code prefix that an entry means. An entry that matches no check is an error: it would silently do nothing."""
    wanted = entry.strip()
    if wanted and any(each.code.startswith(wanted.upper()) for each in known):
        return wanted.upper()
    return find_check(wanted, known).code


def _match_length(code: str, prefixes: Sequence[str]) -> int:
    """Length of the longest prefix that matches; -1 if none does."""
    return max((len(each) for each in prefixes if code.startswith(each)), default=-1)


def _nearest(wanted: str, keys: dict[str, Check]) -> str:
    close = get_close_matches(wanted.lower(), keys, n=1, cutoff=0.5)
    near = keys[close[0]] if close else None
    return f"did you mean {near.code} ({near.name})?" if near else "`leadline rules` lists them"
