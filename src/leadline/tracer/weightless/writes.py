"""What ops write into memory, as far as the distributions of their inputs determine it."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor
from torch.utils._pytree import tree_map_only

from leadline.tracer.weightless.distribution import (
    Distribution,
    MaybeDistribution,
    RandomDraw,
    Unknown,
    constant,
    mixture,
    moments,
    of_nodes,
    real_tensors,
    scale_by,
    shift_by,
    shorten,
)
from leadline.tracer.weightless.memory import Memory

# Derived: with so many terms, the mean of a norm in `norm_of` is correct to about 1 %.
MIN_NORM_TERMS = 16


@real_tensors()
def apply(
    func: Any, args: Sequence[Any], kwargs: Mapping[str, Any], known: Mapping[int, MaybeDistribution]
) -> MaybeDistribution:
    """Return the distribution of the result of a pointwise op; `known` has that of each tensor argument, by `id`."""
    unknown = next((each for each in known.values() if isinstance(each, Unknown)), None)
    if unknown is not None:
        return unknown
    distributions = {
        key: distribution for key, distribution in known.items() if isinstance(distribution, Distribution)
    }
    drawn = [distribution for distribution in distributions.values() if not distribution.is_constant]
    name = base_name(func)
    if not drawn:
        return _of_constants(func, args, kwargs, distributions)
    if len(drawn) == 1 and (found := _affine(name, args, kwargs, distributions)) is not None:
        return found
    if all(
        distribution.shape is not None and distribution.source is drawn[0].source for distribution in drawn
    ):
        return _of_nodes(func, args, kwargs, distributions, drawn[0])
    if len(drawn) == 1 and name == "sign" and drawn[0].mean == 0:
        return moments(0.0, 1.0, "random signs", RandomDraw())
    if len(drawn) == 2 and (found := _independent(name, args, kwargs, distributions)) is not None:
        return found
    return Unknown(
        f"{name} of {' and '.join(distribution.how for distribution in drawn)} is not followed",
        drawn[0].source,
    )


def base_name(func: Any) -> str:
    """Return the name of an ATen op without namespace, overload and in-place mark."""
    return str(func._schema.name).rpartition("::")[2].rstrip("_")


def _of_constants(
    func: Any, args: Sequence[Any], kwargs: Mapping[str, Any], distributions: Mapping[int, Distribution]
) -> MaybeDistribution:
    value = _evaluate(func, args, kwargs, distributions)
    return (
        constant(float(value.reshape(-1)[0].item()))
        if not value.is_complex()
        else Unknown("a complex constant")
    )


def _of_nodes(
    func: Any,
    args: Sequence[Any],
    kwargs: Mapping[str, Any],
    distributions: Mapping[int, Distribution],
    like: Distribution,
) -> MaybeDistribution:
    nodes = _evaluate(func, args, kwargs, distributions)
    if nodes.shape != like.nodes.shape or nodes.is_complex():
        return Unknown(f"{base_name(func)} of {like.how} is not followed", like.source)
    numbers = ", ".join(f"{each:.4g}" for each in args if isinstance(each, int | float))
    made = of_nodes(nodes, like, f"{like.how} then {base_name(func)}({numbers})")
    if math.isfinite(made.mean) and math.isfinite(made.ms):
        return made
    return Unknown(f"{base_name(func)} of {like.how} has no moments", like.source)


def _evaluate(
    func: Any, args: Sequence[Any], kwargs: Mapping[str, Any], distributions: Mapping[int, Distribution]
) -> Tensor:
    """Evaluate `func` at the nodes."""

    def nodes_of(tensor: Tensor) -> Tensor:
        distribution = distributions[id(tensor)]
        return (
            torch.tensor(distribution.mean, dtype=torch.float64)
            if distribution.is_constant
            else distribution.nodes
        )

    values = [tree_map_only(Tensor, nodes_of, each) for each in args]
    options = {name: tree_map_only(Tensor, nodes_of, each) for name, each in kwargs.items()}
    result: Tensor = func(*values, **options)
    return result


def _affine(
    name: str, args: Sequence[Any], kwargs: Mapping[str, Any], distributions: Mapping[int, Distribution]
) -> Distribution | None:
    """Return the result of scaling or shifting in closed form; None for any other op."""
    if name == "neg":
        return scale_by(distributions[id(args[0])], -1.0)
    if len(args) != 2 or kwargs or name not in ("mul", "div", "add", "sub"):
        return None
    sides = [distributions[id(each)] if isinstance(each, Tensor) else each for each in args]
    fixed = [_number(side) for side in sides]
    first, second = sides
    if isinstance(first, Distribution) and fixed[1] is not None:
        number = fixed[1]
        if name in ("add", "sub"):
            return shift_by(first, number if name == "add" else -number)
        return (
            None
            if name == "div" and number == 0
            else scale_by(first, number if name == "mul" else 1 / number)
        )
    if isinstance(second, Distribution) and fixed[0] is not None and name in ("mul", "add"):
        return scale_by(second, fixed[0]) if name == "mul" else shift_by(second, fixed[0])
    return None


def _number(side: Any) -> float | None:
    if isinstance(side, Distribution):
        return side.mean if side.is_constant else None
    return float(side) if isinstance(side, int | float) else None


def _independent(
    name: str, args: Sequence[Any], kwargs: Mapping[str, Any], distributions: Mapping[int, Distribution]
) -> Distribution | None:
    """Return the sum, difference or product of two independent draws; None for anything else."""
    if len(args) != 2 or kwargs or not all(isinstance(each, Tensor) for each in args):
        return None
    a, b = (distributions[id(each)] for each in args)
    if (
        a.source is not None
        and b.source is not None
        and a.source.root is b.source.root
        and not _are_rearranged(a, b)
    ):
        return None
    source = a.source or b.source
    if name in ("add", "sub"):
        sign = 1.0 if name == "add" else -1.0
        ms = a.ms + b.ms + 2 * sign * a.mean * b.mean
        return moments(a.mean + sign * b.mean, ms, f"({a.how}) {'+' if sign > 0 else '-'} ({b.how})", source)
    if name == "mul":
        how = a.how if b.how == "random signs" else f"({a.how}) x ({b.how})"
        return moments(a.mean * b.mean, a.ms * b.ms, shorten(how), source)
    return None


def _are_rearranged(a: Distribution, b: Distribution) -> bool:
    """Whether these are copies of one draw in different order, so that almost no element meets itself."""
    return a.source is not b.source


@real_tensors()
def norm_of(distribution: MaybeDistribution, terms: int) -> MaybeDistribution:
    r"""The Euclidean norm of $n$ independent elements: $E[r^2] = n\,E[x^2]$ exactly, and to second order in $1/n$

    $$ E[r] = \sqrt{n\,E[x^2]} \left(1 - \frac{\mathrm{Var}[x^2]}{8\,n\,E[x^2]^2}\right). $$
    """
    if isinstance(distribution, Unknown):
        return distribution
    if distribution.shape is None or terms < MIN_NORM_TERMS or distribution.ms == 0:
        return Unknown(
            f"a norm of {distribution.how} over {terms} elements is not followed", distribution.source
        )
    fourth = torch.dot(distribution.shape.weights, distribution.nodes**4).item()
    spread = fourth / distribution.ms**2 - 1
    ms = terms * distribution.ms
    return moments(
        math.sqrt(ms) * (1 - spread / (8 * terms)),
        ms,
        f"norm of {terms} x {distribution.how}",
        distribution.source,
    )


def orthonormal(distribution: MaybeDistribution, rows: int) -> MaybeDistribution:
    """Return the orthogonal factor of a matrix of independent normal numbers, whose columns have length one."""
    if isinstance(distribution, Unknown):
        return distribution
    if distribution.mean != 0 or distribution.source is None:
        return Unknown(f"the orthogonal factor of {distribution.how} is not followed", distribution.source)
    return moments(0.0, 1 / rows, "orthogonal", distribution.source)


# What ops write into memory.

Call = tuple[Sequence[Any], Mapping[str, Any]]
_GATHERS = {"index_select", "embedding", "index", "repeat", "flip", "roll", "gather"}


@dataclass(frozen=True, slots=True, kw_only=True)
class OpTraits:
    """What the schema of an op says; it is read once per op, because reading it takes longer than most ops."""

    pointwise: bool
    drawn: bool
    writes: tuple[tuple[int, str], ...]
    """Positions and names of the arguments that the op changes."""

    def written(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> list[Tensor]:
        found = []
        for at, name in self.writes:
            target = args[at] if at < len(args) else kwargs.get(name)
            found += [target] if isinstance(target, Tensor) else list(target or ())
        return found


def op_traits(func: Any) -> OpTraits:
    places = enumerate(func._schema.arguments)
    writes = ((at, each) for at, each in places if each.alias_info is not None and each.alias_info.is_write)
    return OpTraits(
        pointwise=torch.Tag.pointwise in func.tags,
        drawn=torch.Tag.nondeterministic_seeded in func.tags,
        writes=tuple((at, str(each.name)) for at, each in writes),
    )


def copy(memory: Memory, target: Tensor, origin: Tensor) -> None:
    """Follow `target.copy_(origin)`: known numbers, else boxes if the layouts agree, else one distribution."""
    values = memory.values(origin) if _has_values(memory, origin) else None
    if values is not None and _copy_values(memory, target, values):
        return
    pieces = memory.pieces(origin)
    alike = target.shape == origin.shape and target.stride() == origin.stride()
    if pieces is not None and alike and target.storage_offset() == 0:
        contents = memory.find(target)
        if contents is not None and contents.count == target.numel():
            memory.write_pieces(target, pieces)
            return
    distribution = memory.distribution(origin)
    memory.write(target, distribution if alike else rearrange(distribution))


def _has_values(memory: Memory, tensor: Tensor) -> bool:
    contents = memory.find(tensor)
    return contents is not None and contents.values is not None


def _copy_values(memory: Memory, target: Tensor, values: Tensor) -> bool:
    with real_tensors():
        spread = values.to(target.dtype).expand(target.shape)
        contents = memory.find(target)
        if contents is not None and contents.count != target.numel():
            into = memory.values(target)
            if into is None:
                return False
            into.copy_(spread)
            return True
        return memory.write_values(target, spread)


def rearrange(distribution: MaybeDistribution) -> MaybeDistribution:
    """Return the distribution of the same elements in another order, or of some of them repeated."""
    if isinstance(distribution, Distribution) and distribution.source is not None:
        return replace(distribution, source=RandomDraw(distribution.source))
    return distribution


def note(memory: Memory, func: Any, call: Call, targets: Sequence[Tensor]) -> None:
    """Write the distribution of an op's result into `targets`."""
    name = base_name(func)
    if torch.Tag.pointwise in func.tags and len(targets) == 1:
        _pointwise(memory, func, call, targets[0])
    elif name in _RULES:
        _RULES[name](memory, call, targets)
    elif name in _GATHERS or name.endswith("_copy"):
        memory.write(targets[0], _sampled(memory.distribution(call[0][0])))
    else:
        for target in targets:
            memory.write(target, Unknown(f"{name} is not followed"))


