"""Networks with several residual streams: recognized by their products, judged by their matrices and gradients."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn

import leadline
from leadline.checks.model.equal_streams import MAX_EQUAL_SPREAD
from leadline.nn import LanguageModel
from leadline.nn.schemes import SCHEMES
from leadline.records import StreamMixing
from leadline.records.report import Report
from leadline.tracer.mixing import find_stream_product
from tests.support.wiring import token_loss

STREAMS, WIDTH, VOCABULARY, LAYERS = 4, 16, 31, 6
CODES = ("R412", "R413", "R414")


def sinkhorn(logits: Tensor, rounds: int) -> Tensor:
    matrix = logits.exp()
    for _ in range(rounds):
        matrix = matrix / matrix.sum(-1, keepdim=True)
        matrix = matrix / (matrix.sum(-2, keepdim=True) + 1e-8)
    return matrix


def log_sinkhorn(logits: Tensor, rounds: int) -> Tensor:
    for _ in range(rounds):
        logits = logits - logits.logsumexp(-1, keepdim=True)
        logits = logits - logits.logsumexp(-2, keepdim=True)
    return logits.exp()


def normalized_by_rows_and_columns(logits: Tensor, rounds: int) -> Tensor:
    matrix = logits.exp()
    for _ in range(rounds):
        matrix = matrix / matrix.sum((-1,), keepdim=True)
        matrix = matrix / matrix.sum((-2,), keepdim=True)
    return matrix


# Matrices that are divided or normalized, but not along both axes.
OTHERWISE_SCALED = {
    "by the whole sum": lambda logits: logits.exp() / logits.exp().sum(),
    "by the largest": lambda logits: logits.exp() / logits.exp().amax(-1, keepdim=True),
    "over all elements": lambda logits: logits.flatten().softmax(0).view(STREAMS, STREAMS),
    "by rows alone": lambda logits: (logits + logits).mul(1.0).softmax(-1),
    "by rows, of a square": lambda logits: (logits * 1.0).square().softmax(-1),
    "by rows, of a sum with itself": lambda logits: sum([logits * 1.0] * 2).softmax(-1),
}


class Layer(nn.Module):
    """One feed-forward on several streams (batch, time, streams, width), written as other libraries do."""

    def __init__(self, index: int, form: str, **options: Any) -> None:
        super().__init__()
        self.form, self.rounds = form, options.get("rounds", 20)
        self.norm = nn.LayerNorm(WIDTH)
        self.up, self.down = nn.Linear(WIDTH, 32), nn.Linear(32, WIDTH)
        reads = torch.full((STREAMS,), 1.0 / STREAMS)
        if not options.get("alike"):
            reads = torch.eye(STREAMS)[index % STREAMS]
        self.reads, self.writes = nn.Parameter(reads), nn.Parameter(torch.ones(STREAMS))
        is_normalized = "sinkhorn" in form
        start = 5.0 * torch.eye(STREAMS) if is_normalized else options.get("scale", 1.0) * torch.eye(STREAMS)
        self.mix = nn.Parameter(start + options.get("noise", 0.0) * torch.randn(STREAMS, STREAMS))
        if options.get("silent"):
            nn.init.zeros_(self.down.weight)
            nn.init.zeros_(self.down.bias)

    def forward(self, state: Tensor) -> Tensor:
        x = torch.einsum("n,btnd->btd", self.reads, state)
        y = self.down(self.up(self.norm(x)).relu())
        if self.form == "unwritten":
            return (self.mix @ state) * 1.0
        return self.mixed(state) + self.writes[:, None] * y.unsqueeze(-2)

    def mixed(self, state: Tensor) -> Tensor:
        if self.form == "einsum":
            return torch.einsum("ij,btjd->btid", self.mix, state)
        if self.form == "ellipsis":
            return torch.einsum("...jd,ij->...id", state, self.mix)
        if self.form == "sinkhorn":
            return sinkhorn(self.mix, self.rounds) @ state
        if self.form == "axes in a tuple, sinkhorn":
            return normalized_by_rows_and_columns(self.mix, self.rounds) @ state
        if self.form in OTHERWISE_SCALED:
            return OTHERWISE_SCALED[self.form](self.mix) @ state
        if self.form == "log-sinkhorn":
            return log_sinkhorn(self.mix, self.rounds) @ state
        return torch.matmul(self.mix, state)


class StreamNet(nn.Module):
    def __init__(self, form: str = "matmul", **options: Any) -> None:
        torch.manual_seed(0)
        super().__init__()
        self.tokens = nn.Embedding(VOCABULARY, WIDTH)
        self.layers = nn.ModuleList(Layer(index, form, **options) for index in range(LAYERS))
        self.head = nn.Linear(WIDTH, VOCABULARY)

    def forward(self, tokens: Tensor) -> Tensor:
        state = self.tokens(tokens).unsqueeze(-2).expand(-1, -1, STREAMS, -1)
        for layer in self.layers:
            state = layer(state)
        return self.head(state.sum(-2))


def check(model: nn.Module) -> Report:
    x = torch.randint(0, VOCABULARY, (4, 12), generator=torch.Generator().manual_seed(0))
    return leadline.check(model, x, x.roll(-1, 1), token_loss, rehearse=False)


def mixings(report: Report) -> tuple[StreamMixing, ...]:
    assert report.profile.parts is not None
    return report.profile.parts.mixings


def codes(report: Report) -> list[str]:
    return [each.code for each in report.findings if each.code in CODES]


FORMS = ("matmul", "einsum", "ellipsis", "sinkhorn", "log-sinkhorn", "axes in a tuple, sinkhorn")


@pytest.mark.parametrize("form", FORMS)
def test_streams_are_recognized_however_they_are_mixed_and_healthy_ones_are_not_reported(form):
    report = check(StreamNet(form))
    (found,) = mixings(report)
    assert (found.streams, found.layers, found.writes) == (STREAMS, LAYERS, LAYERS - 1)
    assert found.forward_gain == pytest.approx(1, abs=0.01)
    assert found.is_normalized == ("sinkhorn" in form)
    assert codes(report) == []


@pytest.mark.parametrize("form", OTHERWISE_SCALED)
def test_a_matrix_that_is_not_normalized_along_both_axes_need_not_sum_to_one(form: str):
    report = check(StreamNet(form, noise=0.1))
    (found,) = mixings(report)
    assert found.layers == LAYERS
    assert not found.is_normalized
    assert "R413" not in codes(report)


def test_streams_to_which_no_layer_adds_anything_have_no_writes():
    (found,) = mixings(check(StreamNet("unwritten")))
    assert (found.layers, found.writes) == (LAYERS, 0)


@pytest.mark.parametrize(("scale", "words"), [(1.6, "grows to 16.8"), (0.4, "shrinks to 0.0041")])
def test_a_product_of_matrices_that_grows_or_collapses_is_named(scale, words):
    report = check(StreamNet(scale=scale))
    assert mixings(report)[0].forward_gain == pytest.approx(scale**LAYERS, rel=1e-4)
    (finding,) = [each for each in report.findings if each.code == "R412"]
    assert finding.severity == "warning"
    assert words in finding.message
    assert finding.source is not None


def test_the_gain_is_that_of_the_product_and_not_of_single_matrices():
    model = StreamNet(noise=0.3)
    product = torch.eye(STREAMS)
    for layer in model.layers:
        product = layer.mix.detach() @ product
    (found,) = mixings(check(model))
    assert found.forward_gain == pytest.approx(float(product.abs().sum(1).max()), rel=1e-4)
    assert found.backward_gain == pytest.approx(float(product.abs().sum(0).max()), rel=1e-4)


@pytest.mark.parametrize(("rounds", "found"), [(1, ["R413"]), (20, [])])
@pytest.mark.parametrize("form", ["sinkhorn", "log-sinkhorn"])
def test_too_few_sinkhorn_iterations_are_named(form, rounds, found):
    assert codes(check(StreamNet(form, rounds=rounds, noise=3.0))) == found


def test_matrices_that_nothing_normalizes_need_not_sum_to_one():
    report = check(StreamNet(noise=0.1))
    assert mixings(report)[0].row_error > 0.1
    assert codes(report) == []


@pytest.mark.parametrize("form", FORMS)
def test_streams_that_all_layers_read_alike_stay_equal(form):
    report = check(StreamNet(form, alike=True))
    (finding,) = [each for each in report.findings if each.code == "R414"]
    assert finding.severity == "warning"
    assert "4 streams" in finding.message


def spread_after_training(model: StreamNet, steps: int = 4) -> float:
    x = torch.randint(0, VOCABULARY, (4, 12), generator=torch.Generator().manual_seed(0))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(steps):
        optimizer.zero_grad()
        token_loss(model(x), x.roll(-1, 1)).backward()
        optimizer.step()
    return mixings(check(model))[0].spread


@pytest.mark.slow
def test_training_keeps_such_streams_equal_and_separates_others():
    assert spread_after_training(StreamNet("sinkhorn", alike=True, rounds=4)) < MAX_EQUAL_SPREAD
    assert spread_after_training(StreamNet("sinkhorn", rounds=4)) > 100 * MAX_EQUAL_SPREAD


def test_layers_that_still_write_zeros_are_not_judged():
    report = check(StreamNet(silent=True))
    (found,) = mixings(report)
    assert (found.writes, found.gradient_spread) == (0, pytest.approx(0, abs=1e-12))
    assert codes(report) == []


def test_streams_without_a_gradient_are_not_judged():
    model = StreamNet(alike=True)
    nn.init.zeros_(model.head.weight)
    report = check(model)
    assert mixings(report)[0].gradient_spread is None
    assert "R414" not in codes(report)


def test_a_matrix_of_nan_is_neither_large_nor_small():
    model = StreamNet()
    with torch.no_grad():
        model.layers[2].mix.fill_(torch.nan)
    assert codes(check(model)) == []


def test_attention_over_few_tokens_is_no_mixing_of_streams():
    torch.manual_seed(0)
    model = LanguageModel(vocab=VOCABULARY, width=WIDTH, heads=2, depth=3)
    assert mixings(check(model)) == ()


@pytest.mark.slow
@pytest.mark.parametrize("scheme", ["hyper-connections", "mhc", "mhc-lite"])
def test_the_streams_of_our_schemes_become_different_from_the_first_step_on(scheme):
    torch.manual_seed(0)
    model = LanguageModel(vocab=VOCABULARY, width=WIDTH, heads=2, depth=2, scheme=scheme)
    report = check(model)
    (found,) = mixings(report)
    assert found.layers == 4
    assert found.gradient_spread > 0.01
    assert codes(report) == []


@pytest.mark.slow
def test_no_scheme_is_reported():
    def findings(scheme: str) -> list[str]:
        torch.manual_seed(0)
        return codes(check(LanguageModel(vocab=VOCABULARY, width=WIDTH, heads=2, depth=3, scheme=scheme)))

    assert {name: found for name in SCHEMES if (found := findings(name))} == {}


def test_a_product_mixes_streams_if_two_operands_are_a_square_matrix_and_streams():
    matrix, streams = torch.randn(3, 3), torch.randn(4, 3, 8)
    mixing = find_stream_product("matmul", (matrix, streams), matrix @ streams)
    assert mixing is not None
    assert mixing.axis == 1
    assert find_stream_product("matmul", (matrix, streams, streams), matrix @ streams) is None
    assert find_stream_product("matmul", (torch.randn(2, 3), streams), torch.randn(4, 2, 8)) is None
