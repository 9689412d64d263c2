"""The record of a race: league tables, and how the best rate moved between the depths."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from leadline.records import decode, encode

if TYPE_CHECKING:
    from os import PathLike

RACE_SCHEMA = "leadline.race/1"


class SeedInterval(msgspec.Struct, frozen=True, kw_only=True):
    """A mean over seeds, and half the width of its 95 % interval; None with a single seed."""

    mean: float
    half: float | None


class Standing(msgspec.Struct, frozen=True, kw_only=True):
    """A scheme at a depth. The rate is chosen on the validation part, the loss is that of the held-out part."""

    scheme: str
    depth: int
    rate: float
    at_edge: bool
    """The best rate is the lowest or the highest of the grid: a better one may lie outside."""
    loss: SeedInterval
    behind: SeedInterval
    """Loss above the leader's, seed by seed: both saw the same samples in the same order."""
    sensitivity: float
    """Mean over all rates of the loss above the best one's; one above a constant prediction counts as that."""
    by_rate: tuple[tuple[float, float], ...]
    """Rate, and the mean validation loss over seeds."""
    curve: tuple[float, ...]
    """Training loss at the best rate, mean over seeds."""

    @property
    def level(self) -> bool:
        """Whether the leader is not shown to be better."""
        return self.behind.half is None or self.behind.mean <= self.behind.half


class RateTransfer(msgspec.Struct, frozen=True, kw_only=True):
    r"""How the best rate moves with depth: $p$ in best rate $\sim N^p$."""

    scheme: str
    depths: tuple[int, ...]
    optima: tuple[float, ...]
    """Best rate at each depth, between the rates of the grid by a parabola; mean over seeds (geometric)."""
    power: SeedInterval | None
    """None where fewer than two depths are `known`."""
    predicted: float | None
    """$a - 1$ for Adam and $2a - 1$ for SGD, where branches are damped like $N^{-a}$; 0 with the groups of that law;
    None without one."""
    known: tuple[bool, ...] = ()
    """Of each depth, whether its best rate is one: inside of the grid, and better than a constant prediction. At an
    edge only a bound is known, and a network that learns nothing has no best rate."""

    def __post_init__(self) -> None:
        if len(self.depths) != len(self.optima) or len(self.known) not in (0, len(self.depths)):
            raise ValueError("as many best rates as depths are needed")


class Race(msgspec.Struct, frozen=True, kw_only=True):
    """League tables, the deepest last; and how the best rate moved between the depths."""

    data: str
    optimizer: str
    seeds: int
    steps: int
    batch: int
    width: int
    time: int
    base_rate: float
    """Held-out loss of the best constant prediction."""
    tables: tuple[tuple[Standing, ...], ...]
    transfers: tuple[RateTransfer, ...]
    failed: tuple[str, ...] = ()
    """Cells without a result, and why."""
    schema: str = RACE_SCHEMA

    def __post_init__(self) -> None:
        if not all(self.tables):
            raise ValueError("a league table without a row")

    def to_json(self) -> str:
        return encode(self)

    @classmethod
    def from_json(cls, text: str) -> Race:
        return decode(text, cls, RACE_SCHEMA)

    def to_html(self, path: str | PathLike[str]) -> None:
        """Write the race as one self-contained page, which opens in any browser without a network."""
        from leadline.lab.race.page import build_html_page

        build_html_page(self).write(path)
