"""A rehearsal equals training on one batch, ends when enough is known, and changes nothing."""

from __future__ import annotations

import math
import weakref
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import leadline
from benchmarks.footprint import differences, footprint
from leadline import Case
from leadline.lab.demo import deep_mlp
from leadline.readings.update.probe import open_probe
from leadline.readings.update.rehearsal import (
    MAX_BATCHES,
    MIN_REHEARSAL_STEPS,
    REFERENCES,
    _first_batches,
    rehearse,
    split_samples,
)
from leadline.records import Gap, Rehearsal
from leadline.records.rehearsal import MAX_REHEARSAL_STEPS, MIN_STUCK_STEPS
from leadline.tracer import restore
from leadline.tracer.state import Snapshot
from leadline.tracer.trace import trace_case
from tests.readings.update.test_restore import OPTIMIZERS, with_optimizer
from tests.support.zoo import ZOO, Specimen, animals


def mlp_case(lr: float, classes: int = 4) -> Case:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(8, 32), nn.ReLU(), nn.Linear(32, classes))
    sgd = torch.optim.SGD(model.parameters(), lr=lr)
    return Case(model, torch.randn(32, 8), torch.randint(classes, (32,)), F.cross_entropy, sgd)


def rehearsed(case: Case, **options: int) -> Rehearsal:
    return rehearse(case, trace_case(case), **options)


def train(case: Case, steps: int) -> list[float]:
    losses = []
    for _ in range(steps + 1):
        loss = case.loss(case.model(case.inputs), case.targets)
        losses.append(loss.item())
        case.optimizer.zero_grad()
        loss.backward()
        case.optimizer.step()
    return losses


def half_of(case: Case) -> Case:
    (inputs, targets), _ = split_samples((case.inputs, case.targets))
    return replace(case, inputs=inputs, targets=targets)


def test_the_losses_equal_those_of_training_on_half_of_the_batch():
    found = rehearsed(mlp_case(lr=0.05))
    assert found.is_split
    assert found.steps >= MIN_STUCK_STEPS
    trained = half_of(mlp_case(lr=0.05))
    assert list(found.losses) == pytest.approx(train(trained, found.steps), rel=1e-6)


def test_the_halves_of_a_batch_have_its_size_and_share_no_sample():
    inputs, mask = {"x": torch.arange(9.0)}, torch.ones(2, 2)
    halves = split_samples((inputs | {"mask": mask}, torch.arange(9)))
    (first, first_targets), (second, second_targets) = halves
    assert first["x"].shape == second["x"].shape == (9,)
    assert first["mask"] is mask
    assert torch.equal(first["x"], first_targets.float())
    assert torch.equal(second["x"], second_targets.float())
    assert set(first["x"].tolist()) | set(second["x"].tolist()) == set(range(9))
    assert set(first["x"].tolist()).isdisjoint(second["x"].tolist())
    assert split_samples((torch.ones(3, 2), None)) is None


def test_labels_that_alternate_are_in_both_halves():
    case = mlp_case(lr=0.05)
    found = rehearsed(replace(case, targets=torch.arange(32) % 2))
    assert found.is_split
    assert found.constant == pytest.approx(math.log(2), rel=0.05)


def test_what_is_learned_by_heart_does_not_end_the_rehearsal_at_once():
    found = rehearsed(mlp_case(lr=1.0))  # the labels are random
    assert found.has_fallen_far
    assert found.only_memorizes
    assert not found.is_clear
    assert found.steps == len(found.references[0].losses) - 1
    assert not found.generalizes
    assert found.held_out_share is None


def test_samples_that_belong_together_are_not_taken_apart():
    class Neighbors(nn.Module):
        """Adds to each sample the next one of the batch."""

        def __init__(self) -> None:
            super().__init__()
            self.layers = nn.Sequential(nn.Linear(8, 32), nn.ReLU(), nn.Linear(32, 4))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.layers(x + x.roll(1, 0))

    case, model = mlp_case(lr=1.0), Neighbors()
    targets = (case.inputs + case.inputs.roll(1, 0))[:, :4].argmax(1)
    adam = torch.optim.Adam(model.parameters(), lr=0.02)
    found = rehearsed(replace(case, model=model, targets=targets, optimizer=adam))
    assert not found.is_split
    assert found.held_out is None
    assert found.learned


