"""A sink that calls a function: `accelerator.log`, `logger.log_metrics` or your own."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from leadline.records.run import Alert


class FunctionSink:
    """Calls `log(values, step)`. If given, `show(image, step)` receives pictures and `tell(alert)` receives alerts."""

    def __init__(
        self,
        log: Callable[[dict[str, float], int], object],
        *,
        show: Callable[[Any, int], object] | None = None,
        tell: Callable[[Alert], object] | None = None,
    ) -> None:
        self._log, self._show, self._tell = log, show, tell

    def numbers(self, step: int, values: Mapping[str, float]) -> None:
        self._log(dict(values), step)

    def picture(self, step: int, image: Any) -> None:
        if self._show is not None:
            self._show(image, step)

    def alert(self, alert: Alert) -> None:
        if self._tell is not None:
            self._tell(alert)

    def close(self) -> None:
        pass
