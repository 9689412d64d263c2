"""MLflow: metrics, one image artifact per sample, and alerts as a text artifact."""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Any

from leadline.monitor.arguments import alert_text
from leadline.monitor.tracker_feed import PREFIX
from leadline.records.run import Alert

IMAGE_NAME = "leadline_depth_profile"


class MLflowSink:
    """Logs to one run of an `mlflow.MlflowClient` with any store (files, a database, a server)."""

    def __init__(self, client: Any, run_id: str) -> None:
        self._client, self._run = client, run_id
        self._alerts: list[str] = []

    def numbers(self, step: int, values: Mapping[str, float]) -> None:
        now = int(1000 * time.time())  # MLflow wants milliseconds
        for name, value in values.items():
            self._client.log_metric(self._run, name, value, now, step)

    def picture(self, step: int, image: Any) -> None:
        self._client.log_image(self._run, image, f"{IMAGE_NAME}_{step:08d}.png")

    def alert(self, alert: Alert) -> None:
        self._alerts.append(alert_text(alert))
        self._client.log_text(self._run, "\n".join(self._alerts) + "\n", f"{PREFIX.strip('/')}_alerts.txt")

    def close(self) -> None:
        pass
