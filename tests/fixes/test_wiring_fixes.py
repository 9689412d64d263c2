"""Wiring fixes are proved: the probe is silent afterwards, and the training learns what was meant."""

from __future__ import annotations

import copy
import importlib.util
import sys
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import leadline
from leadline.fixes import all_fixes
from leadline.fixes._engine.candidates import find_candidates
from leadline.fixes._engine.comparison import judge_alone
from leadline.fixes._engine.edits import EditSession, temporary_edits
from leadline.fixes._engine.repair import Repair
from leadline.fixes._engine.source_edits import apply_source_edits, edit_source
from leadline.fixes._engine.verify import make_context

BUDGET = 20
pytestmark = [pytest.mark.long, pytest.mark.filterwarnings("ignore:Using a target size")]


def batch() -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(256, 16, generator=generator)
    return x, (x[:, :3] > 0).long().sum(1)


def net(outputs: int = 4) -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(16, 64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, outputs))


def adam(parameters) -> torch.optim.Optimizer:
    return torch.optim.Adam(parameters, lr=1e-2)


def kept(repair: Repair) -> str:
    return " + ".join(each.fix for each in repair.outcomes if each.kept)


def test_an_optimizer_of_another_model_gets_the_parameters_of_this_one():
    model, (x, y) = net(), batch()
    optimizer = adam(copy.deepcopy(model).parameters())
    repair = leadline.fix(model, x, y, F.cross_entropy, optimizer, budget=BUDGET)
    assert (repair.verdict_before, repair.report.result) == ("fails", "repaired")
    assert "complete-optimizer" in kept(repair)


def test_missing_parameters_are_added_and_the_recipe_can_be_undone():
    model, (x, y) = net(), batch()
    optimizer = adam(model[:2].parameters())
    repair = leadline.fix(model, x, y, F.cross_entropy, optimizer, budget=BUDGET, apply=True)
    assert "complete-optimizer" in kept(repair)
    assert len(optimizer.param_groups[0]["params"]) == 6
    leadline.undo(model)
    assert len(optimizer.param_groups[0]["params"]) == 2


def test_random_features_that_a_head_learns_from_are_left_alone():
    model, (x, y) = net(), batch()
    for layer in (model[0], model[2]):
        layer.requires_grad_(requires_grad=False)
    repair = leadline.fix(model, x, y, F.cross_entropy, adam(model[4].parameters()), budget=BUDGET)
    assert (repair.verdict_before, repair.report.result) == ("trains", "nothing to fix")


def test_outputs_are_given_the_shape_of_their_targets():
    x, _ = batch()
    model = net(1)
    repair = leadline.fix(model, x, x[:, 0].clone(), F.mse_loss, adam(model.parameters()), budget=BUDGET)
    assert (repair.verdict_before, repair.report.result) == ("fails", "repaired")
    (outcome,) = [each for each in repair.outcomes if each.kept]
    assert (outcome.fix, outcome.changes_loss) == ("match-targets", True)
    assert "D908" in outcome.gone
    assert "below that of its best constant output" in outcome.why
    assert any("changes what the loss means" in note for note in repair.report.notes)
    assert repair.model(x).shape == (256,)


def test_logits_are_normalized_before_nll_loss():
    model, (x, y) = net(), batch()
    repair = leadline.fix(model, x, y, F.nll_loss, adam(model.parameters()), budget=BUDGET)
    assert (repair.report.result, kept(repair)) == ("repaired", "log-probabilities")
    assert torch.allclose(repair.model(x).exp().sum(1), torch.ones(256), atol=1e-4)


def test_a_bug_that_only_its_author_can_repair_gets_its_line_and_no_training():
    def loss(output: Tensor, targets: Tensor) -> Tensor:
        return -F.cross_entropy(output, targets)

    model, (x, y) = net(), batch()
    repair = leadline.fix(model, x, y, loss, adam(model.parameters()), budget=BUDGET)
    assert repair.report.result == "not repaired"
    assert repair.report.steps == 0
    assert {each.fix for each in repair.outcomes} == {"rewire"}


