"""What counts as learning: below the best constant output, and near a small network on the same batches."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from leadline import Case
from leadline.fixes._engine.candidates import find_candidates
from leadline.fixes._engine.failure import find_candidates_by_failure
from leadline.fixes._engine.fix import Plan, fix
from leadline.fixes._engine.proofs import find_best_rate, rate_candidate, with_rate
from leadline.fixes._engine.reference import LearningCriterion, build_reference, measure_criterion
from leadline.fixes._engine.repair import repair
from leadline.fixes._engine.trial import Trials, budget_of, read_batches
from leadline.fixes._engine.verify import make_context
from leadline.records import Edit
from tests.support import toy_fixes as toys
from tests.support.toy_fixes import Clock

pytestmark = pytest.mark.long

COUNT = 60


def sorting(scale: float = 1.0, *, loss=F.cross_entropy, rate: float = 1e-2) -> Case:
    """A task that any healthy network learns: which of four directions is nearest; a fresh batch at each step."""
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(COUNT, 32, 8, generator=generator)
    y = x[..., :4].argmax(-1)
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(8, 32), nn.ReLU(), nn.Linear(32, 4))
    optimizer = torch.optim.Adam(model.parameters(), lr=rate)
    batches = [(scale * one, other) for one, other in zip(x, y, strict=True)]
    return Case(model, x[0], y[0], loss, optimizer, batches=batches)


def measured(case: Case) -> LearningCriterion:
    trials = Trials(batches=read_batches(case, COUNT), budget=budget_of(None, Clock()), steps=40)
    return measure_criterion(make_context(replace(case, batches=None)), trials, 1)


@pytest.fixture(scope="module")
def criterion():
    return measured(sorting())


def test_the_constant_is_the_entropy_of_all_targets(criterion):
    shares = torch.cat([y for _, y in sorting().batches]).bincount() / (COUNT * 32)
    assert criterion.constant == pytest.approx(float(-(shares * shares.log()).sum()), rel=1e-6)


def test_the_reference_learns_what_can_be_learned(criterion):
    assert criterion.covered_share(criterion.reference) == 1
    assert criterion.has_learned_enough(criterion.reference)
    assert not criterion.reference_failed


def test_a_loss_that_stays_at_the_constant_has_not_learned_however_high_it_began(criterion):
    fell = (9.0, *[criterion.constant] * 39)
    assert not criterion.has_learned(fell)
    assert criterion.describe(fell).startswith("the best constant output reaches 1.38")


def test_half_of_the_way_is_learned_and_not_enough(criterion):
    best = sum(criterion.reference[-10:]) / 10
    half = (2.0, *[0.45 * criterion.constant + 0.55 * best] * 39)
    assert criterion.has_learned(half)
    assert not criterion.has_learned_enough(half)


def test_less_than_half_of_the_way_is_learned_only_while_it_falls(criterion):
    low = 0.75 * criterion.constant
    falling = tuple(criterion.constant + (low - criterion.constant) * step / 39 for step in range(40))
    assert criterion.has_learned(falling)
    assert not criterion.is_halfway(falling)
    assert not criterion.has_learned((criterion.constant, *[low] * 39))


def test_a_training_that_diverges_or_is_unstable_is_never_enough(criterion):
    assert not criterion.has_learned_enough((1.4, 0.1, math.nan))
    assert not criterion.has_learned_enough((1.4, *[0.1] * 30, 9.0, *[0.1] * 8))


def summed(output: Tensor, targets: Tensor) -> Tensor:
    return F.cross_entropy(output, targets, reduction="sum")


def test_the_constant_of_a_summed_loss_is_that_of_the_mean_times_the_number_of_targets(criterion):
    assert measured(sorting(loss=summed)).constant == pytest.approx(32 * criterion.constant, rel=1e-6)


def test_without_a_constant_nothing_is_evaluated():
    assert LearningCriterion().has_learned((1.0, 1.0))
    assert "is unknown" in LearningCriterion().describe(())


def test_batches_that_come_again_have_no_reference():
    case = sorting()
    assert measured(replace(case, batches=case.batches[:3])).reference == ()


def test_a_task_that_the_reference_cannot_learn_is_reported():
    case = sorting()
    noise = torch.Generator().manual_seed(1)
    random = [(x, torch.randint(4, (32,), generator=noise)) for x, _ in case.batches]
    found = repair(replace(case, batches=random), fixes=toys.TOYS)
    assert found.recipe.edits == ()
    assert any("did not learn from these batches" in note for note in found.report.notes)


def test_there_is_no_reference_for_several_inputs():
    assert (
        build_reference(Case(nn.Bilinear(2, 2, 1), (torch.ones(3, 2), torch.ones(3, 2)), loss=F.mse_loss))
        is None
    )


@fix(name="toy-quiet", answers=("U", "B", "F", "N"), reach="recipe", since="0.1.0")
def toy_quiet(context):
    """Nothing is thrown about any more, because hardly anything moves."""
    yield Plan(title="rate times 1e-5", edits=(Edit(action="rate", options={"factor": 1e-5}),))


def test_better_than_a_training_that_breaks_is_not_yet_learning():
    case = sorting(rate=1e-2)
    case = replace(case, optimizer=torch.optim.SGD(case.model.parameters(), lr=300.0))
    found = repair(case, fixes=[toy_quiet])
    quiet = next(each for each in found.outcomes if each.fix == "toy-quiet")
    assert quiet.state == "refuted"
    assert all(edit.options["factor"] > 1e-5 for edit in found.recipe.edits)


def test_what_no_finding_names_is_treated_by_its_symptom():
    case = sorting(scale=0.03, rate=1e-3)  # the check sees a batch of unit size, training others
    found = repair(replace(case, batches=None), fixes=())
    assert found.verdict_before == "trains"
    found = repair(case, fixes=())
    assert [edit.action for edit in found.recipe.edits] == ["rate"]
    assert [each.answers for each in found.outcomes if each.kept] == [()]
    assert any("no finding explained the failure" in note for note in found.report.notes)
    assert "REPAIRED: TRAINS POORLY → TRAINS" in str(found)


def test_candidates_for_a_symptom_answer_no_finding():
    candidates = find_candidates_by_failure(make_context(toys.healthy()), toys.TOYS, (1.0,) * 10)
    assert (
        candidates[0].title == "weights times 2.45, unseen"
    )  # claims to keep the function, so it comes first
    assert {each.answers for each in candidates} == {()}


def test_the_best_rate_is_climbed_to_in_either_direction():
    def ended(best: float):
        return lambda factor: (2.0, *[0.1 + abs(math.log(factor / best))] * 8)

    assert find_best_rate(ended(9.0)(1.0), ended(9.0)) == pytest.approx(9.0)
    assert find_best_rate(ended(1 / 3)(1.0), ended(1 / 3)) == pytest.approx(1 / 3)
    assert find_best_rate(ended(1.0)(1.0), ended(1.0)) == 1.0


def test_a_rate_of_a_rate_is_one_rate():
    twice = with_rate(rate_candidate(0.1), 3.0)
    assert [edit.options for edit in twice.edits] == [{"factor": 0.3}]
    assert twice.code.count("lr") == rate_candidate(0.3).code.count("lr")


def test_a_plan_for_a_trained_model_says_what_new_weights_discard():
    from leadline.fixes import all_fixes

    case = toys.deep()
    for _ in range(3):
        case.optimizer.zero_grad()
        case.loss(case.model(case.inputs), case.targets).backward()
        case.optimizer.step()
    found = find_candidates(make_context(case), all_fixes())
    drawn = [each for each in found if any(edit.action == "draw" for edit in each.edits)]
    assert drawn
    assert all("discards 3 steps of training" in each.title for each in drawn)
