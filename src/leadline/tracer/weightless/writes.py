"""What ops write into memory, as far as laws of their inputs determine it."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor
from torch.utils._pytree import tree_map_only

from leadline.tracer.weightless.law import (
    Known,
    Law,
    Source,
    Unknown,
    constant,
    mixture,
    moments,
    of_nodes,
    real,
    scaled,
    shifted,
    shortened,
)
from leadline.tracer.weightless.memory import Memory

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


# What ops write into memory, as far as laws can say it.

Call = tuple[Sequence[Any], Mapping[str, Any]]
_GATHERS = {"index_select", "embedding", "index", "repeat", "flip", "roll", "gather"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Traits:
    """What an op's schema says of it; read once, for reading it takes longer than most ops."""

    pointwise: bool
    drawn: bool
    writes: tuple[tuple[int, str], ...]
    """Places and names of the arguments that it changes."""

    def written(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> list[Tensor]:
        found = []
        for at, name in self.writes:
            target = args[at] if at < len(args) else kwargs.get(name)
            found += [target] if isinstance(target, Tensor) else list(target or ())
        return found


def traits_of(func: Any) -> Traits:
    places = enumerate(func._schema.arguments)
    writes = ((at, each) for at, each in places if each.alias_info is not None and each.alias_info.is_write)
    return Traits(
        pointwise=torch.Tag.pointwise in func.tags,
        drawn=torch.Tag.nondeterministic_seeded in func.tags,
        writes=tuple((at, str(each.name)) for at, each in writes),
    )


def copy(memory: Memory, target: Tensor, origin: Tensor) -> None:
    """`target.copy_(origin)`: numbers if they are known, box by box if the two look alike, else one law for all."""
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
    law = memory.law(origin)
    memory.write(target, law if alike else rearranged(law))


def _has_values(memory: Memory, tensor: Tensor) -> bool:
    contents = memory.find(tensor)
    return contents is not None and contents.values is not None


def _copy_values(memory: Memory, target: Tensor, values: Tensor) -> bool:
    with real():
        spread = values.to(target.dtype).expand(target.shape)
        contents = memory.find(target)
        if contents is not None and contents.count != target.numel():
            into = memory.values(target)
            if into is None:
                return False
            into.copy_(spread)
            return True
        return memory.write_values(target, spread)


def rearranged(law: Known) -> Known:
    """The same elements in another order, or some of them again."""
    if isinstance(law, Law) and law.source is not None:
        return replace(law, source=Source(law.source))
    return law


def note(memory: Memory, func: Any, call: Call, targets: Sequence[Tensor]) -> None:
    """Write the law of what an op made into `targets`."""
    name = base_name(func)
    if torch.Tag.pointwise in func.tags and len(targets) == 1:
        _pointwise(memory, func, call, targets[0])
    elif name in _RULES:
        _RULES[name](memory, call, targets)
    elif name in _GATHERS or name.endswith("_copy"):
        memory.write(targets[0], _sampled(memory.law(call[0][0])))
    else:
        for target in targets:
            memory.write(target, Unknown(f"{name} is not followed"))


def _pointwise(memory: Memory, func: Any, call: Call, target: Tensor) -> None:
    args, kwargs = call
    tensors = [each for each in _leaves((*args, *kwargs.values())) if isinstance(each, Tensor)]
    known = {id(tensor): memory.law(tensor) for tensor in tensors}
    moving = [each for each in tensors if not _is_constant(known[id(each)])]
    if len({id(each) for each in moving}) == 1 and (pieces := memory.pieces(moving[0])) is not None:
        origin = moving[0]
        if len(pieces) > 1 and target.shape == origin.shape and target.stride() == origin.stride():
            made = [(box, apply(func, args, kwargs, {**known, id(origin): law})) for box, law in pieces]
            memory.write_pieces(target, made)
            return
    memory.write(target, apply(func, args, kwargs, known))


def _is_constant(law: Known) -> bool:
    return isinstance(law, Law) and law.is_constant


def _leaves(args: Sequence[Any]) -> list[Any]:
    found: list[Any] = []
    for each in args:
        found += each if isinstance(each, list | tuple) else [each]
    return found


def _join(memory: Memory, call: Call, targets: Sequence[Tensor]) -> None:
    parts = [each for each in call[0][0] if each.numel()]
    laws = [memory.law(each) for each in parts]
    unknown = next((law for law in laws if isinstance(law, Unknown)), None)
    total = sum(each.numel() for each in parts)
    shares = [
        (part.numel() / total, law) for part, law in zip(parts, laws, strict=True) if isinstance(law, Law)
    ]
    memory.write(targets[0], unknown or rearranged(mixture(shares)))


def _factors(memory: Memory, call: Call, targets: Sequence[Tensor]) -> None:
    """A QR decomposition. The signs of R's diagonal are all that initialisers use of R."""
    matrix = call[0][0]
    memory.write(targets[0], orthonormal(memory.law(matrix), targets[0].shape[-2]))
    memory.write(
        targets[1], moments(0.0, matrix.shape[-2] / targets[1].shape[-2], "triangular factor", Source())
    )


def _norm(memory: Memory, call: Call, targets: Sequence[Tensor]) -> None:
    args = call[0]
    order = args[1] if len(args) > 1 else 2
    terms = args[0].numel() // max(targets[0].numel(), 1)
    law = (
        norm_of(memory.law(args[0]), terms)
        if order in (2, 2.0, None)
        else Unknown("a norm that is not followed")
    )
    memory.write(targets[0], law)


def _eye(memory: Memory, call: Call, targets: Sequence[Tensor]) -> None:
    share = min(targets[0].shape) / max(targets[0].numel(), 1)
    memory.write(targets[0], moments(share, share, "identity"))


def _put(memory: Memory, call: Call, targets: Sequence[Tensor]) -> None:
    """`tensor[indices] = value`, with indices of a permutation: each element is written once."""
    target, indices, value = call[0][0], call[0][1], call[0][2]
    places = [each for each in indices if each is not None]
    law = memory.law(places[0]) if len(places) == 1 else Unknown("several indices")
    if isinstance(law, Unknown) or not law.how.startswith("permutation"):
        memory.write(target, Unknown("written at places that are not followed"))
        return
    share = places[0].numel() / target.shape[list(indices).index(places[0])]
    memory.scatter(target, share, memory.law(value))


def _sampled(law: Known) -> Known:
    if isinstance(law, Law) and law.mixed:
        return Unknown(f"some of the elements of {law.how}", law.source)
    return rearranged(law)


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
