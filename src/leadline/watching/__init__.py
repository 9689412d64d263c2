"""Watching a training run: what it costs is bounded, and it changes nothing.

checks     what was passed, refused early            steps      from one optimiser step to the next
budget     what to measure at which step             gauges     gradients, updates and weights of all parameters
sampling   following a real pass, op by op           samples    block metrics and reports of a followed pass
replay     the same for compiled models              exits      second moments of blocks, between two samples
scaling    mixed precision                           journal    history, alarms, run file
closures   losses and gradients made by them         watcher    the hooks, and taking them off
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from torch import nn
from torch.optim import Optimizer

from leadline.records.run import RunInfo
from leadline.tracing.gathered import class_of, let_go
from leadline.tracing.lend import unwrap
from leadline.watching.actions import OnAlert, checked_on_alert
from leadline.watching.budget import Timetable
from leadline.watching.checks import checked_budget, checked_every, checked_optimizers, checked_store
from leadline.watching.journal import Journal
from leadline.watching.ranks import Ranks
from leadline.watching.watcher import Watch

__all__ = ["Watch", "watch"]


def watch(
    model: nn.Module,
    optimizer: Optimizer | Sequence[Optimizer],
    *,
    store: str | Path | None = None,
    budget: float = 0.01,
    every: int | None = None,
    on_alert: OnAlert = "log",
) -> Watch:
    """Watch a training loop. Training is bit for bit what it would be without.

    `budget` is the share of the step time that watching may take; what does not fit is measured less often. `every=N`
    measures all parameters at every step, blocks ten times as often as it traces, and traces each N-th step, whatever
    it costs. `store` is a run file, which other processes can read while it grows; without one, alerts and the last
    report are kept in memory.
    `on_alert` is "log", "raise", "stop" or a function of the alert; "skip_step" and "clip" also act on gradients that
    stand out, and only then is training not what it would be without.

    Use it as a context manager, or call `close()`. Tell it the loss: `w.loss(loss)` returns it unchanged.

    >>> import leadline, torch
    >>> model = torch.nn.Linear(4, 1)
    >>> optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    >>> with leadline.watch(model, optimizer) as w:
    ...     for _ in range(3):
    ...         w.loss(model(torch.ones(8, 4)).square().mean()).backward()
    ...         optimizer.step()
    ...         optimizer.zero_grad()
    >>> w.step
    3
    """
    let_go(unwrap(model))
    optimizers = checked_optimizers(model, optimizer)
    limit, interval = checked_budget(budget), checked_every(every)
    path, reaction = checked_store(store), checked_on_alert(on_alert)
    ranks = Ranks(model)
    journal = Journal(
        _info(unwrap(model), optimizers, limit if interval is None else None, ranks), path, ranks
    )
    table = Timetable(limit, interval, journal.first_step, ranks.highest)
    return Watch(model, optimizers, journal, table, reaction)


def _info(model: nn.Module, optimizers: Sequence[Optimizer], budget: float | None, ranks: Ranks) -> RunInfo:
    return RunInfo(
        model=class_of(model).__qualname__,
        optimizer=", ".join(dict.fromkeys(type(each).__name__ for each in optimizers)),
        parameters=sum(each.numel() for each in model.parameters() if each.requires_grad),
        budget=budget,
        world_size=ranks.world,
        rank=ranks.rank,
    )
