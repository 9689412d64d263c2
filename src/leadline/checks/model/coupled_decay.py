"""W605: L2 regularization inside Adam."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from statistics import median

from leadline.checks._check import Symptom, check
from leadline.checks._examples import stack_with_decay
from leadline.ops.optimizers import OptimizerRule, group_rule
from leadline.records import ParamGroup, Profile

# Derived: beyond it, the sum of gradient and decay points toward zero weights more than down the loss.
MAX_DECAY_PULL = 1.0


@check(
    code="W605",
    name="coupled-decay",
    since="0.1.0",
    explains=("U522", "U525"),
    sick=stack_with_decay(optimizer="Adam"),
    healthy=stack_with_decay(optimizer="AdamW"),
)
def coupled_decay(profile: Profile) -> Iterator[Symptom]:
    r"""Weight decay is added to the gradient of an optimizer that rescales gradients.

    ## What it measures
    Whether an optimizer that rescales each parameter (Adam and similar ones) has `weight_decay` without decoupling it.
    It is a note, and a warning if the decay outweighs the gradient: the median over weight matrices of
    $\lambda \lVert w \rVert / \lVert g \rVert$ is above `MAX_DECAY_PULL` = 1.

    ## Why it hurts
    The decay $\lambda w$ is divided like the gradient: parameters with large gradients are hardly decayed, those with
    small gradients strongly, and the setting means something different for every tensor. On scale-invariant weights the
    equilibrium norm is $(\eta \sqrt{d}\,G / 2\lambda)^{1/3}$, which depends on the gradient. Where the decay is larger
    than the gradient, every step goes toward zero weights and ignores the loss.

    ## When it is wrong
    With a tiny decay it does not matter. A recipe that was tuned with L2 in Adam should keep it.

    ## References
    Loshchilov and Hutter, "Decoupled weight decay regularization", 2019.
    """
    optimizer = profile.optimizer
    if optimizer is None:
        return
    coupled = [
        (optimizer.kind_of(group), group)
        for group in optimizer.groups
        if group.weight_decay > 0 and _rescales_decay(group_rule(optimizer, group))
    ]
    for kind in dict.fromkeys(kind for kind, _ in coupled):
        groups = [group for each, group in coupled if each == kind]
        decay, pull = groups[0].weight_decay, _decay_pull(profile, groups)
        outweighs = pull is not None and pull > MAX_DECAY_PULL
        effect = (
            f"the decay is {pull:.2g} times as large as the gradient, so the steps go toward zero weights"
            if outweighs
            else "parameters with large gradients are hardly decayed"
        )
        yield Symptom(
            severity="warning" if outweighs else "info",
            where=kind,
            message=f"the weight decay of {decay:g} is added to the gradient, and {kind} rescales both: {effect}",
            action=_action(kind, decay),
            evidence={"weight_decay": decay, "groups": float(len(groups))}
            | ({} if pull is None else {"decay_pull": pull}),
        )


def _rescales_decay(rule: OptimizerRule | None) -> bool:
    return rule is not None and rule.step == "rescaled" and rule.decay == "coupled"


def _decay_pull(profile: Profile, groups: Sequence[ParamGroup]) -> float | None:
    """Median over weight matrices of the norm of the decay over that of the gradient; None if no step was measured."""
    if profile.update is None:
        return None
    decays = {name: group.weight_decay for group in groups for name in group.parameters}
    names = {each.name for each in profile.facts.weights} if profile.facts else set()
    pulls = [
        decays[step.name] * step.weight_norm / step.grad_norm
        for step in profile.update.parameters
        if step.name in decays and step.name in names and step.grad_norm > 0
    ]
    return median(pulls) if pulls else None


def _action(optimizer: str, decay: float) -> str:
    if optimizer in ("NAdam", "RAdam"):
        return f"Pass `decoupled_weight_decay=True` to `torch.optim.{optimizer}`."
    return f"Use `torch.optim.AdamW(params, weight_decay={decay:g})`, which decays the weights themselves."
