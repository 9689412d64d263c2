"""What trackers receive: twenty numbers for the whole model, and one picture of the depth axis."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from leadline.checks._history import History

if TYPE_CHECKING:
    from PIL.Image import Image
    from PIL.ImageDraw import ImageDraw


DIRECT = (
    "loss",
    "lr",
    "grad_norm",
    "update_norm",
    "weight_norm",
    "grad_clip",
    "loss_scale",
    "non_finite",
)
WORST: dict[str, Callable[[Sequence[float]], float]] = {
    "branch_skip": max,
    "dead": max,
    "saturated": max,
    "likeness": max,
    "attention_logit": max,
    "attention_entropy": min,
}
NAMES = (
    *DIRECT,
    "update_over_weight",
    "gradient_spread",
    "signal_gain",
    "gradient_gain",
    *WORST,
    "overhead",
    "alerts",
)
"""All names that may be sent."""


def numbers(history: History, *, overhead: float, alerts: int) -> dict[str, float]:
    """What is known of the last steps; a name that was never measured is left out.

    `update_over_weight` is the norm of the step over that of the weights; `gradient_spread` the decades between the
    largest and the smallest gradient norm of a parameter; `signal_gain` and `gradient_gain` how many times the second
    moment of the signal grows from the first block to the last, and that of the gradient from the last to the first.
    Of what is sampled for each block the worst one is taken.
    """
    found = {name: history.latest(name) for name in DIRECT}
    found |= {
        "update_over_weight": _ratio(history.latest("update_norm"), history.latest("weight_norm")),
        "gradient_spread": _spread(_last(history, "grad_norm")),
        "signal_gain": _gain(_last(history, "forward_ms")),
        "gradient_gain": _gain(_last(history, "backward_ms")[::-1]),
    }
    for name, worst in WORST.items():
        known = [each for each in _last(history, name) if math.isfinite(each)]
        found[name] = worst(known) if known else None
    found |= {"overhead": overhead, "alerts": float(alerts)}
    return {name: value for name, value in found.items() if value is not None}


def _last(history: History, name: str) -> Sequence[float]:
    rows = history.recent(name).rows
    return rows[-1] if rows else ()


def _ratio(above: float | None, below: float | None) -> float | None:
    return above / below if above is not None and below else None


def _spread(norms: Sequence[float]) -> float | None:
    known = [each for each in norms if 0 < each < math.inf]
    return math.log10(max(known) / min(known)) if known else None


def _gain(moments: Sequence[float]) -> float | None:
    known = [each for each in moments if 0 < each < math.inf]
    return known[-1] / known[0] if len(known) > 1 else None


# One picture of the depth axis: how signal and gradient change from the first block to the last.

WIDTH, HEIGHT, LEFT, EDGE = 720, 400, 56, 28  # pixels; the left margin holds the decades
CURVES = (
    ("forward_ms", "signal", (31, 119, 180)),
    ("backward_ms", "gradient", (214, 39, 40)),
    ("branch_skip", "branch / skip", (44, 160, 44)),
)
INK, GRID = (60, 60, 60), (222, 222, 222)


def depth_profile(history: History) -> Image | None:
    """The last sample of the blocks, in decades over depth; None if no block was sampled, or Pillow is not there."""
    curves = [(label, color, _logs(history, name)) for name, label, color in CURVES]
    known = [each for _, _, values in curves for each in values if each is not None]
    if not known:
        return None
    try:
        from PIL import Image, ImageDraw
    except ImportError:
        return None
    image = Image.new("RGB", (WIDTH, HEIGHT), "white")
    pen = ImageDraw.Draw(image)
    low, high = math.floor(min(known)), max(math.ceil(max(known)), math.floor(min(known)) + 1)
    _draw_frame(pen, low, high, max(len(values) for _, _, values in curves))
    for row, (label, color, values) in enumerate(curves):
        _draw_curve(pen, values, color, low, high)
        pen.text((LEFT + 10 + 140 * row, 8), label, fill=color)
    return image


def _logs(history: History, name: str) -> list[float | None]:
    rows = history.recent(name).rows
    return [math.log10(each) if 0 < each < math.inf else None for each in (rows[-1] if rows else ())]


def _draw_frame(pen: ImageDraw, low: int, high: int, blocks: int) -> None:
    stride = max(1, (high - low) // 8)
    for decade in range(low, high + 1, stride):
        y = _y(decade, low, high)
        pen.line([(LEFT, y), (WIDTH - EDGE, y)], fill=GRID)
        pen.text((6, y - 6), f"1e{decade}", fill=INK)
    pen.text((LEFT, HEIGHT - EDGE + 8), "first block", fill=INK)
    pen.text((WIDTH - EDGE - 90, HEIGHT - EDGE + 8), f"block {blocks}", fill=INK)


def _draw_curve(
    pen: ImageDraw, values: Sequence[float | None], color: tuple[int, int, int], low: int, high: int
) -> None:
    """A line through what was measured; a block where nothing was leaves a gap."""
    across = (WIDTH - EDGE - LEFT) / max(len(values) - 1, 1)
    before: tuple[float, float] | None = None
    for index, value in enumerate(values):
        here = None if value is None else (LEFT + index * across, _y(value, low, high))
        if here is not None and before is not None:
            pen.line([before, here], fill=color, width=2)
        if here is not None:
            pen.ellipse([here[0] - 2, here[1] - 2, here[0] + 2, here[1] + 2], fill=color)
        before = here


def _y(value: float, low: int, high: int) -> float:
    return EDGE + (high - value) / (high - low) * (HEIGHT - 2 * EDGE)
