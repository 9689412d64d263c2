"""The search keeps what is proved, never what is refuted, and leaves the user's objects as they were."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
import torch
from torch import nn

import leadline
from leadline.errors import InputError
from leadline.fixes._engine.candidates import combine, find_candidates, stages
from leadline.fixes._engine.comparison import compare
from leadline.fixes._engine.fix import Plan, fix
from leadline.fixes._engine.proofs import rate_candidate, with_rate
from leadline.fixes._engine.reference import LearningCriterion
from leadline.fixes._engine.repair import repair
from leadline.fixes._engine.search import STABLER_RATE_FACTOR
from leadline.fixes._engine.trial import Trials, budget_of, read_batches
from leadline.fixes._engine.verify import make_context, trace_again, train_treated
from leadline.readings.update.rehearsal import MAX_BATCHES
from leadline.records import Edit, Outcome, Trial
from leadline.tracer import trace
from tests.support import toy_fixes as toys
from tests.support.toy_fixes import Clock

pytestmark = pytest.mark.long


@pytest.fixture(scope="module")
def repaired():
    return repair(toys.deep(), fixes=toys.TOYS)


def outcome(found, name: str) -> Outcome:
    return next(each for each in found.outcomes if each.fix == name)


def test_the_untreated_model_is_traced_exactly_once_before_fixes_are_tried(monkeypatch):
    traces, counts = [], []
    record = trace._trace
    monkeypatch.setattr(trace, "_trace", lambda *args, **kwargs: traces.append(1) or record(*args, **kwargs))

    @fix(name="toy-count", answers=("I", "B"), reach="init", since="0.1.0")
    def toy_count(context):
        """Counts the traces that were made before it was called."""
        counts.append(len(traces))
        return []

    repair(toys.deep(), fixes=[toy_count])
    assert counts[0] == 1


def test_a_network_that_failed_trains_after_the_fix(repaired):
    assert (repaired.verdict_before, repaired.verdict_after) == ("fails", "trains")
    assert repaired.ok
    assert repaired.recipe.edits == outcome(repaired, "toy-gain").edits
    assert leadline.check(
        repaired.model, toys.deep().inputs, toys.deep().targets, nn.functional.cross_entropy
    ).ok


def test_a_verified_fix_has_its_proof(repaired):
    proof = outcome(repaired, "toy-gain")
    assert (proof.state, proof.kept, proof.verdict) == ("verified", True, "trains")
    assert {"B201", "I302"} <= set(proof.gone)
    assert proof.trial.treated[-1] < proof.trial.untreated[-1]
    assert {each.name for each in proof.measures} >= {"gradient, change per block", "loss after 40 steps"}


def test_the_last_trial_is_longer_and_ends_lower(repaired):
    assert len(repaired.report.trial.treated) == 3 * len(outcome(repaired, "toy-gain").trial.treated)
    assert repaired.report.trial.treated[-1] < repaired.report.trial.untreated[-1]
    assert repaired.report.learns


def test_a_fix_that_only_claims_to_keep_the_function_is_refuted(repaired):
    proof = outcome(repaired, "toy-lie")
    assert proof.state == "refuted"
    assert proof.drift > 0.1
    assert "double precision" in proof.why


def test_a_fix_that_leaves_the_finding_is_refuted_without_any_training(repaired):
    proof = outcome(repaired, "toy-placebo")
    assert (proof.state, proof.trial) == ("refuted", None)
    assert "still finds" in proof.why


def test_what_cannot_be_made_and_what_is_only_advice_was_not_run(repaired):
    assert outcome(repaired, "toy-mistake").state == "not run"
    assert "nowhere" in outcome(repaired, "toy-mistake").why
    assert outcome(repaired, "toy-advice").state == "not run"
    assert outcome(repaired, "toy-advice").code == "# fewer layers"


@pytest.mark.slow
def test_a_fix_that_heals_the_trace_and_not_the_training_is_refuted_and_left_out():
    found = repair(toys.deep(), fixes=[toys.toy_stop, toys.toy_advice])
    assert outcome(found, "toy-stop").state == "refuted"
    assert {"B201", "I302"} <= set(outcome(found, "toy-stop").gone)
    assert not set(map(str, outcome(found, "toy-stop").edits)) & set(map(str, found.recipe.edits))


def test_no_refuted_fix_is_in_the_recipe(repaired):
    refuted = [edit for each in repaired.outcomes if each.state != "verified" for edit in each.edits]
    kept = [edit for each in repaired.outcomes if each.kept for edit in each.edits]
    assert list(repaired.recipe.edits) == kept
    assert not [edit for edit in refuted if edit in kept and edit.action == "rate"]


def test_the_code_of_a_repair_does_the_same_as_its_recipe(repaired):
    by_code, by_recipe = toys.deep(), toys.deep()
    exec(repaired.code, {"model": by_code.model, "optimizer": by_code.optimizer})
    leadline.apply(by_recipe.model, repaired.recipe, by_recipe.optimizer)
    for name, value in repaired.model.state_dict().items():
        assert torch.equal(value, by_code.model.state_dict()[name])
        assert torch.equal(value, by_recipe.model.state_dict()[name])


def test_a_healthy_network_needs_no_repair_and_is_shown_to_learn():
    found = repair(toys.healthy(), fixes=toys.TOYS)
    assert (found.verdict_before, found.outcomes, found.recipe.edits) == ("trains", (), ())
    assert found.report.after is None
    assert found.report.learns
    assert found.report.trial.treated == ()
    assert "NOTHING TO FIX" in str(found)


def test_a_network_without_findings_that_does_not_learn_is_undecided():
    case = toys.healthy()
    steady = [(case.inputs, case.targets)] * MAX_BATCHES  # all that the check looks at
    moving = [(case.inputs, torch.full_like(case.targets, step % 4)) for step in range(60)]
    found = repair(replace(case, batches=steady + moving), fixes=toys.TOYS)
    assert found.verdict_before == "trains"
    assert found.report.learns is False
    assert str(found).startswith(
        "UNDECIDED: the check finds nothing, yet the model did not learn: 40 steps took"
    )


def test_everything_of_the_user_is_as_it_was():
    case = toys.deep(layers=8)
    case.model.train()
    case.model[0].weight.grad = torch.ones_like(case.model[0].weight)
    state = {name: value.clone() for name, value in case.model.state_dict().items()}
    numbers, inputs = torch.get_rng_state(), case.inputs.clone()
    repair(case, fixes=toys.TOYS)
    assert torch.equal(torch.get_rng_state(), numbers)
    assert torch.equal(case.inputs, inputs)
    assert all(torch.equal(value, state[name]) for name, value in case.model.state_dict().items())
    assert torch.equal(case.model[0].weight.grad, torch.ones_like(case.model[0].weight))
    assert not case.optimizer.state
    assert case.model.training


def test_the_budget_ends_the_search_and_says_what_was_not_run():
    clock = Clock(tick=0.01)
    found = repair(toys.deep(), 0.5, fixes=toys.TOYS, clock=clock)
    assert clock.now < 10  # a handful of looks after the end, not hundreds
    assert found.recipe.edits == ()
    assert {each.state for each in found.outcomes} <= {"not run", "refuted"}
    assert any("budget" in each.why for each in found.outcomes)


def test_a_repair_within_the_budget_uses_shorter_trials():
    found = repair(toys.deep(), 30.0, fixes=[toys.toy_gain], clock=Clock(tick=0.05))
    assert found.ok
    assert len(outcome(found, "toy-gain").trial.treated) < 40


def test_without_an_optimizer_trials_use_adam_and_no_fix_changes_the_recipe():
    found = repair(toys.deep(optimizer=False), fixes=[toys.toy_gain, toys.toy_placebo])
    assert found.ok
    assert outcome(found, "toy-placebo").state == "not run"
    assert "Adam" in found.report.optimizer
    assert any("no optimizer was given" in note for note in found.report.notes)


def test_without_a_loss_the_error_says_what_to_pass():
    case = toys.healthy()
    with pytest.raises(InputError, match="pass loss="):
        leadline.fix(case.model, case.inputs)


@pytest.mark.slow
def test_trials_use_the_batches_that_were_given():
    case = toys.deep()
    fresh = [(case.inputs + 0.01 * number, case.targets) for number in range(150)]
    found = repair(replace(case, batches=fresh), fixes=[toys.toy_gain])
    assert found.ok
    assert found.report.trial.fresh


def test_progress_is_reported_at_each_step():
    calls = []
    repair(toys.healthy(), fixes=(), progress=lambda done, total, text: calls.append((done, total, text)))
    assert calls[:2] == [(0, 40, "training the untreated model"), (1, 40, "training the untreated model")]


def test_candidates_come_in_order_of_root_reach_and_promise():
    found = find_candidates(make_context(toys.deep()), toys.TOYS)
    assert [each.fix for each in found] == ["toy-lie", "toy-placebo", "toy-mistake", "toy-gain", "toy-advice"]
    assert [len(stage) for stage in stages(found)] == [1, 2, 1, 1]
    both = combine(found[0], found[1])
    assert (both.fix, both.reach) == ("toy-lie + toy-placebo", "recipe")
    assert both.edits == found[0].edits + found[1].edits


@pytest.mark.slow
def test_two_causes_that_hide_each_other_are_repaired_together():
    case = toys.deep(layers=24)
    for group in case.optimizer.param_groups:
        group["lr"] = 3.0  # with this rate no initialization helps, and without one no rate does
    found = repair(case, fixes=[toys.toy_gain, toys.toy_slow])
    assert found.ok
    assert len({edit.action for edit in found.recipe.edits}) == 2
    assert math.isfinite(found.report.trial.treated[-1])


@fix(name="toy-hasty", answers=("I", "B"), reach="init", since="0.1.0")
def toy_hasty(context):
    """The right weights, and a rate at which no training of them holds."""
    edits = (*toys.scaled(context, toys.GAIN), Edit(action="rate", options={"factor": 30.0}))
    yield Plan(title="weights times 2.45 at a high rate", edits=edits)


def test_an_unstable_repair_is_tried_at_a_smaller_rate():
    untreated = Trial(untreated=(1.0,) * 40, treated=(1.0, *[0.2] * 30, *[5.0] * 9))
    assert not compare(untreated).lower
    assert "unstable" in compare(untreated).why
    found = find_candidates(make_context(toys.deep()), [toy_hasty])[0]
    slower = with_rate(found, STABLER_RATE_FACTOR)
    assert slower.edits[:-1] == found.edits[:-1]
    assert slower.edits[-1] == Edit(action="rate", options={"factor": 30 * STABLER_RATE_FACTOR})


@pytest.mark.slow
def test_what_the_second_trace_doubts_is_trained_where_nothing_else_is_left():
    found = repair(toys.deep(), fixes=[toys.toy_placebo])
    context = make_context(toys.deep())
    looked = trace_again(context, find_candidates(context, [toys.toy_placebo])[0])
    assert "still finds" in looked.doubt
    assert outcome(found, "toy-placebo").trial is not None
    assert outcome(found, "toy-placebo").state == "refuted"


class Tied(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.stack = nn.Sequential(*[part for _ in range(20) for part in (nn.Linear(24, 24), nn.ReLU())])
        self.stack[4].weight = self.stack[2].weight
        self.head = nn.Linear(24, 4)

    def forward(self, x):
        return self.head(self.stack(x))


def half_frozen(case):
    for parameter in case.model[0].parameters():
        parameter.requires_grad_(requires_grad=False)
    return case


def tied(case):
    torch.manual_seed(0)
    model = Tied()
    return replace(case, model=model, optimizer=torch.optim.Adam(model.parameters(), lr=1e-3))


def wrapped(case):
    return replace(case, model=nn.DataParallel(case.model))


HARD = {"half frozen": half_frozen, "tied": tied, "wrapped": wrapped}


@pytest.mark.parametrize("kind", HARD)
def test_models_that_are_hard_to_copy_are_repaired_too(kind):
    found = repair(HARD[kind](toys.deep(30)), fixes=[toys.toy_gain])
    assert found.ok
    assert outcome(found, "toy-gain").state == "verified"


def restless(rate: float) -> leadline.Case:
    """A network that only the rehearsal shows to fail: its first step lowers the loss, later ones raise it."""
    torch.manual_seed(0)
    teacher = torch.randn(16, 8)
    layers = (nn.Linear(16, 64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 8))
    model, inputs = nn.Sequential(*layers), torch.randn(40, 64, 16)
    batches = [(each, (each @ teacher).argmax(1)) for each in inputs]
    sgd = torch.optim.SGD(model.parameters(), lr=rate, momentum=0.9)
    return leadline.Case(model, *batches[0], nn.functional.cross_entropy, sgd, batches)


def test_a_cure_of_what_only_the_rehearsal_finds_is_verified_by_its_trial():
    context = make_context(restless(rate=3.0))
    assert {each.code for each in context.report.findings if each.severity != "info"} == {
        "U509",
        "U530",
        "U531",
    }
    lower, same = (replace(rate_candidate(factor), answers=("U509",)) for factor in (0.026, 0.9))
    trials = Trials(batches=read_batches(context.case, 40), budget=budget_of(None))
    control = trials.run(context.case, "untreated")
    proofs = [trace_again(context, each) for each in (lower, same)]
    assert all(proof.open and not proof.doubt and not proof.outcome.gone for proof in proofs)
    cured, ill = (
        train_treated(proof, context, trials, control, LearningCriterion(constant=2.03)) for proof in proofs
    )
    assert (cured.outcome.state, cured.outcome.gone) == ("verified", ("U509", "U530", "U531"))
    assert ill.outcome.state == "refuted"