def test_batch_norm_does_not_keep_a_batch_from_being_halved():
    torch.manual_seed(0)
    wide = [nn.Linear(8, 64), nn.BatchNorm1d(64), nn.ReLU(), nn.Linear(64, 64), nn.BatchNorm1d(64), nn.ReLU()]
    model = nn.Sequential(*wide, nn.Linear(64, 4))
    case = mlp_case(lr=0.1)
    adam = torch.optim.Adam(
        model.parameters(), lr=10.0
    )  # so large that normalization makes the halves differ
    found = rehearsed(replace(case, model=model, optimizer=adam))
    assert found.is_split
    assert found.held_out is not None


def test_a_batch_whose_halves_the_model_refuses_is_trained_on_as_a_whole():
    class Unique(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.Linear(8, 4)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            if len(x.unique(dim=0)) < len(x):
                raise ValueError("a sample occurs twice")
            return self.layer(x)

    case, model = mlp_case(lr=0.1), Unique()
    found = rehearsed(replace(case, model=model, optimizer=torch.optim.SGD(model.parameters(), lr=0.1)))
    assert not found.is_split
    assert found.steps


def test_a_rate_that_is_warmed_up_is_rehearsed_at_its_full_value():
    fatal, usual = (rehearsed(warming_up(rate)) for rate in (1e4, 0.5))
    assert fatal.has_spike
    assert usual.progress > 0.2
    case = warming_up(1e4)
    rehearsed(case)
    assert case.optimizer.param_groups[0]["lr"] == 1e4 / 1000


def warming_up(rate: float) -> Case:
    case = mlp_case(lr=rate)
    torch.optim.lr_scheduler.LambdaLR(case.optimizer, lambda step: min((step + 1) / 1000, 1.0))
    return case


def test_large_batches_are_few():
    case = mlp_case(lr=0.05)
    wide = torch.randn(32, 8).expand(2**19, 32, 8).reshape(-1, 8)  # half of the bytes that are allowed
    many = [(wide, torch.randint(4, (len(wide),)))] * 4
    large = replace(case, inputs=wide, targets=many[0][1], batches=many)
    assert len(_first_batches(large).trained) == 1
    assert (
        len(_first_batches(replace(case, batches=[(case.inputs, case.targets)] * 40)).trained)
        == MAX_BATCHES - 1
    )


def test_further_batches_take_turns():
    case = mlp_case(lr=0.05)
    other = (torch.randn(32, 8), torch.randint(4, (32,)))
    found = rehearsed(replace(case, batches=[other, other]), steps=5)
    assert found.batches == 2
    assert found.held_out is not None
    losses, trained = [], mlp_case(lr=0.05)
    for step in range(6):
        inputs, targets = other if step % 2 else (case.inputs, case.targets)
        losses.append(train(replace(trained, inputs=inputs, targets=targets), 0)[0])
    assert list(found.losses) == pytest.approx(losses, rel=1e-6)


def test_reading_further_batches_leaves_the_random_numbers_alone():
    loader = DataLoader(
        TensorDataset(torch.randn(64, 8), torch.randint(4, (64,))), batch_size=32, shuffle=True
    )
    case = replace(mlp_case(lr=0.05), batches=loader)
    before = torch.get_rng_state()
    found = rehearsed(case, steps=2)
    assert found.batches == 2
    assert found.held_out is not None
    assert torch.equal(torch.get_rng_state(), before)


def test_it_ends_after_enough_progress_but_not_before_momentum_has_built_up():
    case = mlp_case(lr=0.5)
    side = torch.randint(2, (32,))
    found = rehearsed(replace(case, inputs=case.inputs + 4 * side[:, None], targets=side))
    assert found.is_clear
    assert found.steps % MIN_REHEARSAL_STEPS == 0
    assert not found.after(found.steps - MIN_REHEARSAL_STEPS).is_clear or found.steps == MIN_REHEARSAL_STEPS
    assert rehearsed(mlp_case(lr=30.0), steps=MIN_REHEARSAL_STEPS).steps == MIN_REHEARSAL_STEPS


def test_the_longer_the_momentum_the_longer_the_rehearsal():
    steps = []
    for momentum in (0.9, 0.99):
        case, side = mlp_case(lr=0.5), torch.randint(2, (32,))
        optimizer = torch.optim.SGD(case.model.parameters(), lr=0.01, momentum=momentum)
        easy = replace(case, inputs=case.inputs + 4 * side[:, None], targets=side, optimizer=optimizer)
        steps.append(rehearsed(easy).steps)
    assert 1 - 0.99 ** steps[1] >= 1 - 0.9**MIN_REHEARSAL_STEPS
    assert steps[0] < steps[1] < MAX_REHEARSAL_STEPS


def test_it_ends_at_the_first_non_finite_loss():
    found = rehearsed(mlp_case(lr=1e30))
    assert found.steps < MAX_REHEARSAL_STEPS
    assert not math.isfinite(found.losses[-1])
    assert found.progress == -math.inf
    assert found.has_spike


@pytest.mark.parametrize("optimizer", OPTIMIZERS)
def test_a_fresh_optimizer_stays_fresh(optimizer: str):
    case = with_optimizer(ZOO["conv-batch-norm"], OPTIMIZERS[optimizer])
    before, known = footprint(case), len(case.optimizer.state)
    rehearsed(case, steps=3)
    assert differences(before, footprint(case)) == []
    assert len(case.optimizer.state) == known


@pytest.mark.parametrize("animal", animals(without=("deep",)))
def test_every_model_of_the_zoo_is_restored(animal: Specimen):
    case = with_optimizer(animal, lambda p: torch.optim.SGD(p, lr=1e-3))
    before = footprint(case)
    rehearsed(case, steps=2)
    assert differences(before, footprint(case)) == []


def test_it_ends_early_where_the_loss_crawls():
    case = mlp_case(lr=1e-4)
    found = rehearsed(replace(case, targets=case.targets * (torch.arange(32) < 8)))
    assert found.steps == MIN_STUCK_STEPS


def test_dropout_draws_its_masks_anew_and_other_random_numbers_repeat():
    class Noisy(nn.Module):
        def __init__(self, noise: Callable[[torch.Tensor], torch.Tensor]) -> None:
            super().__init__()
            self.layer, self.noise = nn.Linear(8, 4), noise

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.layer(self.noise(x))

    plain = mlp_case(lr=0.1)
    for noise, repeats in ((F.dropout, False), (lambda x: x + torch.randn_like(x), True)):
        model = Noisy(noise)
        frozen = torch.optim.SGD(model.parameters(), lr=0.0)
        losses = rehearsed(replace(plain, model=model, optimizer=frozen), steps=3).losses
        assert (len(set(losses)) == 1) == repeats


def test_only_one_step_is_in_memory_at_a_time():
    case = mlp_case(lr=1e-3)
    alive: list[int] = []
    made: list[weakref.ref[torch.Tensor]] = []

    def watch(module: nn.Module, inputs: object, output: torch.Tensor) -> None:
        alive.append(sum(each() is not None for each in made))
        made.append(weakref.ref(output))

    handle = case.model[0].register_forward_hook(watch)
    rehearsed(case)
    handle.remove()
    assert len(alive) > MIN_STUCK_STEPS
    assert max(alive) == 0  # outputs of the first layer in earlier steps are freed


def test_the_copies_of_the_rehearsal_are_freed_before_references_train(monkeypatch: pytest.MonkeyPatch):
    taken: list[weakref.ref[Snapshot]] = []
    take = restore.take_snapshot

    def take_snapshot(*args: Any, **options: Any) -> Snapshot:
        snapshot = take(*args, **options)
        assert not any(each() for each in taken)
        taken.append(weakref.ref(snapshot))
        return snapshot

    case = mlp_case(lr=1e-9)
    trace = trace_case(case)
    monkeypatch.setattr(restore, "take_snapshot", take_snapshot)
    assert rehearse(case, trace).references
    assert len(taken) == 2


def test_the_gradients_of_one_step_are_freed_before_those_of_the_next():
    case = mlp_case(lr=1e-3)
    parameters = list(case.model.parameters())
    held: list[bool] = []
    handle = case.model[0].register_forward_hook(
        lambda *_: held.append(any(each.grad is not None for each in parameters))
    )
    with open_probe(case) as probe:
        for _ in range(2):
            probe.gradient()
            probe.step(None)
    handle.remove()
    assert held == [False, False]


def deep(activation: type[nn.Module], depth: int, classes: int = 10) -> Case:
    """A default-initialized plain stack on unbalanced classes: its head learns the class frequencies."""
    torch.manual_seed(0)
    hidden = [layer for _ in range(depth) for layer in (nn.Linear(32, 32), activation())]
    model = nn.Sequential(*hidden, nn.Linear(32, classes))
    targets = torch.randint(classes, (64,)) * torch.randint(2, (64,))
    adam = torch.optim.AdamW(model.parameters(), lr=1e-2)
    return Case(model, torch.randn(64, 32), targets, F.cross_entropy, adam)


@pytest.mark.parametrize(
    "case",
    [
        pytest.param(deep(nn.ReLU, 30), id="ReLU, 30 layers"),
        pytest.param(deep(nn.Sigmoid, 20), id="sigmoid, 20 layers"),
        pytest.param(deep(nn.Tanh, 60), id="tanh, 60 layers", marks=pytest.mark.slow),
        pytest.param(deep_mlp(), id="the demo", marks=pytest.mark.slow),
    ],
)
def test_a_network_that_only_learns_the_class_frequencies_has_not_learned(case: Case):
    report = leadline.check(case)
    assert report.verdict == "fails"
    assert report.profile.rehearsal.relative_fall > 0  # its head does learn
    assert not report.profile.rehearsal.learned


def test_the_rehearsal_is_optional():
    assert leadline.check(mlp_case(lr=0.1)).profile.rehearsal is not None
    assert leadline.check(mlp_case(lr=0.1), rehearse=False).profile.rehearsal is None
    assert leadline.check(mlp_case(lr=0.1), update=False).profile.rehearsal is None


def test_an_optimizer_that_holds_only_frozen_tensors_trains_nothing():
    case = mlp_case(lr=0.1)
    case.model[0].requires_grad_(requires_grad=False)
    sgd = torch.optim.SGD(case.model[0].parameters(), lr=0.1)
    report = leadline.check(replace(case, optimizer=sgd))
    assert report.verdict == "fails"
    assert "D914" in {finding.code for finding in report.findings}
    assert any("2 frozen ones" in gap.why for gap in report.coverage.gaps)


def slow_case(lr: float = 1e-3) -> Case:
    """A network that learns, with a recipe that hardly moves it, and three batches of the same task."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(8, 32), nn.ReLU(), nn.Linear(32, 4))
    batches = [(x := torch.randn(32, 8), x[:, :4].argmax(1)) for _ in range(3)]
    optimizer = torch.optim.SGD(model.parameters(), lr=lr)
    return Case(model, *batches[0], F.cross_entropy, optimizer, batches=batches[1:])


def test_a_slow_recipe_is_compared_with_a_plain_one_that_learns_far_more():
    found = rehearsed(slow_case())
    best = found.best_reference
    assert best is not None
    assert found.share_of(best) < 0.2
    assert {each.is_reset for each in found.references} == {False, True}


def test_a_network_that_learns_fast_needs_no_comparison():
    assert rehearsed(slow_case(lr=1.0)).references == ()


def test_references_leave_weights_frozen_parameters_and_optimizer_as_they_were():
    case = slow_case()
    case.model[0].weight.requires_grad = False
    before = footprint(case)
    assert rehearsed(case).references
    assert differences(before, footprint(case)) == []
    assert not case.model[0].weight.requires_grad


def test_new_weights_learn_where_initial_values_are_to_blame():
    case = slow_case(lr=0.3)
    with torch.no_grad():
        case.model[2].weight.mul_(0)
        case.model[0].weight.mul_(0)
    found = rehearsed(case)
    own, reset = sorted(found.references, key=lambda run: run.is_reset)
    assert found.end_of(reset) < found.end_of(own) / 2


def test_a_model_that_refuses_the_plain_recipe_has_no_references_and_the_gap_says_why():
    case = slow_case()
    case.model[0].weight.requires_grad = False
    refusing = replace(case, model=RefusesGradient(case.model))
    gaps: list[Gap] = []
    found = rehearse(refusing, trace_case(refusing), report_gap=gaps.append)
    assert found.references == ()
    assert [each.what for each in gaps] == [REFERENCES]
    assert "RuntimeError: the first layer must stay frozen" in gaps[0].why


def test_a_check_of_a_model_that_raises_only_under_the_plain_recipe_names_the_error_as_not_checked():
    case = slow_case()
    case.model[0].weight.requires_grad = False
    report = leadline.check(replace(case, model=RefusesGradient(case.model)))
    assert report.profile.rehearsal is not None
    assert REFERENCES in {each.what for each in report.coverage.gaps}


class RefusesGradient(nn.Module):
    def __init__(self, inner: nn.Module) -> None:
        super().__init__()
        self.inner = inner

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if self.inner[0].weight.requires_grad:
            raise RuntimeError("the first layer must stay frozen")
        return self.inner(x)


class Denoiser(nn.Module):
    """Returns its own loss with noise inside, so that nothing says what a constant output would reach."""

    def __init__(self, weight_scale: float) -> None:
        super().__init__()
        self.layers = nn.Sequential(
            nn.Linear(8, 64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 8)
        )
        with torch.no_grad():
            for each in self.parameters():
                each *= weight_scale

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        noise = torch.randn_like(x)
        return ((self.layers(x + noise) - noise) ** 2).mean()


def denoiser_case(weight_scale: float) -> Case:
    torch.manual_seed(0)
    model = Denoiser(weight_scale)
    return Case(model, torch.randn(64, 8), optimizer=torch.optim.Adam(model.parameters(), lr=1e-2))


def test_a_loss_that_falls_but_stays_above_that_of_new_weights_is_not_learning():
    rehearsal = rehearsed(denoiser_case(weight_scale=100))
    assert rehearsal.constant is None
    assert rehearsal.last < rehearsal.first / 2  # to a judge who only compares with the first loss, it learns
    assert rehearsal.to_beat < rehearsal.last
    assert not rehearsal.learned


def test_usual_weights_have_to_beat_about_their_own_first_loss():
    rehearsal = rehearsed(denoiser_case(weight_scale=1))
    assert rehearsal.to_beat == pytest.approx(rehearsal.first, rel=0.2)
    assert rehearsal.learned


def test_trying_new_weights_leaves_the_users_weights_alone():
    case = denoiser_case(weight_scale=100)
    before = footprint(case)
    rehearsed(case)
    assert differences(before, footprint(case)) == []


def test_a_loss_that_refuses_new_weights_is_compared_with_the_first_one():
    def refuse(module: nn.Module, inputs: Any) -> None:
        if not case.model.layers[0].weight.abs().max() > 1:
            raise ValueError("these are not the weights of this experiment")

    case = denoiser_case(weight_scale=100)
    case.model.register_forward_pre_hook(refuse)
    rehearsal = rehearsed(case)
    assert rehearsal.fresh is None
    assert rehearsal.to_beat == rehearsal.first
