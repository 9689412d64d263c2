"""Several optimizers as one: what a training loop with Muon and AdamW, or with two SGDs, steps together."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from typing import Any

from torch import Tensor
from torch.optim import Optimizer

Optimizers = Optimizer | Sequence[Optimizer]


class JointOptimizer(Optimizer):
    """Steps its members in order; groups and state are those of the members, so nothing is copied or renamed."""

    def __init__(self, members: Sequence[Optimizer]) -> None:
        # The base class would make groups and state of its own.
        self.members = tuple(members)

    @property
    def param_groups(self) -> list[dict[str, Any]]:  # type: ignore[override]  # an attribute of torch's class
        """The groups of all members. They may be changed; to add one, append it to a member's list."""
        return [group for member in self.members for group in member.param_groups]

    @property
    def state(self) -> dict[Any, Any]:  # type: ignore[override]  # an attribute of torch's class
        return {key: value for member in self.members for key, value in member.state.items()}

    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """Step every member; the closure is for members that require one. Return the first loss."""
        losses = [
            member.step(closure) if closure is not None and needs_closure(member) else member.step()
            for member in self.members
        ]
        return next((loss for loss in losses if loss is not None), None)

    def zero_grad(self, set_to_none: bool = True) -> None:
        for member in self.members:
            member.zero_grad(set_to_none)


def members_of(optimizer: Optimizers | None) -> tuple[Optimizer, ...]:
    """The optimizers that were passed: none, one or several."""
    if optimizer is None:
        return ()
    if isinstance(optimizer, JointOptimizer):
        return optimizer.members
    return tuple(optimizer) if isinstance(optimizer, list | tuple) else (optimizer,)  # type: ignore[return-value]


def as_one(optimizer: Optimizers | None) -> Optimizer | None:
    """The optimizers that were passed, as one; a single one is returned itself."""
    members = members_of(optimizer)
    if len(members) > 1:
        return JointOptimizer(members)
    return members[0] if members else None


def as_passed(members: tuple[Optimizer, ...]) -> Optimizers | None:
    """The members in the form in which they are passed: none, one, or a tuple."""
    return members if len(members) > 1 else next(iter(members), None)


def member_of(optimizer: Optimizer, parameters: Sequence[Tensor]) -> Optimizer:
    """The member that new `parameters` should join: one that already trains tensors with as many dimensions.

    Some optimizers, such as Muon, accept only matrices.
    """
    members = members_of(optimizer)
    dimensions = {each.dim() for each in parameters}
    for member in members:
        if dimensions <= {each.dim() for group in member.param_groups for each in group["params"]}:
            return member
    return members[-1]


def needs_closure(optimizer: Optimizer) -> bool:
    """Whether `step` requires a closure, as that of LBFGS does; for other optimizers `closure` has a default."""
    if isinstance(optimizer, JointOptimizer):
        return any(map(needs_closure, optimizer.members))
    try:
        closure = inspect.signature(optimizer.step).parameters.get("closure")
    except (TypeError, ValueError):
        return False
    return closure is not None and closure.default is closure.empty
