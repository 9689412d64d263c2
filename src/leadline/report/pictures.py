"""One picture to share: the verdict of a report with its depth profile, or the loss over learning rates."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from leadline.records import RateScan
from leadline.records.report import Report
from leadline.report.charts.drawing import Box, Dot, Drawing, Path, Point, Shape, Words, wrapped
from leadline.report.charts.svg import Scale, fitted
from leadline.report.depth import rates, stream_blocks
from leadline.report.page import ScaleKind
from leadline.report.verdict import rooted, sentence, title
from leadline.text import clean, count, cut, factor, number, plural

# Heuristic: the proportions in which most sites show a linked picture.
SIZE = (960.0, 504.0)
MARGIN = 40.0
INK, SOFT, FAINT, PAPER = "#1b232c", "#5d6975", "#dde3e9", "#ffffff"
ACCENT, SECOND, ALARM, TINT = "#1f6fb5", "#c8490d", "#b3261e", "#fbe9e2"
VERDICT_COLORS = {"trains": "#1a7f4b", "poor": "#b26a00", "fails": ALARM, "undecided": SOFT}
# Heuristic: losses above this multiple of the first leave the frame, so that the valley stays visible.
MAX_SHOWN_RISE = 2.0


class KeyNumber(NamedTuple):
    """The one number of a picture, and what it is."""

    value: str
    caption: str


@dataclass(frozen=True, slots=True, kw_only=True)
class PictureFrame:
    """The area of a chart; `across` and `up` are its axes."""

    left: float
    top: float
    width: float
    height: float
    across: Scale
    up: Scale

    def point(self, x: float, y: float | None) -> Point | None:
        """Where a value lies, maybe above or below the frame; None if it has no place."""
        right, above = self.across.place(x), self.up.place(y)
        if right is None or above is None:
            return None
        return self.left + self.width * right, self.top + self.height * (1 - above)

    def holds(self, point: Point) -> bool:
        """Whether a point lies between the upper and the lower edge."""
        return self.top - 1 <= point[1] <= self.top + self.height + 1

    def edge(self, inside: Point, outside: Point) -> Point:
        """Where the line from one point to another leaves the frame."""
        y = self.top if outside[1] < self.top else self.top + self.height
        share = (y - inside[1]) / (outside[1] - inside[1])
        return inside[0] + share * (outside[0] - inside[0]), y


def verdict_picture(report: Report) -> Drawing:
    """The verdict, what decided it, one number, and the signal along the depth."""
    color = VERDICT_COLORS[report.verdict]
    shapes: list[Shape] = [Box(x=0, y=0, width=SIZE[0], height=8, color=color)]
    shapes.append(Words(x=MARGIN, y=70, text=title(report), size=34, color=color, bold=True))
    key = key_number(report)
    room = SIZE[0] - 2 * MARGIN - (250 if key else 0)
    for row, line in enumerate(wrapped(_capitalized(sentence(report)), 18, room, 3)):
        shapes.append(Words(x=MARGIN, y=104 + 25 * row, text=line, size=18, color=INK))
    if key is not None:
        right = SIZE[0] - MARGIN
        shapes.append(Words(x=right, y=82, text=key.value, size=46, color=color, bold=True, anchor="end"))
        for row, line in enumerate(wrapped(key.caption, 14, 230, 2)):
            shapes.append(Words(x=right, y=108 + 18 * row, text=line, size=14, color=SOFT, anchor="end"))
    shapes += _depth_chart(report)
    shapes += _footer(_model_line(report), report.leadline)
    return _drawing(shapes, f"{title(report)}: {sentence(report)}")


def key_number(report: Report) -> KeyNumber | None:
    """The number that decided: that of the worst finding, or else what the trial steps or the depth show."""
    root = next((root for root, _ in rooted(report.findings) if root.severity != "info"), None)
    if root is not None and report.verdict != "trains":
        measured = [(name, value) for name, value in root.evidence.items() if math.isfinite(value)]
        if measured:
            name, value = measured[0]
            return KeyNumber(number(value), f"{name.replace('_', ' ')} ({root.code} {clean(root.name)})")
    rehearsal = report.profile.rehearsal
    if rehearsal is not None and math.isfinite(rehearsal.last):
        return KeyNumber(
            number(rehearsal.last),
            f"loss after {plural(rehearsal.steps, 'step')}, from {number(rehearsal.first)}",
        )
    backward = rates(report.profile, 0)[1] if report.profile.streams else None
    return None if backward is None else KeyNumber(factor(backward), "gradient per block")


def _depth_chart(report: Report) -> Iterator[Shape]:
    """Mean squares of signal and gradient after each block, and the blocks that the cause is about."""
    blocks = stream_blocks(report.profile, 0) if report.profile.streams else []
    lines = {
        "signal": ([block.forward_ms for block in blocks], ACCENT, 0.0),
        "gradient": ([block.backward_ms for block in blocks], SECOND, 7.0),
    }
    top, height = 200.0, 206.0
    if not any(value for values, _, _ in lines.values() for value in values if value):
        yield Words(x=MARGIN, y=top + height / 2, text="There is no depth axis to draw.", size=16, color=SOFT)
        return
    across = Scale(kind="linear", low=0.0, high=float(max(len(blocks) - 1, 1)))
    frame = _frame(top, height, across, [v for values, _, _ in lines.values() for v in values], "log")
    yield from _marked_blocks(report, frame, len(blocks))
    yield from _axes(frame)
    for place, (name, (values, color, dash)) in enumerate(lines.items()):
        yield from _line(frame, [(float(at), value) for at, value in enumerate(values)], color, dash)
        x = frame.left + 130 * place
        yield Path(points=((x, top - 18), (x + 28, top - 18)), color=color, width=3, dash=dash)
        yield Words(x=x + 36, y=top - 13, text=name, size=14, color=INK)
    yield Words(
        x=frame.left + frame.width,
        y=top - 13,
        text="mean square after each block, log scale",
        size=13,
        color=SOFT,
        anchor="end",
    )
    bottom = frame.top + frame.height + 20
    yield Words(x=frame.left, y=bottom, text=_end_label(blocks[0].name, "input"), size=13, color=SOFT)
    yield Words(
        x=frame.left + frame.width,
        y=bottom,
        text=_end_label(blocks[-1].name, "loss"),
        size=13,
        color=SOFT,
        anchor="end",
    )


def _marked_blocks(report: Report, frame: PictureFrame, amount: int) -> Iterator[Shape]:
    root = next((root for root, _ in rooted(report.findings) if root.severity != "info"), None)
    if root is None or root.layers is None or amount < 2:
        return
    first, last = sorted(min(place, amount - 1) for place in root.layers)
    step = frame.width / (amount - 1)
    left = max(frame.left + step * (first - 0.5), frame.left)
    right = min(frame.left + step * (last + 0.5), frame.left + frame.width)
    yield Box(x=left, y=frame.top, width=right - left, height=frame.height, color=TINT)


def _end_label(name: str, end: str) -> str:
    return f"{end}: {cut(clean(name), 40)}" if name else end


def rates_picture(scan: RateScan) -> Drawing:
    """The loss after one step over learning rates, the change that the gradient predicts, and the safe rate."""
    safe = "no safe rate was found" if scan.safe_lr is None else f"safe up to {number(scan.safe_lr)}"
    heading = f"{safe}{' or more' if scan.safe_lr_is_bound else ''}"
    color = VERDICT_COLORS["trains" if scan.is_safe else "undecided" if scan.safe_lr is None else "fails"]
    shapes: list[Shape] = [Box(x=0, y=0, width=SIZE[0], height=8, color=color)]
    shapes.append(Words(x=MARGIN, y=70, text=_capitalized(heading), size=34, color=color, bold=True))
    for row, line in enumerate(wrapped(scan.sentence, 18, SIZE[0] - 2 * MARGIN, 2)):
        shapes.append(Words(x=MARGIN, y=104 + 25 * row, text=line, size=18, color=INK))
    losses = [loss for loss in scan.losses if loss is not None and math.isfinite(loss)]
    low = min([scan.loss, *losses])
    high = scan.loss + max(scan.loss - low, abs(scan.loss) * 0.05) * MAX_SHOWN_RISE
    across = Scale(kind="log", low=math.log10(scan.rates[0]), high=math.log10(scan.rates[-1]))
    frame = _frame(186.0, 220.0, across, [low, high], "linear")
    shapes += _axes(frame)
    shapes += _line(frame, list(zip(scan.rates, scan.predicted, strict=True)), SOFT, 6.0)
    shapes += _line(frame, list(zip(scan.rates, scan.losses, strict=True)), ACCENT, 0.0, dots=True)
    marks = ((scan.lr, "yours", INK), (scan.safe_lr, "safe", VERDICT_COLORS["trains"]))
    for row, (rate, name, tone) in enumerate(marks):
        place = None if rate is None else frame.across.place(rate)
        if rate is not None and place is not None and 0 <= place <= 1:
            x = frame.left + frame.width * place
            shapes.append(
                Path(points=((x, frame.top), (x, frame.top + frame.height)), color=tone, width=1.5, dash=3.0)
            )
            is_right = place > 0.8
            shapes.append(
                Words(
                    x=x - 5 if is_right else x + 5,
                    y=frame.top + 14 + 18 * row,
                    text=f"{name} {number(rate)}",
                    size=14,
                    color=tone,
                    bold=True,
                    anchor="end" if is_right else "start",
                )
            )
    shapes += _rate_legend(frame)
    shapes += _footer(f"{clean(scan.model)} · {clean(scan.optimizer)} · {scan.seconds:.1f} s", scan.leadline)
    return _drawing(shapes, f"{heading}: {scan.sentence}")


def _rate_legend(frame: PictureFrame) -> Iterator[Shape]:
    for column, (name, color, dash) in enumerate(
        (("loss after one step", ACCENT, 0.0), ("what the gradient predicts", SOFT, 6.0))
    ):
        x = frame.left + 190 * column
        yield Path(points=((x, frame.top - 16), (x + 28, frame.top - 16)), color=color, width=3, dash=dash)
        yield Words(x=x + 36, y=frame.top - 11, text=name, size=14, color=INK)
    y = frame.top + frame.height + 20
    for place, label in frame.across.ticks():
        x = frame.left + frame.width * place
        yield Words(x=x, y=y, text=label, size=13, color=SOFT, anchor="middle")
    right = frame.left + frame.width
    yield Words(x=right, y=frame.top - 11, text="learning rate, log scale", size=13, color=SOFT, anchor="end")


# Parts of both pictures.


def _frame(
    top: float, height: float, across: Scale, values: Sequence[float | None], kind: ScaleKind
) -> PictureFrame:
    left = MARGIN + 52
    width = SIZE[0] - MARGIN - left
    return PictureFrame(
        left=left, top=top, width=width, height=height, across=across, up=fitted(values, kind)
    )


def _axes(frame: PictureFrame) -> Iterator[Shape]:
    for place, label in frame.up.ticks():
        y = frame.top + frame.height * (1 - place)
        yield Path(points=((frame.left, y), (frame.left + frame.width, y)), color=FAINT, width=1)
        yield Words(x=frame.left - 8, y=y + 4.5, text=label, size=13, color=SOFT, anchor="end")


def _line(
    frame: PictureFrame,
    values: Sequence[tuple[float, float | None]],
    color: str,
    dash: float,
    *,
    dots: bool = False,
) -> Iterator[Shape]:
    """Lines through neighbors, broken where there is no value and cut at the edges of the frame."""
    points = [frame.point(x, y) for x, y in values]
    runs: list[list[Point]] = [[]]
    for before, point in zip([None, *points], points, strict=False):
        if point is None or not frame.holds(point):
            if point is not None and before is not None and frame.holds(before):
                runs[-1].append(frame.edge(before, point))
            runs.append([])
            continue
        if before is not None and not frame.holds(before):
            runs[-1].append(frame.edge(point, before))
        runs[-1].append(point)
    for run in runs:
        if len(run) > 1:
            yield Path(points=tuple(run), color=color, width=3, dash=dash)
    alone = {run[0] for run in runs if len(run) == 1}
    for point in points:
        if point is not None and frame.holds(point) and (dots or point in alone):
            yield Dot(at=point, color=color, radius=4)


def _footer(left: str, version: str) -> Iterator[Shape]:
    y = SIZE[1] - 30
    yield Path(points=((MARGIN, y - 28), (SIZE[0] - MARGIN, y - 28)), color=FAINT, width=1)
    yield Words(x=MARGIN, y=y, text=cut(left, 90), size=14, color=SOFT)
    yield Words(
        x=SIZE[0] - MARGIN, y=y, text=f"Leadline {version}", size=14, color=SOFT, bold=True, anchor="end"
    )


def _model_line(report: Report) -> str:
    profile = report.profile
    blocks = plural(len(profile.blocks), "block")
    return f"{clean(profile.model)} · {count(profile.parameters)} parameters · {blocks}"


def _capitalized(text: str) -> str:
    return f"{text[:1].upper()}{text[1:]}"


def _drawing(shapes: Sequence[Shape], label: str) -> Drawing:
    return Drawing(width=SIZE[0], height=SIZE[1], background=PAPER, shapes=tuple(shapes), label=clean(label))
