"""T813: clipping removes nearly all of nearly every gradient; also the audit of what clipping did."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from statistics import median

from leadline.checks._check import Symptom, check
from leadline.checks._examples import constant, scalar_history
from leadline.checks._history import History

# Heuristic: an eighth of the history; clipping is judged over many steps.
WINDOW = 128
# Heuristic: a watch with a small budget measures clipping on sampled steps only.
MIN_RECORDINGS = 16
# Heuristic: share of the steps from which clipping is the rule and no longer the exception.
MIN_CLIPPED_SHARE = 0.95
# Calibrated by benchmarks/alarms.py: share of the gradient norm; usual limits remove less.
MIN_REMOVED_SHARE = 0.9
# Heuristic: the learning rate that was set is then a hundred times the one that acts.
MIN_WARNING_SHARE = 0.99


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
    cuts = history.scalars("grad_clip", last)
    if not cuts.values:
        return None
    grad_norm = history.scalars("grad_norm")
    clipped_norms = dict(zip(grad_norm.steps, grad_norm.values, strict=True))  # what the optimizer was given
    pairs = [
        (clipped_norms[step], cut)
        for step, cut in zip(cuts.steps, cuts.values, strict=True)
        if step in clipped_norms
    ]
    return ClipAudit(
        steps=len(cuts),
        clipped=sum(cut > 0 for cut in cuts.values),
        removed=median(cuts.values),
        removed_most=max(cuts.values),
        before=median(norm / (1 - cut) if cut < 1 else math.inf for norm, cut in pairs) if pairs else None,
        after=median(norm for norm, _ in pairs) if pairs else None,
    )


@check(
    code="T813",
    name="heavy-clipping",
    since="0.1.0",
    needs=("grad_clip",),
    sick=scalar_history(200, grad_clip=constant(0.995), grad_norm=constant(2.0)),
    healthy=scalar_history(
        200, grad_clip=lambda step: 0.5 if step % 20 == 0 else 0.0, grad_norm=constant(0.8)
    ),
    every=16,
    confirm=2,
    calm=128,
)
def heavy_clipping(history: History) -> Iterator[Symptom]:
    r"""Clipping removes nearly all of nearly every gradient.

    ## What it measures
    Over the last `WINDOW` = 128 steps at which clipping was measured (at least `MIN_RECORDINGS` = 16), the share of
    steps at which the gradient was clipped and the median share of its norm that was removed. Fires if
    `MIN_CLIPPED_SHARE` = 95 % of the steps were clipped and `MIN_REMOVED_SHARE` = 90 % of the norm is gone: a note, and
    a warning from `MIN_WARNING_SHARE` = 99 %.

    ## Why it hurts
    Clipping is meant for exceptions. When it acts at every step, every gradient has the same length. With SGD the
    learning rate that acts is then a tenth or less of the one that was set. With Adam, which divides out the scale,
    clipping changes little but hides that gradients are large. If norms are large because a loss is summed instead of
    averaged, fix the loss.

    ## When it is wrong
    Normalized-gradient training always clips, on purpose. In the first steps of training gradients are larger.

    ## References
    Pascanu et al., "On the difficulty of training recurrent neural networks", 2013; Zhang et al., "Why gradient
    clipping accelerates training", 2020.
    """
    audit = audit_clipping(history, WINDOW)
    if audit is None or audit.steps < MIN_RECORDINGS:
        return
    if audit.share < MIN_CLIPPED_SHARE or audit.removed < MIN_REMOVED_SHARE:
        return
    norms = "" if audit.before is None else f" (median {audit.before:.3g} before, {audit.after:.3g} after)"
    yield Symptom(
        severity="warning" if audit.removed >= MIN_WARNING_SHARE else "info",
        where="clipping",
        since=history.scalars("grad_clip", WINDOW).steps[0],
        message=f"clipping removed {100 * audit.removed:.1f} % of the gradient norm{norms} in "
        f"{100 * audit.share:.0f} % of the last {audit.steps} steps",
        action="Raise `max_norm` of `clip_grad_norm_` to the usual gradient norm, or average the loss instead of "
        "summing it.",
        evidence={"clipped": audit.share, "removed": audit.removed, "removed_most": audit.removed_most},
    )
