"""What a sink is, and what feeds it: a tracker that takes numbers, one picture and alerts."""

from __future__ import annotations

import contextlib
import warnings
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, Protocol, runtime_checkable

from leadline.integrations._feed import depth_profile, numbers
from leadline.monitor.watch import Watch
from leadline.records import severity_rank
from leadline.records.run import Alert

PREFIX = "leadline/"
PICTURE = "leadline/depth_profile"


@runtime_checkable
class Sink(Protocol):
    """A tracker. Keys are at most twenty, whatever the depth of the model."""

    def numbers(self, step: int, values: Mapping[str, float]) -> None:
        """Values of a step by name, each beginning with `leadline/`."""

    def picture(self, step: int, image: Any) -> None:
        """The depth profile of a step, as a Pillow image."""

    def alert(self, alert: Alert) -> None:
        """Something was raised or cleared."""

    def close(self) -> None:
        """Write out what is held back. What the user made (a run, a writer) stays open."""


class Feed:
    """Sends what a watch sees to sinks: numbers every so many steps, a picture of each sample, alerts as they come.

    A sink that fails is left out from then on, with one warning: a tracker that is down does not end a training run.
    """

    def __init__(self, watch: Watch, sinks: Sequence[Sink], *, every: int = 10) -> None:
        self._watch, self._sinks, self._every = watch, list(sinks), every
        self._sent: int | None = None
        self._pictured: int | None = None
        self._told: Alert | None = None

    def push(self) -> None:
        """Send what is new; call it as often as you like."""
        step = self._watch.history.step
        if step is None or not self._sinks:
            return
        self._push_alerts()
        if self._sent is None or not 0 <= step - self._sent < self._every:
            self._push_numbers(step)
            self._push_picture()

    def close(self) -> None:
        """Send the rest. Sinks are told, and what they wrap stays open: it is yours."""
        self._push_alerts()
        step = self._watch.history.step
        if step is not None and step != self._sent:
            self._push_numbers(step)
        self._push_picture()
        self._each(lambda sink: sink.close())

    def _push_numbers(self, step: int) -> None:
        standing = standing_alerts(self._watch.alerts)
        found = numbers(self._watch.history, overhead=self._watch.overhead, alerts=len(standing))
        values = {PREFIX + name: value for name, value in found.items()}
        self._sent = step
        self._each(lambda sink: sink.numbers(step, values))

    def _push_picture(self) -> None:
        sampled = next((each.step for each in reversed(self._watch.events) if each.kind == "sample"), None)
        if sampled is None or sampled == self._pictured:
            return
        self._pictured = sampled
        image = depth_profile(self._watch.history)
        if image is not None:
            self._each(lambda sink: sink.picture(sampled, image))

    def _push_alerts(self) -> None:
        for alert in _after(self._watch.alerts, self._told):
            self._told = alert
            self._each(partial(_tell, alert=alert))

    def _each(self, send: Callable[[Sink], None]) -> None:
        for sink in [*self._sinks]:
            try:
                send(sink)
            except Exception as error:
                self._sinks.remove(sink)
                text = f"{type(sink).__name__} failed and gets nothing more; training goes on. {error}"
                with contextlib.suppress(RuntimeWarning):  # a filter may make errors of warnings
                    warnings.warn(text, RuntimeWarning, stacklevel=2)


def _tell(sink: Sink, alert: Alert) -> None:
    sink.alert(alert)


def _after(alerts: Sequence[Alert], last: Alert | None) -> Sequence[Alert]:
    """Those that came after the last one that was told; a watch forgets the oldest of very many."""
    seen = next((index for index, each in enumerate(alerts) if each is last), -1)
    return alerts[seen + 1 :]


def standing_alerts(alerts: Sequence[Alert]) -> list[Alert]:
    """Those that were raised and not cleared, the worst first."""
    found: dict[str, Alert] = {}
    for each in alerts:
        if each.state == "raised":
            found[each.code] = each
        else:
            found.pop(each.code, None)
    return sorted(found.values(), key=lambda each: (-severity_rank(each.severity), each.code))
