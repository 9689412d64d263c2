"""The depth axis of a report: how signal and gradient change from input to loss, with sparklines."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from itertools import pairwise

from rich.cells import cell_len
from rich.text import Text

from leadline.records import DepthBlock, Jump, Profile, ResidualAdd
from leadline.report.layout import ACCENT, LABEL, QUIET, TONES, joined, labelled, shorten
from leadline.text import clean, factor, number, plural

LEVELS = "▁▂▃▄▅▆▇█"
LEAST_SPAN = math.log(10)  # less than a factor of ten fills only part of the height: noise is no cliff
MARKS = {"!": "NaN", "∞": "infinite", "0": "exactly zero", "−": "negative", "·": "not measured"}
"""How values without a place on a logarithmic axis are drawn, the most alarming first."""

_ALARM = {mark: len(MARKS) - place for place, mark in enumerate(MARKS)}


def sparkline(values: Sequence[float | None], width: int, beside: Sequence[float | None] = ()) -> str:
    """One character a value, or one a group of neighbours if there are more values than `width`.

    A group is drawn as its most extreme member. The smallest and the largest value and each kind of mark in `values`
    are in the line whatever `width` is, as long as it has room for one character of each. Lines that are to be compared
    are drawn on one scale: `beside` has the values of the others.
    """
    logs = [math.log(value) for value in (*values, *beside) if value is not None and mark(value) is None]
    low, high = (min(logs), max(logs)) if logs else (0.0, 0.0)
    shown = _thin(values, width, middle=(low + high) / 2)
    return "".join(mark(value) or _level(value, low, high) for value in shown)


def mark(value: float | None) -> str | None:
    """The mark of a value that has no logarithm; None if it has one."""
    if value is None:
        return "·"
    if math.isnan(value):
        return "!"
    if math.isinf(value):
        return "∞"
    return None if value > 0 else "0" if value == 0 else "−"


def legend(values: Sequence[float | None]) -> dict[str, str]:
    """The meaning of each mark that `values` need."""
    needed = {mark(value) for value in values}
    return {sign: meaning for sign, meaning in MARKS.items() if sign in needed}


def _level(value: float | None, low: float, high: float) -> str:
    span = max(high - low, LEAST_SPAN)
    bottom = (low + high - span) / 2
    height = (math.log(value or 1.0) - bottom) / span
    return LEVELS[min(int(height * len(LEVELS)), len(LEVELS) - 1)]


def _thin(values: Sequence[float | None], width: int, middle: float) -> list[float | None]:
    """At most `width` of the values, in order."""
    count = len(values)
    if count <= width:
        return list(values)

    def extremity(index: int) -> tuple[float, float]:
        return _extremity(values[index], middle)

    edges = [column * count // width for column in range(width + 1)]
    picks = [max(range(*pair), key=extremity) for pair in pairwise(edges)]
    _rescue(picks, _landmarks(values), count)
    return [values[index] for index in picks]


def _extremity(value: float | None, middle: float) -> tuple[float, float]:
    """Which of several neighbours to draw: a mark before a number, but any number before "not measured"."""
    if value is None:
        return (-1.0, 0.0)
    sign = mark(value)
    return (float(_ALARM[sign]), 0.0) if sign else (0.0, abs(math.log(value) - middle))


def _landmarks(values: Sequence[float | None]) -> list[int]:
    """Where the first of each kind of mark, the smallest and the largest number stand; the most alarming first."""
    firsts: dict[str, int] = {}
    for index, value in enumerate(values):
        firsts.setdefault(mark(value) or "number", index)
    marks = [firsts[sign] for sign in MARKS if sign in firsts]
    numbers = [
        (value, index) for index, value in enumerate(values) if value is not None and mark(value) is None
    ]
    return [*marks, *([min(numbers)[1], max(numbers)[1]] if numbers else [])]


def _rescue(picks: list[int], landmarks: list[int], count: int) -> None:
    """Give each landmark that lost to a neighbour the nearest column that shows no other landmark."""
    for landmark in landmarks:
        free = [column for column, pick in enumerate(picks) if pick not in landmarks]
        if landmark in picks or not free:
            continue
        home = landmark * len(picks) // count
        picks[min(free, key=lambda column: abs(column - home))] = landmark


# The depth axis of a report: how the signal and its gradient change from the input to the loss.

STREAMS_SHOWN = 2
JUMPS_SHOWN = 3
NUMBER = 10
"""Cells for a number: "-1.23e-300" is the longest."""
MOST_STRETCH = 3  # characters a block, so that a network of few blocks does not shrink to a dot
LEAST_AXIS = 18
CAPTION = "mean squares behind each block, log scale; a block: without the head"


def axis_lines(profile: Profile, width: int, *, all_streams: bool = False) -> list[Text]:
    """Two sparklines a stream, with their ends and their gain a block; then what the marks mean."""
    shown = profile.streams if all_streams else profile.streams[:STREAMS_SHOWN]
    lines = [line for index in range(len(shown)) for line in _stream_lines(profile, index, width)]
    if len(shown) < len(profile.streams):
        more = plural(len(profile.streams) - len(shown), "further stream")
        lines += labelled("", Text(f"and {more}: -v shows all", style=QUIET), width)
    return lines + _caption(profile, width)


def jump_lines(jumps: Sequence[Jump], width: int) -> list[Text]:
    """The largest changes across a single block, one a line."""
    lines: list[Text] = []
    for jump in jumps[:JUMPS_SHOWN]:
        head = f"{factor(jump.factor):<{NUMBER}} {jump.direction:<9} across "
        name = shorten(clean(jump.block), width - LABEL - len(head))
        lines += labelled("" if lines else "jumps", head + name, width)
    return lines


def block_summary(blocks: Sequence[DepthBlock]) -> str:
    """How many blocks there are, how many are residual, and where the norms of these sit."""
    if not blocks:
        return plural(0, "block")
    residual = [block.residual for block in blocks if block.residual is not None]
    bypassed = sum(block.bypassed for block in blocks)
    projected = sum(each.projected for each in residual)
    return joined(
        plural(len(blocks), "block"),
        f"{len(residual)} residual ({_placements(residual)})" if residual else "none residual",
        f"{projected} with a projected skip" if projected else "",
        f"{bypassed} bypassed by other paths" if bypassed else "",
    )


def _placements(residual: Sequence[ResidualAdd]) -> str:
    found = Counter(each.placement for each in residual).most_common()
    names = ["without norms" if placement == "none" else f"{placement}-norm" for placement, _ in found]
    if len(found) == 1:
        return names[0]
    return ", ".join(f"{amount} {name}" for name, (_, amount) in zip(names, found, strict=True))


def gains(profile: Profile, index: int) -> tuple[float | None, float | None]:
    """The change a block of one stream, forward and backward, each in the direction in which it runs.

    As the rules see it: without the head, whose output has another size and meaning, and with the sum of the squared
    gradients instead of their mean, which is what a layer of another width preserves.
    """
    blocks = stream_blocks(profile, index)
    body = blocks[:-1] if profile.streams[index].joins is None else blocks
    powers = [None if each.backward_ms is None else each.backward_ms * each.elements for each in body]
    return gain([each.forward_ms for each in body]), gain(powers[::-1])


def gain(values: Sequence[float | None]) -> float | None:
    """Geometric mean of the change a block from the first to the last measured value.

    None if there are fewer than two, or if any of them is zero or not finite: no mean then tells the truth.
    """
    measured = [(place, value) for place, value in enumerate(values) if value is not None]
    if len(measured) < 2 or any(mark(value) for _, value in measured):
        return None
    (start, first), (stop, last) = measured[0], measured[-1]
    return math.exp((math.log(last) - math.log(first)) / (stop - start))


def stream_blocks(profile: Profile, index: int) -> list[DepthBlock]:
    """In order of depth; of a model without weights, with what theory predicts."""
    return [block for block in profile.shown.blocks if block.stream == index]


def _stream_lines(profile: Profile, index: int, width: int) -> list[Text]:
    blocks = stream_blocks(profile, index)
    forward = [block.forward_ms for block in blocks]
    backward = [block.backward_ms for block in blocks]
    room = width - LABEL - 3 * NUMBER
    stretch = min(max(room // max(len(blocks), 1), 1), MOST_STRETCH)
    length = min(max(len(blocks) * stretch, LEAST_AXIS), room)
    forth, back = gains(profile, index)
    return [
        _row("", _axis(profile, index, length), room, ("first", "last", "a block")),
        _row("forward →", _stretched(forward, room, stretch), room, _cells(forward, forth)),
        _row("backward ←", _stretched(backward, room, stretch), room, _cells(backward, back)),
    ]


def _axis(profile: Profile, index: int, length: int) -> str:
    """ "input ───────▶ loss", above the sparklines; streams are named if there are several."""
    stream = profile.streams[index]
    start = clean(stream.input) if len(profile.streams) > 1 and stream.input else "input"
    end = "loss" if stream.joins is None else clean(profile.streams[stream.joins].input)
    start, end = shorten(start, length // 2 - 3), shorten(end, length // 2 - 3)
    arrow = "─" * max(length - cell_len(start) - cell_len(end) - 3, 1) + "▶"
    return f"{start} {arrow} {end}"


def _stretched(values: Sequence[float | None], room: int, stretch: int) -> str:
    return "".join(char * stretch for char in sparkline(values, room))


def _cells(values: Sequence[float | None], change: float | None) -> tuple[str, str, str]:
    if not values:
        return ("", "", "")
    return (number(values[0]), number(values[-1]), factor(change))


def _row(label: str, drawing: str, room: int, cells: tuple[str, str, str]) -> Text:
    tone = ACCENT if label else QUIET
    line = Text(drawing, style=tone)
    line.highlight_regex("[!∞]", TONES["error"])
    line.pad_right(room - line.cell_len)
    numbers = "".join(f"{cell:>{NUMBER}}" for cell in cells)
    return Text.assemble((label.ljust(LABEL), QUIET), line, (numbers, "" if label else QUIET))


def _caption(profile: Profile, width: int) -> list[Text]:
    blocks = profile.shown.blocks
    caption = f"predicted {CAPTION}" if profile.predicted else CAPTION
    values = [value for block in blocks for value in (block.forward_ms, block.backward_ms)]
    marks = "   ".join(f"{sign} {meaning}" for sign, meaning in legend(values).items())
    lines = labelled("", Text(caption, style=QUIET), width) if blocks else []
    return lines + (labelled("", marks, width) if marks else [])
