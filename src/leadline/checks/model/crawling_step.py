"""U522: steps too small to get anywhere."""

from __future__ import annotations

from collections.abc import Iterator

from leadline.checks._check import Symptom, check
from leadline.checks._examples import stack_with_step_size
from leadline.checks._steps import step_size_of
from leadline.records import Margin, Profile

LEAST_MOVE = 3e-4  # of a weight's size a step, scale-free optimisers; calibrated by benchmarks/verdicts
LEAST_PROMISE = 2e-3  # of the loss a step, linear optimisers; calibrated by benchmarks/verdicts

MANY = 1e4  # steps: beyond, a number of them means nothing (ours)


def _margins(profile: Profile) -> Iterator[Margin]:
    step = step_size_of(profile)
    if step is None:
        return
    if step.family == "adam":
        quantity, value, limit = "step over weight, median", step.relative, LEAST_MOVE
    else:
        quantity, value, limit = "promise of a step over the loss", step.promised, LEAST_PROMISE
    yield Margin(quantity=quantity, value=value, limit=limit, side="above")


@check(
    code="U522",
    name="crawling-step",
    since="0.1.0",
    refuted_by="learning",
    margins=_margins,
    sick=stack_with_step_size(relative=1e-5, promised=1e-4),
    healthy=stack_with_step_size(relative=0.01, promised=0.1),
)
def crawling_step(profile: Profile) -> Iterator[Symptom]:
    r"""Optimiser steps are so small that learning takes thousands of them to begin.

    ## What it measures
    For Adam and its kin, the median over matrices of $\eta / \mathrm{rms}(W)$: fires below `LEAST_MOVE` = 3e-4 a step.
    For SGD, the first step's promise $\eta \lVert g \rVert^2 / (1 - \mu)$ over the loss: fires below `LEAST_PROMISE` =
    0.2 %. For both, a rehearsal of sixteen steps on the batch: fires if at its pace it takes more than
    `MAX_STEPS_TO_CONSTANT` = 60 of them until the loss is that of the best constant output. Before that, nothing is
    learned.

    ## Why it hurts
    A weight that moves by 3e-4 of its size in a step needs three thousand steps, all in one direction, to become
    another. A linear optimiser in a network whose gradients are small (dead, saturated, squashed, far from the loss)
    makes steps that are small in proportion.

    ## When it is wrong
    Fine-tuning moves trained weights little, and means to. A model that starts at zero (ReZero, Fixup) has small
    gradients at first, which grow within a few steps. A warm-up that has just begun.

    ## References
    Calibrated on really trained networks: `benchmarks/verdicts`.
    """
    step, seen = step_size_of(profile), profile.rehearsal
    if step is None:
        return
    if step.family == "adam" and step.relative < LEAST_MOVE:
        told = f"moves the weights by {step.relative:.2g} of their size: {1 / step.relative:.0f} steps to change one"
    elif step.family == "sgd" and 0 < step.promised < LEAST_PROMISE:
        told = f"promises to take {step.promised:.2g} of the loss off it: {1 / step.promised:.0f} steps at that pace"
    elif seen is not None and seen.is_too_slow and not seen.has_spike:
        first, last = seen.losses[0], seen.losses[-1]
        told = f"is one of {seen.steps} on this batch that take the loss from {first:.3g} to {last:.3g}: at least "
        told += f"{min(seen.steps_to_constant, MANY):.0f} more to where a constant output is"
    else:
        return
    yield Symptom(
        severity="warning",
        where="the optimiser",
        message=f"one step of {step.optimizer} at rate {step.lr:.3g} {told}",
        evidence={"relative_step": step.relative, "promised_share": step.promised, "lr": step.lr},
    )
