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
from leadline.text import plural


@check(
    code="W602",
    name="decay-sets-rate",
    since="0.1.0",
    sick=stack_with_decay(scaled_tensor(inert=True, alone=True)),
    healthy=stack_with_decay(),
)
def decay_sets_rate(profile: Profile) -> Iterator[Symptom]:
    r"""Weight decay on scale-invariant weights sets their learning rate and nothing else.

    ## What it measures
    Tensors under decay whose scale alone is free, because a norm directly follows them. For the largest of them: the
    effective learning rate $\eta / \|w\|^2$ now, the norm and the rotation per step at which steps and decay balance,
    and about how many steps that takes, $1/(\eta\lambda)$. It is always a note.

    ## Why it hurts
    It is how networks with norms are trained, and it works. But decay is not what its name says: in equilibrium the
    rotation per step depends only on the product $\eta\lambda$, so raising the decay raises the effective learning
    rate, and a change of the learning rate takes $1/(\eta\lambda)$ steps to settle. Before that, the initial norm sets
    the effective rate.

    ## When it is wrong
    The formulas assume that gradients of successive steps are uncorrelated, that the memory of the optimizer is short
    compared with $1/(\eta\lambda)$ steps, and that the learning rate is constant. Shorter schedules never reach the
    balance. Biases that no output depends on are left out.

    ## References
    Kosson et al., "Rotational equilibrium: how weight decay balances learning across neural networks", 2024; Van
    Laarhoven, "L2 regularization versus batch and weight normalization", 2017 (decay acts through the effective rate);
    Wan et al., "Spherical motion dynamics", 2021 (SGD: the angle in equilibrium, reached at a linear rate).
    """
    invariant = [
        (group, tensor)
        for group, tensor in decayed_tensors(profile)
        if tensor.alone and tensor.kind != "bias" and tensor.norm
    ]
    if not invariant or profile.optimizer is None:
        return
    group, largest = max(invariant, key=lambda pair: pair[1].count)
    radius = None if largest.grad_norm is None or largest.norm is None else largest.grad_norm * largest.norm
    balance = equilibrium(profile.optimizer.kind_of(group), group, count=largest.count, radius=radius)
    product = (group.lr or 0.0) * group.weight_decay
    yield Symptom(
        severity="info",
        where=first_names([tensor.name for _, tensor in invariant]),
        message=f"weight decay on {plural(len(invariant), 'scale-invariant tensor')} does not shrink what the network "
        f"computes: it only sets the effective learning rate{_settling_time(balance)}",
        action=f"Tune the product `lr * weight_decay`, now {product:.2g}, as one setting for these tensors, or set "
        "`weight_decay=0` for them.",
        evidence=_evidence(group, largest, balance) | {"tensors": float(len(invariant))},
    )


def _settling_time(balance: Equilibrium | None) -> str:
    return "" if balance is None else f", which settles after about {balance.steps:.2g} steps"


def _evidence(group: ParamGroup, tensor: ScaledTensor, balance: Equilibrium | None) -> dict[str, float]:
    rate = (group.lr or 0.0) / tensor.norm**2 if tensor.norm else math.inf
    numbers = {"norm": tensor.norm or 0.0, "effective_rate": rate}
    if balance is not None:
        numbers |= {"equilibrium_norm": balance.norm, "angle": balance.angle, "steps": balance.steps}
    return {name: number for name, number in numbers.items() if math.isfinite(number)}
