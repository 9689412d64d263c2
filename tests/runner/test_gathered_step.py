"""A check of the first step uses the batches of the next ones, at the weights with which the first one began."""

from __future__ import annotations

import math

import pytest
import torch
from torch import nn
from torch.nn import functional

from leadline.runner import gathered_step
from leadline.runner.attachment import Attachment, RunSettings
from tests.support.attachments import Ear, step

pytestmark = pytest.mark.long


def small_model():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(6, 12), nn.BatchNorm1d(12), nn.Tanh(), nn.Linear(12, 4))


def values_of(case):
    """What the case looks like from inside a check."""
    return {
        "weights": [each.detach().clone() for each in case.model.state_dict().values()],
        "inputs": case.inputs.clone(),
        "batches": [[part.clone() for part in each] for each in case.batches or ()],
        "moments": len(case.optimizer.state),
        "lr": case.optimizer.param_groups[0]["lr"],
    }


def train(model, optimizer, steps, *, schedule=None, make=lambda: torch.randn(16, 6)):
    """Train on new batches; return the weights, the optimizer's state and the random state at the end."""
    torch.manual_seed(1)
    for _ in range(steps):
        x = make()
        loss = functional.mse_loss(model(x), x[:, :4])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if schedule is not None:
            schedule.step()
    state = [value for entries in optimizer.state.values() for value in entries.values()]
    return [*model.state_dict().values(), *state, torch.get_rng_state()]


@pytest.fixture
def attach(monkeypatch):
    monkeypatch.setattr(gathered_step, "MAX_GATHERING_SECONDS", math.inf)  # however busy the machine is
    attachments = []

    def make(work=values_of, **settings):
        options = {"is_watched": False, "batches": 4} | settings
        attachments.append(Attachment(RunSettings(**options), Ear(), work))
        return attachments[-1]

    yield make
    for each in attachments:
        each.close()


def test_the_case_has_the_first_weights_and_the_batches_of_the_first_steps(attach):
    model = small_model()
    first = [each.clone() for each in model.state_dict().values()]
    optimizer = torch.optim.Adam(model.parameters(), lr=0.1)
    schedule = torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.5)
    attached = attach()
    train(model, optimizer, 6, schedule=schedule)
    seen = attached.result
    running = [name for name in model.state_dict() if "running" in name or "tracked" in name]
    for name, before, inside in zip(model.state_dict(), first, seen["weights"], strict=True):
        if name not in running:  # the pass of the first step has updated these
            assert torch.equal(before, inside), name
    torch.manual_seed(1)
    batches = [torch.randn(16, 6) for _ in range(4)]
    assert torch.equal(seen["inputs"], batches[0])
    assert [torch.equal(pair[0], batch) for pair, batch in zip(seen["batches"], batches[1:], strict=True)]
    assert seen["moments"] == 0
    assert seen["lr"] == 0.1


@pytest.mark.parametrize("kind", [torch.optim.SGD, torch.optim.AdamW])
def test_training_goes_on_with_the_same_bits(attach, kind):
    ends = []
    for is_attached in (False, True):
        model = small_model()
        optimizer = kind(model.parameters(), lr=0.05)
        attached = attach(None, probes=True) if is_attached else None
        ends.append(train(model, optimizer, 7))
        if attached is not None:
            assert len(attached.reports) == 1
            assert attached.reports[0].profile.rehearsal.batches == 3  # the fourth one is held out
    assert all(torch.equal(a, b) for a, b in zip(*ends, strict=True))


def test_a_batch_that_comes_again_is_not_counted_as_another(attach):
    model, x = small_model(), torch.randn(16, 6)
    attached = attach()
    train(model, torch.optim.SGD(model.parameters(), lr=0.1), 5, make=lambda: x)
    attached.close()
    assert attached.result["batches"] == []


def test_a_batch_that_is_overwritten_by_the_next_one_is_kept_as_it_was(attach):
    model, memory = small_model(), torch.empty(16, 6)
    attached = attach()
    train(model, torch.optim.SGD(model.parameters(), lr=0.1), 5, make=lambda: memory.normal_())
    seen = attached.result
    all_inputs = [seen["inputs"], *(each[0] for each in seen["batches"])]
    assert len(all_inputs) == 4
    assert len({float(each.sum()) for each in all_inputs}) == 4


def test_a_program_with_fewer_steps_is_checked_at_its_end(attach):
    model = small_model()
    attached = attach()
    train(model, torch.optim.SGD(model.parameters(), lr=0.1), 2)
    assert not attached.has_worked
    attached.close()
    assert attached.has_worked
    assert len(attached.result["batches"]) == 1


def test_a_program_that_is_interrupted_in_its_first_steps_ends_at_once(attach):
    model = small_model()
    attached = attach()
    train(model, torch.optim.SGD(model.parameters(), lr=0.1), 2)
    attached.close(KeyboardInterrupt())
    assert not attached.has_worked


def test_a_step_that_does_something_else_ends_the_gathering(attach):
    model, other = small_model(), nn.Linear(4, 4)
    attached = attach()
    optimizer = torch.optim.SGD([*model.parameters(), *other.parameters()], lr=0.1)
    train(model, optimizer, 2)
    assert not attached.has_worked
    train(nn.Sequential(model, other), optimizer, 1)
    assert attached.has_worked
    assert len(attached.result["batches"]) == 1


def test_a_large_network_is_checked_at_its_first_step_without_a_copy(attach, monkeypatch):
    monkeypatch.setattr(gathered_step, "MAX_KEPT_BYTES", 64)
    model = small_model()
    attached = attach()
    train(model, torch.optim.SGD(model.parameters(), lr=0.1), 1)
    assert attached.has_worked


def test_slow_steps_are_checked_with_fewer_batches(attach, monkeypatch):
    monkeypatch.setattr(gathered_step, "MAX_GATHERING_SECONDS", -1.0)
    model = small_model()
    attached = attach()
    train(model, torch.optim.SGD(model.parameters(), lr=0.1), 2)
    assert len(attached.result["batches"]) == 1


def test_both_steps_of_a_gan_gather_batches_of_their_own(attach):
    torch.manual_seed(0)
    maker, judge = nn.Linear(3, 6), nn.Linear(6, 1)
    optimizers = [torch.optim.Adam(each.parameters(), lr=1e-2) for each in (judge, maker)]
    attached = attach(None, batches=3)
    for _ in range(5):
        real, noise = torch.randn(8, 6), torch.randn(8, 3)
        step((judge(maker(noise).detach()) - judge(real)).mean(), optimizers[0])
        step(-judge(maker(noise)).mean(), optimizers[1])
    assert len(attached.reports) == 2
    assert not attached.reasons


def test_the_end_of_an_attachment_that_fails_leaves_the_program_alone(attach):
    def fail(case):
        raise RuntimeError("a fault in the check")

    model = small_model()
    attached = attach(fail)
    train(model, torch.optim.SGD(model.parameters(), lr=0.1), 6)
    assert isinstance(attached.error, RuntimeError)
    assert all(each.requires_grad for each in model.parameters())
