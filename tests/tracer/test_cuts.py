"""Where the graph is cut before trainable weights, the call is named with its line."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from torch.nn import functional as F

import leadline
from leadline.errors import InputError
from leadline.fixes import all_fixes
from leadline.fixes._engine.repair import repair

HERE = "tests/tracer/test_cuts.py"


def detached(h):
    return h.detach()


def data(h):
    return h.data


def without_grad(h):
    with torch.no_grad():
        return h.relu()


def through_numpy(h):
    return torch.from_numpy(h.detach().numpy())


def through_a_number(h):
    return torch.full((32, 16), h.mean().item())


def through_a_float(h):
    return torch.full((32, 16), float(h.mean()))


def copied(h):
    return torch.tensor(h.tolist())


def one_hot(h):
    return F.one_hot(h.argmax(1), 16).float()


def rounded(h):
    return h.round()


def logged(h):
    h.mean().item()
    return h.relu()


class Network(nn.Module):
    def __init__(self, between):
        super().__init__()
        self.body, self.middle, self.head = nn.Linear(8, 16), nn.Linear(16, 16), nn.Linear(16, 4)
        self.between = between

    def forward(self, x):
        return self.head(self.between(self.middle(self.body(x).relu())))


def case_with(between, loss=F.cross_entropy) -> leadline.Case:
    torch.manual_seed(0)
    model = Network(between)
    sgd = torch.optim.SGD(model.parameters(), lr=0.1)
    return leadline.Case(model, torch.randn(32, 8), torch.randint(4, (32,)), loss, sgd)


@pytest.mark.parametrize(
    ("between", "action"),
    [
        (detached, "Remove `.detach()`"),
        (data, "Remove `.data`"),
        (without_grad, "Take relu"),
        (through_numpy, "Keep the tensor instead of calling `.numpy()`"),
        (through_a_number, "Keep the tensor instead of calling `.item()`"),
        pytest.param(
            through_a_float,
            "Keep the tensor instead of calling `float(...)`",
            marks=pytest.mark.filterwarnings("ignore:Converting a tensor"),
        ),
        (copied, "Keep the tensor instead of calling `.tolist()`"),
        (one_hot, "Replace argmax"),
    ],
)
def test_a_cut_is_named_with_its_line(between, action):
    finding = next(each for each in leadline.check(case_with(between)).findings if each.code == "B203")
    first = between.__code__.co_firstlineno
    assert finding.action.startswith(action)
    assert any(f"{HERE}:{line}" in finding.action for line in (first + 1, first + 2))
    assert "2 of 3 trainable weight layers" in finding.message


class TwoBranches(nn.Module):
    """Two layers whose outputs are cut off in different ways, and a head that learns."""

    def __init__(self):
        super().__init__()
        self.first, self.second, self.head = nn.Linear(8, 16), nn.Linear(8, 16), nn.Linear(16, 4)

    def forward(self, x):
        return self.head(detached(self.first(x)) + without_grad(self.second(x)))


def test_each_of_two_cuts_is_named_with_the_parameters_before_it():
    torch.manual_seed(0)
    case = leadline.Case(TwoBranches(), torch.randn(32, 8), torch.randint(4, (32,)), F.cross_entropy)
    cuts = leadline.check(case).profile.cuts
    assert {each.how: {*each.parameters} for each in cuts} == {
        "call": {"first.weight", "first.bias"},
        "no_grad": {"second.weight", "second.bias"},
    }


def test_a_number_that_is_only_logged_is_not_a_cut():
    report = leadline.check(case_with(logged))
    assert report.profile.cuts == ()
    assert report.trace.exits[0].source.line == logged.__code__.co_firstlineno + 1


def test_an_op_that_passes_no_gradient_on_is_named_with_its_line():
    (cut,) = leadline.check(case_with(rounded)).profile.cuts
    assert (cut.how, cut.op, str(cut.place)) == (
        "zero",
        "round",
        f"{HERE}:{rounded.__code__.co_firstlineno + 1}",
    )
    assert {"body.weight", "middle.weight"} <= {*cut.parameters}


def test_weights_of_zero_for_all_samples_are_named_with_their_line():
    def unweighted(output, targets):
        return (F.cross_entropy(output, targets, reduction="none") * torch.zeros(32)).mean()

    finding = next(
        each for each in leadline.check(case_with(logged, unweighted)).findings if each.code == "U508"
    )
    assert f"mul in {HERE}:{unweighted.__code__.co_firstlineno + 1}" in finding.action


def test_a_loss_without_gradient_names_the_call_that_cut_it():
    def disconnected(output, targets):
        return torch.tensor(F.cross_entropy(output, targets).item())

    line = disconnected.__code__.co_firstlineno + 1
    with pytest.raises(InputError, match=rf"calling `\.item\(\)` in {HERE}:{line}"):
        leadline.check(case_with(logged, disconnected))


def test_where_all_weights_are_cut_off_nothing_is_trained_and_the_line_is_given():
    def disconnected(output, targets):
        return torch.tensor(F.cross_entropy(output, targets).item(), requires_grad=True)

    found = repair(case_with(logged, disconnected), fixes=all_fixes())
    assert found.report.steps == 0
    assert f"{HERE}:{disconnected.__code__.co_firstlineno + 1}" in found.outcomes[0].title
