"""TensorBoard: scalars, one image per sample, and alerts as text."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from leadline.monitor.arguments import alert_text
from leadline.monitor.tracker_feed import PICTURE, PREFIX
from leadline.records.run import Alert


class TensorBoardSink:
    """Writes to a `torch.utils.tensorboard.SummaryWriter` or to tensorboardX's writer."""

    def __init__(self, writer: Any) -> None:
        self._writer = writer

    def numbers(self, step: int, values: Mapping[str, float]) -> None:
        for name, value in values.items():
            self._writer.add_scalar(name, value, step)

    def picture(self, step: int, image: Any) -> None:
        from numpy import asarray  # a dependency of TensorBoard, not of Leadline

        self._writer.add_image(PICTURE, asarray(image), step, dataformats="HWC")

    def alert(self, alert: Alert) -> None:
        self._writer.add_text(f"{PREFIX}alerts", alert_text(alert), alert.step)

    def close(self) -> None:
        self._writer.flush()
