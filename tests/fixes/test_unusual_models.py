"""Fixes on unusual models either work or say why they do not."""

from __future__ import annotations

import ast
from collections.abc import Callable
from functools import cache

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.utils import parametrizations

from leadline import Case
from leadline.checks._diagnosis import check_case
from leadline.errors import InputError
from leadline.fixes import all_fixes
from leadline.fixes._engine.candidates import candidates_of
from leadline.fixes._engine.edit_builders import draw_edit
from leadline.fixes._engine.edits import EditSession, apply_edits, code_of, temporary_edits
from leadline.fixes._engine.fix import FixContext
from leadline.fixes._engine.fix import fix as make_fix
from leadline.fixes._engine.proofs import find_best_rate
from leadline.fixes._engine.reference import LearningCriterion, build_reference
from leadline.fixes._engine.verify import make_context
from leadline.records import Edit
from tests.support import toy_fixes as toys

WIDTH = 12


class Written(nn.Module):
    """Attention as people write it, post-norm, with logits far too large."""

    def __init__(self) -> None:
        super().__init__()
        self.query, self.key, self.value, self.out = (nn.Linear(WIDTH, WIDTH) for _ in range(4))
        self.norm = nn.LayerNorm(WIDTH)
        for each in (self.query, self.key):
            nn.init.normal_(each.weight, std=2.0)

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = (
            each(x).unflatten(-1, (2, -1)).transpose(1, 2) for each in (self.query, self.key, self.value)
        )
        weights = ((q @ k.transpose(-2, -1)) / 6**0.5 + torch.zeros(1)).softmax(-1)
        return self.norm(x + self.out((weights @ v).transpose(1, 2).flatten(2)))


class Unrolled(nn.Module):
    """A recurrence written as a loop over one matrix."""

    def __init__(self) -> None:
        super().__init__()
        self.enter, self.again = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        h = torch.zeros(x.shape[0], WIDTH)
        for step in range(x.shape[1]):
            h = torch.tanh(self.enter(x[:, step]) + self.again(h))
        return h


