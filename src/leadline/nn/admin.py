"""Admin's profiling pass: skip weights from the variances that the branches really have."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor, nn

from leadline.errors import InputError
from leadline.nn.residual import Residual


@torch.no_grad()
def profile_admin_(model: nn.Module, *inputs: Any) -> list[float]:
    r"""`model` in place, with $\omega_i^2 = \mathrm{Var}(x_0) + \sum_{j<i} \mathrm{Var}(f_j)$ on every
    residual that learns its skip.

    $f_j$ is the output of branch $j$ with every $\omega = 1$ and $x_0$ the input of the stack, all on
    `inputs`, the arguments of one forward pass. Returns the $\omega_i$ in the order of the forward pass. Each
    encoder or decoder counts from its own first sub-layer. Liu et al. 2020 (Admin), arXiv 2004.08249: the
    profiling and initialisation phases.
    """
    residuals = [m for m in model.modules() if isinstance(m, Residual) and m.skip_weight is not None]
    if not residuals:
        raise InputError(
            expected="a model with scheme='admin'",
            got="a model without learned skip weights",
            fix="build it with scheme='admin', or leave this pass out",
        )
    stream: dict[Residual, float] = {}
    branch: dict[Residual, float] = {}
    handles = []
    for residual in residuals:
        residual.skip_weight.fill_(1.0)  # type: ignore[union-attr]
        handles.append(residual.register_forward_pre_hook(lambda m, args: _note(stream, m, args[0])))
        handles.append(
            residual.branch.register_forward_hook(lambda b, args, y, r=residual: _note(branch, r, y))
        )
    try:
        model(*inputs)
    finally:
        for handle in handles:
            handle.remove()
    return _set_skips(list(stream), stream, branch)


def _note(found: dict[Residual, float], residual: Residual, value: Tensor) -> None:
    found[residual] = float(value.float().var())


def _set_skips(
    order: list[Residual], stream: dict[Residual, float], branch: dict[Residual, float]
) -> list[float]:
    total, omegas = 0.0, []
    for residual in order:
        if residual.place.number == 1:
            total = stream[residual]
        omegas.append(math.sqrt(total))
        residual.skip_weight.fill_(omegas[-1])  # type: ignore[union-attr]
        total += branch[residual]
    return omegas
