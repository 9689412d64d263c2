"""Two reports compared: what was gained, what was lost, and how the numbers changed."""

from __future__ import annotations

import msgspec

from leadline.records.codec import decode, encode
from leadline.records.profile import Finding, Verdict, badness
from leadline.records.repair import Measure

COMPARISON_SCHEMA = "leadline.comparison/1"


class Side(msgspec.Struct, frozen=True, kw_only=True):
    """One of the two, in short."""

    name: str
    """As the user named it: the file, as a rule."""
    model: str
    verdict: Verdict
    reason: str


class Change(msgspec.Struct, frozen=True, kw_only=True):
    """A finding that both have, as each has it."""

    first: Finding
    second: Finding

    @property
    def worse(self) -> bool:
        return badness(self.second.severity) > badness(self.first.severity)


class Comparison(msgspec.Struct, frozen=True, kw_only=True):
    """What `leadline compare A B` found: A is the first, and B is measured by it."""

    schema: str = COMPARISON_SCHEMA
    leadline: str
    first: Side
    second: Side
    gained: tuple[Finding, ...]
    """Only the second has them."""
    lost: tuple[Finding, ...]
    """Only the first has them."""
    kept: tuple[Change, ...]
    measures: tuple[Measure, ...]

    def to_json(self) -> str:
        return encode(self)

    @classmethod
    def from_json(cls, text: str) -> Comparison:
        return decode(text, cls, COMPARISON_SCHEMA)
