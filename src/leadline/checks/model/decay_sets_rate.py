"""W602: weight decay on scale-invariant weights."""

from __future__ import annotations

import math
from collections.abc import Iterator

from leadline.checks._check import Symptom, check
from leadline.checks._examples import scaled_tensor, stack_with_decay
from leadline.checks._ranges import first_names
from leadline.checks._steps import decayed_tensors
from leadline.readings.symmetry.equilibrium import Equilibrium, equilibrium
from leadline.records import ParamGroup, Profile, ScaledTensor


@check(
    code="W602",
    name="decay-sets-rate",
    since="0.1.0",
    sick=stack_with_decay(scaled_tensor(inert=True, alone=True)),
    healthy=stack_with_decay(),
)
def decay_sets_rate(profile: Profile) -> Iterator[Symptom]:
    r"""Weight decay on scale-invariant weights: it sets their learning rate, nothing else.

    ## What it measures
    Tensors whose scale is free alone (a norm stands right behind them) and that are decayed. For the largest of them:
    the effective rate $\eta / \|w\|^2$ now, the norm and the rotation a step at which steps and decay balance, and
    about how many steps away that is, $1/(\eta\lambda)$. Always info.

    ## Why it hurts
    It is how networks with norms are trained, and it works. But it is another knob than its name says: in equilibrium
    the rotation a step depends on the product $\eta\lambda$ only, so raising the decay raises the effective rate, and a
    change of the rate takes $1/(\eta\lambda)$ steps to settle. Before that, the rate is set by the initial norm.

    ## When it is wrong
    The formulas take gradients of successive steps as uncorrelated, the optimiser's memory as short beside
    $1/(\eta\lambda)$ steps and the rate as constant; shorter schedules never reach the balance. Biases that no
    output depends on are left out.

    ## References
    Kosson et al., "Rotational equilibrium: how weight decay balances learning across neural networks", 2024; Van
    Laarhoven, "L2 regularization versus batch and weight normalization", 2017 (decay acts through the effective rate);
    Wan et al., "Spherical motion dynamics", 2021 (SGD: the angle in equilibrium, reached at a linear rate).
    """
    found = [
        (group, each)
        for group, each in decayed_tensors(profile)
        if each.alone and each.kind != "bias" and each.norm
    ]
    if not found or profile.optimizer is None:
        return
    group, largest = max(found, key=lambda pair: pair[1].count)
    radius = None if largest.grad_norm is None or largest.norm is None else largest.grad_norm * largest.norm
    balance = equilibrium(profile.optimizer.name, group, count=largest.count, radius=radius)
    yield Symptom(
        severity="info",
        where=first_names([each.name for _, each in found]),
        message=f"decay on {len(found)} scale-invariant tensors only sets their rate{_story(largest, balance)}",
        evidence=_evidence(group, largest, balance) | {"tensors": float(len(found))},
    )


def _story(tensor: ScaledTensor, balance: Equilibrium | None) -> str:
    if balance is None:
        return ""
    return (
        f"; {tensor.name} turns by {balance.angle:.2g} a step once its norm, now {tensor.norm:.3g}, "
        f"has come to {balance.norm:.3g}, in about {balance.steps:.2g} steps"
    )


def _evidence(group: ParamGroup, tensor: ScaledTensor, balance: Equilibrium | None) -> dict[str, float]:
    rate = (group.lr or 0.0) / tensor.norm**2 if tensor.norm else math.inf
    found = {"norm": tensor.norm or 0.0, "effective_rate": rate}
    if balance is not None:
        found |= {"equilibrium_norm": balance.norm, "angle": balance.angle, "steps": balance.steps}
    return {name: each for name, each in found.items() if math.isfinite(each)}
