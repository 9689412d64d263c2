"""The weight layers of a trace: their size, the ops that read them, and which of them start as copies."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Literal, NamedTuple

from leadline.readings.attribution import fan_in_of
from leadline.readings.structure import Structure
from leadline.records import Clones, Op, Parameter, Trace, Weight

# Derived: share of the second moment that is the squared mean; equal entries give 1 - 1e-6 by rounding, random
# entries 1/count.
MIN_CONSTANT_SHARE = 0.999
# Heuristic: fewer entries may be equal by chance, or belong to a norm.
MIN_MATRIX_ENTRIES = 16
# Heuristic: more names would crowd the report.
MAX_NAMES = 8
# Kinds of ops that pass a signal on to its reader.
_PASSING = frozenset({"layout", "cast", "dropout", "bias", "select"})


class OpPlaces(NamedTuple):
    """The block of each op, and the ops on residual branches."""

    block: dict[int, int]
    branch: frozenset[int]
    last: frozenset[int]
    roles: dict[int, Literal["query", "key", "value"]]
    """The role of a weight layer in an attention, where its output has only one."""
    readers: dict[int, list[Op]]
    """The ops that read each value."""


def find_places(trace: Trace, structure: Structure) -> OpPlaces:
    """The block of each op, the weights on branches and the last weight of each branch."""
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
    return OpPlaces(block, frozenset(branch), frozenset(last), _roles(trace), _readers(trace))


def read_weights(trace: Trace, structure: Structure, places: OpPlaces) -> tuple[Weight, ...]:
    """One record per weight layer, in order of execution; a shared layer has one per use."""
    parameters = {parameter.name: parameter for parameter in trace.parameters}
    weights = (_weight(trace, op, structure, places, parameters) for op in trace.ops if op.kind == "weight")
    return tuple(weight for weight in weights if weight is not None)


def read_clones(trace: Trace, structure: Structure) -> tuple[Clones, ...]:
    """Groups of matrices that start as copies: equal in shape and bitwise equal in mean and second moment.

    Two random draws do not agree in both moments. Without weights the moments are those of the distribution, equal in
    all layers; there the trace says which draw each matrix comes from. A matrix that does not learn is not counted: the
    target network of BYOL or DQN is a copy by design and gets no gradient.
    """
    learned = any(parameter.grad_ms is not None for parameter in trace.parameters)
    groups: dict[tuple[object, ...], list[Parameter]] = {}
    for parameter in trace.parameters:
        if (
            len(parameter.shape) > 1
            and parameter.count >= MIN_MATRIX_ENTRIES
            and parameter.ms
            and not is_constant(parameter)
            and parameter.trainable
            and (parameter.grad_ms is not None or parameter.unobserved or not learned)
        ):
            draw = (parameter.clone_of or parameter.name) if parameter.init else ""
            groups.setdefault((parameter.shape, parameter.mean, parameter.ms, draw), []).append(parameter)
    return tuple(_clones(group, structure) for group in groups.values() if len(group) > 1)


def is_constant(parameter: Parameter) -> bool:
    """Whether all entries are equal, judged by mean and second moment."""
    if parameter.ms is None or parameter.mean is None or parameter.count < MIN_MATRIX_ENTRIES:
        return False
    return parameter.mean**2 >= MIN_CONSTANT_SHARE * parameter.ms


def _clones(group: Sequence[Parameter], structure: Structure) -> Clones:
    names = [parameter.name for parameter in group]
    holders = [i for i, block in enumerate(structure.blocks) if any(name in block.params for name in names)]
    shown = names if len(names) <= MAX_NAMES else [*names[: MAX_NAMES - 1], names[-1]]
    return Clones(names=tuple(shown), count=len(names), layers=(holders[0], holders[-1]) if holders else None)


def _roles(trace: Trace) -> dict[int, Literal["query", "key", "value"]]:
    """Roles of weight layers: fused attention reads query, key and value in this order; two roles count as none."""
    roles: dict[int, set[Literal["query", "key", "value"]]] = {}
    names: tuple[Literal["query", "key", "value"], ...] = ("query", "key", "value")
    for op in trace.ops:
        for name, value in zip(names, op.inputs, strict=False) if op.kind == "attention" else ():
            projection = _projection(trace, value)
            if projection is not None:
                roles.setdefault(projection, set()).add(name)
    return {op: next(iter(each)) for op, each in roles.items() if len(each) == 1}


def _projection(trace: Trace, value: int) -> int | None:
    while (producer := trace.values[value].op) is not None:
        op = trace.ops[producer]
        if op.kind == "weight":
            return producer
        if op.kind not in _PASSING or not op.inputs:
            return None
        value = op.inputs[0]
    return None


def _readers(trace: Trace) -> dict[int, list[Op]]:
    readers: dict[int, list[Op]] = {}
    for op in trace.ops:
        for value in op.inputs:
            readers.setdefault(value, []).append(op)
    return readers


def _weight(
    trace: Trace,
    op: Op,
    structure: Structure,
    places: OpPlaces,
    parameters: Mapping[str, Parameter],
) -> Weight | None:
    own = [parameters[name] for name in op.params if name in parameters]
    matrix = next((parameter for parameter in own if len(parameter.shape) > 1), None)
    if matrix is None or matrix.ms is None or (fan_in := fan_in_of(op, matrix)) is None:
        return None
    following = list(_following(trace, op, places.readers))
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
        activation=next((each.name for each in following if each.kind == "activation"), ""),
        norm=next((each.name for each in following if each.index in structure.norms), ""),
        role=places.roles.get(op.index, ""),
        bias=next((p.name for p in own if len(p.shape) == 1 and p.trainable), ""),
        grad_ms=matrix.grad_ms,
        grad_unseen=bool(matrix.unobserved),
    )


def _following(trace: Trace, op: Op, readers: Mapping[int, Sequence[Op]]) -> Iterator[Op]:
    """The ops that read the op's output, through ops that only pass it on; ends where a value has several readers."""
    value = op.outputs[0]
    for _ in range(len(trace.ops)):
        following = readers.get(value, ())
        if len(following) != 1:
            return
        yield following[0]
        if following[0].kind not in _PASSING:
            return
        value = following[0].outputs[0]
