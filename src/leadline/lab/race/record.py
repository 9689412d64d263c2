"""The record of a race: league tables, and how the best learning rate changes with depth."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from leadline.records import decode, encode

if TYPE_CHECKING:
    from os import PathLike

RACE_SCHEMA = "leadline.race/1"


class SeedInterval(msgspec.Struct, frozen=True, kw_only=True):
    """A mean over seeds with half the width of its 95 % interval, which is None for a single seed."""

    mean: float
    half: float | None


class Standing(msgspec.Struct, frozen=True, kw_only=True):
    """One scheme at one depth. The rate is chosen on validation data, the loss is measured on held-out data."""

    scheme: str
    depth: int
    rate: float
    at_edge: bool
    """Whether the best rate is the lowest or the highest of the grid, so that a better one may lie outside."""
    loss: SeedInterval
    behind: SeedInterval
    """The loss minus the leader's, per seed: both saw the same samples in the same order."""
    sensitivity: float
    """How much the loss exceeds that of the best rate, averaged over all rates, each capped at `base_rate`."""
    by_rate: tuple[tuple[float, float], ...]
    """Pairs of a rate and its validation loss, averaged over seeds."""
    curve: tuple[float, ...]
    """The training loss at the best rate, averaged over seeds."""

    @property
    def level(self) -> bool:
        """Whether the difference to the leader is within its 95 % interval."""
        return self.behind.half is None or self.behind.mean <= self.behind.half


class RateTransfer(msgspec.Struct, frozen=True, kw_only=True):
    r"""How the best learning rate changes with depth: $p$ in best rate $\sim N^p$."""

    scheme: str
    depths: tuple[int, ...]
    optima: tuple[float, ...]
    """The best rate at each depth, interpolated by a parabola; the geometric mean over seeds."""
    power: SeedInterval | None
    """The exponent; None if the best rate is `known` at fewer than two depths."""
    predicted: float | None
    """$a - 1$ for Adam and $2a - 1$ for SGD if branches are scaled by $N^{-a}$; 0 with parameter groups for that law;
    None for a scheme without a depth law."""
    known: tuple[bool, ...] = ()
    """For each depth, whether the best rate is known: inside the grid, and better than a constant prediction. At an
    edge of the grid only a bound is known, and a network that learns nothing has no best rate."""

    def __post_init__(self) -> None:
        if len(self.depths) != len(self.optima) or len(self.known) not in (0, len(self.depths)):
            raise ValueError("expected one best rate per depth")


class Race(msgspec.Struct, frozen=True, kw_only=True):
    """The league tables, one per depth, the deepest last, and how the best rate changes with depth."""

    data: str
    optimizer: str
    seeds: int
    steps: int
    batch: int
    width: int
    time: int
    base_rate: float
    """The held-out loss of the best constant prediction."""
    tables: tuple[tuple[Standing, ...], ...]
    transfers: tuple[RateTransfer, ...]
    failed: tuple[str, ...] = ()
    """The cells without a result, with the reason."""
    schema: str = RACE_SCHEMA

    def __post_init__(self) -> None:
        if not all(self.tables):
            raise ValueError("expected at least one row in each league table")

    def to_json(self) -> str:
        return encode(self)

    @classmethod
    def from_json(cls, text: str) -> Race:
        return decode(text, cls, RACE_SCHEMA)

    def to_html(self, path: str | PathLike[str]) -> None:
        """Write the race as one self-contained page, which any browser opens offline."""
        from leadline.lab.race.page import render_html  # the page imports this record

        Path(path).write_text(render_html(self), encoding="utf-8")
