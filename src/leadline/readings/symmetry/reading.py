"""The symmetry reading: from a trace to the group of free rescalings, without torch."""

from __future__ import annotations

import re
from collections.abc import Container, Iterable, Mapping, Sequence
from math import exp, sqrt

from leadline.readings.symmetry.cone import combine_generators, find_balance, find_descent
from leadline.readings.symmetry.equations import EpsGuard, ScaleEquations
from leadline.readings.symmetry.lost_biases import find_subtracted
from leadline.readings.symmetry.scale_rules import pass_scale
from leadline.readings.symmetry.system import Solution, Vector, make_basis
from leadline.records import EpsSite, Generator, Op, Parameter, ScaledTensor, Symmetry, Trace

# Heuristic: six names fit on one line of a report.
MAX_LISTED_NAMES = 6


def describe_generator(exponents: Mapping[str, int]) -> str:
    """What a generator multiplies, and what it divides in return."""
    up = {name: each for name, each in exponents.items() if each > 0}
    down = {name: -each for name, each in exponents.items() if each < 0}
    if not down:
        return f"{_list(up)}: {'free alone' if len(up) == 1 else 'free together'}"
    return f"{_list(up)} against {_list(down)}"


def _list(exponents: Mapping[str, int]) -> str:
    """Names with their powers; names that differ only in a number are counted."""
    grouped: dict[tuple[str, int], list[str]] = {}
    for name, exponent in exponents.items():
        grouped.setdefault((re.sub(r"\d+", "*", name), exponent), []).append(name)
    entries = [_entry(names, pattern, power) for (pattern, power), names in grouped.items()]
    hidden = len(entries) - MAX_LISTED_NAMES
    return ", ".join(entries[:MAX_LISTED_NAMES]) + (f" and {hidden} more" if hidden > 0 else "")


def _entry(names: list[str], pattern: str, exponent: int) -> str:
    power = f"^{exponent}" if exponent != 1 else ""
    return f"{names[0]}{power}" if len(names) == 1 else f"{len(names)} x {pattern}{power}"


def list_names(names: Iterable[str]) -> str:
    """A list of names; names that differ only in a number are counted."""
    return _list(dict.fromkeys(names, 1))


def read_symmetry(trace: Trace, *, in_front_of_norms: bool = True, only_in_training: bool = True) -> Symmetry:
    """Which parameters of the traced network can be rescaled without changing what it computes.

    Neither the loss nor any tensor that the loss reads from the model may change. The eps of a norm is taken as zero;
    without `in_front_of_norms` only rescalings count that no eps can notice. Biases that a batch norm subtracts are
    free in training; without `only_in_training` they count as part of the signal, so that the same rescalings, applied
    to the running statistics too, hold in evaluation.
    """
    scales = ScaleEquations(trace)
    scales.subtracted = find_subtracted(scales) if only_in_training else set()
    for op in scales.ops:
        _add_equations(scales, op)
    if trace.loss_value is not None:
        scales.forbid([scales.of(f"%{trace.loss_value}")])
    if not in_front_of_norms:
        scales.forbid(guard.degree for guard in scales.guards)
    solution = scales.system.solve()
    forms = {name: solution.form(each) for name, each in scales.parameters.items()}
    followers = {name: solution.form(each) for name, each in scales.statistics.items()}
    basis = make_basis(forms, followers)
    vectors = [own for own, _ in basis]
    parameters = [each for each in trace.parameters if each.name in forms]
    decays = decay_by_name(trace)
    counted = decays or forms
    inert = {
        name
        for name, each in combine_generators(vectors, find_descent(vectors, counted)).items()
        if each < 0 and name in counted
    }
    alone = {name for vector in vectors if len(vector) == 1 for name in vector}
    return Symmetry(
        generators=tuple(
            Generator(exponents=own, says=describe_generator(own), statistics=rest) for own, rest in basis
        ),
        tensors=tuple(_tensor(each, alone, inert) for each in parameters),
        decayed=bool(decays),
        eps=tuple(_eps_site(trace, guard) for guard in scales.guards if _is_free(guard, solution)),
        held=tuple(dict.fromkeys([*scales.held, *_unseen_parameters(trace, forms)])),
        **_penalties(parameters, vectors, decays, inert),
    )


def _add_equations(scales: ScaleEquations, op: Op) -> None:
    """Add the equations of one op; a value that the loss reads from the model may not scale."""
    if op.phase == "loss":
        values = [scales.trace.values[each] for each in op.inputs]
        outputs = [
            each for each in values if each.op is not None and scales.trace.ops[each.op].phase == "forward"
        ]
        scales.forbid(scales.of(f"%{each.id}") for each in outputs if each.floating)
    pass_scale(scales, op)


def _unseen_parameters(trace: Trace, forms: Container[str]) -> list[str]:
    """Trainable parameters with a gradient that no recorded op reads (TorchScript): nothing is known about them."""
    return [
        each.name for each in trace.parameters if each.trainable and each.grad_ms and each.name not in forms
    ]


def decay_by_name(trace: Trace) -> dict[str, float]:
    """The weight decay of each parameter that has one."""
    groups = () if trace.optimizer is None else trace.optimizer.groups
    return {
        name: group.weight_decay for group in groups for name in group.parameters if group.weight_decay > 0
    }


def _penalties(
    parameters: Sequence[Parameter],
    vectors: Sequence[Vector],
    decays: Mapping[str, float],
    inert: Iterable[str],
) -> dict[str, float | None]:
    """The penalty now, and its minimum along the free directions."""
    shrinkable = set(inert)
    counted = [each for each in parameters if not decays or each.name in decays]
    if any(each.norm is None for each in counted):
        return {"penalty": None, "least": None}
    now = {each.name: decays.get(each.name, 1.0) * (each.norm or 0.0) ** 2 for each in counted}
    remaining = {name: square for name, square in now.items() if name not in shrinkable}
    moves = combine_generators(vectors, find_balance(vectors, remaining))
    least = sum(square * exp(2 * moves.get(name, 0.0)) for name, square in remaining.items())
    return {"penalty": sum(now.values()), "least": least}


def _tensor(parameter: Parameter, alone: Container[str], inert: Container[str]) -> ScaledTensor:
    return ScaledTensor(
        name=parameter.name,
        kind=parameter.kind,
        count=parameter.count,
        norm=parameter.norm,
        grad_norm=parameter.grad_norm,
        alone=parameter.name in alone,
        inert=parameter.name in inert,
    )


def _eps_site(trace: Trace, guard: EpsGuard) -> EpsSite:
    op, stats = trace.ops[guard.op], trace.values[guard.value].forward
    if stats is None:
        size = _predicted_size(trace, guard)
    elif op.name == "rms_norm":
        size = stats.ms
    else:
        size = stats.var if guard.squared else abs(stats.mean)
    return EpsSite(where=op.module or op.name, eps=guard.eps, against=size)


def _predicted_size(trace: Trace, guard: EpsGuard) -> float | None:
    """What theory predicts for the quantity to which eps is added, if it was not measured.

    Theory predicts second moments. A norm written op by op adds eps to a variance, which hardly varies: its size is the
    root of its second moment.
    """
    producer = trace.values[guard.value].op
    ms = None if producer is None else trace.ops[producer].forward_ms_predicted
    if ms is None or guard.squared or trace.ops[guard.op].name == "rms_norm":
        return ms
    return sqrt(ms)


def _is_free(guard: EpsGuard, solution: Solution) -> bool:
    return guard.degree is not None and bool(solution.form(guard.degree))
