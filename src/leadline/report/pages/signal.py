"""The signal over depth in characters: two lines per stream, or one table row per block."""

from __future__ import annotations

from collections.abc import Sequence

from leadline.records import DepthBlock, Profile
from leadline.report.charts.sparkline import legend
from leadline.report.depth import rates, stream_blocks
from leadline.report.page import Column, Element, Group, Paragraph, Spark, Table, Values
from leadline.text import factor, number

# Heuristic: streams that fit on a terminal page; an encoder and a decoder are two.
STREAMS_SHOWN = 2


def signal_elements(profile: Profile) -> tuple[Element, ...]:
    """Mean squares of the signal and its gradient along each stream, then what the lines show."""
    if not profile.streams:
        return ()
    tables = tuple(_stream_table(profile, index) for index in range(len(profile.streams)))
    blocks = profile.shown.blocks
    predicted = "predicted " if profile.predicted else ""
    caption = f"{predicted}mean square after each block, log scale; per block: without the head"
    marks = legend([value for block in blocks for value in (block.forward_ms, block.backward_ms)])
    words = [Paragraph(words=each) for each in (caption if blocks else "", marks) if each]
    return (Group(items=tables, shown=STREAMS_SHOWN, noun="further stream"), *words)


def _stream_table(profile: Profile, index: int) -> Table:
    blocks = stream_blocks(profile, index)
    stream = profile.streams[index]
    start = stream.input if len(profile.streams) > 1 and stream.input else "input"
    end = "loss" if stream.joins is None else profile.streams[stream.joins].input
    forward = [block.forward_ms for block in blocks]
    backward = [block.backward_ms for block in blocks]
    columns = (
        Column(kind="label"),
        Column(title="mean square", kind="spark", ends=(start, end)),
        *(Column(title=title, kind="number") for title in ("first", "last", "per block")),
    )
    changes = rates(profile, index)
    rows = (_signal_row("forward →", forward, changes[0]), _signal_row("backward ←", backward, changes[1]))
    return Table(columns=columns, rows=rows)


def _signal_row(label: str, values: Values, change: float | None) -> tuple[str | Spark, ...]:
    ends = (number(values[0]), number(values[-1]), factor(change)) if values else ("", "", "")
    return (label, Spark(values=values), *ends)


def block_table(profile: Profile) -> Table:
    """One row per block in order of depth; predictions stand right of what was measured."""
    has_theory = not profile.predicted and any(block.forward_ms_predicted for block in profile.blocks)
    theory = (Column(title="theory", kind="number", optional=True),) if has_theory else ()
    columns = (
        Column(title="block"),
        Column(title="name", kind="name"),
        Column(title="forward", kind="number"),
        *theory,
        Column(title="backward", kind="number"),
        *theory,
        Column(title="kind"),
    )
    return Table(columns=columns, rows=tuple(_block_rows(profile.shown.blocks, has_theory=has_theory)))


def _block_rows(blocks: Sequence[DepthBlock], *, has_theory: bool) -> list[tuple[str, ...]]:
    rows = []
    for place, block in enumerate(blocks):
        kind = f"residual {block.residual.placement}" if block.residual else "plain"
        moments = (
            block.forward_ms,
            block.forward_ms_predicted,
            block.backward_ms,
            block.backward_ms_predicted,
        )
        numbers = map(number, moments if has_theory else moments[::2])
        rows.append((str(place), block.name, *numbers, f"{kind}{', bypassed' if block.bypassed else ''}"))
    return rows
