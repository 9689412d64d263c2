"""The learning rate that a schedule leads to: first steps are often made at a small part of it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from torch.optim import Optimizer

from leadline.text import number


@contextmanager
def at_full_rate(optimizers: Sequence[Optimizer]) -> Iterator[list[str]]:
    """Set the learning rates that the schedule starts from, and restore them; yields what was changed, in words."""
    groups = [(optimizer, group) for optimizer in optimizers for group in optimizer.param_groups]
    before = [group.get("lr") for _, group in groups]
    full_rates = [_full_rate(optimizer, group) for optimizer, group in groups]
    notes: list[str] = []
    try:
        for (_, group), rate, full in zip(groups, before, full_rates, strict=True):
            if isinstance(rate, float | int) and full is not None and full > rate:
                group["lr"] = full
                note = (
                    f"the first step has the learning rate {number(float(rate))}; checked at {number(full)}, "
                )
                notes.append(f"{note}where the schedule leads")
        yield list(dict.fromkeys(notes))
    finally:
        for (_, group), rate in zip(groups, before, strict=True):
            if rate is not None:
                group["lr"] = rate


def _full_rate(optimizer: Optimizer, group: dict[str, Any]) -> float | None:
    """The largest rate that is known of a group: of its scheduler, or that with which the optimizer was made.

    Torch's schedulers note the rate that they multiply as `initial_lr`, and a cycle its peak as `max_lr`. A loop that
    sets the rate itself leaves the original in the defaults; they count only if all groups have one rate, since groups
    may also be made with rates of their own.
    """
    known = [group[name] for name in ("initial_lr", "max_lr") if isinstance(group.get(name), float | int)]
    default = optimizer.defaults.get("lr")
    rates = {each.get("lr") for each in optimizer.param_groups if isinstance(each.get("lr"), float | int)}
    is_set_by_loop = not known and len(rates) == 1
    if is_set_by_loop and isinstance(default, float | int):
        known.append(default)
    return float(max(known)) if known else None
