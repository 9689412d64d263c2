"""The account of a prediction: coverage, agreement, and the first op where theory and measurement differ."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator
from typing import Literal

from leadline.readings.theory.moments import find_moment_rule
from leadline.readings.theory.prediction import Prediction, first_floating, predict
from leadline.readings.theory.write import reads_uninitialized
from leadline.records import Agreement, Op, Parting, Theory, Trace

# Heuristic: standard deviations by which an op may differ; by chance one op in 16 000 differs by more.
MAX_SIGMAS = 4.0

# Calibrated by benchmarks/theory_accuracy.py: the accuracy that each rule reaches on its own, as a log ratio.
MAX_OWN_ERROR = {"forward": math.log(1.15), "backward": math.log(1.5)}

Direction = Literal["forward", "backward"]


def account_for(trace: Trace, prediction: Prediction) -> Theory:
    """What theory covers and where it holds; a second run on measured values isolates the error of each rule."""
    live = [op for op in trace.ops if carries_signal(trace, op, prediction)]
    refused = Counter(op.name for op in live if op.index in prediction.forward.refusals)
    isolated = None if trace.loss is None else predict(trace, prediction.facts, from_measured=True)
    anchors = dict.fromkeys((*prediction.forward.anchors, *prediction.backward.anchors))
    alive = {op.index for op in live}
    return Theory(
        ops=len(live),
        with_rule=len(live) - refused.total(),
        without=dict(refused.most_common()),
        anchored=tuple(f"{trace.ops[op].module}: {trace.ops[op].name}" for op in anchors if op in alive),
        forward=_agreement(trace, prediction, live, "forward"),
        backward=_agreement(trace, prediction, live, "backward"),
        forward_parting=None if isolated is None else _parting(trace, prediction, isolated, live, "forward"),
        backward_parting=None
        if isolated is None
        else _parting(trace, prediction, isolated, live[::-1], "backward"),
    )


def carries_signal(trace: Trace, op: Op, prediction: Prediction) -> bool:
    """Whether an op writes a nonempty floating-point tensor that depends on the batch or on parameters."""
    value = first_floating(trace, op)
    return value is not None and value in prediction.facts.live and 0 not in trace.values[value].shape


def _error(trace: Trace, prediction: Prediction, op: Op, direction: Direction) -> float | None:
    """ln(predicted / measured); None if one of them is missing, zero or not finite."""
    value = first_floating(trace, op)
    if value is None or prediction.forward.signals.get(value) is None:
        return None
    record = trace.values[value]
    stats = record.forward if direction == "forward" else record.backward
    fields = prediction.forward.predicted if direction == "forward" else prediction.backward.fields
    field = fields.get(value)
    signal = prediction.forward.signals[value]
    masked = direction == "forward" and (signal.visible_share is not None or reads_uninitialized(signal))
    if field is None or stats is None or masked or not (0 < stats.ms < math.inf and 0 < field.ms < math.inf):
        return None
    return math.log(field.ms / stats.ms)


def _agreement(
    trace: Trace, prediction: Prediction, live: list[Op], direction: Direction
) -> Agreement | None:
    log_ratios = (_error(trace, prediction, op, direction) for op in live)
    errors = sorted(abs(each) for each in log_ratios if each is not None)
    if not errors:
        return None
    place = min(int(0.9 * len(errors)), len(errors) - 1)
    return Agreement(ops=len(errors), median=errors[len(errors) // 2], p90=errors[place])


def _parting(
    trace: Trace, prediction: Prediction, isolated: Prediction, ordered: list[Op], direction: Direction
) -> Parting | None:
    return next(_partings(trace, prediction, isolated, ordered, direction), None)


def _partings(
    trace: Trace, prediction: Prediction, isolated: Prediction, ordered: list[Op], direction: Direction
) -> Iterator[Parting]:
    signals, sources = isolated.forward.signals, isolated.forward.sources
    for op in ordered:
        value, error = first_floating(trace, op), _error(trace, isolated, op, direction)
        if value is None or error is None:
            continue
        band = MAX_OWN_ERROR[direction] + MAX_SIGMAS * math.sqrt(
            max(sources.fluctuation(signals[value]), 0.0)
        )
        if abs(error) > band:
            overall = _error(trace, prediction, op, direction)
            yield Parting(
                direction=direction,
                op=op.index,
                name=op.name,
                module=op.module,
                factor=math.exp(-error),
                inherited=None if overall is None else math.exp(-overall),
                band=band,
                assumption=_assumption(trace, op, direction),
            )


def _assumption(trace: Trace, op: Op, direction: Direction) -> str:
    """The assumption that fails; copied weights are recognized by their equal moments."""
    if direction == "backward":
        readers = [each for each in trace.ops if set(op.outputs) & set(each.inputs)]
        reader_rules = [find_moment_rule(each.name) for each in readers]
        assumption = next((rule.assumes for rule in reader_rules if rule is not None and rule.assumes), "")
        also = f", and {assumption}" if assumption else ""
        return f"gradients are independent of the signal{also}"
    weights = (each for each in trace.parameters if each.ms and each.kind in ("matrix", "conv"))
    # float32 sums agree in these digits
    moments = {each.name: f"{each.mean:.4g} {each.ms:.5g}" for each in weights}
    copies = [name for name in op.params if list(moments.values()).count(moments.get(name, "")) > 1]
    if copies:
        return f"each layer has its own random weights: {copies[0]} is a copy of another"
    rule = find_moment_rule(op.name)
    return rule.assumes if rule is not None and rule.assumes else "elements are Gaussian"