def _pointwise(memory: Memory, func: Any, call: Call, target: Tensor) -> None:
    args, kwargs = call
    tensors = [each for each in _leaves((*args, *kwargs.values())) if isinstance(each, Tensor)]
    known = {id(tensor): memory.distribution(tensor) for tensor in tensors}
    moving = [each for each in tensors if not _is_constant(known[id(each)])]
    if len({id(each) for each in moving}) == 1 and (pieces := memory.pieces(moving[0])) is not None:
        origin = moving[0]
        if len(pieces) > 1 and target.shape == origin.shape and target.stride() == origin.stride():
            made = [
                (box, apply(func, args, kwargs, {**known, id(origin): distribution}))
                for box, distribution in pieces
            ]
            memory.write_pieces(target, made)
            return
    memory.write(target, apply(func, args, kwargs, known))


def _is_constant(distribution: MaybeDistribution) -> bool:
    return isinstance(distribution, Distribution) and distribution.is_constant


def _leaves(args: Sequence[Any]) -> list[Any]:
    found: list[Any] = []
    for each in args:
        found += each if isinstance(each, list | tuple) else [each]
    return found


def _join(memory: Memory, call: Call, targets: Sequence[Tensor]) -> None:
    parts = [each for each in call[0][0] if each.numel()]
    distributions = [memory.distribution(each) for each in parts]
    unknown = next(
        (distribution for distribution in distributions if isinstance(distribution, Unknown)), None
    )
    total = sum(each.numel() for each in parts)
    shares = [
        (part.numel() / total, distribution)
        for part, distribution in zip(parts, distributions, strict=True)
        if isinstance(distribution, Distribution)
    ]
    memory.write(targets[0], unknown or rearrange(mixture(shares)))


