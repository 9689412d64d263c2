"""The loss of the best constant output is the same wherever the loss is computed, and no constant does better."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from leadline import Case
from leadline.readings.update.constant import constant_loss, fitted_constant_loss, loss_terms
from leadline.readings.update.rehearsal import rehearse
from leadline.records import Rehearsal
from leadline.tracer.trace import trace_case

Loss = Callable[[Tensor, Tensor], Tensor]
SAMPLES, CLASSES = 24, 4

torch.manual_seed(0)
LABELS = torch.tensor([0, 0, 0, 1, 1, 2]).repeat(SAMPLES // 6)
NUMBERS = torch.randn(SAMPLES, CLASSES).exp()
CHANCES = (torch.rand(SAMPLES, CLASSES) < 0.3).float()
DISTRIBUTIONS = torch.randn(SAMPLES, CLASSES).softmax(-1)
WEIGHT = torch.tensor([1.0, 3.0, 0.5, 1.0])


def summed_over_items(output: Tensor, labels: Tensor) -> Tensor:
    """As Hugging Face computes it with `num_items_in_batch`."""
    return F.cross_entropy(output, labels, reduction="sum", ignore_index=1) / (labels != 1).sum()


def masked(output: Tensor, labels: Tensor) -> Tensor:
    losses = F.cross_entropy(output, labels, reduction="none")
    return losses.mean() + 0.25


def log_probabilities(output: Tensor, labels: Tensor) -> Tensor:
    return F.nll_loss(output.log_softmax(-1), labels)


def smoothed(output: Tensor, labels: Tensor) -> Tensor:
    return F.cross_entropy(output, labels, weight=WEIGHT, label_smoothing=0.1)


def weighted_chances(output: Tensor, chances: Tensor) -> Tensor:
    return F.binary_cross_entropy_with_logits(output, chances, pos_weight=WEIGHT, reduction="sum") / 8


def divergence(output: Tensor, distributions: Tensor) -> Tensor:
    return F.kl_div(output.log_softmax(-1), distributions, reduction="batchmean")


CASES: dict[str, tuple[Loss, Tensor]] = {
    "cross entropy": (F.cross_entropy, LABELS),
    "cross entropy of distributions": (F.cross_entropy, DISTRIBUTIONS),
    "summed over items": (summed_over_items, LABELS),
    "one result per sample": (masked, LABELS),
    "log probabilities": (log_probabilities, LABELS),
    "smoothed and weighted": (smoothed, LABELS),
    "squares": (F.mse_loss, NUMBERS),
    "absolute values": (F.l1_loss, NUMBERS),
    "Huber": (F.huber_loss, NUMBERS),
    "chances": (F.binary_cross_entropy_with_logits, CHANCES),
    "weighted chances": (weighted_chances, CHANCES),
    "divergence": (divergence, DISTRIBUTIONS),
}


class OwnLoss(nn.Module):
    """Computes its loss itself, as language models do that are called with tokens and targets."""

    def __init__(self, body: nn.Module, loss: Loss) -> None:
        super().__init__()
        self.body, self.loss = body, loss

    def forward(self, x: Tensor, targets: Tensor) -> Tensor:
        return self.loss(self.body(x), targets)


def body() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(8, 16), nn.Dropout(0.5), nn.ReLU(), nn.Linear(16, CLASSES))


def with_sgd(model: nn.Module, *rest: object) -> Case:
    return Case(model, *rest, optimizer=torch.optim.SGD(model.parameters(), lr=0.1))


def explicit(loss: Loss, targets: Tensor) -> Case:
    return with_sgd(body(), torch.ones(SAMPLES, 8), targets, loss)


def rehearsed(case: Case) -> Rehearsal:
    """A short rehearsal on the whole batch: what is held out is the same batch again."""
    batch = case.inputs if case.targets is None else (case.inputs, case.targets)
    return rehearse(replace(case, batches=[batch]), trace_case(case), steps=1)


def reference(case: Case) -> float | None:
    return rehearsed(case).constant


@pytest.mark.parametrize("name", CASES)
def test_it_does_not_matter_whether_the_model_computes_the_loss(name: str):
    loss, targets = CASES[name]
    inside = with_sgd(OwnLoss(body(), loss), (torch.ones(SAMPLES, 8), targets))
    assert reference(inside) == pytest.approx(reference(explicit(loss, targets)), rel=1e-6)


@pytest.mark.parametrize("name", CASES)
def test_no_constant_output_has_a_lower_loss(name: str):
    loss, targets = CASES[name]
    constant = torch.zeros(CLASSES, requires_grad=True)
    lbfgs = torch.optim.LBFGS([constant], max_iter=200, line_search_fn="strong_wolfe")

    def closure() -> Tensor:
        lbfgs.zero_grad()
        value = loss(constant.expand(SAMPLES, CLASSES), targets)
        value.backward()
        return value

    lbfgs.step(closure)
    assert reference(explicit(loss, targets)) == pytest.approx(closure().item(), rel=1e-3)


@pytest.mark.parametrize(
    ("name", "best"),
    [
        ("cross entropy", 0.0),
        ("cross entropy of distributions", -(DISTRIBUTIONS * DISTRIBUTIONS.log()).sum(-1).mean()),
        ("squares", 0.0),
        ("chances", 0.0),
        ("divergence", 0.0),
    ],
)
def test_no_output_has_a_loss_below_the_floor(name: str, best: float | Tensor):
    case = explicit(*CASES[name])
    assert rehearsed(case).floor == pytest.approx(float(best), abs=1e-5)


def test_terms_that_are_no_comparison_with_targets_keep_their_value():
    torch.manual_seed(0)
    encoder, decoder = nn.Linear(8, 4), nn.Linear(2, 8)
    pixels = torch.rand(SAMPLES, 8)

    class Autoencoder(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.encoder, self.decoder = encoder, decoder

        def forward(self, x: Tensor) -> Tensor:
            mean, log_variance = self.encoder(x).chunk(2, -1)
            code = mean + torch.randn_like(mean) * (log_variance / 2).exp()
            rebuilt = F.binary_cross_entropy_with_logits(self.decoder(code), x, reduction="sum") / len(x)
            return rebuilt + penalty(mean, log_variance)

    def penalty(mean: Tensor, log_variance: Tensor) -> Tensor:
        return -0.5 * (1 + log_variance - mean.square() - log_variance.exp()).sum() / SAMPLES

    share = pixels.mean(0).expand_as(pixels)
    expected = F.binary_cross_entropy(share, pixels, reduction="sum") / SAMPLES
    expected = expected + penalty(*encoder(pixels).chunk(2, -1))
    assert reference(with_sgd(Autoencoder(), pixels)) == pytest.approx(expected.item(), rel=1e-5)


def test_targets_of_several_batches_share_one_constant():
    case = explicit(F.cross_entropy, LABELS)
    terms = loss_terms(trace_case(case))
    halves = [LABELS.sort().values[:12], LABELS.sort().values[12:]]
    passes = [lambda y=y: F.cross_entropy(case.model(torch.ones(12, 8)), y).item() for y in halves]
    assert constant_loss(terms, passes) == pytest.approx(reference(case), rel=1e-6)


@pytest.mark.parametrize(
    ("loss", "targets"),
    [
        pytest.param(F.cross_entropy, torch.zeros(SAMPLES, dtype=torch.long), id="one class"),
        pytest.param(F.cross_entropy, torch.full((SAMPLES,), -100), id="all ignored"),
        pytest.param(F.mse_loss, torch.ones(SAMPLES, CLASSES), id="one number"),
        pytest.param(F.binary_cross_entropy_with_logits, torch.ones(SAMPLES, CLASSES), id="one answer"),
        pytest.param(lambda output, y: output.square().mean(), torch.ones(SAMPLES), id="no comparison"),
    ],
)
def test_without_targets_that_differ_there_is_no_loss_to_beat(loss: Loss, targets: Tensor):
    assert reference(explicit(loss, targets)) is None


def test_several_batches_of_one_answer_have_no_loss_to_beat_either():
    ones = torch.ones(SAMPLES, CLASSES)
    case = explicit(F.binary_cross_entropy, ones)
    case = replace(case, model=nn.Sequential(case.model, nn.Sigmoid()))
    inputs = torch.randn(SAMPLES, 8)

    def one_pass() -> float:
        return F.binary_cross_entropy(case.model(inputs), ones).item()

    for count in (1, 16):
        assert constant_loss(loss_terms(trace_case(case)), [one_pass] * count) is None


def test_a_target_that_the_model_itself_produces_is_not_beaten_by_a_constant():
    class Siamese(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.online, self.teacher = nn.Linear(8, 4), nn.Linear(8, 4).requires_grad_(requires_grad=False)

        def forward(self, x: Tensor) -> Tensor:
            with torch.no_grad():
                target = self.teacher(x)
            return F.mse_loss(self.online(x), target)

    assert reference(with_sgd(Siamese(), torch.randn(SAMPLES, 8))) is None


def test_a_pass_that_cannot_continue_with_a_constant_has_no_loss_to_beat():
    def picky(output: Tensor, labels: Tensor) -> Tensor:
        loss = F.cross_entropy(output, labels)
        torch.autograd.grad(loss, output, retain_graph=True)  # a constant has no graph
        return loss

    assert reference(explicit(picky, LABELS)) is None


def squared(output: Tensor, targets: Tensor) -> Tensor:
    return (output - targets).pow(2).mean()


def picked(output: Tensor, labels: Tensor) -> Tensor:
    return -output.log_softmax(-1).gather(1, labels.unsqueeze(1)).mean()


def gaussian(output: Tensor, targets: Tensor) -> Tensor:
    return F.gaussian_nll_loss(output, targets, torch.ones_like(output))


def half_squared(output: Tensor, targets: Tensor) -> Tensor:
    return F.mse_loss(output, targets) / 2


@pytest.mark.parametrize(
    ("by_hand", "op", "targets"),
    [(squared, F.mse_loss, NUMBERS), (picked, F.cross_entropy, LABELS), (gaussian, half_squared, NUMBERS)],
    ids=["squares", "log-probabilities", "an op without a rule"],
)
def test_a_loss_written_by_hand_has_the_same_constant_as_the_op(by_hand: Loss, op: Loss, targets: Tensor):
    torch.manual_seed(0)
    model, inputs = nn.Linear(5, CLASSES), torch.randn(SAMPLES, 5)
    constants = []
    for loss in (by_hand, op):
        case = Case(model, inputs, targets, loss, torch.optim.SGD(model.parameters(), lr=1e-3))
        constants.append(rehearse(case, trace_case(case), steps=1).constant)
    assert constants[0] == pytest.approx(constants[1], rel=1e-4)


def test_a_loss_without_a_minimum_has_no_constant():
    output = torch.randn(SAMPLES, CLASSES)
    assert fitted_constant_loss(torch.mean, [(output, None)]) is None
    assert fitted_constant_loss(lambda out: out.exp().sum() * 0, [(output, None)]) is None


def test_a_loss_that_refuses_a_constant_has_none():
    def picky(output: Tensor) -> Tensor:
        raise ValueError("no")

    assert fitted_constant_loss(picky, [(torch.randn(SAMPLES, 2), None)]) is None
