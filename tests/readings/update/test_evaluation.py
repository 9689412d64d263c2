"""Held-out samples are judged in evaluation mode, with the running statistics that the steps would leave."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import leadline
from benchmarks.footprint import differences, footprint
from leadline import Case
from leadline.readings.update.evaluation import FixedStatistics, RunningStatistics
from leadline.readings.update.probe import open_probe
from leadline.readings.update.rehearsal import rehearse
from leadline.records import Rehearsal
from leadline.tracer.trace import trace_case

STEPS = 24


def batches(count: int, shift: float = 0.0) -> list[tuple[Tensor, Tensor]]:
    generator = torch.Generator().manual_seed(0)
    inputs = [torch.randn(32, 8, generator=generator) for _ in range(count)]
    return [(each + shift, (each[:, 0] > 0).long()) for each in inputs]


def case_of(*layers: nn.Module, shift: float = 0.0, lr: float = 0.01) -> Case:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(8, 32), *layers, nn.Linear(32, 2))
    (inputs, targets), *others = batches(4, shift)
    optimizer = torch.optim.Adam(model.parameters(), lr=lr)
    return Case(model, inputs, targets, F.cross_entropy, optimizer, others)


def rehearsed(case: Case) -> Rehearsal:
    return rehearse(case, trace_case(case))


def test_without_norms_and_dropout_both_modes_have_the_same_loss():
    rehearsal = rehearsed(case_of(nn.ReLU()))
    assert rehearsal.held_out == rehearsal.held_out_in_training


def test_the_noise_of_dropout_does_not_count_against_held_out_samples():
    rehearsal = rehearsed(case_of(nn.ReLU(), nn.Dropout(0.8)))
    assert rehearsal.held_out < rehearsal.held_out_in_training


def test_statistics_that_lag_behind_the_weights_show_in_evaluation_mode():
    lagging = rehearsed(case_of(nn.BatchNorm1d(32), nn.ReLU(), shift=100.0))
    centered = rehearsed(case_of(nn.BatchNorm1d(32), nn.ReLU()))
    assert lagging.held_out_in_training < 0.6 < lagging.to_beat < lagging.held_out
    assert centered.held_out < 0.6


def test_the_statistics_are_those_of_a_real_training_without_their_first_values():
    case = case_of(nn.BatchNorm1d(32), nn.ReLU())
    twin = case_of(nn.BatchNorm1d(32), nn.ReLU())
    with open_probe(case) as probe:
        statistics = RunningStatistics(probe.model)
        for _ in range(STEPS):
            with statistics.in_training(probe):
                probe.gradient()
            probe.step(None)
        with statistics.in_evaluation(probe):
            evaluated = probe.evaluate()[0]
    for _ in range(STEPS):
        twin.optimizer.zero_grad()
        F.cross_entropy(twin.model(twin.inputs), twin.targets).backward()
        twin.optimizer.step()
    norm, left = twin.model[1], 0.9**STEPS
    norm.running_mean /= 1 - left
    norm.running_var.sub_(left).div_(1 - left)
    expected = F.cross_entropy(twin.model.eval()(twin.inputs), twin.targets)
    assert evaluated == pytest.approx(expected.item(), rel=1e-5)


@pytest.mark.parametrize("momentum", [None, 0.0])
def test_statistics_that_do_not_forget_are_left_as_they_are(momentum: float | None):
    rehearsal = rehearsed(case_of(nn.BatchNorm1d(32, momentum=momentum), nn.ReLU()))
    assert rehearsal.held_out is not None


def test_norms_that_counted_batches_before_keep_what_they_know():
    case = case_of(nn.BatchNorm1d(32), nn.ReLU())
    norm = case.model[1]
    norm.num_batches_tracked.fill_(1000)
    norm.running_mean.fill_(5.0)
    with open_probe(case) as probe:
        statistics = RunningStatistics(probe.model)
        with statistics.in_training(probe):
            probe.gradient()
        with statistics.in_evaluation(probe):
            probe.evaluate()
            mean = norm.running_mean.clone()
    assert mean.mean().item() == pytest.approx(4.5, abs=0.1)


class Detector(nn.Module):
    """Returns its loss in training mode and predictions in evaluation mode, as detectors do."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(8, 2)

    def forward(self, inputs: Tensor, targets: Tensor) -> dict[str, Tensor]:
        logits = self.layer(inputs)
        return {"loss": F.cross_entropy(logits, targets)} if self.training else {"boxes": logits.argmax(-1)}


def test_a_model_without_a_loss_in_evaluation_mode_is_judged_in_training_mode():
    model = Detector()
    own, *others = batches(4)
    case = Case(model, own, None, None, torch.optim.Adam(model.parameters(), lr=0.01), others)
    rehearsal = rehearsed(case)
    assert rehearsal.held_out == rehearsal.held_out_in_training is not None


def test_modes_and_statistics_are_left_as_they_were():
    case = case_of(nn.BatchNorm1d(32), nn.ReLU(), nn.Dropout(0.5))
    case.model[3].eval()
    before = footprint(case)
    rehearsed(case)
    assert differences(before, footprint(case)) == []
    assert [module.training for module in case.model] == [True, True, True, False, True]


def test_a_gap_stays_a_warning_where_the_training_loss_falls():
    report = leadline.check(case_of(nn.BatchNorm1d(32), nn.ReLU(), shift=100.0))
    assert report.verdict == "trains"
    assert {each.code: each.severity for each in report.findings}["U535"] == "warning"


def test_a_batch_norm_that_keeps_no_statistics_normalizes_by_its_batch_in_evaluation_too():
    torch.manual_seed(0)
    x, keeps = 3 + torch.randn(16, 4), nn.BatchNorm1d(4)
    forgets = nn.BatchNorm1d(4, track_running_stats=False)
    with FixedStatistics():
        by_statistics, by_batch = keeps(x), forgets(x)
    assert torch.equal(by_statistics, keeps.eval()(x))
    assert torch.equal(by_batch, nn.BatchNorm1d(4)(x))
