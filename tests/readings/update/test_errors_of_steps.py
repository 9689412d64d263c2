"""Errors that the trial steps cause are part of the answer; others are raised."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import leadline
from leadline import Case
from leadline.readings.update.rehearsal import rehearse
from leadline.tracer.trace import trace_case


class RefusesLargeWeights(nn.Linear):
    """Raises once its weights are large, as a Cholesky factorization does; or only the first time."""

    def __init__(self, *, is_lasting: bool = True, error: Exception | None = None) -> None:
        super().__init__(4, 1)
        self.is_lasting, self.error = is_lasting, error or ValueError("not positive-definite\nat row 3")
        self.raised = iter(range(1000))  # what no restoring of state can rewind

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if self.weight.abs().max() > 10 and (self.is_lasting or next(self.raised) == 0):
            raise self.error
        return super().forward(x)


def refusing_case(**options: Any) -> Case:
    torch.manual_seed(0)
    model = RefusesLargeWeights(**options)
    first, second = torch.randn(2, 32, 4)
    sgd = torch.optim.SGD(model.parameters(), lr=3.0)
    return Case(model, first, first[:, :1], F.mse_loss, sgd, [(second, second[:, :1])])


def test_an_error_that_the_steps_cause_ends_the_rehearsal_and_is_named():
    report = leadline.check(refusing_case())
    assert report.verdict == "fails"
    messages = {each.code: each.message for each in report.findings}
    assert messages["U509"].endswith("made the model raise ValueError: not positive-definite")
    assert math.isnan(report.profile.rehearsal.last)


@pytest.mark.parametrize(
    "options", [{"is_lasting": False}, {"error": torch.OutOfMemoryError("no room")}], ids=["once", "memory"]
)
def test_an_error_that_the_steps_do_not_cause_is_raised(options: dict[str, Any]):
    case = refusing_case(**options)
    with pytest.raises(type(case.model.error)):
        rehearse(case, trace_case(case))
