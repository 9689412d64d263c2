"""The feed of experiment trackers: about twenty numbers for the whole model, one picture of its depth, and alerts."""

from __future__ import annotations

import contextlib
import math
import warnings
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, Protocol, runtime_checkable

from leadline.checks._history import History
from leadline.monitor.watch import Watch
from leadline.records import severity_rank
from leadline.records.run import Alert

if TYPE_CHECKING:
    from PIL.Image import Image
    from PIL.ImageDraw import ImageDraw

PREFIX = "leadline/"
PICTURE = "leadline/depth_profile"


@runtime_checkable
class Sink(Protocol):
    """A tracker that receives what a watch measures. It gets at most twenty keys for a model of any depth."""

    def numbers(self, step: int, values: Mapping[str, float]) -> None:
        """Log the values of one step; every name begins with `leadline/`."""

    def picture(self, step: int, image: Any) -> None:
        """Log the depth profile of one step, a Pillow image."""

    def alert(self, alert: Alert) -> None:
        """Log an alert that was raised or cleared."""

    def close(self) -> None:
        """Flush buffered values. The user's own run or writer stays open."""


class Feed:
    """Sends what a watch measures to sinks: numbers every few steps, a picture of each sample, alerts immediately.

    A sink that fails is dropped with one warning, so a tracker that is down does not end a training run.
    """

    def __init__(self, watch: Watch, sinks: Sequence[Sink], *, every: int = 10) -> None:
        self._watch, self._sinks, self._every = watch, list(sinks), every
        self._last_step: int | None = None
        self._last_picture_step: int | None = None
        self._last_alert: Alert | None = None

    def push(self) -> None:
        """Send what is new; calling it more often than `every` steps costs nothing."""
        step = self._watch.history.step
        if step is None or not self._sinks:
            return
        self._push_alerts()
        if self._last_step is None or not 0 <= step - self._last_step < self._every:
            self._push_numbers(step)
            self._push_picture()

    def close(self) -> None:
        """Send the rest and close the sinks. The objects they wrap stay open because the user owns them."""
        self._push_alerts()
        step = self._watch.history.step
        if step is not None and step != self._last_step:
            self._push_numbers(step)
        self._push_picture()
        self._send(lambda sink: sink.close())

    def _push_numbers(self, step: int) -> None:
        active = active_alerts(self._watch.alert_changes)
        summary = summary_numbers(self._watch.history, overhead=self._watch.overhead, alerts=len(active))
        values = {PREFIX + name: value for name, value in summary.items()}
        self._last_step = step
        self._send(lambda sink: sink.numbers(step, values))

    def _push_picture(self) -> None:
        step = next((each.step for each in reversed(self._watch.events) if each.kind == "sample"), None)
        if step is None or step == self._last_picture_step:
            return
        self._last_picture_step = step
        image = depth_profile(self._watch.history)
        if image is not None:
            self._send(lambda sink: sink.picture(step, image))

    def _push_alerts(self) -> None:
        for alert in _alerts_after(self._watch.alert_changes, self._last_alert):
            self._last_alert = alert
            self._send(partial(_send_alert, alert=alert))

    def _send(self, send: Callable[[Sink], None]) -> None:
        for sink in [*self._sinks]:
            try:
                send(sink)
            except Exception as error:
                self._sinks.remove(sink)
                text = (
                    f"{type(sink).__name__} failed and receives nothing more; training continues: {error}. "
                    "Check the tracker's connection and credentials, or remove the sink"
                )
                with contextlib.suppress(RuntimeWarning):  # a warnings filter may turn this into an error
                    warnings.warn(text, RuntimeWarning, stacklevel=2)


def _send_alert(sink: Sink, alert: Alert) -> None:
    sink.alert(alert)


def _alerts_after(alerts: Sequence[Alert], last: Alert | None) -> Sequence[Alert]:
    """Return the alerts after `last`; all of them if the watch has already dropped `last` from its memory."""
    position = next((index for index, each in enumerate(alerts) if each is last), -1)
    return alerts[position + 1 :]


def active_alerts(alerts: Sequence[Alert]) -> list[Alert]:
    """Return the alerts that were raised and not cleared, the most severe first."""
    active: dict[str, Alert] = {}
    for each in alerts:
        if each.state == "raised":
            active[each.code] = each
        else:
            active.pop(each.code, None)
    return sorted(active.values(), key=lambda each: (-severity_rank(each.severity), each.code))


# The numbers: those of the whole model as they are, and the worst block of each block metric.