@pytest.mark.parametrize(
    ("losses", "constant", "verdict"),
    [
        ([2.0 - 0.02 * step for step in range(80)], 1.0, True),
        ([2.0 - 0.02 * step for step in range(80)], 0.3, False),
        ([1.0] * 80, 2.0, False),
        ([2.0 - 0.02 * step for step in range(80)], None, False),
    ],
    ids=["below", "above", "does not fall", "no constant"],
)
def test_a_new_loss_is_judged_by_its_own_constant_output(losses, constant, verdict):
    assert judge_alone(losses, constant).lower == verdict


NETS = """\
import leadline
import torch
import torch.nn.functional as F
from torch import nn


class Listed(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = [nn.Linear(16, 16) for _ in range(2)]
        self.head = nn.Linear(16, 4)

    def forward(self, x):
        for layer in self.layers:
            x = layer(x).relu()
        return self.head(x)


class Net(nn.Module):
    def __init__(self, outputs):
        super().__init__()
        self.body = nn.Linear(16, 16)
        self.head = nn.Linear(16, outputs)

    def forward(self, x):
        return self.head(self.body(x).relu())


class Attention(nn.Module):
    def __init__(self):
        super().__init__()
        self.q, self.k, self.v = (nn.Linear(64, 64) for _ in range(3))
        for layer in (self.q, self.k):
            nn.init.normal_(layer.weight, std=0.125)

    def forward(self, x):
        q, k, v = self.q(x), self.k(x), self.v(x)
        weights = q @ k.transpose(-2, -1)
        return x + weights.softmax(-1) @ v


class Reader(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = nn.ModuleList(Attention() for _ in range(2))
        self.head = nn.Linear(64, 4)

    def forward(self, x):
        for layer in self.layers:
            x = layer(x)
        return self.head(x.mean(1))


class Recurrent(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed = nn.Embedding(12, 32)
        self.rnn = nn.GRU(32, 64, batch_first=True)
        self.head = nn.Linear(64, 12)

    def forward(self, tokens, labels=None):
        logits = self.head(self.rnn(self.embed(tokens))[0])
        if labels is None:
            return logits
        loss = F.cross_entropy(logits[:, :-1].flatten(0, 1), labels[:, 1:].flatten())
        return {"loss": loss, "logits": logits}


def not_shifted(logits, targets):
    return F.cross_entropy(logits.view(-1, 12), targets.view(-1))


def shifted(logits, targets):
    return F.cross_entropy(logits[:, :-1].flatten(0, 1), targets[:, 1:].flatten())


def text():
    return (torch.randint(0, 12, (32, 1)) + 5 * torch.arange(17)) % 12


def attention():
    model = Reader()
    x, y = torch.randn(64, 12, 64), torch.arange(64) % 4
    return leadline.Case(model, x, y, F.cross_entropy, torch.optim.Adam(model.parameters(), lr=1e-3))


def own_position():
    model, tokens = Recurrent(), text()[:, :-1]
    return leadline.Case(model, tokens, tokens.clone(), not_shifted, torch.optim.Adam(model.parameters(), lr=1e-2))


def shifted_twice():
    model, tokens = Recurrent(), text()
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
    return leadline.Case(model, tokens[:, :-1], tokens[:, 1:].clone(), shifted, optimizer)


def labels_shifted_twice():
    model, tokens = Recurrent(), text()
    batch = {"tokens": tokens[:, :-1].clone(), "labels": tokens[:, 1:].clone()}
    return leadline.Case(model, batch, optimizer=torch.optim.Adam(model.parameters(), lr=1e-2))


def squared(output, targets):
    return F.mse_loss(output, targets)


def likelihood(output, targets):
    return F.nll_loss(output, targets)


def listed():
    model = Listed()
    return case(model, F.cross_entropy, torch.optim.Adam(model.parameters(), lr=1e-2))


def part():
    net = Net(4)
    return case(net, F.cross_entropy, torch.optim.AdamW(net.body.parameters(), lr=1e-2))


def column():
    model = Net(1)
    x = torch.randn(64, 16)
    return leadline.Case(model, x, x[:, 0].clone(), squared, torch.optim.Adam(model.parameters(), lr=1e-2))


def logits():
    model = Net(4)
    return case(model, likelihood, torch.optim.Adam(model.parameters(), lr=1e-2))


def case(model, loss, optimizer):
    x = torch.randn(64, 16)
    return leadline.Case(model, x, (x[:, :3] > 0).long().sum(1), loss, optimizer)
"""


