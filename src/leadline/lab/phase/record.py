"""The record of a phase diagram: accuracy over depth and one thing more, beside what theory says."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from leadline.records import decode, encode

if TYPE_CHECKING:
    from os import PathLike

PHASE_SCHEMA = "leadline.phase/1"

KIND_NAMES = ("gain", "rate", "residual")

MIN_TRAINED_ACCURACY = (
    0.55  # accuracy that counts as trained: half way from chance (ten classes) to all right (derived)
)


class Separation(msgspec.Struct, frozen=True, kw_only=True):
    """Balanced accuracy of the rule "shallower than so many times theory's reach": at the multiple that theory states,
    and at one that was fitted."""

    stated: float
    at_stated: float | None
    fitted: float | None
    """Fitted on every other column."""
    at_fitted: float | None
    """On the columns between these."""
    networks: int


class Phase(msgspec.Struct, frozen=True, kw_only=True):
    """Accuracy over depth and one thing more, with theory's reach for each value of it."""

    kind: str
    """One of `KINDS`."""
    title: str
    axis: str
    log: bool
    values: tuple[float, ...]
    depths: tuple[int, ...]
    accuracy: tuple[tuple[float, ...], ...]
    """A row a depth, a column a value."""
    reach: tuple[float, ...]
    """Of each value: the depth at which theory's load is 1."""
    separation: Separation
    power: float | None
    """Slope of log(highest trained value) against log(depth): for rates and residual scales, $-a$ in $N^{-a}$."""
    setting: dict[str, float | int | str | tuple[float, ...]]
    schema: str = PHASE_SCHEMA

    def __post_init__(self) -> None:
        if self.kind not in KIND_NAMES:
            raise ValueError(f"a kind of diagram is one of {', '.join(KIND_NAMES)}")
        rows, columns = len(self.depths), len(self.values)
        if not rows or not columns or len(self.reach) != columns or len(self.accuracy) != rows:
            raise ValueError("a row a depth, and a reach a value are needed")
        if any(len(row) != columns for row in self.accuracy):
            raise ValueError("as many accuracies in a row as values are needed")
        if not all(0 <= each <= 1 for row in self.accuracy for each in row):
            raise ValueError("an accuracy is a share: 0 to 1")
        if min(self.depths) < 1 or (self.log and not min(self.values) > 0):
            raise ValueError("depths, and values on a logarithmic axis, are above 0")

    def curve(self, multiple: float) -> tuple[float, ...]:
        """The depth at which each value has that load."""
        return tuple(multiple * each for each in self.reach)

    def to_json(self) -> str:
        return encode(self)

    @classmethod
    def from_json(cls, text: str) -> Phase:
        return decode(text, cls, PHASE_SCHEMA)

    def to_html(self, path: str | PathLike[str]) -> None:
        """Write the diagram as one self-contained page, which opens in any browser without a network."""
        from leadline.lab.phase.page import build_html_page

        build_html_page(self).write(path)

    def _repr_html_(self) -> str:
        from leadline.lab.phase.page import draw

        return draw(self)
