"""The probes are cheap, leave everything as it was, and say what they could not ask."""

from __future__ import annotations

import itertools
import random
import weakref

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import leadline
from leadline.readings.wiring.batch import free_positions, redraw_positions
from leadline.readings.wiring.dependence import read_dependence
from leadline.records.report import Report
from leadline.tracer import passes
from leadline.tracer.passes import fingerprint
from tests.support.wiring import Function, TinyGPT, classes, features, mlp, text, token_loss

# The promises in the documentation of `leadline.check`.
MAX_PASSES = 8
REPEATED_PASSES = 2


def test_the_probes_take_at_most_eight_forward_passes():
    calls = []
    model = TinyGPT()
    model.register_forward_hook(lambda *_: calls.append(1))
    tokens, targets = text()
    leadline.check(model, tokens, targets, token_loss, probes=False)
    without = len(calls)
    report = leadline.check(model, tokens, targets, token_loss)
    assert report.profile.dependence is not None
    assert len(calls) - 2 * without == report.profile.dependence.passes <= MAX_PASSES


def test_only_a_leak_makes_passes_again_to_find_its_op_and_no_other_pass_takes_fingerprints(monkeypatch):
    prints = []
    monkeypatch.setattr(passes, "fingerprint", lambda *args: prints.append(1) or fingerprint(*args))
    healthy = leadline.check(TinyGPT(), *text(), token_loss, rehearse=False)
    assert not prints
    leaking = leadline.check(TinyGPT(causal=False), *text(), token_loss, rehearse=False)
    assert prints
    assert leaking.profile.dependence.passes == healthy.profile.dependence.passes + REPEATED_PASSES


@pytest.mark.parametrize("axis", [0, 1, 2])
def test_a_fingerprint_changes_at_each_index_whose_elements_change_and_at_no_other(axis):
    torch.manual_seed(0)
    before = torch.randn(5, 6, 7)
    swapped = before.clone()
    swapped.movedim(axis, 0)[2] = before.movedim(axis, 0)[2].flip(0, 1)
    changed = fingerprint(before, axis, {}) != fingerprint(swapped, axis, {})
    assert changed.nonzero().flatten().tolist() == [2]


IMAGE, PATCHES = 49, 4


class CaptioningGPT(TinyGPT):
    """A language model that, like those with images, refuses a batch without `PATCHES` image tokens per sample."""

    def __init__(self, **options: bool) -> None:
        super().__init__(**options)
        self.register_buffer("refusals", torch.zeros(()))

    def forward(self, tokens, targets=None):
        if ((tokens == IMAGE).sum(1) != PATCHES).any():
            self.refusals += 1
            raise ValueError("image features and image tokens do not match")
        return super().forward(tokens, targets)


def captions() -> tuple[torch.Tensor, torch.Tensor]:
    """Image tokens in front of a text that has none."""
    torch.manual_seed(0)
    tokens = torch.randint(0, IMAGE, (4, 25))
    tokens[:, :PATCHES] = IMAGE
    return tokens[:, :-1].clone(), tokens[:, 1:].clone()


def test_what_each_position_sees_is_known_also_if_the_model_counts_some_of_its_tokens():
    tokens, targets = captions()
    targets[:, : PATCHES - 1] = -100
    healthy, leaking, blind = (
        leadline.check(CaptioningGPT(**options), tokens, targets, token_loss)
        for options in ({}, {"causal": False}, {"positions": False})
    )
    for report in (healthy, leaking, blind):
        assert "do not match" not in gaps(report)
        assert report.profile.dependence.passes <= MAX_PASSES + REPEATED_PASSES
        assert {each.kind for each in report.profile.dependence.perturbations} >= {"future", "past", "order"}
    assert not [each for each in healthy.findings if each.code.startswith("D")]
    assert "visible-answer" in {each.name for each in leaking.findings}
    assert "visible-answer" not in {each.name for each in blind.findings}


def test_a_refused_pass_leaves_the_model_as_it_was():
    model = CaptioningGPT()
    leadline.check(model, *captions(), token_loss)
    assert model.refusals == 0


def test_a_model_that_refuses_every_change_says_why():
    tokens, targets = captions()

    class Stubborn(TinyGPT):
        def forward(self, given, wanted=None):
            if not torch.equal(given, tokens):
                raise ValueError("another batch")
            return super().forward(given, wanted)

    report = leadline.check(Stubborn(), tokens, targets, token_loss)
    assert "what each position sees: a further pass raised ValueError: another batch" in gaps(report)
    assert report.profile.dependence.passes <= MAX_PASSES


