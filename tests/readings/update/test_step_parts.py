"""A step is made and measured in parts: it is the same step, it is undone, and few copies exist at a time."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import leadline
from benchmarks.footprint import differences, footprint
from benchmarks.workloads import mlp, with_adamw
from leadline import Case, Update
from leadline.readings.update import step_parts
from leadline.readings.update.probe import StepProbe
from leadline.readings.update.reading import read_update
from leadline.readings.update.step_parts import MAX_PARTS, MIN_PART_BYTES, split_parameters, steps_each_alone
from tests.readings.update.test_restore import OPTIMIZERS, train, with_optimizer
from tests.support.allocations import peak_allocation
from tests.support.zoo import ZOO


def wide(*, has_stepped: bool) -> Case:
    case = mlp(layers=8, width=512, batch=4)
    if has_stepped:
        return with_adamw(case)
    return Case(
        case.model, case.inputs, case.targets, case.loss, torch.optim.AdamW(case.model.parameters(), lr=1e-3)
    )


def peak_of_check(case: Case, *, rehearse: int) -> float:
    """The peak of a check beyond weights and optimizer, in multiples of the weights."""
    leadline.check(case, rehearse=rehearse)  # what is computed once per process is not counted
    weights = sum(each.numel() * each.element_size() for each in case.model.parameters())
    return peak_allocation(lambda: leadline.check(case, rehearse=rehearse)) / weights


@pytest.mark.parametrize("has_stepped", [False, True])
def test_a_check_without_rehearsal_holds_the_weights_and_their_gradients_once(has_stepped: bool):
    assert 2 < peak_of_check(wide(has_stepped=has_stepped), rehearse=0) < 2.8


def test_a_rehearsal_holds_weights_and_state_and_gradients_once():
    assert 4 < peak_of_check(wide(has_stepped=True), rehearse=8) < 4.5


def test_the_peak_counts_what_is_alive_at_the_same_time():
    def make() -> None:
        for _ in range(3):
            torch.zeros(1000)
        assert sum(each.numel() for each in [torch.zeros(1000), torch.zeros(500)]) == 1500

    assert 4 * 1500 <= peak_allocation(make) < 4 * 2000


def update_in_parts(case: Case, monkeypatch: pytest.MonkeyPatch, min_bytes: int) -> Update:
    monkeypatch.setattr(step_parts, "MIN_PART_BYTES", min_bytes)
    return read_update(case, None)


@pytest.mark.parametrize("steps", [0, 3])
@pytest.mark.parametrize("optimizer", OPTIMIZERS)
def test_a_step_in_parts_is_the_same_step(optimizer: str, steps: int, monkeypatch: pytest.MonkeyPatch):
    case = with_optimizer(ZOO["mlp"], OPTIMIZERS[optimizer])
    train(case, steps)
    before = footprint(case)
    whole, parts = (update_in_parts(case, monkeypatch, each) for each in (MIN_PART_BYTES, 1))
    assert parts == whole
    assert differences(before, footprint(case)) == []


def test_a_step_that_is_too_short_is_repeated_in_parts_at_a_higher_rate(monkeypatch: pytest.MonkeyPatch):
    case = with_optimizer(ZOO["mlp"], lambda p: torch.optim.AdamW(p, lr=1e-12))
    whole, parts = (update_in_parts(case, monkeypatch, each) for each in (MIN_PART_BYTES, 1))
    assert parts == whole


@pytest.mark.parametrize("steps", [0, 3])
def test_an_error_after_some_parts_leaves_everything_as_it_was(steps: int, monkeypatch: pytest.MonkeyPatch):
    case = with_optimizer(ZOO["mlp"], OPTIMIZERS["AdamW"])
    train(case, steps)
    before, known = footprint(case), len(case.optimizer.state)
    calls = []

    def step(self: StepProbe) -> None:
        calls.append(self)
        self.optimizer.step()
        if len(calls) == 3:
            raise KeyboardInterrupt

    monkeypatch.setattr(StepProbe, "_step_without_closure", step)
    with pytest.raises(KeyboardInterrupt):
        update_in_parts(case, monkeypatch, 1)
    assert len(calls) == 3
    assert differences(before, footprint(case)) == []
    assert len(case.optimizer.state) == known


def test_a_step_whose_parameters_depend_on_each_other_is_made_as_a_whole():
    case = with_optimizer(ZOO["mlp"], OPTIMIZERS["AdamW"])
    parameters = list(case.model.parameters())
    assert steps_each_alone(case.optimizer, parameters)
    for name in ("LBFGS", "a custom optimizer"):
        assert not steps_each_alone(OPTIMIZERS[name](parameters), parameters)

    def clip(*_: object) -> None:
        torch.nn.utils.clip_grad_norm_(parameters, 0.1)

    handle = case.optimizer.register_step_pre_hook(clip)
    assert steps_each_alone(case.optimizer, parameters)  # a hook that does not run in trial steps
    clip.part_of_step = True
    assert not steps_each_alone(case.optimizer, parameters)
    handle.remove()
    case.optimizer.step = lambda: None
    assert not steps_each_alone(case.optimizer, parameters)


def test_a_scheduler_keeps_a_step_separable():
    case = with_optimizer(ZOO["mlp"], OPTIMIZERS["AdamW"])
    torch.optim.lr_scheduler.LambdaLR(case.optimizer, lambda _: 0.5)
    assert steps_each_alone(case.optimizer, list(case.model.parameters()))


@given(st.lists(st.integers(0, 2 * MIN_PART_BYTES), max_size=60))
def test_the_parts_are_few_and_together_all_parameters(sizes: list[int]):
    parameters = [torch.empty(size, dtype=torch.uint8, device="meta") for size in sizes]
    parts = split_parameters(parameters)
    assert [each for part in parts for each in range(len(sizes))[part]] == list(range(len(sizes)))
    assert len(parts) <= MAX_PARTS
