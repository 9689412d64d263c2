"""The record that a page carries, to be saved from it: whole if it is small, else without its long lists."""

from __future__ import annotations

import base64
import json
import zlib
from dataclasses import dataclass
from typing import Any

from msgspec.structs import replace

from leadline.records import Profile
from leadline.records.report import Report

MOST = 400_000  # characters in the page; ours: leaves room for the charts of 1000 layers below a megabyte
DIGITS = 4  # of a number, where the record has to be shortened: one more than is ever shown


@dataclass(frozen=True, slots=True, kw_only=True)
class Carried:
    """A report's JSON, compressed (zlib, base64)."""

    packed: str
    whole: bool
    """Nothing was left out."""


def carried(report: Report) -> Carried:
    """The whole record if it fits; else what a page needs: no lists with an entry a parameter, fewer digits."""
    whole = packed(report.to_json())
    if len(whole) <= MOST:
        return Carried(packed=whole, whole=True)
    short = replace(report, profile=shortened(report.profile))
    rounded_text = json.dumps(rounded(json.loads(short.to_json())), separators=(",", ":"))
    return Carried(packed=packed(rounded_text), whole=False)


def shortened(profile: Profile) -> Profile:
    """The profile without what has an entry a parameter tensor. It is still a profile."""
    optimizer, update, facts = profile.optimizer, profile.update, profile.facts
    return replace(
        profile,
        blocks=tuple(replace(block, params=(), modules=()) for block in profile.blocks),
        optimizer=None if optimizer is None else replace(optimizer, groups=()),
        update=None if update is None else replace(update, parameters=()),
        facts=None if facts is None else replace(facts, weights=(), clones=()),
        symmetry=None,
    )


def rounded(data: Any) -> Any:
    """`data`, made of builtins, with every float cut to DIGITS significant digits."""
    if isinstance(data, float):
        return float(f"{data:.{DIGITS}g}")
    if isinstance(data, dict):
        return {key: rounded(each) for key, each in data.items()}
    return [rounded(each) for each in data] if isinstance(data, list | tuple) else data


def packed(text: str) -> str:
    """JSON, compressed: the page's scripts take it apart again."""
    return base64.b64encode(zlib.compress(text.encode("ascii"), 9)).decode("ascii")
