"""A network that does not learn gets generic candidates: singly, as one plain recipe, and only the parts it needs."""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import nn
from torch.nn import functional as F

from leadline import Case
from leadline.fixes import all_fixes
from leadline.fixes._engine.comparison import compare
from leadline.fixes._engine.edits import EditSession, apply_edits
from leadline.fixes._engine.failure import PLAIN_FIXES, find_candidates_by_failure, plain_recipes
from leadline.fixes._engine.proofs import BaseState, Prover, rate_candidate
from leadline.fixes._engine.reference import LearningCriterion
from leadline.fixes._engine.repair import repair
from leadline.fixes._engine.trial import Trials, budget_of, read_batches
from leadline.fixes._engine.verify import Proof, make_context
from leadline.records import Edit, Trial
from tests.support import toy_fixes as toys

ADAM = Edit(action="adam", options={"lr": 0.01})


def small(optimizer: str = "Adam", **options: float) -> Case:
    """Which of four directions is nearest: a task that a healthy network learns in forty steps."""
    torch.manual_seed(0)
    directions = torch.randn(8, 4)
    model = nn.Sequential(nn.Linear(8, 32), nn.ReLU(), nn.Linear(32, 32), nn.ReLU(), nn.Linear(32, 4))
    inputs = torch.randn(60, 64, 8)
    batches = [(each, (each @ directions).argmax(1)) for each in inputs]
    own = getattr(torch.optim, optimizer)(model.parameters(), **options)
    return Case(model, *batches[0], F.cross_entropy, own, batches)


def misused() -> Case:
    """Three mistakes at once: frozen layers, a decay that removes the weights, and a momentum that never settles."""
    case = small("SGD", lr=0.1, momentum=0.999, weight_decay=5.0)
    for parameter in case.model[0].parameters():
        parameter.requires_grad_(requires_grad=False)
    return case


def test_every_network_that_does_not_learn_gets_the_generic_candidates_that_apply_to_it():
    context = make_context(misused())
    silent = replace(context, report=make_context(toys.healthy()).report)
    for each in (context, replace(silent, report=replace_profile(silent, context))):
        names = {candidate.fix for candidate in find_candidates_by_failure(each, all_fixes(), (1.4,) * 40)}
        assert {"thaw", "weight-decay", "usual-options", "plain-adam", "default-init"} <= names


def replace_profile(silent, context):
    """A report without findings about the network of `context`."""
    from msgspec.structs import replace as replace_fields

    return replace_fields(silent.report, profile=context.profile)


def test_a_plain_recipe_has_every_part_that_changes_something_and_one_rate():
    recipes = plain_recipes(make_context(misused()), all_fixes())
    assert [[part.fix for part in parts] for parts in recipes] == [["thaw", "default-init", "plain-adam"]] * 2
    assert [parts[-1].edits[0].options["lr"] for parts in recipes] == [0.01, 0.001]


def test_several_causes_are_repaired_and_what_is_not_needed_is_left_out():
    case = small("SGD", lr=1e-9)
    with torch.no_grad():
        for layer in (0, 2, 4):
            case.model[layer].weight.mul_(1e3)
    case.model[0].bias.requires_grad_(requires_grad=False)  # which matters little
    found = repair(case, fixes=[each for each in all_fixes() if each.name in PLAIN_FIXES])
    assert found.ok
    assert {edit.action for edit in found.recipe.edits} - {"rate"} == {"reset", "adam"}


def test_an_optimizer_that_becomes_adam_steps_as_adam_and_is_itself_again_after_the_undo():
    changed, plain = small("SGD", lr=3.0, momentum=0.9), small("Adam", lr=0.01)
    session = EditSession(model=changed.model, optimizer=changed.optimizer)
    apply_edits(session, [ADAM])
    for case in (changed, plain):
        case.loss(case.model(case.inputs), case.targets).backward()
        case.optimizer.step()
    for one, other in zip(changed.model.parameters(), plain.model.parameters(), strict=True):
        assert torch.equal(one, other)
    session.undo()
    assert type(changed.optimizer) is torch.optim.SGD
    assert changed.optimizer.param_groups[0]["lr"] == 3.0
    changed.optimizer.step()
    changed.optimizer.state_dict()


def test_the_hooks_of_an_optimizer_survive_when_it_becomes_adam():
    case, calls = small("SGD", lr=0.1), []
    case.optimizer.register_step_pre_hook(lambda *_: calls.append(1))
    apply_edits(EditSession(model=case.model, optimizer=case.optimizer), [ADAM])
    case.loss(case.model(case.inputs), case.targets).backward()
    case.optimizer.step()
    assert calls == [1]


def test_a_raised_rate_is_kept_only_if_the_next_lower_one_learns_far_less(monkeypatch):
    case = small(lr=1e-4)
    base = BaseState(context=make_context(case), losses=(1.4,) * 40)
    trials = Trials(batches=read_batches(case, 40), budget=budget_of(None))
    prover = Prover(trials=trials, criterion=LearningCriterion(constant=1.4))
    candidate = rate_candidate(3.0)
    proof = Proof(candidate=candidate, outcome=candidate.outcome(""), losses=(1.4,) * 40)
    ends = {9.0: 0.4, 27.0: 0.3}

    def train_longer(base, candidate):
        return (ends[candidate.edits[-1].options["factor"]],) * 40

    monkeypatch.setattr(Prover, "train_longer", lambda self, base, candidate: train_longer(base, candidate))
    assert prover._with_margin(base, proof, 9.0) == 3.0
    ends[9.0] = 1.2
    assert prover._with_margin(base, proof, 9.0) == 9.0
    assert prover._with_margin(base, proof, 1 / 3) == 1 / 3


def test_a_loss_that_ends_far_lower_but_does_not_fall_beyond_noise_is_decided_by_a_longer_training():
    noisy = tuple(0.4 + 0.2 * (-1) ** step for step in range(40))
    comparison = compare(Trial(untreated=(50.0,) * 40, treated=noisy))
    assert (comparison.lower, comparison.is_open) == (False, True)
    assert not compare(Trial(untreated=(0.4,) * 40, treated=noisy)).is_open


def test_a_search_that_recommends_nothing_says_what_training_has_excluded():
    case = small(lr=0.01)
    noise = [(inputs, torch.randint(4, (64,))) for inputs, _ in case.batches]
    found = repair(replace(case, batches=noise, targets=noise[0][1]), fixes=all_fixes())
    assert found.recipe.edits == ()
    if found.report.sought:
        assert any("trained without success: " in note for note in found.report.notes)
