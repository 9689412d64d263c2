"""One watch and its tracker feed, from the first step of a trainer to its last; shared by the callbacks."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from torch import nn
from torch.optim import Optimizer

from leadline.integrations.sinks import Feed, Sink
from leadline.monitor.arguments import OnAlert
from leadline.monitor.watch import Watch, start_watch


class WatchSession:
    """Holds the arguments of `leadline.watch` until training starts, then the watch and the feed of its sinks."""

    def __init__(
        self,
        *,
        store: str | Path | None,
        budget: float,
        every: int | None,
        on_alert: OnAlert,
        sinks: Sequence[Sink],
        push_every: int,
    ) -> None:
        self.watch: Watch | None = None
        self._store, self._budget, self._every, self._on_alert = store, budget, every, on_alert
        self._sinks, self._push_every = sinks, push_every
        self._feed: Feed | None = None

    def start(self, model: nn.Module, optimizer: Optimizer | Sequence[Optimizer]) -> Watch:
        self.watch = start_watch(
            model,
            optimizer,
            store=self._store,
            budget=self._budget,
            every=self._every,
            on_alert=self._on_alert,
        )
        self._feed = Feed(self.watch, self._sinks, every=self._push_every)
        return self.watch

    def push(self) -> bool:
        """Feed the sinks; return True if training should stop (`on_alert="stop"`)."""
        if self._feed is not None:
            self._feed.push()
        return self.watch is not None and self.watch.stopped

    def close(self) -> None:
        if self.watch is not None:
            self.watch.close()
        if self._feed is not None:
            self._feed.close()
            self._feed = None
