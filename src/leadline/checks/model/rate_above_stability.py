"""U503: the learning rate is above the stability limit of the sharpest direction."""

from __future__ import annotations

from collections.abc import Iterator

from leadline.checks._check import Symptom, check
from leadline.checks._examples import stack_with_update
from leadline.records import Profile

MARGIN = 2.0  # ours: sharpness moves by about this much from batch to batch and in the first steps


@check(
    code="U503",
    name="rate-above-stability",
    since="0.1.0",
    refuted_by="falling",
    sick=stack_with_update(sharpness=1e5, sharpness_kind="lanczos", stability_lr=2e-5),
    healthy=stack_with_update(sharpness=2e3, sharpness_kind="lanczos", stability_lr=1e-3),
)
def rate_above_stability(profile: Profile) -> Iterator[Symptom]:
    r"""The rate exceeds what the sharpest direction of the loss bears.

    ## What it measures
    The largest eigenvalue $\lambda$ of the Hessian in the metric of the optimiser, by Lanczos iteration, and the limit
    $2m/\lambda$ of the rate, where $m$ is 1 for gradient descent, $1 + \beta$ with heavy-ball momentum and
    $(1+\beta_1)/(1-\beta_1)$ for Adam. Fires where the rate is more than `MARGIN` = 2 times the limit. Only
    `leadline.update(..., sharpness=True)` measures it.

    ## Why it hurts
    Along that direction each step overshoots by more than it came from: an oscillation that grows until something
    else, usually the loss, gives way.

    ## When it is wrong
    Training often *finds* this limit: sharpness rises until the rate is just at it and stays there, without harm. It is
    the start, or a rate far above, that hurts. The Hessian is that of one batch.

    ## References
    Cohen et al., "Gradient descent on neural networks typically occurs at the edge of stability", 2021; the same,
    "Adaptive gradient methods at the edge of stability", 2022.
    """
    update = profile.update
    if update is None or update.sharpness_kind != "lanczos" or not update.lr or not update.stability_lr:
        return
    if update.lr > MARGIN * update.stability_lr:
        yield Symptom(
            severity="warning",
            where="the whole model",
            message=f"the rate {update.lr:.3g} is {update.lr / update.stability_lr:.3g}x the stability limit "
            f"{update.stability_lr:.3g} of the sharpest direction",
            evidence={
                "lr": update.lr,
                "stability_lr": update.stability_lr,
                "sharpness": update.sharpness or 0.0,
            },
        )
