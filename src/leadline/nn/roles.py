"""The roles of the matrices of a branch, and the initial gains that a scheme applies to them."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Protocol, runtime_checkable

import torch
from torch import Generator, Tensor, nn

from leadline.nn import init
from leadline.nn.scheme import Place, Role, Scheme


@dataclass(frozen=True, slots=True, kw_only=True)
class RoleWeight:
    """One logical matrix: its role, the (slice of a) parameter that holds it, and the second moment of its input.

    `second_moment` is the second moment of the matrix's input when the branch gets a unit signal. `is_parallel` says
    that another matrix of the same role already counts for the length of the path: experts lie side by side.
    """

    role: Role
    weight: Tensor
    second_moment: float = 1.0
    is_parallel: bool = False


@runtime_checkable
class HasRoles(Protocol):
    """A branch that declares the roles of its matrices."""

    def role_weights(self) -> list[RoleWeight]: ...


def role_weights(branch: nn.Module) -> list[RoleWeight]:
    """The matrices of a branch with their roles.

    A branch may declare them with a method `role_weights`. Otherwise `nn.MultiheadAttention` is split into query, key,
    value and output; of the remaining linear and convolution weights the one registered last is `fc2`, and the others
    are `fc1`.
    """
    if isinstance(branch, HasRoles):
        return branch.role_weights()
    parts: list[RoleWeight] = []
    attention_parts: set[nn.Module] = set()
    plain: list[Tensor] = []
    for module in branch.modules():
        if isinstance(module, nn.MultiheadAttention):
            parts += _multihead_roles(module)
            attention_parts.add(module.out_proj)
        elif (
            isinstance(module, nn.Linear | nn.Conv1d | nn.Conv2d | nn.Conv3d)
            and module not in attention_parts
        ):
            plain.append(module.weight)
    return parts + [RoleWeight(role="fc2" if w is plain[-1] else "fc1", weight=w) for w in plain]


def _multihead_roles(module: nn.MultiheadAttention) -> list[RoleWeight]:
    if module.in_proj_weight is None:
        query, key, value = module.q_proj_weight, module.k_proj_weight, module.v_proj_weight
    else:
        query, key, value = module.in_proj_weight.chunk(3)
    named: Iterable[tuple[Role, Tensor]] = (
        ("query", query),
        ("key", key),
        ("value", value),
        ("output", module.out_proj.weight),
    )
    return [RoleWeight(role=role, weight=weight) for role, weight in named]


@torch.no_grad()
def fill_branch_(branch: nn.Module, base: str, *, generator: Generator | None = None) -> None:
    r"""Initialize the matrices of a branch, each logical matrix separately, and set its biases to zero.

    `unit`: $\mathrm{Var}(W) = 1/(n\,E[x^2])$, where $n$ is the fan-in and $E[x^2]$ the second moment of the matrix's
    input when the branch gets a unit signal, so that a unit input gives a unit output. `xavier`: $2/(n+m)$, where $m$
    is the fan-out, as DeepNorm and T-Fixup assume.
    """
    for part in role_weights(branch):
        fan_in, fan_out = init.fans(part.weight)
        unit = init.lecun(fan_in, fan_out) / part.second_moment
        variance = init.xavier(fan_in, fan_out) if base == "xavier" else unit
        init.normal_(part.weight, variance, generator=generator)
    for name, parameter in branch.named_parameters():
        if name.rpartition(".")[2] == "bias":
            parameter.zero_()


@torch.no_grad()
def apply_gains_(branch: nn.Module, scheme: Scheme, place: Place) -> None:
    """Multiply the branch's matrices by the scheme's initial gain, and zero those that start at zero."""
    if not scheme.gain_roles and not scheme.zero_roles:
        return
    parts = role_weights(branch)
    residual_path = sum(
        part.role not in ("query", "key", "router") and not part.is_parallel for part in parts
    )
    gain = scheme.gain(replace(place, layout=replace(place.layout, matrices=residual_path)))
    for part in parts:
        if part.role in scheme.zero_roles:
            part.weight.zero_()
        elif part.role in scheme.gain_roles:
            part.weight.mul_(gain)
