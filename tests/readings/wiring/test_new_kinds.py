"""What programs of new kinds showed to be missed, or to be named wrongly, in the smallest networks that show it."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

import leadline
from tests.support.wiring import Function, classes, features, mlp

SAMPLES, WIDTH = 12, 8


def severities(report: leadline.Report) -> dict[str, str]:
    return {each.name: each.severity for each in report.findings if each.severity != "info"}


def message(report: leadline.Report, name: str) -> str:
    return next((f"{each.where}: {each.message}" for each in report.findings if each.name == name), "")


def trajectories(*, mixed: bool) -> Function:
    """As many steps as samples, each observed: the outputs have two axes of the same length."""

    def forward(self: Function, state: Tensor) -> Tensor:
        seen = []
        for _ in range(SAMPLES):
            step = 0.1 / (1 + state.norm()) if mixed else 0.1
            state = state + step * torch.tanh(self.slope(state))
            seen.append(state)
        return torch.stack(seen, 1)

    return Function(forward, slope=nn.Linear(WIDTH, WIDTH))


def test_as_many_steps_as_samples_do_not_hide_that_samples_are_mixed():
    start, seen = torch.randn(SAMPLES, WIDTH), torch.randn(SAMPLES, SAMPLES, WIDTH)
    assert (
        severities(leadline.check(trajectories(mixed=True), start, seen, F.mse_loss))["mixed-samples"]
        == "error"
    )
    assert "mixed-samples" not in severities(
        leadline.check(trajectories(mixed=False), start, seen, F.mse_loss)
    )


def test_a_memory_with_its_samples_along_the_second_axis_is_no_mixture():
    def forward(self: Function, x: Tensor) -> tuple[Tensor, Tensor]:
        steps = self.rnn(x)[0]
        return self.out(steps[:, -1]), steps.transpose(0, 1)

    model = Function(forward, rnn=nn.GRU(WIDTH, 5, batch_first=True), out=nn.Linear(5, 3))
    targets = torch.randint(0, 3, (2,))
    report = leadline.check(
        model, torch.randn(2, 6, WIDTH), targets, lambda out, y: F.cross_entropy(out[0], y)
    )
    assert "mixed-samples" not in severities(report)


def test_queries_are_the_samples_where_examples_of_the_classes_are_given_too():
    def forward(self: Function, examples: Tensor, queries: Tensor) -> Tensor:
        return -torch.cdist(self.code(queries), self.code(examples).mean(1))

    model = Function(forward, code=nn.Linear(WIDTH, WIDTH))
    batch = (torch.randn(5, 9, WIDTH), torch.randn(30, WIDTH))
    report = leadline.check(model, batch, torch.arange(5).repeat(6), F.cross_entropy)
    assert report.profile.dependence.samples == 30
    assert "mixed-samples" not in severities(report)


def test_a_mixture_of_complex_numbers_is_named_where_it_happens():
    def forward(self: Function, wave: Tensor) -> Tensor:
        spectrum = torch.fft.rfft(wave)
        weights = self.mask(spectrum.abs()).softmax(0)
        return torch.fft.irfft(spectrum * weights)

    model = Function(forward, mask=nn.Linear(9, 9))
    report = leadline.check(model, torch.randn(SAMPLES, 16), torch.randn(SAMPLES, 16), F.mse_loss)
    assert "first in the op softmax" in message(report, "mixed-samples")


def test_an_axis_too_many_that_crosses_samples_is_named_with_both_shapes():
    def loss(output: Tensor, targets: Tensor) -> Tensor:
        return (targets - output).square().mean()

    targets = torch.randn(32, 1)
    assert "mixed-targets" not in severities(leadline.check(mlp(4), features(), targets, loss))
    report = leadline.check(mlp(4), features(), targets.unsqueeze(1), loss)
    assert severities(report)["mixed-targets"] == "error"
    assert "(32, 4) against (32, 1, 1)" in message(report, "mixed-targets")


def test_targets_out_of_scale_are_named_in_a_loss_that_is_written_by_hand():
    def loss(output: Tensor, targets: Tensor) -> Tensor:
        return (targets - output).abs().mean()

    targets = torch.randn(32, 1)
    assert "targets-out-of-scale" not in severities(leadline.check(mlp(1), features(), targets, loss))
    assert "targets-out-of-scale" in severities(leadline.check(mlp(1), features(), 1000 * targets, loss))


def likelihood(sign: float) -> Any:
    def loss(output: tuple[Tensor, Tensor], targets: Tensor) -> Tensor:
        mean, width = output[0], output[1].exp()
        return sign * (0.5 * ((targets - mean) / width).square() + width.log()).mean()

    return loss


def test_a_likelihood_with_a_learned_width_that_is_minimized_is_a_negated_loss():
    model = Function(
        lambda self, x: (self.a(x), 0.1 * self.b(x)), a=nn.Linear(WIDTH, 1), b=nn.Linear(WIDTH, 1)
    )
    targets = torch.randn(32, 1)
    assert "negated-loss" in severities(leadline.check(model, features(), targets, likelihood(-1.0)))
    assert "negated-loss" not in severities(leadline.check(model, features(), targets, likelihood(1.0)))


def test_a_result_that_its_caller_does_not_return_is_a_warning_and_a_returned_one_a_note():
    def drop(self: Function, x: Tensor) -> Tensor:
        self.other(x)
        return self.head(self.body(x))

    def keep(self: Function, x: Tensor) -> tuple[Tensor, Tensor]:
        return self.head(self.body(x)), self.other(x)

    layers = {"body": nn.Linear(WIDTH, 16), "head": nn.Linear(16, 3), "other": nn.Linear(WIDTH, 5)}
    report = leadline.check(Function(drop, **layers), features(), classes(), F.cross_entropy)
    assert severities(report)["discarded-results"] == "warning"
    assert message(report, "discarded-results").startswith("other")
    report = leadline.check(
        Function(keep, **layers), features(), classes(), lambda out, y: F.cross_entropy(out[0], y)
    )
    assert "discarded-results" not in severities(report)


def test_a_maximum_that_takes_its_other_input_is_no_step_function():
    class Gated(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.low, self.high, self.out = nn.Linear(WIDTH, 4), nn.Linear(WIDTH, 4), nn.Linear(4, 3)

        def forward(self, x: Tensor) -> Tensor:
            return self.out(torch.maximum(self.low(x) - 100, self.high(x)))

    report = leadline.check(Gated(), features(), classes(), F.cross_entropy)
    assert "step-function" not in severities(report)


def test_an_optimizer_that_holds_only_what_gets_no_gradient_is_an_error():
    model = Function(
        lambda self, x: self.student(x) + 0 * self.teacher(x).detach(),
        student=nn.Linear(WIDTH, 3),
        teacher=nn.Linear(WIDTH, 3),
    )
    optimizer = torch.optim.SGD(model.teacher.parameters(), lr=0.1)
    report = leadline.check(model, features(), classes(), F.cross_entropy, optimizer, rehearse=False)
    assert severities(report)["forgotten-parameters"] == "error"


class LearnedQueries(nn.Module):
    """Attention of learned seeds to the elements of a set."""

    def __init__(self, scale: float) -> None:
        super().__init__()
        self.seeds = nn.Parameter(torch.randn(2, 64))
        self.query, self.key = nn.Linear(64, 64, bias=False), nn.Linear(64, 64, bias=False)
        for layer in (self.query, self.key):
            nn.init.normal_(layer.weight, std=64**-0.5)
        self.out = nn.Linear(64, 3)
        self.scale = scale

    def forward(self, x: Tensor) -> Tensor:
        scores = self.query(self.seeds) @ self.key(x).transpose(1, 2)
        if self.scale != 1:
            scores = scores * self.scale
        return self.out((scores.softmax(-1) @ x).mean(1))


def test_attention_of_learned_queries_must_be_scaled_too():
    elements = torch.randn(32, 9, 64)
    unscaled = leadline.check(LearnedQueries(1), elements, classes(), F.cross_entropy)
    assert "unscaled-attention" in severities(unscaled)
    scaled = leadline.check(LearnedQueries(1 / 8), elements, classes(), F.cross_entropy)
    assert "unscaled-attention" not in severities(scaled)


def test_a_step_after_which_the_output_has_another_length_is_measured():
    def forward(self: Function, x: Tensor) -> Tensor:
        length = 8 + int(1e4 * self.a.weight.detach().abs().sum()) % 11
        return self.a(x).flatten()[:length]

    model = Function(forward, a=nn.Linear(WIDTH, 3))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    report = leadline.check(
        model, features(), loss=lambda out: out.square().mean(), optimizer=optimizer, rehearse=False
    )
    assert report.profile.update is not None
