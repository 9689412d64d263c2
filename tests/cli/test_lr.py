"""`leadline lr`: the figure in a terminal, the files, and exit codes that say whether the rate is safe."""

import json

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from leadline.case import Case
from leadline.cli.lr import show
from leadline.errors import InputError
from leadline.readings.rate_scan import scan_rates
from leadline.records import RateScan
from tests.support.reports import rate_scan

TARGET = """
import torch
from torch import nn

def make(rate={rate}):
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(8, 16), nn.Tanh(), nn.Linear(16, 3))
    sgd = torch.optim.SGD(model.parameters(), lr=rate)
    return model, torch.randn(32, 8), torch.arange(32) % 3, nn.functional.cross_entropy, sgd
"""


def test_the_figure_marks_the_safe_rate_and_the_users_own():
    text = show(rate_scan())
    assert "↑ safe 0.01" in text
    assert "↑ yours 0.1" in text
    assert "×" in text  # the loss at the largest rate is not finite
    assert "10 times the safe rate" in text


@pytest.mark.parametrize("changes", [{"losses": (None,) * 5}, {"safe_lr": None}, {"loss": 0.0}])
def test_the_figure_is_drawn_also_where_values_are_missing(changes):
    assert "learning rate" in show(rate_scan(**changes), verbose=True)


def test_a_safe_rate_ends_with_0_and_writes_its_files(run, tmp_path):
    (tmp_path / "nets.py").write_text(TARGET.format(rate=0.01))
    done = run("lr", "nets.py:make", "--format", "json", "--svg", "rates.svg", "--html", "rates.html")
    assert done.code == 0
    found = RateScan.from_json(done.out)
    assert found.is_safe
    assert found.target == "nets.py:make"
    assert found.losses[0] == pytest.approx(found.predicted[0], rel=1e-3)
    assert (tmp_path / "rates.svg").read_text().startswith("<svg")
    assert "<svg" in (tmp_path / "rates.html").read_text()


def test_a_rate_far_above_the_safe_one_ends_with_1(run, tmp_path):
    (tmp_path / "nets.py").write_text(TARGET.format(rate=500.0))
    done = run("lr", "nets.py:make", "--format", "json")
    assert done.code == 1
    assert json.loads(done.out)["safe_lr"] < 500


def test_a_target_without_an_optimizer_is_refused_with_what_to_do(run, tmp_path):
    (tmp_path / "nets.py").write_text(
        "from torch import nn, ones\ndef make():\n    return nn.Linear(2, 1), ones(3, 2)\n"
    )
    done = run("lr", "nets.py:make")
    assert done.code == 2
    assert "pass optimizer=" in done.err


def test_a_rate_of_zero_cannot_be_scanned_and_another_can_without_a_progress():
    def case(lr: float) -> Case:
        torch.manual_seed(0)
        model = nn.Linear(4, 2)
        optimizer = torch.optim.SGD(model.parameters(), lr=lr)
        return Case(model, torch.randn(8, 4), torch.randn(8, 2), F.mse_loss, optimizer)

    with pytest.raises(InputError, match="rate"):
        scan_rates(case(0.0))
    assert len(scan_rates(case(0.1)).losses) > 1