class Pooled(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x.mean(1)


def classified(model: nn.Module, *shape: int, **options: float) -> Case:
    adam = torch.optim.AdamW(model.parameters(), lr=3e-3, **options)
    return Case(model, torch.randn(8, *shape), torch.randint(4, (8,)), F.cross_entropy, adam)


def trained() -> Case:
    case = toys.deep(4)
    for _ in range(3):
        case.loss(case.model(case.inputs), case.targets).backward()
        case.optimizer.step()
    return case


def written() -> Case:
    return classified(nn.Sequential(*[Written() for _ in range(6)], Pooled(), nn.Linear(WIDTH, 4)), 10, WIDTH)


def packed() -> Case:
    layers = [nn.TransformerEncoderLayer(WIDTH, 2, 24, dropout=0.0, batch_first=True) for _ in range(6)]
    return classified(nn.Sequential(*layers, Pooled(), nn.Linear(WIDTH, 4)), 10, WIDTH)


def parametrized() -> Case:
    layers = [parametrizations.orthogonal(nn.Linear(WIDTH, WIDTH)) for _ in range(8)]
    return classified(nn.Sequential(*layers, nn.Linear(WIDTH, 4)), WIDTH)


def frozen() -> Case:
    model = nn.Sequential(
        *[part for _ in range(8) for part in (nn.Linear(WIDTH, WIDTH), nn.Sigmoid())], nn.Linear(WIDTH, 4)
    )
    for each in model[:8].parameters():
        each.requires_grad = False
    return classified(model, WIDTH)


def recurrent() -> Case:
    return classified(nn.Sequential(Unrolled(), nn.Linear(WIDTH, 4)), 12, WIDTH)


def evaluated() -> Case:
    case = toys.deep(6, optimizer=False)
    case.model.eval()
    return case


STRANGERS: dict[str, Callable[[], Case]] = {
    "healthy": toys.healthy, "without an optimizer": evaluated, "trained": trained, "written attention": written,
    "packed attention": packed, "parametrised": parametrized, "frozen": frozen, "unrolled": recurrent,
}  # fmt: skip


@cache
def context(name: str) -> FixContext:
    """Rehearsed without the comparison with Adam, which takes 192 steps and which no plan here depends on."""
    torch.manual_seed(0)
    case = STRANGERS[name]()
    return make_context(case, check_case(case, rehearse=64))


@pytest.mark.parametrize("name", STRANGERS)
def test_every_proposed_plan_can_be_applied_written_as_code_and_undone(name: str):
    seen = context(name)
    session = EditSession(model=seen.case.model, optimizer=seen.case.optimizer)
    before = {key: value.clone() for key, value in seen.case.model.state_dict().items()}
    for fix in all_fixes():
        for plan in fix.propose(seen):
            ast.parse(code_of(plan.edits))
            assert plan.title
            if seen.case.optimizer is not None:
                with temporary_edits(session, plan.edits):
                    pass
            after = seen.case.model.state_dict()
            assert before.keys() == after.keys(), fix.name
            assert all(torch.equal(value, after[key]) for key, value in before.items()), fix.name


def plans(name: str, fix: str) -> list:
    (chosen,) = (each for each in all_fixes() if each.name == fix)
    return list(chosen.propose(context(name)))


def test_queries_and_keys_of_written_attention_are_found():
    (plan,) = plans("written attention", "qk-norm")
    assert len(plan.edits) == 12


def test_a_parametrized_weight_is_drawn_through_its_parametrization_and_so_does_the_code():
    (linear,) = context("parametrised").case.model[:1]
    edit = Edit(
        action="draw", where="0.weight", options={"kind": "orthogonal", "size": 1.0, "parametrized": True}
    )
    model = context("parametrised").case.model
    before = linear.weight.detach().clone()
    with temporary_edits(EditSession(model=model), [edit]):
        drawn = linear.weight.detach().clone()
        assert not torch.allclose(drawn, before)
        assert torch.allclose(drawn @ drawn.T, torch.eye(WIDTH), atol=1e-5)
    assert torch.equal(linear.weight, before)
    exec(code_of([edit]), {"model": model})
    assert torch.allclose(linear.weight, drawn, atol=1e-6)


def test_a_parametrisation_that_cannot_be_given_a_weight_is_refused():
    model = nn.Sequential(parametrizations.spectral_norm(nn.Linear(4, 4)))
    nn.utils.parametrize.register_parametrization(model[0], "bias", nn.ReLU())
    with pytest.raises(InputError, match="right_inverse"):
        apply_edits(EditSession(model=model), [draw_edit("0.bias", "constant", 1.0)])


def test_an_identity_is_drawn_and_its_code_draws_it():
    model = nn.Sequential(nn.Linear(4, 4))
    edit = draw_edit("0.weight", "identity", 0.5)
    apply_edits(EditSession(model=model), [edit])
    assert torch.equal(model[0].weight, 0.5 * torch.eye(4))
    nn.init.zeros_(model[0].weight)
    exec(code_of([edit]), {"model": model})
    assert torch.equal(model[0].weight, 0.5 * torch.eye(4))


OPTIONS = {
    "a number": Edit(action="scale", where="0.weight", options={"factor": True}),
    "an integer": Edit(action="recentre", where="0", options={"dim": 0.5}),
    "an integer from 0": Edit(action="norm-input", where="0", options={"kind": "LayerNorm", "width": -1}),
    "a list of strings": Edit(action="train", options={"names": "0.weight"}),
    "of 3 equal parts": Edit(
        action="scale", where="0.weight", options={"factor": 2.0, "parts": 3, "dim": 0, "first": 0, "last": 0}
    ),
    "an activation inside a model": Edit(action="swap", where="", options={"to": "relu"}),
}


@pytest.mark.parametrize("wanted", OPTIONS)
def test_an_option_that_makes_no_sense_is_refused_and_nothing_is_changed(wanted: str):
    model = nn.Sequential(nn.Linear(4, 4))
    before = model[0].weight.clone()
    with pytest.raises(InputError, match=wanted):
        apply_edits(
            EditSession(model=model, optimizer=torch.optim.SGD(model.parameters(), lr=0.1)), [OPTIONS[wanted]]
        )
    assert torch.equal(model[0].weight, before)


def test_a_rate_that_is_a_tensor_is_multiplied_in_place_and_restored():
    model = nn.Linear(2, 2)
    optimizer = torch.optim.Adam(model.parameters(), lr=torch.tensor(0.1))
    rate = optimizer.param_groups[0]["lr"]
    with temporary_edits(
        EditSession(model=model, optimizer=optimizer), [Edit(action="rate", options={"factor": 0.5})]
    ):
        assert optimizer.param_groups[0]["lr"] is rate
        assert rate.item() == pytest.approx(0.05)
    assert rate.item() == pytest.approx(0.1)


def test_a_branch_that_is_recentred_has_no_mean():
    model = nn.Sequential(nn.Linear(4, 4), nn.ReLU())
    x = torch.randn(3, 4)
    with temporary_edits(EditSession(model=model), [Edit(action="recentre", where="1", options={"dim": -1})]):
        assert model(x).mean(-1).abs().max() < 1e-6
    assert model(x).mean(-1).min() > 0


def test_frozen_weights_are_thawed_without_an_optimizer_too():
    model = nn.Linear(2, 2).requires_grad_(requires_grad=False)
    with temporary_edits(EditSession(model=model), [Edit(action="train", options={"names": ("weight",)})]):
        assert model.weight.requires_grad
    assert not model.weight.requires_grad


def test_no_more_rates_are_tried_than_allowed():
    factors: list[float] = []

    def train(factor: float) -> tuple[float, ...]:
        factors.append(factor)
        return (1.0, 1.0 / (10 * factor))

    assert find_best_rate((1.0, 0.9), train) == 27
    assert factors == [3, 9, 27]


def test_non_finite_losses_have_not_learned_and_name_no_reference():
    bar = LearningCriterion(constant=2.0, reference=())
    assert not bar.has_learned_enough((3.0, float("nan")))
    assert bar.describe((3.0, 2.5)) == "the best constant output reaches 2"
    assert "is unknown" in LearningCriterion().describe((3.0,))


@pytest.mark.parametrize(
    "case",
    [
        Case(nn.Flatten(0), torch.randn(4, 3), torch.randn(12), F.mse_loss),
        Case(nn.Linear(3000, 2), torch.randn(2, 3000), torch.randn(2, 2), F.mse_loss),
    ],
    ids=["another batch", "too wide"],
)
def test_there_is_no_reference_where_shapes_do_not_allow_one(case: Case, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("leadline.fixes._engine.reference.MAX_FEATURES", 2000)
    assert build_reference(case) is None


def test_one_input_in_a_tuple_is_one_input():
    assert (
        build_reference(Case(nn.Linear(3, 2), (torch.randn(4, 3),), torch.randn(4, 2), F.mse_loss))
        is not None
    )


def test_plans_for_a_fresh_model_are_marked_for_one_that_has_been_trained():
    fix = next(each for each in all_fixes() if each.name == "critical-init")
    titles = [each.title for each in candidates_of(fix, context("trained"), ("I302",), rooted=True)]
    assert titles
    assert all("3 steps" in each for each in titles)


def test_a_fix_that_refuses_is_reported_with_its_reason():
    @make_fix(name="toy-refusal", answers=("I",), reach="init", since="0.1.0")
    def refusing(seen: FixContext):
        """Refuses."""
        raise InputError(expected="another model", got="this one", fix="none")

    (found,) = candidates_of(refusing, context("healthy"), ("I302",), rooted=True)
    assert found.reach == "advice"
    assert "another model" in found.why
