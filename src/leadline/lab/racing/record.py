"""Finished cells as the record of a race."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import msgspec

from leadline.lab.racing.standings import Finish, league
from leadline.lab.racing.transfer import transfer
from leadline.report.racing.record import Race


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
        transfers=transfer(finishes, first["optimizer"], base_rate),
        failed=tuple(failed),
    )
