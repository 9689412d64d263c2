"""W605: L2 regularization inside Adam."""

from __future__ import annotations

from collections.abc import Iterator

from leadline.checks._check import Symptom, check
from leadline.checks._examples import stack_with_decay
from leadline.readings.symmetry.equilibrium import is_decoupled
from leadline.records import Profile

# They divide the gradient of each parameter by a running measure of its size.
RESCALING_OPTIMIZERS = frozenset({"Adam", "NAdam", "RAdam", "Adamax", "RMSprop", "Adagrad", "Adadelta"})


@check(
    code="W605",
    name="coupled-decay",
    since="0.1.0",
    sick=stack_with_decay(optimizer="Adam"),
    healthy=stack_with_decay(optimizer="AdamW"),
)
def coupled_decay(profile: Profile) -> Iterator[Symptom]:
    r"""Weight decay is added to the gradient of an optimizer that rescales gradients.

    ## What it measures
    Whether an optimizer that rescales each parameter (Adam and similar ones) has `weight_decay` without decoupling it.
    It is always a note.

    ## Why it hurts
    The decay $\lambda w$ is divided like the gradient: parameters with large gradients are hardly decayed, those with
    small gradients strongly, and the setting means something different for every tensor. On scale-invariant weights the
    equilibrium norm is $(\eta \sqrt{d}\,G / 2\lambda)^{1/3}$, which depends on the gradient.

    ## When it is wrong
    With a tiny decay it does not matter. A recipe that was tuned with L2 in Adam should keep it.

    ## References
    Loshchilov and Hutter, "Decoupled weight decay regularization", 2019.
    """
    optimizer = profile.optimizer
    if optimizer is None:
        return
    coupled = [
        (kind, group)
        for group in optimizer.groups
        if (kind := optimizer.kind_of(group)) in RESCALING_OPTIMIZERS
        and group.weight_decay > 0
        and not is_decoupled(kind, group)
    ]
    for kind in dict.fromkeys(kind for kind, _ in coupled):
        groups = [group for each, group in coupled if each == kind]
        decay = groups[0].weight_decay
        yield Symptom(
            severity="info",
            where=kind,
            message=f"the weight decay of {decay:g} is added to the gradient, and {kind} rescales both: "
            "parameters with large gradients are hardly decayed",
            action=_action(kind, decay),
            evidence={"weight_decay": decay, "groups": float(len(groups))},
        )


def _action(optimizer: str, decay: float) -> str:
    if optimizer in ("NAdam", "RAdam"):
        return f"Pass `decoupled_weight_decay=True` to `torch.optim.{optimizer}`."
    return f"Use `torch.optim.AdamW(params, weight_decay={decay:g})`, which decays the weights themselves."
