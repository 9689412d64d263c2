"""The random ops of torch, each with the law of what it draws."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from torch import Tensor

from leadline.weightless.law import (
    Known,
    Law,
    Source,
    Unknown,
    moments,
    normal,
    of_nodes,
    real,
    uniform,
)

Draw = Callable[[Sequence[Any], Mapping[str, Any]], Known]
"""From the arguments behind the tensor that is filled."""


def _normal(args: Sequence[Any], kwargs: Mapping[str, Any]) -> Known:
    mean, std = _argument(args, kwargs, 0, "mean", 0.0), _argument(args, kwargs, 1, "std", 1.0)
    if isinstance(mean, Tensor) or isinstance(std, Tensor):
        return Unknown("drawn around tensors of means or deviations")
    return normal(mean, std)


def _uniform(args: Sequence[Any], kwargs: Mapping[str, Any]) -> Known:
    return uniform(_argument(args, kwargs, 0, "from", 0.0), _argument(args, kwargs, 1, "to", 1.0))


@real()
def _exponential(args: Sequence[Any], kwargs: Mapping[str, Any]) -> Known:
    r"""$-\ln(1 - u) / \lambda$ of a uniform $u$."""
    rate = _argument(args, kwargs, 0, "lambd", 1.0)
    drawn = uniform()
    return of_nodes(-(1 - drawn.nodes).log() / rate, drawn, f"exponential({rate:.4g})")


@real()
def _log_normal(args: Sequence[Any], kwargs: Mapping[str, Any]) -> Known:
    mean, std = _argument(args, kwargs, 0, "mean", 1.0), _argument(args, kwargs, 1, "std", 2.0)
    drawn = normal(mean, std)
    return of_nodes(drawn.nodes.exp(), drawn, f"log-normal({mean:.4g}, {std:.4g})")


def _bernoulli(args: Sequence[Any], kwargs: Mapping[str, Any]) -> Known:
    chance = _argument(args, kwargs, 0, "p", 0.5)
    if isinstance(chance, Tensor):
        return Unknown("drawn with a tensor of probabilities")
    return moments(chance, chance, f"bernoulli({chance:.4g})", Source())


def _cauchy(args: Sequence[Any], kwargs: Mapping[str, Any]) -> Known:
    return Unknown("drawn from a Cauchy law, which has no moments")


def integers(low: int, high: int) -> Law:
    r"""Whole numbers in $[a, b)$, all alike: $E[x] = (a + b - 1) / 2$ and $\mathrm{Var}[x] = ((b - a)^2 - 1) / 12$."""
    mean = (low + high - 1) / 2
    return moments(mean, mean * mean + ((high - low) ** 2 - 1) / 12, f"integers in [{low}, {high})", Source())


def _standard_normal(args: Sequence[Any], kwargs: Mapping[str, Any]) -> Known:
    return normal()


def _standard_uniform(args: Sequence[Any], kwargs: Mapping[str, Any]) -> Known:
    return uniform()


def _permutation(args: Sequence[Any], kwargs: Mapping[str, Any]) -> Known:
    return replace(integers(0, int(args[0])), how=f"permutation of {args[0]}")


def _integers(args: Sequence[Any], kwargs: Mapping[str, Any]) -> Known:
    ends = [each for each in args if isinstance(each, int)]
    return integers(*((0, ends[0]) if len(ends) == 1 else (ends[0], ends[1])))


def _integers_below(args: Sequence[Any], kwargs: Mapping[str, Any]) -> Known:
    ends = [each for each in args if isinstance(each, int)]
    if not ends:
        return Unknown("drawn over the whole range of its type")
    return integers(*((0, ends[0]) if len(ends) == 1 else (ends[0], ends[1])))


def _argument(args: Sequence[Any], kwargs: Mapping[str, Any], at: int, name: str, default: float) -> Any:
    value = args[at] if at < len(args) else kwargs.get(name, default)
    return float(value) if isinstance(value, int | float) else value


IN_PLACE: dict[str, Draw] = {
    "normal_": _normal,
    "uniform_": _uniform,
    "exponential_": _exponential,
    "log_normal_": _log_normal,
    "bernoulli_": _bernoulli,
    "cauchy_": _cauchy,
    "random_": _integers_below,
}
"""Called as `tensor.draw_(...)`."""

FRESH: dict[str, Draw] = {
    "randn": _standard_normal,
    "randn_like": _standard_normal,
    "rand": _standard_uniform,
    "rand_like": _standard_uniform,
    "normal": _normal,
    "randperm": _permutation,
    "randint": _integers,
}
"""They return a new tensor."""
