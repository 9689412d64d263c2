"""Laws of what pointwise functions make of laws."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.utils._pytree import tree_map_only

from leadline.weightless.law import (
    Known,
    Law,
    Source,
    Unknown,
    constant,
    moments,
    of_nodes,
    real,
    scaled,
    shifted,
    shortened,
)

FEW = 16  # terms; derived: the mean of a norm below is then right to about 1 %


@real()
def apply(func: Any, args: Sequence[Any], kwargs: Mapping[str, Any], known: Mapping[int, Known]) -> Known:
    """The law of `func(*args, **kwargs)`, a pointwise op; `known` has the law of each tensor argument, by identity."""
    unknown = next((each for each in known.values() if isinstance(each, Unknown)), None)
    if unknown is not None:
        return unknown
    laws = {key: law for key, law in known.items() if isinstance(law, Law)}
    drawn = [law for law in laws.values() if not law.is_constant]
    name = base_name(func)
    if not drawn:
        return _of_constants(func, args, kwargs, laws)
    if len(drawn) == 1 and (found := _affine(name, args, kwargs, laws)) is not None:
        return found
    if all(law.shape is not None and law.source is drawn[0].source for law in drawn):
        return _of_nodes(func, args, kwargs, laws, drawn[0])
    if len(drawn) == 1 and name == "sign" and drawn[0].mean == 0:
        return moments(0.0, 1.0, "random signs", Source())
    if len(drawn) == 2 and (found := _independent(name, args, kwargs, laws)) is not None:
        return found
    return Unknown(f"{name} of {' and '.join(law.how for law in drawn)} is not followed", drawn[0].source)


def base_name(func: Any) -> str:
    """The name of an ATen op without namespace, overload and in-place mark."""
    return str(func._schema.name).rpartition("::")[2].rstrip("_")


def _of_constants(
    func: Any, args: Sequence[Any], kwargs: Mapping[str, Any], laws: Mapping[int, Law]
) -> Known:
    value = _evaluate(func, args, kwargs, laws)
    return (
        constant(float(value.reshape(-1)[0].item()))
        if not value.is_complex()
        else Unknown("a complex constant")
    )


def _of_nodes(
    func: Any, args: Sequence[Any], kwargs: Mapping[str, Any], laws: Mapping[int, Law], like: Law
) -> Known:
    nodes = _evaluate(func, args, kwargs, laws)
    if nodes.shape != like.nodes.shape or nodes.is_complex():
        return Unknown(f"{base_name(func)} of {like.how} is not followed", like.source)
    numbers = ", ".join(f"{each:.4g}" for each in args if isinstance(each, int | float))
    made = of_nodes(nodes, like, f"{like.how} then {base_name(func)}({numbers})")
    if math.isfinite(made.mean) and math.isfinite(made.ms):
        return made
    return Unknown(f"{base_name(func)} of {like.how} has no moments", like.source)


def _evaluate(func: Any, args: Sequence[Any], kwargs: Mapping[str, Any], laws: Mapping[int, Law]) -> Tensor:
    """`func` itself, at the nodes."""

    def nodes_of(tensor: Tensor) -> Tensor:
        law = laws[id(tensor)]
        return torch.tensor(law.mean, dtype=torch.float64) if law.is_constant else law.nodes

    values = [tree_map_only(Tensor, nodes_of, each) for each in args]
    options = {name: tree_map_only(Tensor, nodes_of, each) for name, each in kwargs.items()}
    result: Tensor = func(*values, **options)
    return result


def _affine(name: str, args: Sequence[Any], kwargs: Mapping[str, Any], laws: Mapping[int, Law]) -> Law | None:
    """Scaling and shifting, in closed form; None if it is something else."""
    if name == "neg":
        return scaled(laws[id(args[0])], -1.0)
    if len(args) != 2 or kwargs or name not in ("mul", "div", "add", "sub"):
        return None
    sides = [laws[id(each)] if isinstance(each, Tensor) else each for each in args]
    fixed = [_number(side) for side in sides]
    first, second = sides
    if isinstance(first, Law) and fixed[1] is not None:
        number = fixed[1]
        if name in ("add", "sub"):
            return shifted(first, number if name == "add" else -number)
        return (
            None if name == "div" and number == 0 else scaled(first, number if name == "mul" else 1 / number)
        )
    if isinstance(second, Law) and fixed[0] is not None and name in ("mul", "add"):
        return scaled(second, fixed[0]) if name == "mul" else shifted(second, fixed[0])
    return None


def _number(side: Any) -> float | None:
    if isinstance(side, Law):
        return side.mean if side.is_constant else None
    return float(side) if isinstance(side, int | float) else None


def _independent(
    name: str, args: Sequence[Any], kwargs: Mapping[str, Any], laws: Mapping[int, Law]
) -> Law | None:
    """Sum, difference and product of two draws that know nothing of one another; None for anything else."""
    if len(args) != 2 or kwargs or not all(isinstance(each, Tensor) for each in args):
        return None
    a, b = (laws[id(each)] for each in args)
    if (
        a.source is not None
        and b.source is not None
        and a.source.root is b.source.root
        and not _rearranged(a, b)
    ):
        return None
    source = a.source or b.source
    if name in ("add", "sub"):
        sign = 1.0 if name == "add" else -1.0
        ms = a.ms + b.ms + 2 * sign * a.mean * b.mean
        return moments(a.mean + sign * b.mean, ms, f"({a.how}) {'+' if sign > 0 else '-'} ({b.how})", source)
    if name == "mul":
        how = a.how if b.how == "random signs" else f"({a.how}) x ({b.how})"
        return moments(a.mean * b.mean, a.ms * b.ms, shortened(how), source)
    return None


def _rearranged(a: Law, b: Law) -> bool:
    """Copies of one draw in another order: an element meets another one, save a few."""
    return a.source is not b.source


@real()
def norm_of(law: Known, terms: int) -> Known:
    r"""The Euclidean norm of $n$ independent elements: $E[r^2] = n\,E[x^2]$ exactly, and to second order in $1/n$

    $$ E[r] = \sqrt{n\,E[x^2]} \left(1 - \frac{\mathrm{Var}[x^2]}{8\,n\,E[x^2]^2}\right). $$
    """
    if isinstance(law, Unknown):
        return law
    if law.shape is None or terms < FEW or law.ms == 0:
        return Unknown(f"a norm of {law.how} over {terms} elements is not followed", law.source)
    fourth = torch.dot(law.shape.weights, law.nodes**4).item()
    spread = fourth / law.ms**2 - 1
    ms = terms * law.ms
    return moments(math.sqrt(ms) * (1 - spread / (8 * terms)), ms, f"norm of {terms} x {law.how}", law.source)


def orthonormal(law: Known, rows: int) -> Known:
    """The orthogonal factor of a matrix of independent normal numbers: its columns have length one."""
    if isinstance(law, Unknown):
        return law
    if law.mean != 0 or law.source is None:
        return Unknown(f"the orthogonal factor of {law.how} is not followed", law.source)
    return moments(0.0, 1 / rows, "orthogonal", law.source)
