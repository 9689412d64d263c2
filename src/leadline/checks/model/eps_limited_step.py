"""U534: the eps of Adam is larger than the gradients that it is added to."""

from __future__ import annotations

import math
from collections.abc import Iterator
from statistics import median

from msgspec.structs import replace

from leadline.checks._check import Symptom, check
from leadline.checks._examples import stack_with_step_size
from leadline.ops.optimizers import row_name
from leadline.records import Optimizer, ParamGroup, Profile

# Derived: beyond it a step is less than a tenth of what the learning rate says.
MAX_EPS_RATIO = 10.0
# Heuristic: defaults of torch and of large trainings are below it, so a larger eps was a choice.
MAX_USUAL_EPS = 1e-6
# Derived: optimizers that divide by the root of a mean square plus eps.
DIVIDING_OPTIMIZERS = frozenset({"adam", "adamw", "adamax", "nadam", "radam", "rmsprop", "adagrad"})


def _example(eps: float) -> Profile:
    profile = stack_with_step_size(optimizer="Adam")
    optimizer = profile.optimizer
    groups = [replace(group, options={"eps": eps}) for group in optimizer.groups] if optimizer else []
    return replace(profile, optimizer=Optimizer(name="Adam", groups=tuple(groups), steps=0))


@check(
    code="U534",
    name="eps-limited-step",
    since="0.2.0",
    refuted_by="learning",
    explains=("U522", "U525"),
    sick=_example(1.0),
    healthy=_example(1e-8),
)
def eps_limited_step(profile: Profile) -> Iterator[Symptom]:
    r"""The eps of Adam is so much larger than the gradients that steps are a fraction of the learning rate.

    ## What it measures
    Adam divides the mean gradient by $\sqrt{v} + \epsilon$, where $v$ is the mean square of the gradient. For each
    weight matrix, the ratio $\epsilon / \mathrm{rms}(g)$. Fires if the median over matrices is above `MAX_EPS_RATIO` =
    10 and the optimizer has an eps above `MAX_USUAL_EPS` = 1e-6. With a smaller eps, tiny gradients are the cause,
    which other checks name.

    ## Why it hurts
    The division is what makes Adam's steps as long as the learning rate for gradients of any size. With a large eps the
    step is $\eta g / \epsilon$: that of plain gradient descent at the rate $\eta / \epsilon$, without its momentum sum.

    ## When it is wrong
    Some recipes use a large eps on purpose and raise the learning rate with it. If the network learns, it is a note.

    ## References
    Kingma and Ba, "Adam: a method for stochastic optimization", 2015, algorithm 1.
    """
    optimizer, update = profile.optimizer, profile.update
    if optimizer is None or update is None:
        return
    eps_of = {
        name: eps
        for group in optimizer.groups
        if row_name(group.known_as or optimizer.kind_of(group)) in DIVIDING_OPTIMIZERS
        and (eps := _eps(group)) > MAX_USUAL_EPS
        for name in group.parameters
    }
    matrices = {each.name for each in profile.facts.weights} if profile.facts else set()
    ratios = [
        eps_of[step.name] * math.sqrt(step.count) / step.grad_norm
        for step in update.parameters
        if step.name in eps_of and step.name in matrices and step.grad_norm > 0
    ]
    ratio = median(ratios) if ratios else 0.0
    if ratio > MAX_EPS_RATIO:
        largest = max(eps_of.values())
        yield Symptom(
            severity="warning",
            where="the optimizer",
            message=f"the eps of {largest:g} is {ratio:.2g} times as large as the gradients of the weights, so "
            f"{update.optimizer} makes steps of 1/{ratio + 1:.2g} of its learning rate",
            action=f"Lower `eps` from {largest:g} to 1e-8, the default of `torch.optim.Adam`.",
            evidence={"eps": largest, "eps_over_gradient": ratio},
        )


def _eps(group: ParamGroup) -> float:
    eps = group.options.get("eps")
    return float(eps) if isinstance(eps, int | float) else 0.0