MODEL_METRICS = (
    "loss",
    "lr",
    "grad_norm",
    "update_norm",
    "weight_norm",
    "grad_clip",
    "loss_scale",
    "non_finite",
)
WORST_BLOCK: dict[str, Callable[[Sequence[float]], float]] = {
    "branch_skip": max,
    "dead": max,
    "saturated": max,
    "likeness": max,
    "attention_logit": max,
    "attention_entropy": min,
}
SUMMARY_NAMES = (
    *MODEL_METRICS,
    "update_over_weight",
    "gradient_spread",
    "signal_gain",
    "gradient_gain",
    *WORST_BLOCK,
    "overhead",
    "alerts",
)
"""Every name that may be sent."""


def summary_numbers(history: History, *, overhead: float, alerts: int) -> dict[str, float]:
    """Return the latest value of each summary metric; a metric that was never measured is left out.

    `update_over_weight` is the norm of the update divided by the norm of the weights. `gradient_spread` is the number
    of decades between the largest and the smallest gradient norm of a parameter. `signal_gain` is the factor by which
    the second moment of the signal grows from the first block to the last; `gradient_gain` is the same for the
    gradient from the last block to the first. A metric of blocks is represented by its worst block.
    """
    values = {name: history.latest(name) for name in MODEL_METRICS}
    values |= {
        "update_over_weight": _ratio(history.latest("update_norm"), history.latest("weight_norm")),
        "gradient_spread": _spread(_last_vector(history, "grad_norm")),
        "signal_gain": _gain(_last_vector(history, "forward_ms")),
        "gradient_gain": _gain(_last_vector(history, "backward_ms")[::-1]),
    }
    for name, worst in WORST_BLOCK.items():
        finite = [each for each in _last_vector(history, name) if math.isfinite(each)]
        values[name] = worst(finite) if finite else None
    values |= {"overhead": overhead, "alerts": float(alerts)}
    return {name: value for name, value in values.items() if value is not None}


def _last_vector(history: History, name: str) -> Sequence[float]:
    rows = history.recent(name).rows
    return rows[-1] if rows else ()


def _ratio(numerator: float | None, denominator: float | None) -> float | None:
    return numerator / denominator if numerator is not None and denominator else None


def _spread(norms: Sequence[float]) -> float | None:
    positive = [each for each in norms if 0 < each < math.inf]
    return math.log10(max(positive) / min(positive)) if positive else None


def _gain(moments: Sequence[float]) -> float | None:
    positive = [each for each in moments if 0 < each < math.inf]
    return positive[-1] / positive[0] if len(positive) > 1 else None


# The picture: how signal and gradient change from the first block to the last.

# Heuristic: in pixels; the left margin holds the decade labels.
WIDTH, HEIGHT, LEFT, EDGE = 720, 400, 56, 28
CURVES = (
    ("forward_ms", "signal", (31, 119, 180)),
    ("backward_ms", "gradient", (214, 39, 40)),
    ("branch_skip", "branch / skip", (44, 160, 44)),
)
# Heuristic: dark and light gray.
INK, GRID = (60, 60, 60), (222, 222, 222)


def depth_profile(history: History) -> Image | None:
    """Draw the last sample of the blocks on a log scale over depth; None without block samples or without Pillow."""
    curves = [(label, color, _log_values(history, name)) for name, label, color in CURVES]
    measured = [each for _, _, values in curves for each in values if each is not None]
    if not measured:
        return None
    try:
        from PIL import Image, ImageDraw  # an optional dependency
    except ImportError:
        return None
    image = Image.new("RGB", (WIDTH, HEIGHT), "white")
    pen = ImageDraw.Draw(image)
    low, high = math.floor(min(measured)), max(math.ceil(max(measured)), math.floor(min(measured)) + 1)
    _draw_frame(pen, low, high, max(len(values) for _, _, values in curves))
    for index, (label, color, values) in enumerate(curves):
        _draw_curve(pen, values, color, low, high)
        pen.text((LEFT + 10 + 140 * index, 8), label, fill=color)
    return image


def _log_values(history: History, name: str) -> list[float | None]:
    return [math.log10(each) if 0 < each < math.inf else None for each in _last_vector(history, name)]


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
    """Draw a line through the measured blocks; a block without a measurement leaves a gap."""
    spacing = (WIDTH - EDGE - LEFT) / max(len(values) - 1, 1)
    previous: tuple[float, float] | None = None
    for index, value in enumerate(values):
        point = None if value is None else (LEFT + index * spacing, _y(value, low, high))
        if point is not None and previous is not None:
            pen.line([previous, point], fill=color, width=2)
        if point is not None:
            pen.ellipse([point[0] - 2, point[1] - 2, point[0] + 2, point[1] + 2], fill=color)
        previous = point


def _y(value: float, low: int, high: int) -> float:
    return EDGE + (high - value) / (high - low) * (HEIGHT - 2 * EDGE)
