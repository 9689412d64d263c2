"""Parameter groups that follow the depth law of a scheme: which rate, which decay, which epsilon for which
parameter."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from leadline.errors import InputError
from leadline.nn.residual import Residual
from leadline.nn.scheme import Family, Scheme
from leadline.nn.schemes import find_scheme

FAMILIES: dict[
    str, Family
] = {  # steps linear in the gradient, and steps whose size does not depend on its scale
    "sgd": "sgd",
    "asgd": "sgd",
    "adam": "adam",
    "adamw": "adam",
    "nadam": "adam",
    "radam": "adam",
    "adamax": "adam",
    "adagrad": "adam",
    "rmsprop": "adam",
    "adafactor": "adam",
    "lion": "adam",
    "sign": "adam",
    "stableadamw": "adam",
}
LAST_BIASES = ("branch.output.bias", "branch.fc2.bias")  # biases that stand after the last matrix of a branch
ADAM_EPS = 1e-8  # torch's default, the value that CompleteP's factor multiplies


@dataclass(frozen=True, slots=True, kw_only=True)
class Base:
    """The small model on which the learning rate was found: its residual sub-layers, and its width.

    Four sub-layers are two Transformer blocks. Without a width, widths are taken to be the same.
    """

    sublayers: int = 4
    width: int | None = None


TWO_BLOCKS = Base()


def param_groups(
    model: nn.Module,
    scheme: str | Scheme | None,
    optimizer: str | type[torch.optim.Optimizer],
    lr: float,
    weight_decay: float = 0.0,
    *,
    base: Base = TWO_BLOCKS,
) -> list[dict[str, Any]]:
    r"""Groups for a torch optimiser: the depth law on what is inside residuals, no decay on norms, biases and
    scalars.

    A step on a parameter whose change reaches the stream damped like $S^{-e}$ ($S$ residual sub-layers)
    changes the function by an amount free of depth when its rate is
    $$ \eta\,m_L^{2e-1}\ \text{(SGD)}, \qquad \eta\,m_L^{e-1}\ \text{(Adam)}, \qquad m_L = S / S_{base}, $$
    because $S$ of them add up, each moved by its gradient $\propto S^{-e}$ (SGD) or by its sign (Adam). $e$
    is the row's `exponent` for matrices, its `bias_exponent` for the bias after the last matrix, and 0 for
    the gain and bias of a norm on the stream itself (`post`); without the last two DeepNorm's and Keel's
    first step grows with depth all the same (docs/nn.md). A row without an exponent has factor 1 throughout.
    For Adam also CompleteP's width and epsilon factors: matrices $\eta/m_N$ and decay $\lambda m_N$, epsilon
    $\varepsilon\,m_N^{-1} m_L^{-a}$, $m_N$ = width / base width. Embeddings and the head keep $\eta$ and
    $\lambda$. Dey et al. 2025 (CompleteP), arXiv 2505.01618.

    `scheme` must be that of the model's `Residual`s (None: take theirs); `optimizer` a name or a torch
    optimiser class.
    """
    family = find_family(optimizer)
    residuals = [module for module in model.modules() if isinstance(module, Residual)]
    _check_scheme(residuals, scheme)
    settings = _Settings(family=family, lr=lr, weight_decay=weight_decay, base=base)
    groups: dict[tuple[object, ...], dict[str, Any]] = {}
    seen: set[int] = set()
    for name, parameter, residual in _walk(model):
        if id(parameter) in seen or not parameter.requires_grad:
            continue
        seen.add(id(parameter))
        group = _group(settings, name, parameter, residual)
        groups.setdefault(tuple(group.values()), {**group, "params": []})["params"].append(parameter)
    return list(groups.values())


@dataclass(frozen=True, slots=True, kw_only=True)
class _Settings:
    family: Family
    lr: float
    weight_decay: float
    base: Base


def _group(
    settings: _Settings, name: str, parameter: nn.Parameter, residual: Residual | None
) -> dict[str, Any]:
    """The values of the group to which a parameter belongs."""
    decays = parameter.ndim > 1
    group = {"lr": settings.lr, "weight_decay": settings.weight_decay if decays else 0.0}
    if residual is None or residual.scheme.exponent is None:
        return group
    depth = residual.place.total / settings.base.sublayers
    group["lr"] *= depth ** rate_power(_damping(residual.scheme, name), settings.family)
    if settings.family == "adam":
        width = _width_factor(settings.base, residual)
        group["eps"] = ADAM_EPS / width * depth**-residual.scheme.exponent
        if decays:
            group["lr"], group["weight_decay"] = group["lr"] / width, group["weight_decay"] * width
    return group


def _damping(scheme: Scheme, name: str) -> float:
    """The exponent e with which a change of the residual's parameter `name` reaches the stream."""
    exponent = scheme.exponent or 0.0
    if name.startswith("norm_post."):
        return 0.0
    if name in LAST_BIASES and scheme.bias_exponent is not None:
        return scheme.bias_exponent
    return exponent


def rate_power(damping: float, family: Family) -> float:
    r"""The power of depth in the rate: $2e-1$ for SGD, $e-1$ for Adam."""
    return 2 * damping - 1 if family == "sgd" else damping - 1


def find_family(optimizer: str | type[torch.optim.Optimizer]) -> Family:
    """`sgd` if the step is linear in the gradient, `adam` if its size is free of the gradient's scale."""
    name = (optimizer if isinstance(optimizer, str) else optimizer.__name__).lower()
    if name not in FAMILIES:
        raise InputError(
            expected="optimizer: one of " + ", ".join(FAMILIES) + ", or a class of one of these names",
            got=f"optimizer={optimizer!r}",
            fix="name the family it steps like: 'sgd' (linear in the gradient) or 'adam' (scale-free)",
        )
    return FAMILIES[name]


def _check_scheme(residuals: list[Residual], scheme: str | Scheme | None) -> None:
    if not residuals:
        raise InputError(
            expected="a model built of leadline.nn.Residual blocks",
            got="a model without any",
            fix="build it from leadline.nn, or wrap the branches of your blocks in Residual",
        )
    if scheme is None:
        return
    row = find_scheme(scheme, 1)
    other = next((r.scheme.name for r in residuals if r.scheme.name != row.name), None)
    if other is not None:
        raise InputError(
            expected=f"scheme={other!r}, which the model was built with",
            got=f"scheme={row.name!r}",
            fix="pass the model's scheme, or None to take it from the model",
        )


def _walk(model: nn.Module) -> Iterator[tuple[str, nn.Parameter, Residual | None]]:
    """Every parameter once a name, with the residual it is inside of (and its name there) or None."""
    for residual in (module for module in model.modules() if isinstance(module, Residual)):
        for name, parameter in residual.named_parameters():
            yield name, parameter, residual
    for name, parameter in model.named_parameters():
        yield name, parameter, None


def _width_factor(base: Base, residual: Residual) -> float:
    width = getattr(residual.branch, "width", None)
    return 1.0 if base.width is None or width is None else width / base.width
