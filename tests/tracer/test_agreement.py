"""Statistics in a trace agree with what plain tensor hooks see at every simple layer of every model in the zoo."""

from __future__ import annotations

import math
from collections import Counter
from dataclasses import dataclass

import pytest
import torch
from torch import Tensor, nn

from leadline import Case, Trace
from leadline.records import Stats
from tests.support.traces import trace, trace_of
from tests.support.zoo import ZOO, Specimen, animals
from tests.support.zoo.plain_run import call, loss_of

SIMPLE = (nn.Linear, nn.Conv2d, nn.BatchNorm1d, nn.BatchNorm2d, nn.LayerNorm, nn.Tanh, nn.ReLU, nn.Embedding)
TOLERANCE = 1e-5  # float32 sums of a few hundred terms err by about 1e-7


@dataclass(slots=True)
class Seen:
    """Mean squares of what one call of one layer gave, and of the gradient that came back."""

    forward: float
    backward: float | None = None


def mean_square(x: Tensor) -> float:
    return x.detach().to_dense().abs().double().square().mean().item()


def hooked_run(case: Case) -> dict[tuple[str, int], Seen]:
    """The slow, obvious implementation: a forward hook on each layer, a tensor hook on each output."""
    seen: dict[tuple[str, int], Seen] = {}
    calls: Counter[str] = Counter()
    losses: list[Tensor] = []

    def watch(path: str, output: Tensor) -> None:
        record = seen[path, calls[path]] = Seen(mean_square(output))
        calls[path] += 1
        if output.requires_grad:
            output.register_hook(lambda gradient: arrive(record, gradient))

    def arrive(record: Seen, gradient: Tensor) -> None:
        if losses:  # not one that the forward pass takes for itself
            record.backward = mean_square(gradient)

    for path, module in case.model.named_modules():
        if type(module) in SIMPLE:
            name = path.replace("_orig_mod.", "")
            module.register_forward_hook(lambda module, args, output, name=name: watch(name, output))
    torch.manual_seed(1)
    with torch.compiler.set_stance("force_eager"):
        losses.append(loss_of(case, call(case)))
    losses[0].backward()
    return seen


def traced(found: Trace) -> dict[tuple[str, int], tuple[Stats | None, Stats | None]]:
    """Forward and backward statistics of the last value that each call of a module wrote."""
    last = {(op.module, op.call): found.values[op.outputs[0]] for op in found.ops if op.phase == "forward"}
    return {key: (value.forward, value.backward) for key, value in last.items()}


def assert_agrees(found: Stats | None, expected: float | None, tolerance: float, where: object) -> None:
    if expected is None:
        assert found is None, where
    else:
        assert found is not None, where
        assert found.ms == pytest.approx(expected, rel=tolerance, nan_ok=True), where


@pytest.mark.parametrize("animal", animals(without=["deep", "recomputes", "transforms"]))
def test_every_simple_layer_has_the_statistics_that_plain_hooks_see(animal: Specimen):
    expected, case = hooked_run(animal()), animal()
    torch.manual_seed(1)
    found = traced(trace(case))
    for where, seen in expected.items():
        forward, backward = found[where]
        assert_agrees(forward, seen.forward, TOLERANCE, where)
        assert_agrees(backward, seen.backward, TOLERANCE, where)


@pytest.mark.parametrize("animal", animals())
def test_every_float_value_the_pass_wrote_is_measured_or_says_why_not(animal: Specimen):
    silent = [
        (value.id, value.dtype)
        for value in trace_of(animal).values
        if value.floating and value.op is not None and value.forward is None and not value.unobserved
    ]
    assert silent == []


@pytest.mark.parametrize("animal", animals())
def test_a_trace_is_in_single_assignment_form(animal: Specimen):
    """Each value is written once, by the op it names, before it is read; ids are positions."""
    found = trace_of(animal)
    assert [value.id for value in found.values] == list(range(len(found.values)))
    assert [op.index for op in found.ops] == list(range(len(found.ops)))
    writers = [(value, op.index) for op in found.ops for value in op.outputs]
    assert len({value for value, _ in writers}) == len(writers)
    assert all(found.values[value].op == index for value, index in writers)
    for op in found.ops:
        assert all(
            (found.values[value].op is None) or found.values[value].op < op.index for value in op.inputs
        ), op
    for value in found.values:
        assert (value.op is None) != (value.source is None), value


@pytest.mark.parametrize("animal", animals())
def test_a_trace_survives_json(animal: Specimen):
    found = trace_of(animal)
    assert Trace.from_json(found.to_json()).to_json() == found.to_json()


@pytest.mark.parametrize("animal", animals(without=["transforms"]))
def test_the_loss_is_reached_from_a_batch_input(animal: Specimen):
    """Every tensor's provenance is known: walking back from the loss ends at the batch, parameters and constants."""
    found = trace_of(animal)
    todo, seen = [found.loss_value], set()
    while todo:
        value = todo.pop()
        if value not in seen:
            seen.add(value)
            made_by = found.values[value].op
            todo.extend(() if made_by is None else found.ops[made_by].inputs)
    reached = {found.values[value].source for value in seen}
    assert "input" in reached
    assert "parameter" in reached


def test_two_traces_of_one_model_are_equal():
    case = ZOO["encoder-pre-norm"]()
    assert trace(case).to_json() == trace(case).to_json()


def test_a_wrong_statistic_is_caught():
    right = Stats(count=1, mean=0.0, ms=1.0, abs_max=1.0, zero_share=0.0, non_finite=0)
    assert_agrees(right, 1.0, TOLERANCE, "")
    for wrong in (1.01, None, math.nan):
        with pytest.raises(AssertionError):
            assert_agrees(right, wrong, TOLERANCE, "")
