"""T813: clipping removes nearly all of nearly every gradient; and the audit of what clipping did."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from statistics import median

from leadline.checks._check import Symptom, check
from leadline.checks._history import History
from leadline.checks._run_examples import constant, course

WINDOW = 128
ENOUGH = 16  # ours: recordings; a watch with a small budget measures clipping on sampled steps only
OFTEN = 0.95  # ours: of the steps, so that clipping is the rule and no exception
REMOVED = 0.9  # of the gradient's norm; calibrated by benchmarks/alarms.py: usual limits take less
MOST = 0.99  # ours: the rate that was set is then a hundred times the one that acts


@dataclass(frozen=True, slots=True, kw_only=True)
class ClipAudit:
    """What clipping did over the steps that the history holds."""

    steps: int
    clipped: int
    """Steps at which it removed something."""
    removed: float
    """Median over all steps of the share of the norm that was removed."""
    removed_most: float
    before: float | None
    """Median gradient norm before clipping; None if it was not recorded."""
    after: float | None

    @property
    def share(self) -> float:
        return self.clipped / self.steps


def audit_clipping(history: History, last: int | None = None) -> ClipAudit | None:
    """How often gradients were clipped and how much was removed; None if clipping was not recorded."""
    found = history.scalars("grad_clip", last)
    if not found.values:
        return None
    norms = dict(zip(*_pair(history, "grad_norm"), strict=True))  # of what the optimiser was given: clipped
    pairs = [(norms[step], cut) for step, cut in zip(found.steps, found.values, strict=True) if step in norms]
    return ClipAudit(
        steps=len(found),
        clipped=sum(cut > 0 for cut in found.values),
        removed=median(found.values),
        removed_most=max(found.values),
        before=median(norm / (1 - cut) if cut < 1 else math.inf for norm, cut in pairs) if pairs else None,
        after=median(norm for norm, _ in pairs) if pairs else None,
    )


def _pair(history: History, name: str) -> tuple[list[int], list[float]]:
    found = history.scalars(name)
    return found.steps, found.values


@check(
    code="T813",
    name="heavy-clipping",
    since="0.1",
    needs=("grad_clip",),
    sick=course(200, grad_clip=constant(0.995), grad_norm=constant(2.0)),
    healthy=course(200, grad_clip=lambda step: 0.5 if step % 20 == 0 else 0.0, grad_norm=constant(0.8)),
    every=16,
    confirm=2,
    calm=128,
)
def heavy_clipping(history: History) -> Iterator[Symptom]:
    r"""Clipping takes nearly all of nearly every gradient.

    ## What it measures
    Over the last `WINDOW` = 128 steps at which it was measured (at least `ENOUGH` = 16), the share of steps at which
    the gradient was clipped and the median share of its norm that was removed. Fires if `OFTEN` = 95 % of steps were
    clipped and `REMOVED` = 90 % of the norm is gone: a note, a warning from `MOST` = 99 %.

    ## Why it hurts
    Clipping is there for the exception. When it acts at every step, every gradient has the same length: with SGD the
    rate that acts is a tenth or less of the one that was set; with Adam, which undoes the scale, it changes little
    but hides that gradients are large. Where norms are large because a loss is summed instead of averaged, that is
    the thing to mend.

    ## When it is wrong
    Normalised-gradient training clips always, on purpose. In the first steps of training gradients are larger.

    ## References
    Pascanu et al., "On the difficulty of training recurrent neural networks", 2013; Zhang et al., "Why gradient
    clipping accelerates training", 2020.
    """
    found = audit_clipping(history, WINDOW)
    if found is None or found.steps < ENOUGH or found.share < OFTEN or found.removed < REMOVED:
        return
    yield Symptom(
        severity="warning" if found.removed >= MOST else "info",
        where="clipping",
        since=history.scalars("grad_clip", WINDOW).steps[0],
        message=f"{found.share:.0%} of the last {found.steps} steps were clipped, by {found.removed:.1%} of the norm"
        + (
            f" (median {found.before:.3g} before, {found.after:.3g} after)"
            if found.before is not None
            else ""
        ),
        evidence={"clipped": found.share, "removed": found.removed, "removed_most": found.removed_most},
    )