@pytest.fixture
def load(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / ".git").mkdir()

    def load(text: str, name: str) -> leadline.Case:
        path = tmp_path / "nets.py"
        path.write_text(text)
        spec = importlib.util.spec_from_file_location("nets", path)
        assert spec is not None
        assert spec.loader is not None
        module = importlib.util.module_from_spec(spec)
        monkeypatch.setitem(sys.modules, "nets", module)
        spec.loader.exec_module(module)
        torch.manual_seed(0)
        return getattr(module, name)()

    return load


@pytest.mark.parametrize(
    ("name", "fix", "code", "new"),
    [
        ("listed", "register-modules", "D915", "nn.ModuleList([nn.Linear(16, 16) for _ in range(2)])"),
        ("part", "complete-optimizer", "D914", "torch.optim.AdamW(net.parameters(), lr=1e-2)"),
        ("column", "match-targets", "D908", "F.mse_loss(output.squeeze(-1), targets)"),
        ("logits", "log-probabilities", "D910", "F.cross_entropy(output, targets)"),
        (
            "own_position",
            "shift-targets",
            "D907",
            "(logits[:, :-1].reshape(-1, 12), targets[:, 1:].reshape(-1))",
        ),
        ("shifted_twice", "shift-targets", "D907", "(logits.flatten(0, 1), targets.flatten())"),
        ("attention", "scale-logits", "D921", "weights = q @ k.transpose(-2, -1) * 64 ** -0.5"),
    ],
)
def test_the_fix_is_a_change_of_the_users_own_line_after_which_the_finding_is_gone(
    load, name, fix, code, new
):
    context = make_context(load(NETS, name))
    assert context.findings((code,))
    (candidate,) = [each for each in find_candidates(context, all_fixes()) if each.fix == fix]
    change = edit_source(candidate.edits[0], context, [Path("nets.py")])
    assert change is not None
    assert new in change.new
    edited = make_context(load(apply_source_edits(NETS, [change]), name))
    assert not edited.findings((code,))


@pytest.mark.parametrize("name", ["own_position", "labels_shifted_twice"])
def test_each_position_is_asked_for_the_next_input(load, name):
    repair = leadline.fix(load(NETS, name), budget=BUDGET)
    assert (repair.verdict_before, repair.report.result, kept(repair)) == (
        "fails",
        "repaired",
        "shift-targets",
    )
    (outcome,) = [each for each in repair.outcomes if each.kept]
    assert "D907" in outcome.gone
    assert "below that of its best constant output" in outcome.why


def test_the_logits_of_every_attention_are_scaled_and_the_recipe_can_be_undone(load):
    case = load(NETS, "attention")
    context = make_context(case)
    (candidate,) = [each for each in find_candidates(context, all_fixes()) if each.fix == "scale-logits"]
    assert [edit.where for edit in candidate.edits] == ["layers.0", "layers.1"]
    x, layer = case.inputs, case.model.layers[0]
    expected = x + (layer.q(x) @ layer.k(x).mT / 8).softmax(-1) @ layer.v(x)
    before = layer(x)
    with temporary_edits(EditSession(model=case.model), candidate.edits):
        torch.testing.assert_close(layer(x), expected)
        assert not make_context(case).findings(("D921",))
    torch.testing.assert_close(layer(x), before, rtol=0, atol=0)


def test_targets_are_not_shifted_in_a_network_that_sees_the_next_input_too():
    class Tagger(nn.Module):
        def __init__(self):
            super().__init__()
            self.embed = nn.Embedding(12, 16)
            self.cell = nn.GRU(16, 16, batch_first=True, bidirectional=True)
            self.head = nn.Linear(32, 12)

        def forward(self, tokens):
            return self.head(self.cell(self.embed(tokens))[0])

    torch.manual_seed(0)
    tokens = torch.randint(12, (8, 16))

    def loss(scores, targets):
        return F.cross_entropy(scores.flatten(0, 1), targets.flatten())

    context = make_context(leadline.Case(Tagger(), tokens, tokens.clone(), loss))
    assert context.findings(("D907",))
    assert [each.fix for each in find_candidates(context, all_fixes()) if each.edits] == []
