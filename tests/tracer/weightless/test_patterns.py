"""Less usual ways to fill a tensor: followed as exactly as the usual ones, or not followed and said to be."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from leadline import InputError
from leadline.tracer.weightless.build import build_without_weights
from leadline.tracer.weightless.configs import Sizes, make_case, sum_of_squares
from leadline.tracer.weightless.distribution import constant, moments, of_nodes, of_values
from leadline.tracer.weightless.memory import Memory, box_of_view
from tests.support.init_agreement import SIGMAS, Holder, followed, worst

SHAPE = (60, 50)


def halves(first: Callable[[Tensor], Tensor], second: Callable[[Tensor], Tensor]) -> Tensor:
    made = torch.empty(SHAPE)
    first(made[:30])
    second(made[30:])
    return made


FOLLOWED: dict[str, Callable[[], Tensor]] = {
    "a constant times a draw": lambda: torch.full((50,), 2.0) * torch.randn(SHAPE),
    "a constant and a draw": lambda: torch.full((50,), 2.0) + torch.randn(SHAPE),
    "a sum of draws, moved": lambda: (torch.randn(SHAPE) + torch.rand(SHAPE)) + 1.0,
    "a sum of draws, not moved": lambda: (torch.randn(SHAPE) + torch.rand(SHAPE)) + 0.0,
    "a difference of draws": lambda: torch.randn(SHAPE) - torch.rand(SHAPE),
    "a constant, moved": lambda: torch.ones(SHAPE).add_(2.0),
    "a constant, multiplied": lambda: torch.ones(SHAPE).mul_(2.0),
    "one number in two pieces": lambda: halves(lambda w: w.fill_(1.0), lambda w: w.fill_(1.0)),
    "two numbers": lambda: halves(lambda w: w.fill_(1.0), lambda w: w.fill_(3.0)),
    "whole numbers below": lambda: torch.empty(SHAPE).random_(5),
    "whole numbers between": lambda: torch.empty(SHAPE).random_(2, 5),
    "a draw of signs": lambda: torch.empty(SHAPE).bernoulli_(0.3).mul_(2).sub_(1),
    "another size": lambda: torch.empty(3).resize_(60, 50).normal_(),
    "numbers of a list": lambda: torch.tensor([float(n) for n in range(100)]) / 100,
}


@pytest.mark.parametrize("title", FOLLOWED)
def test_what_is_written_is_followed(title: str):
    distance, whose = worst(lambda: Holder(FOLLOWED[title]()))
    assert distance < SIGMAS, whose


def twice_scattered() -> Tensor:
    made = torch.zeros(SHAPE).normal_()
    made[::2, ::2].fill_(1.0)
    made[::3, ::3].fill_(2.0)
    return made


NOT_FOLLOWED: dict[str, tuple[Callable[[], Tensor], str]] = {
    "means of a tensor": (lambda: torch.normal(torch.zeros(SHAPE), torch.ones(SHAPE)), "tensors of means"),
    "chances of a tensor": (
        lambda: torch.empty(SHAPE).bernoulli_(torch.full(SHAPE, 0.3)),
        "a tensor of probabilities",
    ),
    "a whole range": (lambda: torch.empty(SHAPE).random_(), "the whole range of its type"),
    "a Cauchy law": (lambda: torch.empty(SHAPE).cauchy_(), "no moments"),
    "squares of the huge": (lambda: (torch.randn(SHAPE) * 1e200).square(), "has no moments"),
    "an orthogonal factor": (lambda: torch.linalg.qr(torch.rand(50, 50))[0], "orthogonal factor of"),
    "filled by a draw": (lambda: torch.empty(SHAPE).fill_(torch.randn(())), "an unknown number"),
    "a pattern twice": (twice_scattered, "a pattern that is not followed"),
    "places drawn anew": (
        lambda: torch.zeros(SHAPE).index_put_((torch.randint(60, (7,)),), torch.ones(50)),
        "places that are not followed",
    ),
    "never written": (lambda: torch.empty(SHAPE), "never initialized"),
}


@pytest.mark.parametrize("title", NOT_FOLLOWED)
def test_what_is_not_followed_is_reported_with_its_reason(title: str):
    make, reason = NOT_FOLLOWED[title]
    found = followed(lambda: Holder(make()))["weight"]
    assert found.mean is None
    assert reason in found.gap


def test_large_tensors_are_stored_as_their_moments(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("leadline.tracer.weightless.memory.MAX_KNOWN_ELEMENTS", 10)
    monkeypatch.setattr("leadline.tracer.weightless.init_mode.MAX_KNOWN_ELEMENTS", 10)
    numbers = torch.linspace(0.0, 1.0, 100)
    found = followed(lambda: Holder(numbers * 2.0))["weight"]
    assert (found.mean, found.ms) == pytest.approx((1.0, (2 * numbers).square().mean().item()))


def test_a_tensor_written_in_too_many_pieces_is_not_followed(monkeypatch: pytest.MonkeyPatch):
    def striped() -> Tensor:
        made = torch.empty(20, 3).normal_()
        for row in range(0, 20, 2):
            made[row].fill_(float(row))
        return made

    assert followed(lambda: Holder(striped()))["weight"].gap == ""
    monkeypatch.setattr("leadline.tracer.weightless.memory.MAX_PIECES", 5)
    assert "more than 5 separate pieces" in followed(lambda: Holder(striped()))["weight"].gap


def test_what_is_gone_is_forgotten(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("leadline.tracer.weightless.memory.SWEEP_INTERVAL", 3)
    memory = Memory()
    memory._sweep_at = 3
    kept = [torch.empty(2) for _ in range(2)]
    for tensor in kept:
        memory.write_values(tensor, torch.ones(2))
    for _ in range(20):
        memory.write_values(torch.empty(2), torch.zeros(2))
    assert len(memory._contents) <= 6
    assert all(memory.distribution(tensor) == constant(1.0) for tensor in kept)
    assert "not followed" in memory.distribution(torch.empty(3)).why
    assert memory.values(torch.empty(3)) is None


def test_of_moments_alone_there_are_no_values():
    known = moments(0.0, 1.0, "a sum")
    with pytest.raises(ValueError, match="only the moments of a sum"):
        _ = known.nodes
    with pytest.raises(ValueError, match="only the moments of a sum"):
        of_nodes(torch.ones(3), known, "more")
    assert of_values(torch.empty(0), "values") == constant(0.0)


@pytest.mark.parametrize(
    ("size", "steps", "offset"), [((2,), (1,), 60), ((4,), (2,), 0), ((7,), (1,), 1)], ids=str
)
def test_what_does_not_fit_into_a_tensor_is_no_box_of_it(size, steps, offset):
    assert box_of_view((3, 5), (5, 1), size, steps, offset) is None


class Reader:
    """As much of a model of transformers as a batch is made from."""

    main_input_name = "input_ids"

    def __init__(self, main: str = "input_ids", **config: Any) -> None:
        self.main_input_name = main
        self.config = SimpleNamespace(vocab_size=11, num_labels=3, **config)


class Encoder(Reader):
    def forward(self, input_ids): ...


class Listener(Reader):
    def forward(self, input_values, labels=None): ...


class ListenerForCTC(Reader):
    def forward(self, input_features, labels=None): ...


class PairModel(Reader):
    def forward(self, input_ids, pixel_values, return_loss=None): ...


class HearerForSequenceClassification(Reader):
    def forward(self, input_values, labels=None): ...


@pytest.mark.parametrize(
    ("model", "inputs"),
    [
        (Encoder(), {"input_ids"}),
        (Listener("input_values"), {"input_values"}),
        (ListenerForCTC("input_features", num_mel_bins=8, max_source_positions=5), {"input_features"}),
        (PairModel(), {"input_ids", "pixel_values", "return_loss"}),
        (HearerForSequenceClassification("input_values"), {"input_values", "labels"}),
    ],
    ids=lambda each: type(each).__name__ if isinstance(each, Reader) else "",
)
def test_a_batch_is_built_from_what_a_model_reads_and_its_assumptions_are_listed(model: Reader, inputs: set):
    case, notes = make_case(model, Sizes(batch=2, tokens=4))
    assert set(case.inputs) == inputs
    assert (case.loss is None) == bool(inputs & {"labels", "return_loss"})
    assert [note.what for note in notes] == ["the batch"] + ["the loss"] * (case.loss is not None)


def test_features_have_the_length_that_the_encoder_wants():
    case, _ = make_case(
        ListenerForCTC("input_features", num_mel_bins=8, max_source_positions=5), Sizes(batch=2)
    )
    assert case.inputs["input_features"].shape == (2, 8, 10)


def test_a_model_that_reads_something_else_is_refused_by_name():
    with pytest.raises(InputError, match="Encoder, which reads point_clouds"):
        make_case(Encoder("point_clouds"), Sizes())


def test_the_stand_in_for_a_loss_takes_the_first_output_with_a_gradient():
    weight = torch.ones(3, requires_grad=True)
    assert sum_of_squares({"ids": torch.arange(3), "states": (torch.ones(2), weight * 2)}).item() == 12.0
    with pytest.raises(InputError, match="floating-point tensor that depends on the parameters"):
        sum_of_squares(torch.arange(3))


def test_an_error_of_the_users_that_is_not_about_numbers_comes_out_as_it_is():
    def broken() -> nn.Module:
        raise RuntimeError("sizes do not fit")

    with pytest.raises(RuntimeError, match="sizes do not fit"):
        build_without_weights(broken)
