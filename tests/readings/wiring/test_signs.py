"""Which way a loss pushes, whose targets it uses, and which of its terms count."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import leadline
from leadline.readings.wiring.dependence import MAX_PASSES
from tests.readings.wiring.test_probes import REPEATED_PASSES
from tests.support.wiring import Function

SAMPLES, WIDTH = 16, 8


@pytest.fixture(autouse=True)
def _same_random_numbers() -> None:
    torch.manual_seed(0)


def mlp(inputs: int, outputs: int) -> nn.Sequential:
    return nn.Sequential(nn.Linear(inputs, 16), nn.ReLU(), nn.Linear(16, outputs))


def severities(*case: Any, **options: Any) -> dict[str, str]:
    """The severities of warnings and errors, by name."""
    report = leadline.check(*case, rehearse=False, **options)
    passes = report.profile.dependence.passes if report.profile.dependence else 0
    assert passes <= MAX_PASSES + REPEATED_PASSES
    return {each.name: each.severity for each in report.findings if each.severity != "info"}


# The sign of a term.


def student_and_teacher() -> Function:
    model = Function(
        lambda self, x: (self.student(x), self.teacher(x)), student=mlp(WIDTH, 5), teacher=mlp(WIDTH, 5)
    )
    model.teacher.requires_grad_(requires_grad=False)
    return model


@pytest.mark.parametrize("sign", [1, -1])
def test_a_term_that_is_subtracted_is_named(sign: int):
    def loss(output: tuple[Tensor, Tensor], targets: Tensor) -> Tensor:
        student, teacher = output
        divergence = F.kl_div(student.log_softmax(-1), teacher.softmax(-1), reduction="batchmean")
        return F.cross_entropy(student, targets) + sign * divergence

    targets = torch.randint(0, 5, (SAMPLES,))
    found = severities(student_and_teacher(), torch.randn(SAMPLES, WIDTH), targets, loss)
    assert ("negated-loss" in found) == (sign < 0)


@pytest.mark.parametrize("sign", [1, -1])
def test_a_similarity_to_a_fixed_vector_must_grow(sign: int):
    def loss(output: tuple[Tensor, Tensor]) -> Tensor:
        return sign * F.cosine_similarity(*output).mean()

    found = severities(student_and_teacher(), torch.randn(SAMPLES, WIDTH), None, loss)
    assert ("negated-loss" in found) == (sign > 0)


@pytest.mark.parametrize("sign", [1, -1])
def test_vectors_that_move_away_from_their_targets_without_end_are_named(sign: int):
    def ratio(output: Tensor, targets: Tensor) -> Tensor:
        noise = (output - targets).pow(2).sum(-1)
        return -sign * (targets.pow(2).sum(-1) / noise).log10().mean()

    found = severities(mlp(WIDTH, 20), torch.randn(SAMPLES, WIDTH), torch.randn(SAMPLES, 20), ratio)
    assert ("negated-loss" in found) == (sign < 0)


def test_a_score_that_is_the_opposite_of_its_noise_is_healthy():
    def score_matching(score: Tensor, noise: Tensor) -> Tensor:
        return (0.5 * score + noise).pow(2).mean()

    found = severities(mlp(WIDTH, 20), torch.randn(SAMPLES, WIDTH), torch.randn(SAMPLES, 20), score_matching)
    assert "negated-loss" not in found


def test_a_critic_without_a_bound_is_healthy():
    def critic(output: tuple[Tensor, Tensor]) -> Tensor:
        return output[1].mean() - output[0].mean()

    model = Function(lambda self, x, y: (self.net(x), self.net(y)), net=mlp(WIDTH, 1))
    found = severities(model, (torch.randn(SAMPLES, WIDTH), torch.randn(SAMPLES, WIDTH) + 1), None, critic)
    assert "negated-loss" not in found


@pytest.mark.parametrize("sign", [1, -1])
def test_an_overlap_of_pictures_must_grow(sign: int):
    def overlap(scores: Tensor, targets: Tensor) -> Tensor:
        given, expected = scores.softmax(1), F.one_hot(targets, 3).movedim(-1, 1).float()
        return sign * 2 * (given * expected).sum() / (given.sum() + expected.sum())

    pictures = torch.randn(4, 1, 6, 6)
    targets = (pictures[:, 0] > 0).long() + (pictures[:, 0] > 1).long()
    found = severities(nn.Conv2d(1, 3, 3, padding=1), pictures, targets, overlap)
    assert ("negated-loss" in found) == (sign > 0)


def test_a_loss_that_refuses_what_a_long_step_makes_does_not_stop_the_check():
    def loss(output: Tensor, targets: Tensor) -> Tensor:
        if not bool(torch.isfinite(output).all()) or float(output.detach().abs().max()) > 1e3:
            raise ValueError("outputs out of range")
        return -(output.exp()).mean()

    assert leadline.check(mlp(WIDTH, 1), torch.randn(SAMPLES, WIDTH), torch.randn(SAMPLES), loss).verdict


# Which target belongs to which sample.


@pytest.mark.parametrize("is_permuted", [True, False])
def test_targets_in_another_order_are_named_for_a_loss_by_hand(is_permuted: bool):
    order = torch.randperm(SAMPLES) if is_permuted else torch.arange(SAMPLES)

    def loss(output: Tensor, targets: Tensor) -> Tensor:
        return (output - targets[order]).pow(2).sum(-1).mean()

    found = severities(mlp(WIDTH, 3), torch.randn(SAMPLES, WIDTH), torch.randn(SAMPLES, 3), loss)
    assert ("mixed-targets" in found) == is_permuted


def test_answers_of_a_teacher_in_another_order_are_named():
    def loss(output: tuple[Tensor, Tensor], targets: Tensor) -> Tensor:
        student, teacher = output
        return F.cross_entropy(student, targets) + F.mse_loss(student, teacher.flip(0))

    targets = torch.randint(0, 5, (SAMPLES,))
    found = severities(student_and_teacher(), torch.randn(SAMPLES, WIDTH), targets, loss)
    assert found["mixed-targets"] == "error"


def test_one_sequence_whose_rows_are_asked_for_the_next_one_is_healthy():
    def loss(output: Tensor, targets: Tensor) -> Tensor:
        return (output[:-1] - targets[1:]).pow(2).mean()

    found = severities(mlp(WIDTH, 3), torch.randn(SAMPLES, WIDTH), torch.randn(SAMPLES, 3), loss)
    assert "mixed-targets" not in found


@pytest.mark.parametrize("is_early", [True, False])
def test_a_mean_before_the_square_lets_errors_cancel(is_early: bool):
    def loss(output: Tensor, targets: Tensor) -> Tensor:
        error = output.squeeze(-1) - targets
        return error.mean().pow(2) if is_early else error.pow(2).mean()

    found = severities(mlp(WIDTH, 1), torch.randn(SAMPLES, WIDTH), torch.randn(SAMPLES), loss)
    assert ("mixed-targets" in found) == is_early


# Arguments and targets of a loss.


@pytest.mark.parametrize("is_swapped", [True, False])
def test_exchanged_arguments_of_a_binary_cross_entropy_are_named(is_swapped: bool):
    def loss(output: Tensor, targets: Tensor) -> Tensor:
        pair = (output.sigmoid(), targets)
        return F.binary_cross_entropy(*(pair[::-1] if is_swapped else pair))

    targets = (torch.rand(SAMPLES, 3) > 0.5).float()
    found = severities(mlp(WIDTH, 3), torch.randn(SAMPLES, WIDTH), targets, loss)
    assert ("swapped-arguments" in found) == is_swapped


def test_the_other_direction_of_a_divergence_is_a_note():
    def loss(output: tuple[Tensor, Tensor]) -> Tensor:
        student, teacher = output
        return F.kl_div(teacher.log_softmax(-1), student.softmax(-1), reduction="batchmean")

    report = leadline.check(student_and_teacher(), torch.randn(SAMPLES, WIDTH), None, loss, rehearse=False)
    assert [each.severity for each in report.findings if each.name == "swapped-arguments"] == ["info"]


@pytest.mark.parametrize("low", [-1.0, 0.0])
def test_labels_below_zero_cannot_be_probabilities(low: float):
    targets = torch.where(torch.rand(SAMPLES, 3) > 0.5, 1.0, low)
    loss = nn.BCEWithLogitsLoss()
    found = severities(mlp(WIDTH, 3), torch.randn(SAMPLES, WIDTH), targets, loss)
    assert ("unreachable-targets" in found) == (low < 0)


@pytest.mark.parametrize("classes", [1, 4])
def test_one_class_for_all_samples_is_a_single_answer_in_a_loss_of_pairs(classes: int):
    def pairs(output: Tensor, people: Tensor) -> Tensor:
        distances = (output[:, None] - output[None]).pow(2).sum(-1)
        same = (people[:, None] == people[None]).float()
        return (same * distances + (1 - same) * F.relu(1 - distances)).mean()

    people = torch.arange(SAMPLES) % classes
    found = severities(mlp(WIDTH, 4), torch.randn(SAMPLES, WIDTH), people, pairs)
    assert ("single-answer" in found) == (classes == 1)


@pytest.mark.parametrize("is_detached", [True, False])
def test_a_term_whose_prediction_is_detached_is_constant(is_detached: bool):
    def loss(output: Tensor, targets: Tensor) -> Tensor:
        read = output.detach() if is_detached else output
        return output.pow(2).mean() + F.mse_loss(read, targets)

    found = severities(mlp(WIDTH, 3), torch.randn(SAMPLES, WIDTH), torch.randn(SAMPLES, 3), loss)
    assert ("constant-loss-term" in found) == is_detached
