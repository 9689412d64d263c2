"""U503: the learning rate is above the stability limit of the sharpest direction."""

from __future__ import annotations

from collections.abc import Iterator

from leadline.checks._check import Symptom, check
from leadline.checks._examples import stack_with_update
from leadline.checks._steps import lower_rate_action
from leadline.records import Profile

# Heuristic: learning rate over the stability limit; sharpness changes by about this much between batches.
MAX_RATE_RATIO = 2.0


@check(
    code="U503",
    name="rate-above-stability",
    since="0.1.0",
    refuted_by="falling",
    sick=stack_with_update(sharpness=1e5, sharpness_kind="lanczos", stability_lr=2e-5),
    healthy=stack_with_update(sharpness=2e3, sharpness_kind="lanczos", stability_lr=1e-3),
)
def rate_above_stability(profile: Profile) -> Iterator[Symptom]:
    r"""The learning rate exceeds the stability limit of the sharpest direction of the loss.

    ## What it measures
    The largest eigenvalue $\lambda$ of the Hessian in the metric of the optimizer, by Lanczos iteration, and the limit
    $2m/\lambda$ of the learning rate, where $m$ is 1 for gradient descent, $1 + \beta$ with heavy-ball momentum and
    $(1+\beta_1)/(1-\beta_1)$ for Adam. Fires if the learning rate is more than `MAX_RATE_RATIO` = 2 times the limit.
    Only `leadline.update(..., sharpness=True)` measures it.

    ## Why it hurts
    Along that direction each step overshoots the minimum by more than its distance from it: the oscillation grows until
    the loss diverges.

    ## When it is wrong
    Training often *finds* this limit: sharpness rises until the learning rate is at the limit and stays there, without
    harm. What hurts is to start above it, or to be far above it. The Hessian is that of one batch.

    ## References
    Cohen et al., "Gradient descent on neural networks typically occurs at the edge of stability", 2021; Cohen et
    al., "Adaptive gradient methods at the edge of stability", 2022.
    """
    update = profile.update
    if update is None or update.sharpness_kind != "lanczos" or not update.lr or not update.stability_lr:
        return
    if update.lr > MAX_RATE_RATIO * update.stability_lr:
        yield Symptom(
            severity="warning",
            where="the whole model",
            message=f"the learning rate {update.lr:.3g} is {update.lr / update.stability_lr:.3g} times the stability "
            "limit of the sharpest direction of the loss",
            action=lower_rate_action(update, update.stability_lr),
            evidence={
                "lr": update.lr,
                "stability_lr": update.stability_lr,
                "sharpness": update.sharpness or 0.0,
            },
        )
