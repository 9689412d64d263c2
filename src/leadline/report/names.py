"""Names of modules in the room that a page has: what distinguishes one layer from another stays."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from itertools import takewhile

from rich.cells import cell_len

from leadline.text import RANGE

GAP = "…"


def shorten(text: str, width: int) -> str:
    """`text` in at most `width` terminal cells, cut in the middle."""
    if cell_len(text) <= width:
        return text
    for kept in range(width - 1, 0, -1):
        candidate = text[: (kept + 1) // 2] + GAP + text[len(text) - kept // 2 :]
        if cell_len(candidate) <= width:
            return candidate
    return GAP[:width]


def shorten_name(name: str, width: int) -> str:
    """The name of a module, or a range of them, in at most `width` cells.

    A path keeps its last component and its layer numbers first, then what fits from right to left. The second end of a
    range leaves out what both ends begin with.
    """
    if cell_len(name) <= width:
        return name
    first, is_range, last = name.partition(RANGE)
    if not is_range:
        return _shorten_path(name, width)
    tail = _without_common_start(first, last)
    room = width - len(RANGE)
    if room < 2:
        return shorten(name, width)
    tail = _shorten_path(tail, max(room - cell_len(first), room // 2))
    return f"{_shorten_path(first, room - cell_len(tail))}{RANGE}{tail}"


def _without_common_start(first: str, last: str) -> str:
    parts = last.split(".")
    pairs = zip(first.split("."), parts[:-1], strict=False)
    common = sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], pairs))
    return ".".join(parts[common:])


def _shorten_path(path: str, width: int) -> str:
    if cell_len(path) <= width:
        return path
    parts = path.split(".")
    places = range(len(parts) - 1, -1, -1)
    # The last component, then the layer numbers, then all others; each from right to left.
    ordered = sorted(places, key=lambda place: (place != len(parts) - 1, not parts[place].isdigit()))
    kept: set[int] = set()
    for place in ordered:
        if cell_len(_join_kept(parts, {*kept, place})) <= width:
            kept.add(place)
    return _join_kept(parts, kept) if len(parts) - 1 in kept else shorten(path, width)


def _join_kept(parts: Sequence[str], kept: Collection[int]) -> str:
    """The kept components with a dot between neighbors, and a sign where something is left out."""
    text = ""
    before = -1
    for place in sorted(kept):
        if place > before + 1:
            text += GAP
        elif text:
            text += "."
        text += parts[place]
        before = place
    return text
