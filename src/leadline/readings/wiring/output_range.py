"""Targets that the last activation of the model cannot reach: negative ones behind a ReLU, large ones behind a tanh."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Collection, Iterator

from torch import Tensor

from leadline.case import Case
from leadline.ops.table import LAYOUT_KINDS
from leadline.records import Op, Trace
from leadline.records.wiring import OpSite, OutputRange
from leadline.tracer.inputs import named_tensors
from leadline.tracer.passes import Pass

# Derived: the least and the largest value of each function; those of GELU and SiLU are their minima.
RANGES = {
    "relu": (0.0, math.inf),
    "relu6": (0.0, 6.0),
    "sigmoid": (0.0, 1.0),
    "hardsigmoid": (0.0, 1.0),
    "softmax": (0.0, 1.0),
    "tanh": (-1.0, 1.0),
    "hardtanh": (-1.0, 1.0),
    "softplus": (0.0, math.inf),
    "exp": (0.0, math.inf),
    "elu": (-1.0, math.inf),
    "gelu": (-0.17, math.inf),
    "silu": (-0.2785, math.inf),
}
PROBABILITY_LOSSES = frozenset(["binary_cross_entropy", "binary_cross_entropy_with_logits"])
"""Losses that compare probabilities, which they make of scores or are given, with targets between 0 and 1."""
LOGARITHMS = frozenset(["log", "log2", "log10", "log1p", "logsigmoid", "softplus"])
"""Ops by which a handwritten cross entropy takes the logarithm of a probability."""
DISTANCES = frozenset(["mse_loss", "l1_loss", "smooth_l1_loss", "huber_loss"])
"""Losses that are zero only where the output is the target."""
# Heuristic: relative to the size of the targets; less is rounding, or the noise of a quantity that is never negative.
MAX_OVERSHOOT = 0.01


def read_output_range(case: Case, trace: Trace, base: Pass) -> OutputRange | None:
    """The range of the outputs that a distance compares with targets, and the share of the targets outside of it.

    Of several such outputs, the one with most targets outside; None if no last activation has a range.
    """
    found = [
        _measure(op, target, RANGES[op.name])
        for op, target in _compared(case, trace, base)
        if op is not None and op.name in RANGES
    ]
    found += [
        _measure(op, target, RANGES["sigmoid"])
        for op, target in _loss_targets(trace, base, PROBABILITY_LOSSES)
        if target is not None
    ]
    found += [_measure(op, target, RANGES["sigmoid"]) for op, target in _own_probabilities(case, trace)]
    return max(found, key=lambda each: each.outside, default=None)


def _own_probabilities(case: Case, trace: Trace) -> Iterator[tuple[Op, Tensor]]:
    """Sigmoids that a handwritten loss makes of all outputs, with targets of the same shape."""
    target = case.targets
    if (
        not isinstance(target, Tensor)
        or not target.is_floating_point()
        or any(op.kind == "loss" for op in trace.ops)
    ):
        return
    if not any(op.phase == "loss" and op.name in LOGARITHMS for op in trace.ops):
        return  # a sigmoid without a logarithm may be a weight
    makers = {value: op for op in trace.ops for value in op.outputs}
    for op in trace.ops:
        if op.phase == "loss" and op.name in ("sigmoid", "logsigmoid") and op.inputs:
            maker = _maker(makers, op.inputs[0])
            is_output = maker is not None and maker.phase == "forward"
            if is_output and trace.values[op.inputs[0]].shape == tuple(target.shape):
                yield op, target


def _measure(op: Op, target: Tensor, limits: tuple[float, float]) -> OutputRange:
    low, high = limits
    values = target.detach().double()
    margin = MAX_OVERSHOOT * float(values.abs().max()) if values.numel() else 0.0
    outside = (values < low - margin) | (values > high + margin)
    return OutputRange(
        site=OpSite(op=op.name, module=op.module, source=op.source),
        low=low,
        high=high,
        outside=float(outside.double().mean()) if values.numel() else 0.0,
    )


def _compared(case: Case, trace: Trace, base: Pass) -> Iterator[tuple[Op | None, Tensor]]:
    """What made each output that is compared with targets, and the targets: in loss ops, and in differences by hand."""
    makers = {value: op for op in trace.ops for value in op.outputs}
    for op, expected in _loss_targets(trace, base, DISTANCES):
        if expected is not None and op.inputs:
            yield _maker(makers, op.inputs[0]), expected
    given = dict(named_tensors(case.targets, "target"))
    for op in trace.ops:
        if op.name in ("sub", "rsub") and op.phase == "loss" and len(op.inputs) == 2:
            for output, target in (op.inputs, op.inputs[::-1]):
                value = trace.values[target]
                if value.source == "target" and value.name in given and given[value.name].is_floating_point():
                    yield _maker(makers, output), given[value.name]


def _loss_targets(trace: Trace, base: Pass, names: Collection[str]) -> Iterator[tuple[Op, Tensor | None]]:
    """The calls of these loss ops in the trace, with the targets of the same call in the pass."""
    calls = {name: [each for each in base.loss_calls if each.name == name] for name in names}
    seen: Counter[str] = Counter()
    for op in trace.ops:
        if op.name in names:
            number, seen[op.name] = seen[op.name], seen[op.name] + 1
            yield op, calls[op.name][number].targets if number < len(calls[op.name]) else None


def _maker(makers: dict[int, Op], value: int) -> Op | None:
    """The op that computed the value, before its elements were moved."""
    op = makers.get(value)
    while op is not None and op.kind in LAYOUT_KINDS and op.inputs:
        op = makers.get(op.inputs[0])
    return op
