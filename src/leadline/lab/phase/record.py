"""The record of a phase diagram: accuracy over depth and one other quantity, with what theory predicts."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from leadline.records import decode, encode

if TYPE_CHECKING:
    from os import PathLike

PHASE_SCHEMA = "leadline.phase/1"

KIND_NAMES = ("gain", "rate", "residual")

# Derived: halfway between chance for ten classes and all correct.
MIN_TRAINED_ACCURACY = 0.55


class Separation(msgspec.Struct, frozen=True, kw_only=True):
    """Balanced accuracy of the rule "shallower than a multiple of theory's reach", for two multiples."""

    stated: float
    """The multiple that theory states."""
    at_stated: float | None
    fitted: float | None
    """The best multiple on every other column."""
    at_fitted: float | None
    """The balanced accuracy of `fitted` on the remaining columns."""
    networks: int


class Phase(msgspec.Struct, frozen=True, kw_only=True):
    """Accuracy over depth and one other quantity, with theory's reach for each value of it."""

    kind: str
    """One of `KIND_NAMES`."""
    title: str
    axis: str
    log: bool
    values: tuple[float, ...]
    depths: tuple[int, ...]
    accuracy: tuple[tuple[float, ...], ...]
    """One row per depth, one column per value."""
    reach: tuple[float, ...]
    """For each value, the depth at which theory's load is 1."""
    separation: Separation
    power: float | None
    """Slope of log(highest trained value) against log(depth): for rates and residual scales, $-a$ in $N^{-a}$."""
    setting: dict[str, float | int | str | tuple[float, ...]]
    schema: str = PHASE_SCHEMA

    def __post_init__(self) -> None:
        if self.kind not in KIND_NAMES:
            raise ValueError(f"expected a kind of diagram: {', '.join(KIND_NAMES)}")
        rows, columns = len(self.depths), len(self.values)
        if not rows or not columns or len(self.reach) != columns or len(self.accuracy) != rows:
            raise ValueError("expected one row of accuracies per depth and one reach per value")
        if any(len(row) != columns for row in self.accuracy):
            raise ValueError("expected one accuracy per value in each row")
        if not all(0 <= each <= 1 for row in self.accuracy for each in row):
            raise ValueError("expected accuracies between 0 and 1")
        if min(self.depths) < 1 or (self.log and not min(self.values) > 0):
            raise ValueError("expected depths of at least 1, and positive values on a logarithmic axis")

    def curve(self, multiple: float) -> tuple[float, ...]:
        """Return for each value the depth at which its load is `multiple`."""
        return tuple(multiple * each for each in self.reach)

    def to_json(self) -> str:
        return encode(self)

    @classmethod
    def from_json(cls, text: str) -> Phase:
        return decode(text, cls, PHASE_SCHEMA)

    def to_html(self, path: str | PathLike[str]) -> None:
        """Write the diagram as one self-contained page, which any browser opens offline."""
        from leadline.lab.phase.page import render_html  # the page imports this record

        Path(path).write_text(render_html(self), encoding="utf-8")

    def _repr_html_(self) -> str:
        from leadline.lab.phase.page import draw  # the page imports this record

        return draw(self)
