"""Parameter groups that follow the depth law of a scheme: rate, weight decay and epsilon of each parameter."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from typing import Any, Literal, overload

import torch
from torch import Tensor, nn

from leadline.errors import InputError
from leadline.nn.residual import Residual
from leadline.nn.roles import role_weights
from leadline.nn.scheme import Family, Scheme
from leadline.nn.schemes import find_scheme

# "sgd": the step is linear in the gradient. "adam": its size does not depend on the gradient's scale.
FAMILIES: dict[str, Family] = {
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
    "sophia": "adam",
    "soap": "adam",
    "shampoo": "adam",
    "muon": "adam",
    "sign": "adam",
    "stableadamw": "adam",
}
# Cited: torch's default, which CompleteP's factor multiplies.
ADAM_EPS = 1e-8


@dataclass(frozen=True, slots=True, kw_only=True)
class Base:
    """The small model on which the learning rate was tuned: its residual sub-layers and its width.

    Four sub-layers are two Transformer blocks. Without a width, both models are assumed to have the same width.
    """

    sublayers: int = 4
    width: int | None = None


TWO_BLOCKS = Base()


@dataclass(frozen=True, slots=True, kw_only=True)
class MuonGroups:
    """The groups of the two optimizers that train a model together.

    `muon` are the matrices inside residual branches, for `torch.optim.Muon`; `adamw` is everything else, and the
    routers of experts, whose outputs are scores and no hidden layer.
    """

    muon: list[dict[str, Any]]
    adamw: list[dict[str, Any]]


@overload
def param_groups(  # type: ignore[overload-overlap]  # "muon" is a str, and comes first
    model: nn.Module,
    scheme: str | Scheme | None,
    optimizer: Literal["muon"],
    lr: float,
    weight_decay: float = 0.0,
    *,
    base: Base = TWO_BLOCKS,
    adamw_lr: float | None = None,
) -> MuonGroups: ...
@overload
def param_groups(
    model: nn.Module,
    scheme: str | Scheme | None,
    optimizer: str | type[torch.optim.Optimizer],
    lr: float,
    weight_decay: float = 0.0,
    *,
    base: Base = TWO_BLOCKS,
) -> list[dict[str, Any]]: ...
def param_groups(  # noqa: PLR0913  (the settings of two optimizers)
    model: nn.Module,
    scheme: str | Scheme | None,
    optimizer: str | type[torch.optim.Optimizer],
    lr: float,
    weight_decay: float = 0.0,
    *,
    base: Base = TWO_BLOCKS,
    adamw_lr: float | None = None,
) -> list[dict[str, Any]] | MuonGroups:
    r"""Groups for a torch optimizer: rates by the depth law inside residuals; no decay on norms, biases and scalars.

    A step on a parameter whose change reaches the stream damped like $S^{-e}$ ($S$ residual sub-layers)
    changes the function by an amount that does not depend on depth when its rate is
    $$ \eta\,m_L^{2e-1}\ \text{(SGD)}, \qquad \eta\,m_L^{e-1}\ \text{(Adam)}, \qquad m_L = S / S_{base}, $$
    where $\eta$ is `lr` and $S_{base}$ are the sub-layers of `base`, because the changes of $S$ sub-layers add up,
    each of them moved by its gradient $\propto S^{-e}$ (SGD) or by its sign (Adam). $e$ is the scheme's `exponent` for
    matrices, its `bias_exponent` for the bias after the last matrix, and 0 for the gain and bias of a norm on the
    stream itself (`post`); without the last two the first step of DeepNorm and Keel still grows with depth
    (docs/reference/nn.md). A scheme without an exponent has the factor 1 everywhere.

    For Adam, CompleteP's factors for width and epsilon apply too: matrices have the rate $\eta/m_N$ and the decay
    $\lambda m_N$, and epsilon is $\varepsilon\,m_N^{-1} m_L^{-a}$, where $m_N$ = width / base width, $\lambda$ is
    `weight_decay` and $a$ the scheme's exponent. So does a head that reads the stream, because a step changes its
    outputs by the sum over the width; CompleteP divides its outputs by $m_N$ instead. Embeddings, and heads that are
    tied to one, keep $\eta$ and $\lambda$. Dey et al. 2025 (CompleteP), arXiv 2505.01618.

    `scheme` must be the scheme of the model's `Residual`s (None takes it from them); `optimizer` is a name or a torch
    optimizer class.

    With `"muon"` the result is a `MuonGroups`: matrices inside branches for Muon, all else for AdamW. Muon's depth law
    is Adam's, because its step ignores the gradient's scale too. Its width law is not. All singular values of a step
    are $\eta\,s$, and a step that changes the output of a matrix by an amount that does not depend on width has a
    constant largest singular value (the spectral condition for matrices of fixed proportions). Without `adamw_lr`, one
    rate serves both optimizers and Muon's `adjust_lr_fn` is `match_rms_adamw`, $s = 0.2\sqrt{\max(n, m)}$ for an
    $m \times n$ matrix, so that the rate is $\eta\,m_N^{-1/2}$. With it, `lr` is Muon's own, `adjust_lr_fn` is
    `original`, $s = \sqrt{\max(1, m/n)}$, and width has no part in the rate. In both cases the decay is multiplied by
    what width divides the rate by, so that $\eta\lambda$ stays.
    """
    family = find_family(optimizer)
    residuals = [module for module in model.modules() if isinstance(module, Residual)]
    _check_scheme(residuals, scheme)
    _check_adamw_lr(optimizer, adamw_lr)
    settings = _GroupSettings(family=family, lr=lr, weight_decay=weight_decay, base=base)
    if optimizer == "muon":
        return _muon_groups(model, residuals, settings, adamw_lr)
    return _collected(_grouped_parameters(model, residuals, settings))


def _collected(parameters: Iterable[tuple[nn.Parameter, dict[str, Any]]]) -> list[dict[str, Any]]:
    """One group for the parameters with equal values."""
    groups: dict[tuple[object, ...], dict[str, Any]] = {}
    for parameter, group in parameters:
        groups.setdefault(tuple(group.values()), {**group, "params": []})["params"].append(parameter)
    return list(groups.values())


def _muon_groups(
    model: nn.Module, residuals: list[Residual], settings: _GroupSettings, adamw_lr: float | None
) -> MuonGroups:
    routers = {id(part.weight) for r in residuals for part in role_weights(r.branch) if part.role == "router"}
    owners = {
        parameter: residual
        for residual in residuals
        for parameter in residual.branch.parameters()
        if parameter.ndim == 2 and parameter.requires_grad and id(parameter) not in routers
    }
    dampings = {residual: _dampings(residual) for residual in residuals}
    names = {p: name for residual in residuals for name, p in residual.named_parameters()}
    hidden = (
        (p, _spectral(settings, residual, dampings[residual].get(names[p]), adamw_lr is None))
        for p, residual in owners.items()
    )
    rest = replace(settings, lr=settings.lr if adamw_lr is None else adamw_lr)
    others = ((p, group) for p, group in _grouped_parameters(model, residuals, rest) if p not in owners)
    return MuonGroups(muon=_collected(hidden), adamw=_collected(others))


def _spectral(
    settings: _GroupSettings, residual: Residual, damping: float | None, matches_adamw: bool
) -> dict[str, Any]:
    """The group of a matrix that Muon steps."""
    width = _width_factor(settings.base, residual) ** 0.5 if matches_adamw else 1.0
    rate = settings.lr / width
    if damping is not None and residual.scheme.exponent is not None:
        rate *= (residual.place.total / settings.base.sublayers) ** rate_power(damping, "adam")
    return {
        "lr": rate,
        "weight_decay": settings.weight_decay * width,
        "adjust_lr_fn": "match_rms_adamw" if matches_adamw else "original",
    }


@dataclass(frozen=True, slots=True, kw_only=True)
class _GroupSettings:
    family: Family
    lr: float
    weight_decay: float
    base: Base


def _grouped_parameters(
    model: nn.Module, residuals: list[Residual], settings: _GroupSettings
) -> Iterator[tuple[nn.Parameter, dict[str, Any]]]:
    """Each trainable parameter once, with the values of its group."""
    visited: set[nn.Parameter] = set()
    for residual in residuals:
        damping = _dampings(residual)
        for name, parameter in residual.named_parameters():
            if parameter.requires_grad and parameter not in visited:
                visited.add(parameter)
                yield parameter, _inside(settings, parameter, residual, damping.get(name))
    heads = _heads(model, residuals, settings)
    for parameter in model.parameters():
        if parameter.requires_grad and parameter not in visited:
            group, width = _outside(settings, parameter), heads.get(parameter, 1.0)
            group["lr"], group["weight_decay"] = group["lr"] / width, group["weight_decay"] * width
            yield parameter, group


def _heads(model: nn.Module, residuals: list[Residual], settings: _GroupSettings) -> dict[Tensor, float]:
    """The weights of linear layers that read a stream, with its width over the base width; none for SGD."""
    if settings.family != "adam":
        return {}
    widths = {getattr(each.branch, "width", None): _width_factor(settings.base, each) for each in residuals}
    embeddings = {each.weight for each in model.modules() if isinstance(each, nn.Embedding)}
    return {
        each.weight: widths[each.in_features]
        for each in model.modules()
        if isinstance(each, nn.Linear) and each.in_features in widths and each.weight not in embeddings
    }


def _outside(settings: _GroupSettings, parameter: nn.Parameter) -> dict[str, Any]:
    return {"lr": settings.lr, "weight_decay": settings.weight_decay if parameter.ndim > 1 else 0.0}


def _inside(
    settings: _GroupSettings, parameter: nn.Parameter, residual: Residual, damping: float | None
) -> dict[str, Any]:
    group = _outside(settings, parameter)
    if damping is None or residual.scheme.exponent is None:
        return group
    depth = residual.place.total / settings.base.sublayers
    group["lr"] *= depth ** rate_power(damping, settings.family)
    if settings.family == "adam":
        width = _width_factor(settings.base, residual)
        group["eps"] = ADAM_EPS / width * depth**-residual.scheme.exponent
        if parameter.ndim > 1:
            group["lr"], group["weight_decay"] = group["lr"] / width, group["weight_decay"] * width
    return group


def _dampings(residual: Residual) -> dict[str, float]:
    """The exponent e of each parameter, with which its change reaches the stream; empty without a depth law."""
    scheme = residual.scheme
    if scheme.exponent is None:
        return {}
    named = dict(residual.named_parameters())
    damping = dict.fromkeys(named, scheme.exponent)
    damping |= {name: 0.0 for name in named if name.startswith("norm_post.")}
    if scheme.bias_exponent is not None:
        last = {id(part.weight) for part in role_weights(residual.branch) if part.role in ("output", "fc2")}
        after_last = {name.removesuffix("weight") + "bias" for name, p in named.items() if id(p) in last}
        damping |= dict.fromkeys((after_last | {"bias_out"}) & set(named), scheme.bias_exponent)
    return damping


def rate_power(damping: float, family: Family) -> float:
    r"""The power of depth in the rate: $2e-1$ for SGD, $e-1$ for Adam."""
    return 2 * damping - 1 if family == "sgd" else damping - 1


def find_family(optimizer: str | type[torch.optim.Optimizer]) -> Family:
    """`sgd` if the step is linear in the gradient, `adam` if its size does not depend on the gradient's scale."""
    name = (optimizer if isinstance(optimizer, str) else optimizer.__name__).lower()
    if name not in FAMILIES:
        raise InputError(
            expected="optimizer: one of " + ", ".join(FAMILIES) + ", or a class of one of these names",
            got=f"optimizer={optimizer!r}",
            fix="name the family it steps like: 'sgd' (linear in the gradient) or 'adam' (scale-free)",
        )
    return FAMILIES[name]


def _check_adamw_lr(optimizer: str | type[torch.optim.Optimizer], adamw_lr: float | None) -> None:
    is_class = not isinstance(optimizer, str) and optimizer.__name__.lower() == "muon"
    if is_class or (adamw_lr is not None and optimizer != "muon"):
        raise InputError(
            expected='optimizer="muon" for the groups of Muon and AdamW, with adamw_lr or without',
            got=f"optimizer={optimizer!r}, adamw_lr={adamw_lr}",
            fix='pass the name "muon", which returns the groups of both optimizers, or leave adamw_lr out',
        )


def _check_scheme(residuals: list[Residual], scheme: str | Scheme | None) -> None:
    if not residuals:
        raise InputError(
            expected="a model built of leadline.nn.Residual blocks",
            got="a model without Residual blocks",
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


def _width_factor(base: Base, residual: Residual) -> float:
    width = getattr(residual.branch, "width", None)
    return 1.0 if base.width is None or width is None else width / base.width
