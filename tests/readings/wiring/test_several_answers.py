"""Several inputs, several targets, answers among the inputs, and lengths that are equal by coincidence."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import leadline
from tests.support.wiring import Function

SAMPLES, WIDTH, WORDS, STEPS = 12, 8, 20, 10


def mlp(inputs: int, outputs: int) -> nn.Sequential:
    return nn.Sequential(nn.Linear(inputs, 16), nn.ReLU(), nn.Linear(16, outputs))


def severity(report: leadline.Report, name: str) -> str:
    """The severity of the finding; "" if there is none."""
    return next((each.severity for each in report.findings if each.name == name), "")


# Which targets there are.


@pytest.fixture(autouse=True)
def _same_random_numbers() -> None:
    torch.manual_seed(0)


def test_a_ranking_of_columns_without_targets_has_no_single_answer():
    def margin(scores: Tensor) -> Tensor:
        return F.relu(1 + scores[:, 1:] - scores[:, :1]).mean()

    report = leadline.check(mlp(WIDTH, 5), torch.randn(24, WIDTH), None, margin)
    assert severity(report, "single-answer") == ""


def test_a_handwritten_loss_of_constant_classes_has_a_single_answer():
    def likelihood(scores: Tensor, targets: Tensor) -> Tensor:
        return -scores.log_softmax(-1).gather(1, targets[:, None]).mean()

    constant = torch.zeros(24, dtype=torch.long)
    report = leadline.check(mlp(WIDTH, 5), torch.randn(24, WIDTH), constant, likelihood)
    assert severity(report, "single-answer") == "warning"


@pytest.mark.parametrize("scale", [1.0, 1000.0])
def test_targets_out_of_scale_are_found_behind_another_difference(scale: float):
    model = Function(lambda self, x: (self.one(x), self.two(x)), one=mlp(WIDTH, 1), two=mlp(WIDTH, 1))

    def loss(output: tuple[Tensor, Tensor], targets: tuple[Tensor, Tensor]) -> Tensor:
        first = (output[0] - targets[0][:, None]).abs().mean()
        return first + (output[1] - targets[1][:, None]).pow(2).mean()

    targets = (torch.randn(SAMPLES), scale * torch.randn(SAMPLES))
    report = leadline.check(model, torch.randn(SAMPLES, WIDTH), targets, loss)
    assert severity(report, "targets-out-of-scale") == ("warning" if scale > 1 else "")


@pytest.mark.parametrize("is_given", [True, False])
def test_a_head_is_missed_in_the_loss_only_if_its_target_is_there(is_given: bool):
    model = Function(lambda self, x: (self.one(x), self.two(x)), one=mlp(WIDTH, 1), two=mlp(WIDTH, 3))
    targets = [torch.randn(SAMPLES, 1), torch.randn(SAMPLES, 3)]

    def loss(output: tuple[Tensor, Tensor], targets: list[Tensor]) -> Tensor:
        return F.mse_loss(output[0], targets[0])

    report = leadline.check(model, torch.randn(SAMPLES, WIDTH), targets[: 1 + is_given], loss)
    assert severity(report, "discarded-results") == ("warning" if is_given else "info")


# Which sample a target belongs to.


@pytest.mark.parametrize("is_moved", [True, False])
def test_scores_that_were_viewed_instead_of_transposed_meet_the_targets_of_others(is_moved: bool):
    def loss(scores: Tensor, tags: Tensor) -> Tensor:
        turned = scores.t() if is_moved else scores.view(5, SAMPLES)
        return F.binary_cross_entropy_with_logits(turned, tags.t())

    tags = (torch.rand(SAMPLES, 5) > 0.5).float()
    report = leadline.check(mlp(WIDTH, 5), torch.randn(SAMPLES, WIDTH), tags, loss)
    assert severity(report, "mixed-targets") == ("" if is_moved else "error")


@pytest.mark.parametrize("axis", [0, 1])
def test_steps_that_were_stacked_before_the_samples_meet_the_targets_of_others(axis: int):
    def forward(self: Function, ids: Tensor) -> Tensor:
        return torch.stack([self.out(self.embed(ids[:, step])) for step in range(STEPS)], axis)

    model = Function(forward, embed=nn.Embedding(WORDS, WIDTH), out=nn.Linear(WIDTH, 5))
    ids = torch.randint(0, WORDS, (SAMPLES, STEPS))

    def loss(scores: Tensor, targets: Tensor) -> Tensor:
        return F.cross_entropy(scores.reshape(-1, 5), targets.reshape(-1))

    report = leadline.check(model, ids, ids % 5, loss)
    assert severity(report, "mixed-targets") == ("error" if axis == 0 else "")


def test_labels_that_are_mixed_on_purpose_are_no_error():
    order = torch.randperm(SAMPLES)

    def mixup(scores: Tensor, targets: Tensor) -> Tensor:
        return 0.7 * F.cross_entropy(scores, targets) + 0.3 * F.cross_entropy(scores, targets[order])

    targets = torch.arange(SAMPLES) % 5
    report = leadline.check(mlp(WIDTH, 5), torch.randn(SAMPLES, WIDTH), targets, mixup)
    assert severity(report, "mixed-targets") in ("", "info")


# The sign of a loss that is written by hand.


def quantiles(output: Tensor, targets: Tensor) -> Tensor:
    gap = targets[..., None] - output
    levels = torch.tensor([0.1, 0.5, 0.9])
    return torch.max(levels * gap, (levels - 1) * gap).mean()


def distance_to_teacher(output: tuple[Tensor, Tensor]) -> Tensor:
    return ((output[0] - output[1]) ** 2 + 1e-4).sqrt().mean()


def two_distances(output: Tensor, targets: tuple[Tensor, Tensor]) -> Tensor:
    return F.mse_loss(output[:, :1], targets[0]) + (output[:, 1:] - targets[1]).pow(2).mean()


@pytest.mark.parametrize("sign", [1, -1])
def test_a_negated_quantile_loss_is_named(sign: int):
    targets = torch.randn(SAMPLES)
    report = leadline.check(
        mlp(WIDTH, 3), torch.randn(SAMPLES, WIDTH), targets, lambda out, y: sign * quantiles(out, y)
    )
    assert severity(report, "negated-loss") == ("error" if sign < 0 else "")


@pytest.mark.parametrize("sign", [1, -1])
def test_a_negated_distance_to_an_output_without_a_graph_is_named(sign: int):
    def forward(self: Function, x: Tensor) -> tuple[Tensor, Tensor]:
        with torch.no_grad():
            goal = self.teacher(x)
        return self.student(x), goal

    model = Function(
        forward, student=mlp(WIDTH, 4), teacher=mlp(WIDTH, 4).requires_grad_(requires_grad=False)
    )
    inputs = torch.randn(SAMPLES, WIDTH)
    report = leadline.check(model, inputs, None, lambda out: sign * distance_to_teacher(out))
    assert severity(report, "negated-loss") == ("error" if sign < 0 else "")


# Answers among the inputs, and several of them per position.


def test_a_scorer_of_given_next_items_must_not_see_them():
    def model(*, causal: bool) -> Function:
        def forward(self: Function, seen: Tensor, following: Tensor) -> Tensor:
            states = self.rnn(self.embed(seen))[0]
            states = states if causal else states + states.mean(1, keepdim=True)
            return (states * self.embed(following)).sum(-1)

        return Function(forward, embed=nn.Embedding(WORDS, WIDTH), rnn=nn.GRU(WIDTH, WIDTH, batch_first=True))

    walk = torch.randint(0, WORDS, (SAMPLES, STEPS + 1))
    inputs = (walk[:, :-1], walk[:, 1:])

    def loss(scores: Tensor) -> Tensor:
        return F.softplus(-scores).mean()

    assert severity(leadline.check(model(causal=False), inputs, None, loss), "visible-answer") == "error"
    assert severity(leadline.check(model(causal=True), inputs, None, loss), "visible-answer") == ""


@pytest.mark.parametrize(
    ("bidirectional", "first", "finding"),
    [(True, 1, "visible-answer"), (False, 1, ""), (False, 0, "shifted-targets")],
)
def test_of_several_words_ahead_the_nearest_one_counts(bidirectional: bool, first: int, finding: str):
    def forward(self: Function, ids: Tensor) -> Tensor:
        states = self.rnn(self.embed(ids))[0]
        return torch.stack([self.next(states), self.after(states)], 2)

    wide = 2 * WIDTH if bidirectional else WIDTH
    model = Function(
        forward,
        embed=nn.Embedding(WORDS, WIDTH),
        rnn=nn.GRU(WIDTH, WIDTH, batch_first=True, bidirectional=bidirectional),
        next=nn.Linear(wide, WORDS),
        after=nn.Linear(wide, WORDS),
    )
    text = torch.randint(0, WORDS, (SAMPLES, STEPS + 2))
    ahead = torch.stack([text[:, first + k : first + k + STEPS] for k in range(2)], 2)
    report = leadline.check(
        model, text[:, :STEPS], ahead, lambda out, y: F.cross_entropy(out.movedim(-1, 1), y)
    )
    found = {each.name for each in report.findings if each.severity == "error"}
    assert found & {"visible-answer", "shifted-targets"} == ({finding} if finding else set())


@pytest.mark.parametrize("ignored", [0, -100])
def test_padding_that_an_embedding_declares_must_not_be_asked_for(ignored: int):
    model = Function(
        lambda self, ids: self.out(self.rnn(self.embed(ids))[0]),
        embed=nn.Embedding(WORDS, WIDTH, padding_idx=0),
        rnn=nn.GRU(WIDTH, WIDTH, batch_first=True),
        out=nn.Linear(WIDTH, WORDS),
    )
    text = torch.randint(1, WORDS, (SAMPLES, STEPS + 1))
    text = text.masked_fill(torch.arange(STEPS + 1) >= torch.randint(5, 9, (SAMPLES, 1)), 0)
    report = leadline.check(
        model,
        text[:, :-1],
        text[:, 1:],
        lambda out, y: F.cross_entropy(out.movedim(-1, 1), y, ignore_index=ignored),
    )
    assert severity(report, "unmasked-padding") == ("" if ignored == 0 else "warning")


# Samples: equal lengths, the first one for all, and models that return nothing but a loss.


def two_series(*, mixed: bool) -> Function:
    def forward(self: Function, series: Tensor, calendar: Tensor) -> Tensor:
        state = self.read(series).mean(0 if mixed else 1)
        state = state[: len(calendar)]
        return self.out(state) + self.day(calendar)

    return Function(forward, read=nn.Linear(3, WIDTH), out=nn.Linear(WIDTH, 1), day=nn.Linear(2, 1))


@pytest.mark.parametrize("mixed", [True, False])
def test_as_many_positions_as_samples_in_one_of_several_inputs_hide_nothing(mixed: bool):
    inputs = (torch.randn(SAMPLES, SAMPLES, 3), torch.randn(SAMPLES, 2))
    report = leadline.check(two_series(mixed=mixed), inputs, torch.randn(SAMPLES, 1), F.mse_loss)
    assert severity(report, "mixed-samples") == ("error" if mixed else "")
    assert report.profile.dependence.of("sample") is not None


def test_a_matrix_that_connects_samples_is_still_no_mixture():
    model = Function(
        lambda self, x, links: self.out(links @ self.into(x)), into=nn.Linear(4, 6), out=nn.Linear(6, 2)
    )
    inputs = (torch.randn(SAMPLES, 4), torch.rand(SAMPLES, SAMPLES).round())
    report = leadline.check(model, inputs, torch.randn(SAMPLES, 2), F.mse_loss)
    assert severity(report, "mixed-samples") == ""
    assert any("may connect them" in gap.why for gap in report.coverage.gaps)


@pytest.mark.parametrize("shape", [(WIDTH,), (3, WIDTH)])
@pytest.mark.parametrize("index", [0, -1, None])
def test_one_sample_that_is_taken_for_all_is_a_mixture(shape: tuple[int, ...], index: int | None):
    def forward(self: Function, x: Tensor) -> Tensor:
        h = self.into(x.flatten(1))
        return self.out(h + (h if index is None else h[index]))

    size = torch.Size(shape).numel()
    model = Function(forward, into=nn.Linear(size, 6), out=nn.Linear(6, 2))
    report = leadline.check(model, torch.randn(SAMPLES, *shape), torch.randn(SAMPLES, 2), F.mse_loss)
    assert severity(report, "mixed-samples") == ("" if index is None else "error")


@pytest.mark.parametrize("batch_first", [True, False])
def test_a_recurrent_layer_along_the_samples_is_seen_in_a_model_that_returns_its_loss(batch_first: bool):
    def forward(self: Function, x: Tensor, y: Tensor) -> Tensor:
        states = self.rnn(x)[0]
        return (self.out(states).squeeze(-1) - y).pow(2).mean()

    model = Function(forward, rnn=nn.GRU(3, WIDTH, batch_first=batch_first), out=nn.Linear(WIDTH, 1))
    inputs = (torch.randn(SAMPLES, 7, 3), torch.randn(SAMPLES, 7))
    report = leadline.check(model, inputs)
    assert severity(report, "mixed-samples") == ("" if batch_first else "error")


def test_a_loss_over_the_whole_batch_inside_the_model_is_no_mixture():
    def forward(self: Function, x: Tensor) -> Tensor:
        z = self.net(x)
        z = (z - z.mean(0)) / z.std(0)
        return ((z.T @ z / len(z)) - torch.eye(4)).pow(2).mean()

    report = leadline.check(Function(forward, net=mlp(WIDTH, 4)), torch.randn(SAMPLES, WIDTH))
    assert severity(report, "mixed-samples") == ""


# Inputs that are erased, or that only the loss reads.


def zero_gate() -> nn.Linear:
    gate = nn.Linear(2, 1)
    nn.init.zeros_(gate.weight)
    nn.init.zeros_(gate.bias)
    return gate


@pytest.mark.parametrize(
    ("use", "expected"),
    [
        (lambda self, extra: extra.mean(1, keepdim=True) * 0.0, "warning"),
        (lambda self, extra: extra.mean(1, keepdim=True), ""),
        (lambda self, extra: self.gate(extra), ""),
    ],
    ids=["erased", "used", "closed gate"],
)
def test_an_input_that_becomes_zero_is_named_unless_a_parameter_may_open_it(
    use: Callable[[Function, Tensor], Tensor], expected: str
):
    model = Function(
        lambda self, x, extra: self.net(x) + use(self, extra.clone()), net=mlp(WIDTH, 1), gate=zero_gate()
    )
    if expected == "warning":
        model = Function(
            lambda self, x, extra: self.net(torch.cat([x, extra * 0.0], 1)), net=mlp(WIDTH + 2, 1)
        )
    inputs = (torch.randn(SAMPLES, WIDTH), torch.randn(SAMPLES, 2))
    report = leadline.check(model, inputs, torch.randn(SAMPLES, 1), F.mse_loss)
    assert severity(report, "idle-input") == expected


def test_an_input_that_only_the_loss_reads_is_a_note():
    noise = torch.rand(SAMPLES, 1) + 0.5
    inputs = (torch.randn(SAMPLES, WIDTH), noise)
    model = Function(lambda self, x, noise: self.net(x), net=mlp(WIDTH, 1))
    report = leadline.check(
        model, inputs, torch.randn(SAMPLES, 1), lambda out, y: (noise * (out - y)).pow(2).mean()
    )
    assert severity(report, "idle-input") == "info"


# Who learns.


@pytest.mark.parametrize(("trained", "expected"), [("critic", "warning"), ("head", "info")])
def test_only_what_feeds_the_trained_part_may_be_a_frozen_front(trained: str, expected: str):
    model = Function(
        lambda self, x: (
            (self.head(self.body(x)), self.critic(x)) if trained == "critic" else self.head(self.body(x))
        ),
        body=mlp(WIDTH, 6),
        head=nn.Linear(6, 1),
        critic=mlp(WIDTH, 1),
    )
    optimizer = torch.optim.Adam(getattr(model, trained).parameters())

    def loss(output: Tensor | tuple[Tensor, Tensor], targets: Tensor) -> Tensor:
        parts = output if isinstance(output, tuple) else (output,)
        return sum((part - targets).pow(2).mean() for part in parts)

    report = leadline.check(
        model, torch.randn(SAMPLES, WIDTH), torch.randn(SAMPLES, 1), loss, optimizer, rehearse=False
    )
    assert severity(report, "forgotten-parameters") == expected


def test_an_op_that_reads_only_a_shape_carries_nothing_on():
    def forward(self: Function, x: Tensor) -> Tensor:
        h = self.into(x)
        deep = self.deep(h)
        return self.out(deep.new_zeros(deep.shape) + h)

    model = Function(forward, into=nn.Linear(WIDTH, 6), deep=nn.Linear(6, 6), out=nn.Linear(6, 2))
    report = leadline.check(model, torch.randn(SAMPLES, WIDTH), torch.randn(SAMPLES, 2), F.mse_loss)
    assert severity(report, "discarded-results") == "warning"
    assert severity(report, "blocked-path") == ""
