"""After an update reading the model and the optimizer with all its state are bit for bit as before."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest
import torch
from torch import Tensor, nn
from torch.optim.optimizer import register_optimizer_step_post_hook

from benchmarks.footprint import differences, footprint
from leadline import Case, InputError
from leadline.readings.update.probe import open_probe
from leadline.readings.update.reading import read_update
from tests.support.zoo import ZOO, Specimen, animals, energy
from tests.support.zoo.plain_run import call, loss_of

Make = Callable[[list[nn.Parameter]], torch.optim.Optimizer]


class Lookahead(torch.optim.Optimizer):
    """A custom optimizer that wraps another and holds state in attributes."""

    def __init__(self, parameters: list[nn.Parameter]) -> None:
        super().__init__(parameters, {"lr": 0.01})
        self.inner = torch.optim.Adam(parameters, lr=0.01)
        self.slow = [parameter.detach().clone() for parameter in parameters]
        self.count = 0

    def step(self, closure: None = None) -> None:
        self.count += 1
        self.inner.step()
        for parameter, slow in zip(self.param_groups[0]["params"], self.slow, strict=True):
            slow.lerp_(parameter.detach(), 0.5)
            parameter.data.copy_(slow)


OPTIMIZERS: dict[str, Make] = {
    "SGD": lambda p: torch.optim.SGD(p, lr=0.01),
    "SGD with momentum": lambda p: torch.optim.SGD(p, lr=0.01, momentum=0.9, nesterov=True),
    "Adam": lambda p: torch.optim.Adam(p, lr=1e-3),
    "Adam, AMSGrad": lambda p: torch.optim.Adam(p, lr=1e-3, amsgrad=True),
    "AdamW": lambda p: torch.optim.AdamW(p, lr=1e-3),
    "AdamW, fused": lambda p: torch.optim.AdamW(p, lr=1e-3, fused=True),
    "AdamW, one at a time": lambda p: torch.optim.AdamW(p, lr=1e-3, foreach=False),
    "AdamW, rate in a tensor": lambda p: torch.optim.AdamW(p, lr=torch.tensor(1e-3), foreach=False),
    "Adamax": lambda p: torch.optim.Adamax(p),
    "NAdam": lambda p: torch.optim.NAdam(p),
    "RAdam": lambda p: torch.optim.RAdam(p),
    "Adadelta": lambda p: torch.optim.Adadelta(p),
    "Adagrad": lambda p: torch.optim.Adagrad(p),
    "Adafactor": lambda p: torch.optim.Adafactor(p),
    "RMSprop": lambda p: torch.optim.RMSprop(p, momentum=0.9, centered=True),
    "Rprop": lambda p: torch.optim.Rprop(p),
    "ASGD": lambda p: torch.optim.ASGD(p),
    "LBFGS": lambda p: torch.optim.LBFGS(p, lr=0.01, max_iter=3),
    "a custom optimizer": Lookahead,
}
if hasattr(torch.optim, "Muon"):  # since torch 2.9
    OPTIMIZERS["Muon"] = lambda p: torch.optim.Muon([each for each in p if each.ndim == 2])
MODELS = ("mlp", "dropout", "conv-batch-norm", "tied-weights", "spectral-norm", "frozen-layers")


def with_optimizer(specimen: Specimen, make: Make) -> Case:
    case = specimen()
    return replace(case, optimizer=make([each for each in case.model.parameters() if each.requires_grad]))


def train(case: Case, steps: int) -> None:
    for _ in range(steps):
        case.optimizer.zero_grad()

        def closure() -> Tensor:
            loss = loss_of(case, call(case))
            loss.backward()
            return loss

        if isinstance(case.optimizer, torch.optim.LBFGS):
            case.optimizer.step(closure)
        else:
            closure()
            case.optimizer.step()


@pytest.mark.parametrize("model", MODELS)
@pytest.mark.parametrize("optimizer", OPTIMIZERS)
def test_a_fresh_optimizer_stays_fresh(optimizer: str, model: str):
    case = with_optimizer(ZOO[model], OPTIMIZERS[optimizer])
    before, known = footprint(case), len(case.optimizer.state)
    read_update(case, None)
    assert differences(before, footprint(case)) == []
    assert len(case.optimizer.state) == known  # 0, except for Adagrad, which creates its state at once


@pytest.mark.parametrize("model", ["mlp", "conv-batch-norm"])
@pytest.mark.parametrize("optimizer", OPTIMIZERS)
def test_a_reading_during_training_does_not_change_later_steps(optimizer: str, model: str):
    case, twin = (with_optimizer(ZOO[model], OPTIMIZERS[optimizer]) for _ in range(2))
    train(case, 3)
    random = torch.get_rng_state()
    train(case, 2)
    torch.manual_seed(0)
    train(twin, 3)
    torch.set_rng_state(random)
    before = footprint(twin)
    read_update(twin, None)
    assert differences(before, footprint(twin)) == []
    train(twin, 2)
    for mine, theirs in zip(case.model.parameters(), twin.model.parameters(), strict=True):
        assert torch.equal(mine, theirs)


@pytest.mark.parametrize("animal", animals(without=("deep",)))
def test_every_model_of_the_zoo_is_restored(animal: Specimen):
    case = with_optimizer(animal, lambda p: torch.optim.SGD(p, lr=1e-3))
    before = footprint(case)
    found = read_update(case, None)
    assert differences(before, footprint(case)) == []
    if "poisoned" not in animal.traits:
        assert found.predicted_loss_change <= 0


def step_and_raise(case: Case) -> None:
    with open_probe(case) as probe:
        probe.gradient()
        probe.step(None)
        raise ZeroDivisionError


def test_everything_is_restored_when_the_model_raises():
    case = with_optimizer(ZOO["mlp"], OPTIMIZERS["AdamW"])
    train(case, 1)
    before = footprint(case)
    with pytest.raises(ZeroDivisionError):
        step_and_raise(case)
    assert differences(before, footprint(case)) == []


def test_the_footprint_shows_a_step_that_is_not_undone():
    case = with_optimizer(ZOO["mlp"], OPTIMIZERS["AdamW"])
    before = footprint(case)
    train(case, 1)
    assert any("bits" in name for name in differences(before, footprint(case)))
    assert any("optimizer" in name for name in differences(before, footprint(case)))


def test_step_hooks_do_not_run_during_a_reading_and_run_after_it():
    case = with_optimizer(ZOO["mlp"], OPTIMIZERS["SGD"])
    called = []
    case.optimizer.register_step_pre_hook(lambda *_: called.append("before"))
    everywhere = register_optimizer_step_post_hook(lambda *_: called.append("after"))
    read_update(case, None)
    assert called == []
    train(case, 1)
    everywhere.remove()
    assert called == ["before", "after"]


def test_a_scheduler_does_not_count_the_trial_step():
    case = with_optimizer(ZOO["mlp"], OPTIMIZERS["SGD"])
    torch.optim.lr_scheduler.LinearLR(case.optimizer)
    read_update(case, None)
    assert not getattr(case.optimizer, "_opt_called", False)


def test_parameters_of_other_models_in_the_optimizer_do_not_move():
    case, other = ZOO["mlp"](), nn.Parameter(torch.ones(3))
    other.grad = torch.ones(3)
    case = replace(case, optimizer=torch.optim.SGD([*case.model.parameters(), other], lr=1.0))
    read_update(case, None)
    assert torch.equal(other.detach(), torch.ones(3))
    assert torch.equal(other.grad, torch.ones(3))


def test_a_graph_built_before_the_reading_can_still_run_backward():
    case = with_optimizer(ZOO["mlp"], OPTIMIZERS["SGD"])
    loss = loss_of(case, call(case))
    read_update(case, None)
    loss.backward()


def test_minus_zero_stays_minus_zero():
    model = nn.Linear(2, 1, bias=False)
    nn.init.constant_(model.weight, -0.0)
    case = Case(model, torch.ones(1, 2), loss=energy, optimizer=torch.optim.SGD(model.parameters(), lr=0.0))
    read_update(case, None)
    assert torch.signbit(model.weight).all()


BAD = {
    "no optimizer": lambda case: replace(case, optimizer=None),
    "a class": lambda case: replace(case, optimizer=torch.optim.SGD),
    "parameters of another model": lambda case: replace(
        case, optimizer=torch.optim.SGD(nn.Linear(2, 2).parameters(), lr=0.1)
    ),
    "no values": lambda case: replace(
        case,
        model=(meta := nn.Linear(2, 2, device="meta")),
        optimizer=torch.optim.SGD(meta.parameters(), lr=0.1),
    ),
}


@pytest.mark.parametrize("spoil", BAD.values(), ids=list(BAD))
def test_a_case_without_a_usable_optimizer_is_refused(spoil: Callable[[Case], Case]):
    case = spoil(ZOO["mlp"]())
    with pytest.raises(InputError, match=r"optimizer|parameter"):
        read_update(case, None)
