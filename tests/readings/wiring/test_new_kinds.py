"""What programs of new kinds showed to be missed, or to be named wrongly, in the smallest networks that show it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.distributions import Normal

import leadline
from leadline.readings.wiring.dependence import MAX_PASSES
from tests.support.wiring import Function, TinyGPT, classes, features, mlp, text, token_loss

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


# Language models with time before samples, whose targets are one long row.


class RowLanguageModel(nn.Module):
    """Reads (time, samples) and answers with one row per word, as older language models do."""

    def __init__(self, *, bidirectional: bool) -> None:
        super().__init__()
        self.words = nn.Embedding(40, 16)
        self.lstm = nn.LSTM(16, 8, bidirectional=bidirectional)
        self.scores = nn.Linear(16 if bidirectional else 8, 40)

    def forward(self, words: Tensor) -> Tensor:
        return self.scores(self.lstm(self.words(words))[0]).flatten(0, 1)


@pytest.mark.parametrize(("bidirectional", "expected"), [(True, "error"), (False, None)])
def test_positions_are_followed_through_targets_in_one_row(bidirectional, expected):
    torch.manual_seed(0)
    words = torch.randint(0, 40, (17, 5))
    model = RowLanguageModel(bidirectional=bidirectional)
    report = leadline.check(model, words[:-1], words[1:].flatten(), nn.CrossEntropyLoss(), rehearse=False)
    assert severities(report).get("visible-answer") == expected
    assert not [gap.why for gap in report.coverage.gaps if gap.what == "what each position sees"]


def test_two_samples_of_two_channels_may_be_connected():
    net = nn.Sequential(nn.Conv1d(2, 4, 3), nn.ReLU(), nn.Flatten(), nn.Linear(24, 1))
    model = Function(lambda self, signal, time: self.net(signal * time[:, None, None]), net=net)
    inputs = (torch.randn(2, 2, 8), torch.rand(2))
    report = leadline.check(model, inputs, torch.randn(2, 1), nn.MSELoss(), rehearse=False)
    reasons = [gap.why for gap in report.coverage.gaps if gap.what == "whether samples are independent"]
    assert len(reasons) == 1
    assert reasons[0].endswith("has a row and a column for each sample and may connect them")


# What the optimizer was not given, in front of all that learns.


def head_and_front(front: nn.Module) -> leadline.Report:
    torch.manual_seed(0)
    model = nn.Sequential(front, nn.ReLU(), nn.Linear(64, 16), nn.ReLU(), nn.Linear(16, 3))
    optimizer = torch.optim.Adam(model[1:].parameters())
    targets = torch.randint(0, 3, (32,))
    return leadline.check(
        model, torch.randn(32, 32), targets, nn.CrossEntropyLoss(), optimizer, rehearse=False
    )


def test_a_random_first_layer_was_forgotten():
    assert severities(head_and_front(nn.Linear(32, 64)))["forgotten-parameters"] == "warning"


def test_a_trained_first_layer_may_be_kept_as_it_is():
    front = nn.Linear(32, 64)
    with torch.no_grad():
        front.weight *= torch.linspace(0.1, 3.0, 64)[:, None]  # training makes some units larger than others
    assert "forgotten-parameters" not in severities(head_and_front(front))


@pytest.mark.parametrize("is_trained", [True, False])
def test_a_larger_front_may_be_a_backbone_if_it_was_trained(is_trained: bool):
    front = nn.Sequential(*(nn.Linear(32, 32) for _ in range(3)), nn.Linear(32, 64))
    if is_trained:
        with torch.no_grad():
            for layer in front:
                layer.weight *= torch.linspace(0.1, 3.0, len(layer.weight))[:, None]
    assert ("forgotten-parameters" not in severities(head_and_front(front))) == is_trained


# A draw whose mean and deviation learn.


def autoencoder(draw: Callable[[Tensor, Tensor], Tensor]) -> tuple[Function, Callable[[Any, Tensor], Tensor]]:
    def forward(self: Function, x: Tensor) -> tuple[Tensor, ...]:
        mean, deviation = self.mean(x), self.deviation(x).exp()
        drawn = draw(mean, deviation)
        return self.decoder(drawn), mean, deviation, drawn

    def loss(output: tuple[Tensor, ...], targets: Tensor) -> Tensor:
        answer, mean, deviation, _ = output
        divergence = (mean.pow(2) + deviation.pow(2) - 2 * deviation.log()).mean()
        return F.mse_loss(answer, targets) + 0.1 * divergence

    model = Function(forward, mean=nn.Linear(8, 4), deviation=nn.Linear(8, 4), decoder=nn.Linear(4, 8))
    return model, loss


@pytest.mark.parametrize(
    ("draw", "expected"),
    [
        (lambda mean, deviation: Normal(mean, deviation).sample(), "warning"),
        (lambda mean, deviation: torch.normal(mean, deviation), "warning"),
        (lambda mean, deviation: Normal(mean, deviation).rsample(), None),
        (lambda mean, deviation: mean + deviation * torch.randn_like(deviation), None),
        (lambda mean, deviation: Normal(torch.zeros(4), torch.ones(4)).sample((32,)), None),
    ],
)
def test_a_decoder_of_a_draw_without_gradient_does_not_teach_the_encoder(draw, expected):
    model, loss = autoencoder(draw)
    report = leadline.check(model, features(), features(), loss, rehearse=False)
    assert severities(report).get("blocked-path") == expected


def test_a_policy_learns_from_the_probability_of_its_draw():
    def forward(self: Function, state: Tensor) -> tuple[Tensor, Tensor]:
        policy = Normal(self.mean(state), 1.0)
        action = policy.sample()
        return policy.log_prob(action), self.value(torch.cat([state, action], 1))

    def loss(output: tuple[Tensor, Tensor], targets: Tensor) -> Tensor:
        chances, values = output
        return (values - targets).pow(2).mean() - (chances * (targets - values.detach())).mean()

    model = Function(forward, mean=nn.Linear(8, 2), value=nn.Linear(10, 1))
    report = leadline.check(model, features(), torch.randn(32, 1), loss, rehearse=False)
    assert "blocked-path" not in severities(report)


# Outputs that compare samples.


@pytest.mark.parametrize(("columns", "expected"), [(32, None), (4, "error")])
def test_a_softmax_over_the_samples_is_a_comparison_only_between_samples(columns, expected):
    def forward(self: Function, x: Tensor) -> Tensor:
        scores = self.net(x) @ self.net(x).T if columns == 32 else self.net(x)
        return scores.softmax(0)

    model = Function(forward, net=mlp(columns if columns != 32 else 6))
    targets = torch.eye(32)[:, :columns]
    report = leadline.check(model, features(), targets, F.mse_loss, rehearse=False)
    assert severities(report).get("mixed-samples") == expected


# What reported bugs showed.


@pytest.mark.parametrize(("along", "expected"), [(0, "error"), (1, None)])
def test_positions_are_not_counted_along_the_batch(along, expected):
    class Positioned(TinyGPT):
        def forward(self, tokens: Tensor, targets: Tensor | None = None) -> Any:
            hidden = self.tokens(tokens) + self.positions(torch.arange(tokens.size(along))).unsqueeze(
                1 - along
            )
            mask = nn.Transformer.generate_square_subsequent_mask(tokens.size(1))
            for layer in self.layers:
                hidden = layer(hidden, src_mask=mask)
            return self.head(hidden)

    report = leadline.check(Positioned(), *text(), token_loss, rehearse=False)
    assert severities(report).get("mixed-samples") == expected
    assert report.profile.dependence.passes <= MAX_PASSES + (2 if expected else 0)  # two find the op


def test_examples_and_queries_in_different_numbers_are_not_turned_around():
    def forward(self: Function, examples: Tensor, queries: Tensor) -> Tensor:
        return self.net(queries) + self.net(examples).mean()

    inputs = (torch.randn(10, 8), torch.randn(20, 8))
    report = leadline.check(
        Function(forward, net=mlp(1)), inputs, torch.randn(20, 1), F.mse_loss, rehearse=False
    )
    probe = report.profile.dependence.of("sample")
    assert probe is None or not probe.by_place


def test_noise_that_is_drawn_per_sample_does_not_depend_on_a_place():
    def forward(self: Function, x: Tensor) -> Tensor:
        return self.net(x + torch.randn(len(x), 1, generator=None))

    report = leadline.check(
        Function(forward, net=mlp()), features(), classes(), F.cross_entropy, rehearse=False
    )
    assert "mixed-samples" not in severities(report)


@pytest.mark.parametrize(
    ("last", "shift", "expected"),
    [
        (nn.ReLU(), 0.0, "warning"),
        (nn.ReLU(), 10.0, None),
        (nn.Tanh(), 0.0, "warning"),
        (nn.Identity(), 0.0, None),
        (nn.LeakyReLU(), 0.0, None),
    ],
)
@pytest.mark.parametrize("by_hand", [True, False])
def test_targets_must_be_in_the_range_of_the_last_activation(last, shift, expected, by_hand):
    model = nn.Sequential(mlp(1), last)
    targets = features()[:, :1] + shift
    loss = (lambda output, target: (output - target).pow(2).mean()) if by_hand else F.mse_loss
    report = leadline.check(model, features(), targets, loss, rehearse=False)
    assert severities(report).get("unreachable-targets") == expected


@pytest.mark.parametrize(("compared", "expected"), [("teacher", "warning"), ("student", None)])
def test_every_term_of_a_loss_depends_on_what_learns(compared, expected):
    teacher = mlp().requires_grad_(requires_grad=False)

    def loss(output: Tensor, targets: Tensor) -> Tensor:
        scores = output if compared == "student" else teacher(features())
        term = F.kl_div(scores.log_softmax(1), teacher(features()).softmax(1), reduction="batchmean")
        return F.cross_entropy(output, targets) + term

    torch.manual_seed(3)
    student = nn.Sequential(nn.Linear(8, 12), nn.Tanh(), nn.Linear(12, 3))
    report = leadline.check(student, features(), classes(), loss, rehearse=False)
    assert severities(report).get("constant-loss-term") == expected


@pytest.mark.parametrize(("zeros", "expected"), [((0, 2), True), ((2,), False), ((0,), False)])
def test_a_gate_of_two_zero_layers_never_opens(zeros, expected):
    gate = nn.Sequential(nn.Linear(8, 8, bias=False), nn.ReLU(), nn.Linear(8, 8, bias=False))
    for place in zeros:
        nn.init.zeros_(gate[place].weight)
    model = Function(lambda self, x: self.net(x + self.gate(x)), gate=gate, net=mlp())
    report = leadline.check(model, features(), classes(), F.cross_entropy, rehearse=False)
    assert ("stuck-zeros" in severities(report)) == expected


@pytest.mark.parametrize(("axis", "expected"), [(-1, "error"), (1, None)])
def test_a_softmax_over_one_score_is_always_one(axis, expected):
    def forward(self: Function, x: Tensor) -> Tensor:
        parts = x.view(-1, 4, 2)
        weights = self.score(parts).softmax(axis)
        return self.head((weights * self.value(parts)).sum(1))

    model = Function(forward, score=nn.Linear(2, 1), value=nn.Linear(2, 6), head=nn.Linear(6, 3))
    report = leadline.check(model, features(), classes(), F.cross_entropy, rehearse=False)
    assert severities(report).get("step-function") == expected


@pytest.mark.parametrize(("follows_mode", "expected"), [(True, None), (False, "warning")])
@pytest.mark.parametrize("kind", ["dropout", "attention"])
def test_dropout_ends_in_eval_mode(follows_mode, expected, kind):
    def forward(self: Function, x: Tensor) -> Tensor:
        drops = self.training if follows_mode else True
        if kind == "attention":
            parts = self.enter(x).view(-1, 1, 4, 4)
            share = 0.2 if drops else 0.0
            hidden = F.scaled_dot_product_attention(parts, parts, parts, dropout_p=share).flatten(1)
        else:
            hidden = F.dropout(self.enter(x), 0.2, training=drops)
        return self.leave(hidden)

    model = Function(forward, enter=nn.Linear(8, 16), leave=nn.Linear(16, 3))
    report = leadline.check(model, features(), classes(), F.cross_entropy, rehearse=False)
    assert severities(report).get("lasting-dropout") == expected
