"""Runs of neighboring blocks, in words and as first and last index."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from leadline.checks._history import Layout
from leadline.records import Profile


def spans(marked: Sequence[bool]) -> Iterator[tuple[int, int]]:
    """First and last index of each run of marked blocks."""
    start: int | None = None
    for index, mark in enumerate([*marked, False]):
        if mark and start is None:
            start = index
        elif not mark and start is not None:
            yield start, index - 1
            start = None


def range_name(profile: Profile, span: tuple[int, int]) -> str:
    """The run in block names: "layers.3" or "layers.3 … layers.9"."""
    first, last = profile.blocks[span[0]].name, profile.blocks[span[1]].name
    return first if first == last else f"{first} … {last}"


def body(profile: Profile, stream: int) -> list[int]:
    """The blocks of a stream but its head, by index."""
    own = [index for index, block in enumerate(profile.blocks) if block.stream == stream]
    return own[:-1] if profile.streams[stream].joins is None else own


# Where an alarm points: many layers as few ranges, in words and as first and last block.

MOST = 3  # ranges that are named; ours: a sentence holds no more


def runs(indices: Iterable[int]) -> Iterator[tuple[int, int]]:
    """First and last of each run of consecutive numbers."""
    start = last = None
    for index in sorted(set(indices)):
        if start is None or last is None:
            start = index
        elif index != last + 1:
            yield start, last
            start = index
        last = index
    if start is not None and last is not None:
        yield start, last


def layer_names(labels: Sequence[str], indices: Iterable[int]) -> str:
    """The ranges in names: "layers.3, layers.7 … layers.9"; numbers where there are no names."""
    found = [_range(labels, first, last) for first, last in runs(indices)]
    more = f" and {len(found) - MOST} more" if len(found) > MOST else ""
    return ", ".join(found[:MOST]) + more


def span(indices: Iterable[int]) -> tuple[int, int] | None:
    """First and last."""
    found = sorted(indices)
    return (found[0], found[-1]) if found else None


def of_parameters(layout: Layout, indices: Sequence[int]) -> tuple[str, tuple[int, int] | None]:
    """Where these parameters are: in words, and the first and last block they are in, where that is known."""
    homes = {layout.homes[index] for index in indices if index < len(layout.homes)}
    blocks = [home for home in homes if home is not None]
    whole = len(blocks) > 1 and None not in homes and layout.blocks
    where = layer_names(layout.blocks, blocks) if whole else layer_names(layout.parameters, indices)
    return where, span(blocks)


def _range(labels: Sequence[str], first: int, last: int) -> str:
    names = [labels[index] if index < len(labels) else str(index) for index in (first, last)]
    return names[0] if first == last else f"{names[0]} … {names[1]}"
