"""The account of a prediction: coverage, agreement, and where theory and measurement part first."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator
from typing import Literal

from leadline.readings.theory.moments import find_moment_rule
from leadline.readings.theory.prediction import Prediction, first_floating, predict
from leadline.readings.theory.signal import fluctuation
from leadline.records import Agreement, Op, Parting, Theory, Trace

SIGMAS = 4.0  # own fluctuations an op may stray by; ours: one op in 16 000 by chance
SLACK = {
    "forward": math.log(1.15),
    "backward": math.log(1.5),
}  # its goals: benchmarks/theory_accuracy.py

Direction = Literal["forward", "backward"]


def account_for(trace: Trace, found: Prediction) -> Theory:
    """What theory covers and where it holds; runs it again on measured values, to tell own errors."""
    live = [op for op in trace.ops if carries_signal(trace, op, found)]
    refused = Counter(op.name for op in live if op.index in found.forward.refusals)
    alone = None if trace.loss is None else predict(trace, from_measured=True)
    anchors = dict.fromkeys((*found.forward.anchors, *found.backward.anchors))
    alive = {op.index for op in live}
    return Theory(
        ops=len(live),
        with_rule=len(live) - refused.total(),
        without=dict(refused.most_common()),
        anchored=tuple(f"{trace.ops[op].module}: {trace.ops[op].name}" for op in anchors if op in alive),
        forward=_agreement(trace, found, live, "forward"),
        backward=_agreement(trace, found, live, "backward"),
        forward_parting=None if alone is None else _parting(trace, found, alone, live, "forward"),
        backward_parting=None if alone is None else _parting(trace, found, alone, live[::-1], "backward"),
    )


def carries_signal(trace: Trace, op: Op, found: Prediction) -> bool:
    """Writes a floating tensor, with elements, that depends on the batch or on parameters."""
    value = first_floating(trace, op)
    return value is not None and value in found.facts.live and 0 not in trace.values[value].shape


def _error(trace: Trace, found: Prediction, op: Op, direction: Direction) -> float | None:
    """ln(predicted / measured); None if one of them is missing, zero or no number."""
    value = first_floating(trace, op)
    if value is None or found.forward.signals.get(value) is None:
        return None
    record = trace.values[value]
    stats = record.forward if direction == "forward" else record.backward
    fields = found.forward.predicted if direction == "forward" else found.backward.fields
    field = fields.get(value)
    masked = direction == "forward" and found.forward.signals[value].valid is not None
    if field is None or stats is None or masked or not (0 < stats.ms < math.inf and 0 < field.ms < math.inf):
        return None
    return math.log(field.ms / stats.ms)


def _agreement(trace: Trace, found: Prediction, live: list[Op], direction: Direction) -> Agreement | None:
    errors = sorted(abs(each) for op in live if (each := _error(trace, found, op, direction)) is not None)
    if not errors:
        return None
    place = min(int(0.9 * len(errors)), len(errors) - 1)
    return Agreement(ops=len(errors), median=errors[len(errors) // 2], p90=errors[place])


def _parting(
    trace: Trace, found: Prediction, alone: Prediction, ordered: list[Op], direction: Direction
) -> Parting | None:
    return next(_partings(trace, found, alone, ordered, direction), None)


def _partings(
    trace: Trace, found: Prediction, alone: Prediction, ordered: list[Op], direction: Direction
) -> Iterator[Parting]:
    for op in ordered:
        value, error = first_floating(trace, op), _error(trace, alone, op, direction)
        if value is None or error is None:
            continue
        band = SLACK[direction] + SIGMAS * math.sqrt(max(fluctuation(alone.forward.signals[value]), 0.0))
        if abs(error) > band:
            whole = _error(trace, found, op, direction)
            yield Parting(
                direction=direction,
                op=op.index,
                name=op.name,
                module=op.module,
                factor=math.exp(-error),
                inherited=None if whole is None else math.exp(-whole),
                band=band,
                assumption=_assumption(trace, op, direction),
            )


def _assumption(trace: Trace, op: Op, direction: Direction) -> str:
    """What the rule takes for granted; cloned weights are recognised by their equal moments."""
    if direction == "backward":
        readers = [each for each in trace.ops if set(op.outputs) & set(each.inputs)]
        reader_rules = [find_moment_rule(each.name) for each in readers]
        said = next((rule.assumes for rule in reader_rules if rule is not None and rule.assumes), "")
        return f"gradients are independent of the signal{', and ' + said if said else ''}"
    weights = (each for each in trace.parameters if each.ms and each.kind in ("matrix", "conv"))
    own = {
        each.name: f"{each.mean:.4g} {each.ms:.5g}" for each in weights
    }  # digits that float32 sums agree in
    twins = [name for name in op.params if name in own and list(own.values()).count(own[name]) > 1]
    if twins:
        return f"weights are drawn anew for each layer: {twins[0]} is a copy of another"
    rule = find_moment_rule(op.name)
    return rule.assumes if rule is not None and rule.assumes else "elements are Gaussian"
