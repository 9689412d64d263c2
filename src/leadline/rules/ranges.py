"""Runs of neighbouring blocks."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

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


def named(profile: Profile, span: tuple[int, int]) -> str:
    """The run in block names: "layers.3" or "layers.3 … layers.9"."""
    first, last = profile.blocks[span[0]].name, profile.blocks[span[1]].name
    return first if first == last else f"{first} … {last}"


def body(profile: Profile, stream: int) -> list[int]:
    """The blocks of a stream but its head, by index."""
    own = [index for index, block in enumerate(profile.blocks) if block.stream == stream]
    return own[:-1] if profile.streams[stream].joins is None else own
