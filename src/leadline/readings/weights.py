"""The weight layers of a trace: how large they are, what reads them, and which of them start as copies."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Literal, NamedTuple

from leadline.readings.attribution import fan_in_of
from leadline.readings.structure import Structure
from leadline.records import Clones, Op, Parameter, Trace, Weight

SAME = 0.999  # share of a second moment that is the squared mean; derived: rounding leaves 1e-6, random entries 1/count
MIN_MATRIX_ENTRIES = 16  # entries; ours: fewer may well be alike by accident, or be norms
NAMED = 8
_PASSING = frozenset({"layout", "cast", "dropout", "bias", "select"})


class Places(NamedTuple):
    """In which block each op lies, and which ops are on residual branches."""

    block: dict[int, int]
    branch: frozenset[int]
    last: frozenset[int]
    roles: dict[int, Literal["query", "key", "value"]]
    """What a weight layer's output alone is in an attention."""
    readers: dict[int, list[Op]]
    """The ops that read each value."""


def find_places(trace: Trace, structure: Structure) -> Places:
    """Block, branch and last weight of a branch, by op index."""
    block: dict[int, int] = {}
    branch: set[int] = set()
    last: set[int] = set()
    for index, segments in enumerate(structure.segments):
        for segment in segments:
            block.update(dict.fromkeys(segment.ops, index))
            if segment.sum is not None:
                weights = [op for op in segment.ops if trace.ops[op].kind == "weight"]
                branch.update(weights)
                last.update(weights[-1:])
    return Places(block, frozenset(branch), frozenset(last), _roles(trace), _readers(trace))


def read_weights(trace: Trace, structure: Structure, places: Places) -> tuple[Weight, ...]:
    """One record a weight layer, in order of execution; a shared one once a use."""
    parameters = {parameter.name: parameter for parameter in trace.parameters}
    found = (_weight(trace, op, structure, places, parameters) for op in trace.ops if op.kind == "weight")
    return tuple(weight for weight in found if weight is not None)


def read_clones(trace: Trace, structure: Structure) -> tuple[Clones, ...]:
    """Matrices of one shape with bitwise the same mean and second moment: no two draws have both.

    Without weights the moments are those of the law, alike in all layers; there it is known which draw each is of.
    """
    groups: dict[tuple[object, ...], list[Parameter]] = {}
    for parameter in trace.parameters:
        if (
            len(parameter.shape) > 1
            and parameter.count >= MIN_MATRIX_ENTRIES
            and parameter.ms
            and not is_constant(parameter)
        ):
            draw = (parameter.clone_of or parameter.name) if parameter.init else ""
            groups.setdefault((parameter.shape, parameter.mean, parameter.ms, draw), []).append(parameter)
    return tuple(_clones(group, structure) for group in groups.values() if len(group) > 1)


def is_constant(parameter: Parameter) -> bool:
    """All entries are one number, as far as mean and second moment tell."""
    if parameter.ms is None or parameter.mean is None or parameter.count < MIN_MATRIX_ENTRIES:
        return False
    return parameter.mean**2 >= SAME * parameter.ms


def _clones(group: Sequence[Parameter], structure: Structure) -> Clones:
    names = [parameter.name for parameter in group]
    held = [i for i, block in enumerate(structure.blocks) if any(name in block.params for name in names)]
    shown = names if len(names) <= NAMED else [*names[: NAMED - 1], names[-1]]
    return Clones(names=tuple(shown), count=len(names), layers=(held[0], held[-1]) if held else None)


def _roles(trace: Trace) -> dict[int, Literal["query", "key", "value"]]:
    """Fused attention reads query, key and value in this order; a projection that makes two of them has no role."""
    makers: dict[int, set[Literal["query", "key", "value"]]] = {}
    names: tuple[Literal["query", "key", "value"], ...] = ("query", "key", "value")
    for op in trace.ops:
        for name, value in zip(names, op.inputs, strict=False) if op.kind == "attention" else ():
            maker = _projection(trace, value)
            if maker is not None:
                makers.setdefault(maker, set()).add(name)
    return {maker: next(iter(found)) for maker, found in makers.items() if len(found) == 1}


def _projection(trace: Trace, value: int) -> int | None:
    while (maker := trace.values[value].op) is not None:
        op = trace.ops[maker]
        if op.kind == "weight":
            return maker
        if op.kind not in _PASSING or not op.inputs:
            return None
        value = op.inputs[0]
    return None


def _readers(trace: Trace) -> dict[int, list[Op]]:
    found: dict[int, list[Op]] = {}
    for op in trace.ops:
        for value in op.inputs:
            found.setdefault(value, []).append(op)
    return found


def _weight(
    trace: Trace,
    op: Op,
    structure: Structure,
    places: Places,
    parameters: Mapping[str, Parameter],
) -> Weight | None:
    own = [parameters[name] for name in op.params if name in parameters]
    matrix = next((parameter for parameter in own if len(parameter.shape) > 1), None)
    if matrix is None or matrix.ms is None or (fan_in := fan_in_of(op, matrix)) is None:
        return None
    behind = list(_behind(trace, op, places.readers))
    return Weight(
        block=places.block.get(op.index, -1),
        name=matrix.name,
        fan_in=fan_in,
        fan_out=matrix.count // fan_in if fan_in else 0,
        variance=fan_in * matrix.ms,
        constant=is_constant(matrix),
        trainable=matrix.trainable,
        residual=op.index in places.branch,
        last=op.index in places.last,
        activation=next((each.name for each in behind if each.kind == "activation"), ""),
        norm=next((each.name for each in behind if each.index in structure.norms), ""),
        role=places.roles.get(op.index, ""),
        bias=next((p.name for p in own if len(p.shape) == 1 and p.trainable), ""),
        grad_ms=matrix.grad_ms,
        grad_unseen=bool(matrix.unobserved),
    )


def _behind(trace: Trace, op: Op, readers: Mapping[int, Sequence[Op]]) -> Iterator[Op]:
    """What reads the op's output, seen through ops that only pass it on; nothing where it is read twice."""
    value = op.outputs[0]
    for _ in range(len(trace.ops)):
        found = readers.get(value, ())
        if len(found) != 1:
            return
        yield found[0]
        if found[0].kind not in _PASSING:
            return
        value = found[0].outputs[0]
