"""Trackio, local or on a server: numbers, one image, and alerts as its own alerts."""

from __future__ import annotations

from collections.abc import Mapping
from importlib import import_module
from typing import Any

from leadline.integrations.sinks.sink import PICTURE
from leadline.monitor.arguments import sentence
from leadline.records.run import Alert


class TrackioSink:
    """Logs to a run that `trackio.init` gave you."""

    def __init__(self, run: Any) -> None:
        self._run, self._trackio = run, import_module("trackio")

    def numbers(self, step: int, values: Mapping[str, float]) -> None:
        self._run.log(dict(values), step=step)

    def picture(self, step: int, image: Any) -> None:
        self._run.log({PICTURE: self._trackio.Image(image)}, step=step)

    def alert(self, alert: Alert) -> None:
        """What is over is told as information, whatever it was while it stood."""
        levels = self._trackio.AlertLevel
        loud = {"error": levels.ERROR, "warning": levels.WARN, "info": levels.INFO}
        level = loud[alert.severity] if alert.state == "raised" else levels.INFO
        self._run.alert(f"{alert.code} {alert.name}", text=sentence(alert), level=level, step=alert.step)

    def close(self) -> None:
        pass
