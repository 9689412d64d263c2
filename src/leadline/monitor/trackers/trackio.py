"""Trackio, local or on a server: numbers, one image per sample, and alerts as Trackio alerts."""

from __future__ import annotations

from collections.abc import Mapping
from importlib import import_module
from typing import Any

from leadline.monitor.arguments import alert_text
from leadline.monitor.tracker_feed import PICTURE
from leadline.records.run import Alert


class TrackioSink:
    """Logs to a run that `trackio.init` returned."""

    def __init__(self, run: Any) -> None:
        self._run, self._trackio = run, import_module("trackio")

    def numbers(self, step: int, values: Mapping[str, float]) -> None:
        self._run.log(dict(values), step=step)

    def picture(self, step: int, image: Any) -> None:
        self._run.log({PICTURE: self._trackio.Image(image)}, step=step)

    def alert(self, alert: Alert) -> None:
        """Send a raised alert at its own severity and a cleared one as information."""
        levels = self._trackio.AlertLevel
        level_of_severity = {"error": levels.ERROR, "warning": levels.WARN, "info": levels.INFO}
        level = level_of_severity[alert.severity] if alert.state == "raised" else levels.INFO
        self._run.alert(f"{alert.code} {alert.name}", text=alert_text(alert), level=level, step=alert.step)

    def close(self) -> None:
        pass
