"""The origin of a non-finite loss is found in the graph of the loss."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.utils.checkpoint import checkpoint

import leadline
from leadline.monitor.non_finite import find_origin


class Middle(nn.Module):
    """Two layers, and something between them."""

    def __init__(self, between: Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.a, self.b = nn.Linear(4, 4), nn.Linear(4, 2)
        self.between = between

    def forward(self, x: Tensor) -> Tensor:
        return self.b(self.between(self.a(x)))


def blamed(model: nn.Module, x: Tensor | None = None, measure=functional.cross_entropy):
    x = torch.linspace(-2, 2, 32).view(8, 4) if x is None else x
    loss = measure(model(x), torch.arange(8) % 2)
    assert not loss.isfinite()
    return find_origin(loss, {id(each): name for name, each in model.named_parameters()})


MAKERS = {
    "log": lambda h: torch.log(torch.relu(h)),
    "sqrt": lambda h: h.sqrt(),
    "div": lambda h: h / torch.relu(h),
    "exp": lambda h: (h * 1000).exp(),
    "pow": lambda h: h**0.5,
    "softmax": lambda h: h.masked_fill(torch.ones(8, 4, dtype=torch.bool), -torch.inf).softmax(-1),
}


@pytest.mark.parametrize("op", MAKERS)
def test_the_op_that_produced_it_is_named_with_the_layer_before_it(op):
    found = blamed(Middle(MAKERS[op]))
    assert found.op == op
    assert found.sentence.startswith(f"{op} after a produced it")


WRAPPED = {
    "moved about": lambda h: torch.log(h).view(2, 16).reshape(4, 8).view(8, 4),
    "written over": lambda h: torch.log(h).mul_(2).add_(1),
    "recomputed later": lambda h: checkpoint(lambda z: torch.log(z) * 2, h, use_reentrant=False),
    "added to a skip": lambda h: h + torch.log(h),
}


@pytest.mark.parametrize("how", WRAPPED)
def test_the_origin_is_found_in_spite_of(how):
    assert blamed(Middle(WRAPPED[how])).op == "log"


def test_the_loss_function_can_be_the_origin():
    found = blamed(Middle(torch.relu), measure=lambda out, _: -torch.log(out * 0).mean())
    assert (found.op, "after b" in found.sentence) == ("log", True)


@pytest.mark.parametrize("name", ["a.weight", "a.bias", "b.weight"])
def test_a_weight_that_was_non_finite_before_is_named_instead_of_an_op(name):
    model = Middle(torch.relu)
    with torch.no_grad():
        model.get_parameter(name).view(-1)[0] = torch.nan
    found = blamed(model)
    assert (found.op, found.sentence) == ("", f"{name} was not finite before the pass")


def test_a_non_finite_batch_is_named_instead_of_an_op():
    x = torch.ones(8, 4)
    x[3, 1] = torch.nan
    assert (
        blamed(Middle(torch.relu), x).sentence
        == "the batch or a constant was not finite when it reached addmm"
    )


@pytest.mark.parametrize("between", [lambda h: h * torch.inf, lambda h: torch.full((8, 4), torch.nan) * h])
def test_a_non_finite_constant_is_not_blamed_on_the_op_before_it(between):
    assert blamed(Middle(between)).sentence == "the batch or a constant was not finite when it reached mul"


def test_reading_the_graph_runs_no_hook_and_changes_no_gradient():
    def gradients(look: bool) -> tuple[list[bytes], int]:
        model, runs = Middle(torch.relu), []

        def between(h: Tensor) -> Tensor:
            runs.append(h)
            return torch.log(h.abs())

        model.between = lambda h: checkpoint(between, h, use_reentrant=False)
        loss = model(torch.ones(8, 4)).square().mean()
        if look:
            find_origin(loss * torch.nan, {})
        before = len(runs)
        loss.backward()
        return [each.grad.numpy().tobytes() for each in model.parameters()], before

    assert gradients(look=True) == gradients(look=False)
    assert gradients(look=True)[1] == 1


def test_a_watch_names_the_op_of_an_untraced_step():
    """It also reports no findings about weights that are NaN by then."""
    model = Middle(lambda h: torch.log(h.abs() + (0 if broken else 1)))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with leadline.watch(model, optimizer, every=50) as w:
        for step in range(12):
            broken = step >= 7
            x = torch.zeros(8, 4) if broken else torch.ones(8, 4)
            model.a.bias.data.mul_(0 if broken else 1)
            w.loss(functional.cross_entropy(model(x), torch.arange(8) % 2)).backward()
            optimizer.step()
            optimizer.zero_grad()
    (alert,) = [each for each in w.alerts if each.severity == "error"]
    assert (alert.code, alert.since) == ("T814", 7)
    assert "log after a produced it from finite numbers" in alert.message
    said = [each for each in w.events if each.kind == "non-finite"]
    assert [each.step for each in said] == [7, 8]
    assert said[1].message == "forward: a.weight was not finite before the pass"


def test_a_freed_graph_gives_no_origin():
    loss = Middle(torch.log)(torch.ones(8, 4)).mean()
    assert find_origin(loss, {}) is not None
    loss.backward()
    assert find_origin(loss, {}) is None
    assert find_origin(torch.tensor(torch.nan), {}) is None
