"""What a panel of depth profiles is: lines over one axis of depth, with a title, a unit and notes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from leadline.records import Profile
from leadline.report.charts.lines import Values
from leadline.report.charts.svg import Kind
from leadline.text import clean, factor

GAP = 1  # empty places on the axis between two streams


@dataclass(frozen=True, slots=True, kw_only=True)
class Axis:
    """Depth: one place a block in order of execution, stream behind stream with an empty place between them."""

    names: tuple[str, ...]
    """What stands at each place; "" where nothing does."""
    starts: tuple[tuple[int, str], ...]
    """Where each stream begins, and its name."""
    places: tuple[int, ...]
    """The place of each block of the profile."""

    @property
    def gaps(self) -> tuple[int, ...]:
        """Places where there is no block, so that no line leads over them."""
        taken = set(self.places)
        return tuple(place for place in range(len(self.names)) if place not in taken)

    def spread(self, values: Mapping[int, float | None]) -> tuple[float | None, ...]:
        """`values` by block, put in their places; None everywhere else."""
        row: list[float | None] = [None] * len(self.names)
        for block, value in values.items():
            if 0 <= block < len(self.places):
                row[self.places[block]] = value
        return tuple(row)


@dataclass(frozen=True, slots=True, kw_only=True)
class Series:
    """One line of a panel. `tone` says how it is drawn (drawing.tones); `band` is a half-width in e-folds."""

    label: str
    values: Values
    tone: str = "main"
    band: Values | None = None
    sparse: bool = False
    """Not every block has one: the line goes on over those that have none."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Panel:
    """One chart over depth."""

    key: str
    title: str
    unit: str
    series: tuple[Series, ...]
    kind: Kind = "log"
    notes: tuple[str, ...] = ()


def axis_of(profile: Profile) -> Axis:
    """The depth axis of all streams, one behind the other."""
    names: list[str] = []
    starts: list[tuple[int, str]] = []
    places = [0] * len(profile.blocks)
    for index, stream in enumerate(profile.streams):
        if names:
            names += [""] * GAP
        starts.append((len(names), clean(stream.input or "input")))
        for block, each in enumerate(profile.blocks):
            if each.stream == index:
                places[block] = len(names)
                names.append(clean(each.name))
    return Axis(names=tuple(names), starts=tuple(starts), places=tuple(places))


def is_known(values: Mapping[int, float | None]) -> bool:
    """Something of it was measured."""
    return any(value is not None for value in values.values())


def span(values: Values) -> tuple[str, ...]:
    """From the smallest to the largest factor, as a note; nothing where there are not two."""
    found = [value for value in values if value is not None and 0 < value < float("inf")]
    return (f"{factor(min(found))} to {factor(max(found))}",) if len(found) > 1 else ()