@pytest.mark.parametrize("axis", [0, 1])
def test_a_free_position_has_no_token_that_comes_in_rows_or_equally_often_in_all_samples(axis):
    tokens = torch.tensor([[9, 9, 1, 7, 2, 3], [9, 9, 4, 2, 5, 7]])
    free = free_positions(tokens if axis else tokens.t(), axis)
    assert free.tolist() == [False, False, True, False, False, False]
    one_sample = free_positions(tokens[:1] if axis else tokens[:1].t(), axis)
    assert one_sample.tolist() == [False, False, True, True, True, True]


@pytest.mark.parametrize("length", [5, 16, 24])
def test_every_position_that_is_redrawn_changes_unless_its_neighbor_is_equal(length):
    torch.manual_seed(length)
    for _ in range(50):
        tokens = torch.randint(0, 20, (2, length))
        changed = redraw_positions(tokens, 1, (1, length - 1), torch.ones(length, dtype=torch.bool))
        is_same = (changed == tokens).all(0)[1:]
        assert not (is_same & (tokens[:, 1:] != tokens[:, :-1]).any(0)).any()


@pytest.mark.parametrize("reader", [0, 1])
@pytest.mark.parametrize("shape", [(8, 8), (8, 5, 8)], ids=["rows", "sequences"])
def test_the_line_that_mixes_samples_is_found_whichever_of_two_neighbors_reads_the_other(
    reader: int, shape: tuple[int, ...]
):
    def forward(self: Function, x: torch.Tensor) -> torch.Tensor:
        pairs = list(self.body(x).unflatten(0, (-1, 2)).unbind(1))
        pairs[reader] = pairs[reader] + pairs[1 - reader]
        return torch.stack(pairs, 1).flatten(0, 1)

    torch.manual_seed(0)
    model = Function(forward, body=nn.Sequential(nn.Flatten(), nn.LazyLinear(3)))
    x, targets = torch.randn(shape), torch.randint(0, 3, (8,))
    model(x)
    dependence = leadline.check(model, x, targets, F.cross_entropy, rehearse=False).profile.dependence
    (mixed,) = (each for each in dependence.perturbations if each.kind == "sample" and each.forbidden)
    assert {each % 2 for each in mixed.forbidden} == {reader}
    assert mixed.site is not None
    assert mixed.site.source.line - forward.__code__.co_firstlineno in (1, 2)


def test_a_check_without_probes_says_nothing_about_dependence():
    report = leadline.check(mlp(), features(), classes(), F.cross_entropy, probes=False)
    assert report.profile.dependence is None
    assert report.profile.question is None
    assert report.profile.ledger is not None


def test_the_probes_leave_model_and_random_numbers_as_they_were():
    model = nn.Sequential(nn.Linear(8, 8), nn.BatchNorm1d(8), nn.Dropout(0.5), nn.Linear(8, 3)).train()
    before = {name: value.clone() for name, value in model.state_dict().items()}
    inputs, targets = features(), classes()
    kept, random = inputs.clone(), torch.get_rng_state()
    leadline.check(model, inputs, targets, F.cross_entropy)
    assert all(torch.equal(before[name], value) for name, value in model.state_dict().items())
    assert torch.equal(random, torch.get_rng_state())
    assert torch.equal(inputs, kept)
    assert all(module.training for module in model.modules())
    assert all(parameter.grad is None for parameter in model.parameters())


def test_the_readings_survive_json():
    report = leadline.check(TinyGPT(), *text(), token_loss)
    again = Report.from_json(report.to_json())
    assert again.profile.dependence == report.profile.dependence
    assert again.profile.question == report.profile.question
    assert again.profile.ledger == report.profile.ledger


def gaps(report: Report) -> str:
    return " ".join(f"{gap.what}: {gap.why}" for gap in report.coverage.gaps)


def test_a_model_that_is_random_in_eval_mode_is_not_probed():
    noise = random.SystemRandom()  # unlike a generator, it has no state that could be restored
    model = Function(lambda self, x: self.a(x) + noise.random(), a=nn.Linear(8, 3))
    report = leadline.check(model, features(), classes(), F.cross_entropy)
    assert "random even in eval mode" in gaps(report)
    assert not [each for each in report.findings if each.code.startswith("D")]


