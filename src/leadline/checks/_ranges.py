"""Runs of neighboring blocks, in words and as first and last index."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from leadline.checks._history import RunLayout
from leadline.records import Profile

# Heuristic: a sentence stays readable with at most three named ranges.
MAX_NAMED_RANGES = 3
# Heuristic: a symptom in fewer neighboring blocks is local, for example in the first block after a small embedding.
MIN_NEIGHBORING_BLOCKS = 4


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
    """Indices of all blocks of a stream except its head."""
    own = [index for index, block in enumerate(profile.blocks) if block.stream == stream]
    return own[:-1] if profile.streams[stream].joins is None else own


def consecutive_ranges(indices: Iterable[int]) -> Iterator[tuple[int, int]]:
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
    names = [_range(labels, first, last) for first, last in consecutive_ranges(indices)]
    return first_names(names)


def first_names(names: Sequence[str]) -> str:
    """The first names of a list: "a, b, c and 5 more"."""
    more = f" and {len(names) - MAX_NAMED_RANGES} more" if len(names) > MAX_NAMED_RANGES else ""
    return ", ".join(names[:MAX_NAMED_RANGES]) + more


def span(indices: Iterable[int]) -> tuple[int, int] | None:
    """The smallest and the largest index; None if there are none."""
    ordered = sorted(indices)
    return (ordered[0], ordered[-1]) if ordered else None


def locate_parameters(layout: RunLayout, indices: Sequence[int]) -> tuple[str, tuple[int, int] | None]:
    """Where these parameters are: in words, and as their first and last block where those are known."""
    owners = {layout.parameter_blocks[index] for index in indices if index < len(layout.parameter_blocks)}
    blocks = [owner for owner in owners if owner is not None]
    name_blocks = len(blocks) > 1 and None not in owners and layout.blocks
    where = layer_names(layout.blocks, blocks) if name_blocks else layer_names(layout.parameters, indices)
    return where, span(blocks)


def _range(labels: Sequence[str], first: int, last: int) -> str:
    names = [labels[index] if index < len(labels) else str(index) for index in (first, last)]
    return names[0] if first == last else f"{names[0]} … {names[1]}"
