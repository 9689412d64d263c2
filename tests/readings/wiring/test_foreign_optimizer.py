"""An optimizer that was built on another model is a finding, not an error of the call."""

from __future__ import annotations

import copy

import torch
import torch.nn.functional as F

import leadline
from leadline.report.verdict import title
from tests.support.wiring import classes, features, mlp


def test_a_model_whose_copy_is_in_the_optimizer_does_not_train():
    model = mlp()
    optimizer = torch.optim.Adam(copy.deepcopy(model).parameters())
    report = leadline.check(model, features(), classes(), F.cross_entropy, optimizer)
    assert (report.verdict, title(report)) == ("fails", "DOES NOT TRAIN")
    assert "0 of 4 trainable tensors are in the optimizer" in report.reason
    root = report.findings[[each.code for each in report.findings].index("D920")]
    assert root.explained_by == ""
    assert all(each.explained_by == "D920" for each in report.findings if each is not root)


def test_the_ledger_counts_the_tensors_of_the_other_model():
    report = leadline.check(
        mlp(), features(), classes(), F.cross_entropy, torch.optim.Adam(mlp().parameters())
    )
    assert report.profile.ledger is not None
    assert report.profile.ledger.foreign == 4
    assert all(row.in_optimizer == 0 for row in report.profile.ledger.rows)


def test_one_of_two_optimizers_may_belong_to_another_model():
    model, other = mlp(), mlp()
    optimizers = [torch.optim.SGD(each.parameters(), lr=0.1) for each in (model, other)]
    report = leadline.check(model, features(), classes(), F.cross_entropy, optimizers)
    notes = [each for each in report.findings if each.code == "D920"]
    assert [each.severity for each in notes] == ["info"]
    assert report.profile.update is not None


def test_the_command_line_reports_it(run, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "net.py").write_text(
        "import torch\nfrom torch import nn\nimport torch.nn.functional as F\n"
        "def make():\n"
        "    model, other = nn.Linear(4, 3), nn.Linear(4, 3)\n"
        "    optimizer = torch.optim.SGD(other.parameters(), lr=0.1)\n"
        "    return model, torch.randn(8, 4), torch.randint(0, 3, (8,)), F.cross_entropy, optimizer\n"
    )
    done = run("check", "net.py:make")
    assert done.code == 1
    assert "DOES NOT TRAIN" in done.out
    assert "D920" in done.out
