"""Weights & Biases, online or offline: numbers on their own step axis, one image per sample, alerts in the summary."""

from __future__ import annotations

from collections.abc import Mapping
from importlib import import_module
from typing import Any

from leadline.monitor.arguments import alert_text
from leadline.monitor.tracker_feed import PICTURE, PREFIX
from leadline.records.run import Alert

STEP = f"{PREFIX}step"


class WandbSink:
    """Logs to a run that `wandb.init` returned.

    W&B's own step counts calls of `log` and must not decrease, so a second logger would conflict with the user's.
    Leadline's numbers are drawn over `leadline/step` instead.
    """

    def __init__(self, run: Any) -> None:
        self._run = run
        run.define_metric(STEP, hidden=True)
        run.define_metric(f"{PREFIX}*", step_metric=STEP)
        self._alerts: list[str] = []

    def numbers(self, step: int, values: Mapping[str, float]) -> None:
        self._run.log({**values, STEP: step})

    def picture(self, step: int, image: Any) -> None:
        self._run.log({PICTURE: import_module("wandb").Image(image), STEP: step})

    def alert(self, alert: Alert) -> None:
        self._alerts.append(alert_text(alert))
        self._run.summary[f"{PREFIX}alerts_told"] = self._alerts

    def close(self) -> None:
        pass
