"""A finished race."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import msgspec

from leadline.lab.racing.standings import Finish, Standing, Transfer, league, transfer
from leadline.records.codec import decode, encode

SCHEMA = "leadline.race/1"


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
    transfers: tuple[Transfer, ...]
    failed: tuple[str, ...] = ()
    """Cells without a result, and why."""
    schema: str = SCHEMA

    def to_json(self) -> str:
        return encode(self)

    @classmethod
    def from_json(cls, text: str) -> Race:
        return decode(text, cls, SCHEMA)

    def to_html(self, path: Path | str | None = None) -> str:
        """The page; with `path`, written there too."""
        from leadline.lab.racing.showing import render_page

        page = render_page(self)
        if path is not None:
            Path(path).write_text(page, encoding="utf-8")
        return page


def finish_of(cell: Mapping[str, Any], result: Mapping[str, Any]) -> Finish:
    named = {name: cell[name] for name in ("scheme", "depth", "rate", "seed")}
    return msgspec.convert({**named, **result}, Finish, strict=False)


def race_of(
    pairs: Iterable[tuple[Mapping[str, Any], Mapping[str, Any]]], base_rate: float, failed: Iterable[str] = ()
) -> Race:
    """The record of finished cells of one race: each with its result."""
    cells = list(pairs)
    finishes = [finish_of(cell, result) for cell, result in cells]
    first = cells[0][0]
    return Race(
        data=first["data"],
        optimizer=first["optimizer"],
        seeds=len({each.seed for each in finishes}),
        steps=first["steps"],
        batch=first["batch"],
        width=first["width"],
        time=first["time"],
        base_rate=base_rate,
        tables=tuple(
            league(finishes, depth, base_rate) for depth in sorted({each.depth for each in finishes})
        ),
        transfers=transfer(finishes, first["optimizer"]),
        failed=tuple(failed),
    )
