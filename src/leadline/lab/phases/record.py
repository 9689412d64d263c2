"""A finished diagram."""

from __future__ import annotations

from pathlib import Path

import msgspec

from leadline.lab.phases.separation import Separation
from leadline.records.codec import decode, encode

SCHEMA = "leadline.phase/1"

TRAINED = 0.55  # accuracy that counts as trained: half way from chance (ten classes) to all right (derived)


class Phase(msgspec.Struct, frozen=True, kw_only=True):
    """Accuracy over depth and one thing more, with theory's reach for each value of it."""

    kind: str
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
    schema: str = SCHEMA

    def curve(self, multiple: float) -> tuple[float, ...]:
        """The depth at which each value has that load."""
        return tuple(multiple * each for each in self.reach)

    def to_json(self) -> str:
        return encode(self)

    @classmethod
    def from_json(cls, text: str) -> Phase:
        return decode(text, cls, SCHEMA)

    def to_html(self, path: Path | str | None = None) -> str:
        """The page; with `path`, written there too."""
        from leadline.lab.phases.showing import render_page

        page = render_page(self)
        if path is not None:
            Path(path).write_text(page, encoding="utf-8")
        return page

    def _repr_html_(self) -> str:
        from leadline.lab.phases.showing import draw

        return draw(self)