def _factors(memory: Memory, call: Call, targets: Sequence[Tensor]) -> None:
    """Follow a QR decomposition. Initializers use only the signs of the diagonal of R."""
    matrix = call[0][0]
    memory.write(targets[0], orthonormal(memory.distribution(matrix), targets[0].shape[-2]))
    memory.write(
        targets[1], moments(0.0, matrix.shape[-2] / targets[1].shape[-2], "triangular factor", RandomDraw())
    )


def _norm(memory: Memory, call: Call, targets: Sequence[Tensor]) -> None:
    args = call[0]
    order = args[1] if len(args) > 1 else 2
    terms = args[0].numel() // max(targets[0].numel(), 1)
    distribution = (
        norm_of(memory.distribution(args[0]), terms)
        if order in (2, 2.0, None)
        else Unknown("a norm that is not followed")
    )
    memory.write(targets[0], distribution)


def _eye(memory: Memory, call: Call, targets: Sequence[Tensor]) -> None:
    share = min(targets[0].shape) / max(targets[0].numel(), 1)
    memory.write(targets[0], moments(share, share, "identity"))


def _put(memory: Memory, call: Call, targets: Sequence[Tensor]) -> None:
    """Follow `tensor[indices] = value` for indices from a permutation, which write each element once."""
    target, indices, value = call[0][0], call[0][1], call[0][2]
    places = [each for each in indices if each is not None]
    distribution = memory.distribution(places[0]) if len(places) == 1 else Unknown("several indices")
    if isinstance(distribution, Unknown) or not distribution.how.startswith("permutation"):
        memory.write(target, Unknown("written at places that are not followed"))
        return
    share = places[0].numel() / target.shape[list(indices).index(places[0])]
    memory.scatter(target, share, memory.distribution(value))


def _sampled(distribution: MaybeDistribution) -> MaybeDistribution:
    if isinstance(distribution, Distribution) and distribution.mixed:
        return Unknown(f"some of the elements of {distribution.how}", distribution.source)
    return rearrange(distribution)


Rule = Callable[[Memory, Call, Sequence[Tensor]], None]
_RULES: dict[str, Rule] = {
    "cat": _join,
    "stack": _join,
    "linalg_qr": _factors,
    "linalg_vector_norm": _norm,
    "norm": _norm,
    "eye": _eye,
    "index_put": _put,
    "_index_put_impl": _put,
}