def test_a_model_that_refuses_to_run_again_keeps_its_report():
    calls = itertools.count()  # an iterator cannot be restored

    def once(self, x):
        if next(calls):
            raise RuntimeError("only once")
        return self.a(x)

    report = leadline.check(Function(once, a=nn.Linear(8, 3)), features(), classes(), F.cross_entropy)
    assert report.verdict == "trains"
    assert "only once" in gaps(report)


def test_one_sample_cannot_be_compared_with_others():
    report = leadline.check(mlp(), features()[:1], classes()[:1], F.cross_entropy)
    assert "fewer than two samples" in gaps(report)


def test_the_rows_of_a_graph_may_depend_on_each_other():
    def propagate(self, x, edges):
        messages = torch.zeros_like(x).index_add(0, edges[1], x[edges[0]])
        return self.head(messages)

    edges = torch.randint(0, 32, (2, 90))
    report = leadline.check(
        Function(propagate, head=nn.Linear(8, 3)), (features(), edges), classes(), F.cross_entropy
    )
    assert "graph" in gaps(report)
    assert not [each for each in report.findings if each.code.startswith("D") and each.severity != "info"]


@pytest.mark.parametrize("layout", [torch.strided, torch.sparse_coo])
def test_an_adjacency_matrix_among_the_inputs_may_connect_samples(layout):
    def propagate(self, x, adjacency):
        return self.head(torch.mm(adjacency, x))

    adjacency = (torch.eye(32) + (torch.rand(32, 32) < 0.1)).to_sparse()
    if layout is torch.strided:
        adjacency = adjacency.to_dense()
    report = leadline.check(
        Function(propagate, head=nn.Linear(8, 3)), (features(), adjacency), classes(), F.cross_entropy
    )
    assert "a row and a column for each sample" in gaps(report)
    assert "D901" not in {each.code for each in report.findings}


@pytest.mark.parametrize("forward", ["inside", "outside"])
def test_the_question_is_the_same_wherever_the_loss_is_computed(forward):
    tokens, targets = text()
    if forward == "inside":
        report = leadline.check(TinyGPT(), (tokens, targets), None, lambda output: output[1])
    else:
        report = leadline.check(TinyGPT(), tokens, targets, token_loss)
    question = report.profile.question
    assert question is not None
    assert question.offset is not None
    assert (question.offset.offset, question.classes, question.toward_target) == (1, 50, 1.0)


def test_a_sequence_with_positions_first_has_its_samples_in_the_second_axis():
    model = Function(
        lambda self, tokens: self.head(self.cell(self.embed(tokens))[0]).flatten(0, 1),
        embed=nn.Embedding(50, 16),
        cell=nn.LSTM(16, 16),
        head=nn.Linear(16, 50),
    )
    tokens, targets = text()
    report = leadline.check(model, tokens.t().contiguous(), targets.t().flatten(), F.cross_entropy)
    dependence = report.profile.dependence
    assert dependence is not None
    assert (dependence.sample_axis, dependence.position_axis) == (1, 0)
    assert not [each for each in report.findings if each.code.startswith("D")]


def test_no_pass_is_held_while_the_next_one_runs():
    held, alive = [], []

    def note(module, inputs, output):
        alive.append(sum(each() is not None for each in held))
        held.append(weakref.ref(output))

    model = mlp()
    case = leadline.Case(model, features(), classes(), F.cross_entropy)
    trace = leadline.trace(case)
    model[0].register_forward_hook(note)
    read_dependence(case, trace)
    assert len(alive) >= 3
    assert not any(alive)


def cox(risk: torch.Tensor, seen: torch.Tensor) -> torch.Tensor:
    """The partial likelihood of survival analysis: each event is compared with all that outlive it."""
    order = seen[:, 0].argsort(descending=True)
    ranked, events = risk.squeeze(1)[order], seen[:, 1][order]
    return -((ranked - torch.logcumsumexp(ranked, 0)) * events).sum() / events.sum()


def test_a_survival_loss_compares_samples_on_purpose_and_a_column_against_a_row_does_not():
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(5, 32), nn.ReLU(), nn.Linear(32, 1))
    inputs = torch.randn(64, 5)
    times = torch.stack([torch.rand(64), (torch.rand(64) < 0.7).float()], 1)
    by_loss = [
        leadline.check(model, inputs, times, cox),
        leadline.check(model, inputs, inputs[:, 0], lambda out, y: (out - y).square().mean()),
    ]
    found = [[each.severity for each in report.findings if each.code == "D908"] for report in by_loss]
    assert found[1] == ["error"]
    assert "error" not in found[0]
