"""The first cause of a number that is none: where it appeared, and what the steps before did."""

from __future__ import annotations

from typing import Literal

import msgspec

Broken = Literal["loss", "gradient", "update", "weight"]


class Moment(msgspec.Struct, frozen=True, kw_only=True):
    """The numbers of one step before the end."""

    step: int
    scalars: dict[str, float]


class Suspect(msgspec.Struct, frozen=True, kw_only=True):
    """Something that was on its way out of line before it broke."""

    what: str
    """The number and where: "update of layers.3.weight"."""
    factor: float
    """Its last finite value over its median before."""
    since: int
    """The step from which it stayed above twice its median."""


class FirstCause(msgspec.Struct, frozen=True, kw_only=True):
    """Where the first number that is none appeared in a run."""

    step: int
    metric: Broken
    """What was not finite first, in the order in which a step makes them."""
    where: str
    layers: tuple[int, int] | None = None
    op: str = ""
    """The op that made it, where a trace of that step saw it."""
    sentence: str
    before: tuple[Moment, ...]
    """The last steps before, oldest first."""
    suspects: tuple[Suspect, ...]
    """What grew before, the strongest first."""
    margin: float | None = None
    """How many times the largest number of the last good trace fits below its dtype's limit."""
    last_good: int | None = None
    """Step of the last good trace."""
