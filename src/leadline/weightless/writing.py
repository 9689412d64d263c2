"""What ops write into memory, as far as laws can say it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from leadline.weightless.combining import apply, base_name, norm_of, orthonormal
from leadline.weightless.law import Known, Law, Source, Unknown, mixture, moments, real
from leadline.weightless.memory import Memory

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
