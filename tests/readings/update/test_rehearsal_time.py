"""A rehearsal that runs out of time keeps what it has, or says that it has too little."""

from __future__ import annotations

import itertools
from collections.abc import Callable

import pytest
import torch

from leadline.readings.update.rehearsal import (
    MIN_REHEARSAL_STEPS,
    RehearsalBatches,
    RehearsalTimeoutError,
    rehearse,
    train_references,
)
from leadline.tracer.trace import trace_case
from tests.readings.update.test_rehearsal import mlp_case


def late_after(questions: int) -> Callable[[], bool]:
    """A clock that is late once it was asked that often."""
    asked = itertools.count(1)
    return lambda: next(asked) > questions


def test_too_few_steps_for_an_answer_are_a_timeout():
    case = mlp_case(lr=0.05)
    with pytest.raises(RehearsalTimeoutError):
        rehearse(case, trace_case(case), is_late=late_after(MIN_REHEARSAL_STEPS))


def test_steps_that_were_made_in_time_are_kept():
    case = mlp_case(lr=1e-4)
    found = rehearse(case, trace_case(case), is_late=late_after(MIN_REHEARSAL_STEPS + 3))
    assert found.steps == MIN_REHEARSAL_STEPS + 2
    assert found.references == ()


@pytest.mark.parametrize("questions", [0, 5])
def test_references_that_are_not_ready_in_time_are_left_out_and_undone(questions: int):
    case = mlp_case(lr=1e-4)
    before = [each.clone() for each in case.model.parameters()]
    batches = RehearsalBatches(trained=[(case.inputs, case.targets)], held_out=None)
    assert train_references(case, batches, late_after(questions)) == ()
    assert all(torch.equal(one, other) for one, other in zip(before, case.model.parameters(), strict=True))
