"""An error that the user's code raises because of a NaN says which op made the first one, and at which line."""

from __future__ import annotations

import inspect
import math

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import leadline
from leadline.errors import advice_on


class LogOfNegative(nn.Module):
    """Takes the logarithm of numbers that may be negative."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(4, 8), nn.Linear(8, 2)

    def forward(self, x: Tensor) -> Tensor:
        return self.last(torch.log(self.first(x)))


class Checked(LogOfNegative):
    def forward(self, x: Tensor) -> Tensor:
        y = super().forward(x)
        assert not y.isnan().any(), "NaN in the output"
        return y


def line_of_log() -> int:
    lines, start = inspect.getsourcelines(LogOfNegative.forward)
    return start + next(place for place, line in enumerate(lines) if "torch.log" in line)


def refuse_number(y: Tensor, target: Tensor) -> Tensor:
    loss = F.cross_entropy(y, target)
    if not math.isfinite(loss.item()):
        raise FloatingPointError("the loss is not finite")
    return loss


LOSSES = {
    "a distribution": (
        LogOfNegative,
        lambda y, t: -torch.distributions.Categorical(logits=y, validate_args=True).log_prob(t).mean(),
    ),
    "a range": (LogOfNegative, lambda y, t: F.binary_cross_entropy(y.sigmoid(), F.one_hot(t, 2).float())),
    "linear algebra": (LogOfNegative, lambda y, t: torch.linalg.svd(y)[1].sum()),
    "an assertion in the model": (Checked, F.cross_entropy),
    "a number in Python": (LogOfNegative, refuse_number),
}


@pytest.mark.parametrize("name", LOSSES)
@pytest.mark.parametrize("call", [leadline.check, leadline.trace], ids=["check", "trace"])
def test_the_first_non_finite_op_is_named_with_its_line(name: str, call):
    torch.manual_seed(0)
    kind, loss = LOSSES[name]
    with pytest.raises(Exception) as caught:  # noqa: PT011  (each of them has another type)
        call(kind(), torch.randn(8, 4), torch.randint(0, 2, (8,)), loss)
    note = advice_on(caught.value)[0]
    assert "log" in note
    assert "makes the first NaN or infinity" in note
    assert f"test_errors_of_non_finite_values.py:{line_of_log()}" in note
    assert "later" in note


def test_an_error_without_a_nan_gets_no_such_note():
    model = nn.Linear(4, 2)
    with pytest.raises(RuntimeError) as caught:
        leadline.check(model, torch.randn(8, 5), torch.randint(0, 2, (8,)), F.cross_entropy)
    assert not any("NaN" in note for note in advice_on(caught.value))


def test_a_masked_attention_is_not_taken_for_the_cause():
    def loss(y: Tensor) -> Tensor:
        scores = y.masked_fill(torch.ones(8, 2).tril() == 0, -math.inf)
        scores.softmax(-1).sum()
        raise ValueError("not about numbers")

    with pytest.raises(ValueError, match="not about") as caught:
        leadline.check(nn.Linear(4, 2), torch.randn(8, 4), loss=loss)
    assert not any("NaN" in note for note in advice_on(caught.value))


def test_a_nan_in_the_batch_is_named_as_the_input():
    x = torch.randn(8, 4)
    x[3, 1] = math.nan
    loss = LOSSES["a distribution"][1]
    with pytest.raises(ValueError, match="invalid values") as caught:
        leadline.check(nn.Linear(4, 2), x, torch.randint(0, 2, (8,)), loss)
    assert "input contains NaN or infinity in 1 of 32 elements" in advice_on(caught.value)[0]


def test_the_command_line_shows_it(run, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "net.py").write_text(
        "import torch\nfrom torch import nn\n"
        "class Net(nn.Module):\n"
        "    def __init__(self):\n        super().__init__()\n        self.a = nn.Linear(4, 2)\n"
        "    def forward(self, x):\n        return self.a(x).log()\n"
        "def loss(y, t):\n    found = torch.distributions.Categorical(logits=y, validate_args=True)\n"
        "    return -found.log_prob(t).mean()\n"
        "def make():\n    return Net(), torch.randn(8, 4), torch.randint(0, 2, (8,)), loss\n"
    )
    done = run("check", "net.py:make")
    assert done.code == 2
    assert "log (net.py:8) makes the first NaN or infinity" in done.err
    assert "ValueError: Expected parameter logits" in done.err
