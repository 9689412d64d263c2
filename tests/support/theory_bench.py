"""One op on Gaussian tensors with a random gradient: what the rule says, and what was measured."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from leadline.readings.theory.prediction import predict
from leadline.records import Op, Trace
from leadline.tracer.trace import trace

SEED = 20260801


class Bench(nn.Module):
    """Parameters are the operands, so that all that theory knows of them is their mean and mean square."""

    def __init__(self, function: Callable[..., Tensor], *operands: Tensor) -> None:
        super().__init__()
        self.operands = nn.ParameterList(nn.Parameter(each) for each in operands)
        self.function = function

    def forward(self, noise: Tensor) -> Tensor:
        read = [operand * 1.0 for operand in self.operands]
        made = self.function(*read)
        return made if made.ndim == 0 else (made * noise).sum()


@dataclass(frozen=True)
class Comparison:
    """Predicted and measured second moments: of the output, and of the gradient of the first operand."""

    forward: tuple[float, float]
    backward: tuple[float, float]
    mean: tuple[float, float]
    refusals: dict[int, str]
    judged: str
    """The op whose output is compared."""
    recorded: frozenset[str]
    """All ops of the pass."""


def compare(function: Callable[..., Tensor], *operands: Tensor, draw: int = 0) -> Comparison:
    torch.manual_seed(SEED + draw)
    with torch.no_grad():
        noise = torch.randn(function(*operands).shape)
    bench = Bench(function, *operands)
    seen = trace(bench, noise, loss=lambda out: out)
    found = predict(seen)
    op = _judged(seen)
    made, read = op.outputs[0], _first_operand(seen)
    stats, back = seen.values[made].forward, seen.values[read].backward
    assert stats is not None
    field = found.forward.predicted.get(made)
    gradient = found.backward.fields.get(read)
    return Comparison(
        forward=(math.nan if field is None else field.ms, stats.ms),
        backward=(math.nan if gradient is None else gradient.ms, math.nan if back is None else back.ms),
        mean=(math.nan if field is None else field.mean, stats.mean),
        refusals=found.forward.refusals,
        judged=op.name,
        recorded=frozenset(each.name for each in seen.ops),
    )


def _judged(seen: Trace) -> Op:
    """The op whose output is multiplied by the noise, or is the loss."""
    last = seen.ops[-1]
    scalar = last.name != "sum" or seen.ops[-2].name != "mul"
    maker = last.index if scalar else seen.values[seen.ops[-2].inputs[0]].op
    assert maker is not None
    return seen.ops[maker]


def _first_operand(seen: Trace) -> int:
    return next(op for op in seen.ops if op.name == "mul").outputs[0]
