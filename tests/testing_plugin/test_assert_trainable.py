"""`assert_trainable` passes models that train and explains in its message why others fail."""

import math
import unittest

import pytest
import torch
from torch import nn

import leadline
from leadline import api
from leadline.errors import InputError
from leadline.testing import UntrainableError, assert_trainable
from tests.support import reports as samples

TARGETS = torch.zeros(8, 4)
HEALTHY = (torch.linspace(-1, 1, 32).reshape(8, 4), TARGETS, nn.functional.mse_loss)
SICK = (torch.full((8, 4), math.nan), TARGETS, nn.functional.mse_loss)  # N701, and nothing else


def model() -> nn.Module:
    torch.manual_seed(0)
    return nn.Linear(4, 4)


def test_a_model_that_trains_passes_and_its_report_is_returned():
    report = assert_trainable(model(), *HEALTHY)
    assert isinstance(report, leadline.Report)
    assert report.ok


def test_a_model_that_does_not_train_fails_with_the_report_as_the_message():
    with pytest.raises(AssertionError) as caught:
        assert_trainable(model(), *SICK)
    assert isinstance(caught.value, UntrainableError)
    assert str(caught.value) == str(caught.value.report)
    assert str(caught.value).startswith("DOES NOT TRAIN: ")


def test_assert_trainable_works_in_unittest():
    class Case(unittest.TestCase):
        def test_it(self):
            assert_trainable(model(), *SICK)

    result = unittest.TestResult()
    Case("test_it").run(result)
    assert (len(result.failures), len(result.errors)) == (1, 0)


@pytest.mark.parametrize("allow", [["N701"], ["non-finite"], ["N"], ("F", "non-finite")])
def test_an_allowed_finding_does_not_fail(allow):
    report = assert_trainable(model(), *SICK, allow=allow)
    assert {finding.code for finding in report.ignored} == {"N701"}


@pytest.mark.parametrize("allow", [["F"], ["gradient-explosion"], ["undecided"]])
def test_allowing_another_finding_has_no_effect(allow):
    with pytest.raises(UntrainableError):
        assert_trainable(model(), *SICK, allow=allow)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"allow": ["non-finit"]}, "did you mean N701"),
        ({"allow": "N701"}, r"allow=\['N701'\]"),
        ({"fail_on": "fatal"}, "fail_on"),
    ],
)
def test_a_misspelled_argument_is_an_error_and_not_a_failure(changes, words):
    with pytest.raises(InputError, match=words):
        assert_trainable(model(), *HEALTHY, **changes)


@pytest.mark.parametrize("fail_on", ["info", "warning", "error"])
def test_an_error_fails_at_every_threshold(fail_on):
    with pytest.raises(UntrainableError):
        assert_trainable(model(), *SICK, fail_on=fail_on)


def test_findings_below_the_threshold_pass(monkeypatch):
    mild = samples.report(samples.profile([1.0], [1.0]), samples.finding(severity="warning"), verdict="poor")
    monkeypatch.setattr(api, "check", lambda *case: mild)
    assert assert_trainable(model(), *HEALTHY, fail_on="error").verdict == "poor"
    with pytest.raises(UntrainableError):
        assert_trainable(model(), *HEALTHY)


def test_an_undecided_verdict_fails_unless_it_is_allowed():
    with pytest.raises(UntrainableError, match="UNDECIDED"):
        assert_trainable(nn.PReLU(), *HEALTHY)
    assert assert_trainable(nn.PReLU(), *HEALTHY, allow=["undecided"]).verdict == "undecided"


def test_the_loss_may_be_left_out_and_the_model_is_left_alone():
    class Own(nn.Linear):
        def forward(self, x):
            return super().forward(x).square().mean()

    own = Own(4, 4)
    before = own.weight.clone()
    assert_trainable(own, HEALTHY[0])
    assert torch.equal(own.weight, before)
    assert own.weight.grad is None
