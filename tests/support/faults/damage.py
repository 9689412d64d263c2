"""Valid data made hostile: a value anywhere in it replaced by one that no writer of ours would write."""

from __future__ import annotations

import copy
import json
from collections.abc import Iterator
from typing import Any

from hypothesis import strategies as st

Path = tuple[str | int, ...]

DEEP: Any = []
for _ in range(200):
    DEEP = [DEEP]
WHOLE = (0, -1, 1, 7, 2**31, 2**63 - 1, 2**64, 10**400, -(10**400))
REAL = (0.0, -0.0, 0.5, 5e-324, 1e308, -1e308, "NaN", "Infinity", "-Infinity", None, *WHOLE)
WORDS = ("", "x", "0", "NaN", "\x1b[2J\0\n\u202e", "é" * 3, "y" * 50_000, "\ud800", "</script>", "%s{}")
OTHERS = (None, True, [], [None], [0.0], ["x"], ["NaN"] * 3, {}, {"": None}, {"x": 1.0}, DEEP)


def places(data: Any, here: Path = ()) -> Iterator[Path]:
    """Every place in the data."""
    yield here
    items = data.items() if isinstance(data, dict) else enumerate(data) if isinstance(data, list) else ()
    for key, item in items:
        yield from places(item, (*here, key))


def replaced(data: Any, place: Path, value: Any) -> Any:
    """A copy with another value at that place; the place itself left out if the value is `...`."""
    if not place:
        return value
    made = copy.deepcopy(data)
    owner = made
    for key in place[:-1]:
        owner = owner[key]
    if value is ...:
        del owner[place[-1]]
    else:
        owner[place[-1]] = value
    return made


def _worse(item: Any) -> list[Any]:
    """Values of the same kind, which a reader may well let in."""
    if isinstance(item, dict):
        return [{}, {**item, "\x1b": 1.0}, dict(list(item.items())[::2])]
    if isinstance(item, list):
        return [[], item[:1], item[1:], item[::-1], [*item, *item], item * 40]
    return [*(WORDS if isinstance(item, str) else WHOLE if isinstance(item, int) else REAL)]


def at(data: Any, place: Path) -> Any:
    for key in place:
        data = data[key]
    return data


def spoilt(data: Any, most: int = 3) -> st.SearchStrategy[str]:
    """JSON of the data with up to `most` places spoilt; those near the root are as likely as those far from it."""
    by_depth: dict[int, list[Path]] = {}
    for place in places(data):
        by_depth.setdefault(len(place), []).append(place)
    anywhere = st.sampled_from(sorted(by_depth)).flatmap(lambda depth: st.sampled_from(by_depth[depth]))
    alike = anywhere.flatmap(
        lambda place: st.tuples(st.just(place), st.sampled_from(_worse(at(data, place))))
    )
    unlike = st.tuples(anywhere, st.sampled_from([*WHOLE, *REAL, *WORDS, *OTHERS, ...]))
    changes = st.lists(alike | alike | alike | unlike, min_size=1, max_size=most)
    return changes.map(lambda each: json.dumps(_all_replaced(data, each)))


def _all_replaced(data: Any, changes: list[tuple[Path, Any]]) -> Any:
    for place, value in changes:
        try:
            data = replaced(data, place, None if value is ... and not place else value)
        except (KeyError, IndexError, TypeError):  # an earlier change took it away
            continue
    return data
