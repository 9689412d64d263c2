"""Models that hold on to themselves are copied with what they hold; others are built anew by their factory."""

import threading
from dataclasses import replace
from functools import partial

import pytest
import torch
from torch import nn

import leadline
from leadline import Case
from leadline.cli import main
from leadline.errors import CopyError
from leadline.fixes._engine.copy import copy_case, rebuildable
from leadline.fixes._engine.trial import train_step

X, Y = torch.randn(8, 4), torch.randn(8, 4)


class LambdaBlock(nn.Module):
    """A block as in minGPT: its forward is a lambda over its own modules."""

    def __init__(self) -> None:
        super().__init__()
        self.mlp = nn.ModuleDict({"fc": nn.Linear(4, 8), "proj": nn.Linear(8, 4)})
        m = self.mlp
        self.mlpf = lambda x: m.proj(torch.relu(m.fc(x)))

    def forward(self, x):
        return x + self.mlpf(x)


class SelfBlock(LambdaBlock):
    def __init__(self) -> None:
        super().__init__()
        inner = lambda x: self.mlp["fc"](x)  # noqa: E731  (a lambda is what is tested)
        self.mlpf = lambda x: self.mlp["proj"](inner(x))


class DefaultBlock(LambdaBlock):
    def __init__(self) -> None:
        super().__init__()
        self.mlpf = partial(lambda m, x, last=self.mlp["proj"]: last(m["fc"](x)), self.mlp)


class LockedNet(nn.Sequential):
    def __init__(self) -> None:
        super().__init__(LambdaBlock(), nn.Linear(4, 4))
        self.lock = threading.Lock()


def case_of(model: nn.Module, lr: float = 0.1) -> Case:
    return Case(model, X, Y, nn.functional.mse_loss, torch.optim.SGD(model.parameters(), lr=lr))


def trained(case: Case) -> list[float]:
    return [train_step(case, (X, Y)) for _ in range(4)]


@pytest.mark.parametrize("block", [LambdaBlock, SelfBlock, DefaultBlock])
def test_a_lambda_over_modules_uses_the_modules_of_the_copy(block):
    torch.manual_seed(0)
    case = case_of(nn.Sequential(block(), block()))
    before = {name: value.clone() for name, value in case.model.state_dict().items()}
    losses = trained(copy_case(case))
    assert all(torch.equal(value, before[name]) for name, value in case.model.state_dict().items())
    assert all(each.grad is None for each in case.model.parameters())
    assert losses == trained(case)
    assert losses[-1] < losses[0]


def test_a_loss_over_the_model_uses_the_copy():
    model = nn.Linear(4, 4)

    def penalized(output, targets):
        return nn.functional.mse_loss(output, targets) + model.weight.square().sum()

    trained(copy_case(replace(case_of(model), loss=penalized)))
    assert model.weight.grad is None


def test_a_model_that_cannot_be_copied_is_built_by_its_factory():
    torch.manual_seed(0)
    with pytest.raises(CopyError, match=r"leadline\.fix"):
        copy_case(case_of(LockedNet()))
    case = case_of(LockedNet())
    built = rebuildable(case, lambda: case_of(LockedNet()))
    losses = trained(copy_case(built))
    assert built.random == [True]
    assert losses == trained(case)


def test_a_factory_that_returns_the_same_model_again_is_refused():
    case = case_of(LockedNet())
    with pytest.raises(CopyError, match="inside the factory"):
        copy_case(rebuildable(case, lambda: case))


def test_a_factory_that_builds_another_model_is_refused():
    case = case_of(LockedNet())
    with pytest.raises(CopyError, match="the same model each time"):
        copy_case(rebuildable(case, lambda: case_of(nn.Linear(4, 4))))


@pytest.mark.parametrize("is_seeded", [True, False])
def test_fix_takes_a_factory_and_says_whether_it_is_random(is_seeded):
    seeds = iter(range(1000))

    def make() -> Case:
        torch.manual_seed(0 if is_seeded else next(seeds))
        return case_of(LockedNet(), lr=300.0)

    repair = leadline.fix(make, budget=20)
    assert repair.recipe.edits
    assert any("the factory built a new one" in note for note in repair.report.notes)
    assert any("the factory is random" in note for note in repair.report.notes) is not is_seeded


FACTORY = """
import threading, torch
from torch import nn

class Net(nn.Linear):
    pass

def make():
    model = Net(4, 4)
    model.lock = threading.Lock()
    x = torch.randn(8, 4, generator=torch.Generator().manual_seed(1))
    return model, x, x.flip(0), nn.functional.mse_loss, torch.optim.SGD(model.parameters(), lr=300.0)
"""


def test_the_command_line_calls_the_factory_again(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "locked.py").write_text(FACTORY)
    code = main(["fix", "locked.py:make", "--budget", "20", "-v"])
    out = capsys.readouterr().out
    assert code in (0, 1), out
    assert "the factory built a new one" in " ".join(out.split())
