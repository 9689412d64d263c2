"""The first NaN is blamed on the op that makes it, with its line and its reason; what is advised instead trains."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from torch.nn import functional as F

import leadline
from leadline.fixes import all_fixes
from leadline.fixes._engine.repair import repair
from tests.support import toy_fixes as toys


def entropy_of_relu(output, targets):
    p = output.relu() / 10
    return (p * p.log()).mean()


def entropy_of_relu_instead(output, targets):
    x = output.relu() / 10
    return (x * x.clamp(min=torch.finfo(x.dtype).tiny).log()).mean()


def entropy_of_softmax(output, targets):
    p = (1e4 * output).softmax(-1)
    return (p * p.log()).sum(-1).mean()


def entropy_of_softmax_instead(output, targets):
    x = 1e4 * output
    return (x.softmax(-1) * F.log_softmax(x, -1)).sum(-1).mean()


def divergence_from_labels(output, targets):
    p = F.one_hot(targets, 4).float()
    return (p * p.log() - p * output.log_softmax(-1)).mean()


def divergence_from_labels_instead(output, targets):
    p = F.one_hot(targets, 4).float()
    return (torch.xlogy(p, p) - p * output.log_softmax(-1)).mean()


def root_of_relu(output, targets):
    return output.relu().sqrt().mean()


def root_of_relu_instead(output, targets):
    return (output.relu() + 1e-12).sqrt().mean()


def share_of_nothing(output, targets):
    counted = torch.zeros(len(output))
    return (output.mean(-1) * counted).sum() / counted.sum()


def share_of_nothing_instead(output, targets):
    counted = torch.zeros(len(output))
    return (output.mean(-1) * counted).sum() / counted.sum().clamp(min=1e-6)


def selection_of_nothing(output, targets):
    return output[targets > 9].mean()


def case_with(loss, targets=None) -> leadline.Case:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 4))
    targets = torch.randint(4, (32,)) if targets is None else targets
    return leadline.Case(
        model, torch.randn(32, 8), targets, loss, torch.optim.SGD(model.parameters(), lr=0.1)
    )


def finding_of(case: leadline.Case) -> leadline.Finding:
    return next(each for each in leadline.check(case).findings if each.code == "N701")


@pytest.mark.parametrize(
    ("loss", "op", "instead"),
    [
        (entropy_of_relu, "log", "x * x.clamp(min=torch.finfo(x.dtype).tiny).log()"),
        (entropy_of_softmax, "log", "F.log_softmax(x)"),
        (divergence_from_labels, "log", "torch.xlogy(p, p)"),
        (root_of_relu, "sqrt", "(x + 1e-12).sqrt()"),
        (share_of_nothing, "div", "x / y.clamp(min=1e-6)"),
    ],
)
def test_an_op_at_zero_is_named_with_its_line_and_what_to_write_instead(loss, op, instead):
    finding = finding_of(case_with(loss))
    line = loss.__code__.co_firstlineno
    assert f"{op} (tests/readings/test_anomalies.py:" in finding.message
    assert line < int(finding.message.split("test_anomalies.py:")[1].split(")")[0]) <= line + 3
    assert "because its input is 0 there" in finding.message
    assert f"`{instead}`" in finding.action


@pytest.mark.parametrize(
    "loss",
    [
        entropy_of_relu_instead,
        entropy_of_softmax_instead,
        divergence_from_labels_instead,
        root_of_relu_instead,
        share_of_nothing_instead,
    ],
)
def test_what_is_advised_is_finite_forward_and_backward(loss):
    assert leadline.check(case_with(loss)).profile.anomalies == ()


IGNORED = torch.full((32,), -100)


@pytest.mark.parametrize(
    ("loss", "targets", "words"),
    [
        (F.cross_entropy, IGNORED, "every label is the ignored one"),
        (nn.CrossEntropyLoss(weight=torch.zeros(4)), None, "the class weights of all labels are 0"),
        (selection_of_nothing, None, "it averages over no element"),
    ],
)
def test_a_mean_over_nothing_is_named_as_the_cause(loss, targets, words):
    report = leadline.check(case_with(loss, targets))
    assert words in report.reason
    assert all(each.explained_by == "N701" for each in report.findings if each.code == "U508")


def test_a_row_that_is_masked_completely_is_blamed_on_the_softmax_and_not_on_the_mask():
    def masked(output, targets):
        return output.masked_fill(torch.ones(4, dtype=torch.bool), -torch.inf).softmax(-1).mean()

    assert finding_of(case_with(masked)).message.startswith("softmax ")


def test_growth_beyond_the_dtype_is_an_overflow_and_nothing_else():
    anomaly = leadline.check(
        case_with(lambda output, targets: (1e38 * output).square().mean())
    ).profile.anomalies[0]
    assert (anomaly.op, anomaly.cause) == ("square", "overflow")


@pytest.mark.parametrize("loss", [entropy_of_relu, root_of_relu])
def test_where_an_op_is_undefined_nothing_is_trained_and_the_advice_is_given(loss):
    found = repair(case_with(loss), fixes=all_fixes())
    assert found.report.steps == 0
    assert found.report.result == "not repaired"
    assert [each.fix for each in found.outcomes] == ["finite-op"]
    assert "test_anomalies.py" in found.outcomes[0].title


def test_growth_beyond_the_dtype_is_still_repaired_by_a_search():
    case = toys.deep()
    with torch.no_grad():
        case.model[0].weight.mul_(1e30)
    found = repair(case, fixes=toys.TOYS)
    assert found.report.steps > 0


NO_KEYS = torch.full((4,), -torch.inf)


@pytest.mark.parametrize(
    ("loss", "op", "cause"),
    [
        (lambda output, targets: (100 * output).acos().mean(), "acos", "domain"),
        (lambda output, targets: F.cross_entropy(output[:0], targets[:0]), "cross_entropy", "empty"),
        (lambda output, targets: (output + NO_KEYS).softmax(-1).mean(), "softmax", "masked"),
    ],
)
def test_what_makes_the_first_nan_is_told_apart(loss, op, cause):
    anomaly = leadline.check(case_with(loss), rehearse=False).profile.anomalies[0]
    assert (anomaly.op, anomaly.cause) == (op, cause)


def test_the_logarithm_of_negative_numbers_is_named_as_such():
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 4))
    report = leadline.check(model, torch.randn(8, 4), loss=lambda out: (-1 - out.abs()).log().mean())
    (anomaly,) = [each for each in report.profile.anomalies if each.direction == "forward"]
    assert (anomaly.op, anomaly.cause) == ("log", "negative")
