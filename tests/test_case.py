"""A Case checks its batches at the door: what was expected, what came, and what to do."""

import pytest
import torch
from torch import nn
from torch.nn import functional
from torch.utils.data import DataLoader, TensorDataset

import leadline
from leadline.case import split_batch
from leadline.errors import InputError
from leadline.fixes._engine.trial import read_batches

X, Y = torch.randn(8, 4), torch.randint(0, 3, (8,))


class OwnLoss(nn.Module):
    """A language model that takes its targets as an input and returns the loss."""

    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Embedding(7, 7)

    def forward(self, ids, targets):
        return functional.cross_entropy(self.table(ids).flatten(0, 1), targets.flatten())


def square(output: torch.Tensor) -> torch.Tensor:
    return output.square().mean()


IDS = torch.randint(0, 7, (2, 5))
WITH_TARGETS = {"model": nn.Linear(4, 3), "inputs": X, "targets": Y, "loss": functional.cross_entropy}
WITHOUT_TARGETS = {"model": nn.Linear(4, 3), "inputs": X, "loss": square}
LOSS_INSIDE = {"model": OwnLoss(), "inputs": (IDS, IDS)}
BY_NAME = {"model": OwnLoss(), "inputs": {"ids": IDS, "targets": IDS}}


@pytest.mark.parametrize(
    ("fields", "item", "inputs", "targets"),
    [
        (WITH_TARGETS, (X[:2], Y[:2]), X[:2], Y[:2]),
        (WITH_TARGETS, [X, Y], X, Y),
        (WITH_TARGETS, ((X,), Y), (X,), Y),
        (WITHOUT_TARGETS, X, X, None),
        (WITHOUT_TARGETS, [X], X, None),
        (WITHOUT_TARGETS, (X, None), X, None),
        (LOSS_INSIDE, (IDS, IDS), (IDS, IDS), None),
        (LOSS_INSIDE, [IDS, IDS], (IDS, IDS), None),
        (LOSS_INSIDE, ((IDS, IDS), None), (IDS, IDS), None),
        (BY_NAME, {"ids": IDS, "targets": IDS}, {"ids": IDS, "targets": IDS}, None),
    ],
)
def test_a_batch_is_read_by_the_form_of_the_case(fields, item, inputs, targets):
    case = leadline.Case(**fields, batches=[item])
    torch.testing.assert_close(split_batch(item, case), (inputs, targets), rtol=0, atol=0)


@pytest.mark.parametrize(
    ("fields", "batches", "words"),
    [
        (WITHOUT_TARGETS, [(X, Y)], "this case has no targets, so pass inputs alone"),
        (LOSS_INSIDE, [((IDS, IDS), IDS)], "this case has no targets, so pass inputs alone"),
        (LOSS_INSIDE, [IDS], r"inputs \(int64 \(2, 5\), int64 \(2, 5\)\) alone"),
        (WITH_TARGETS, [X], "a tensor of shape"),
        (WITH_TARGETS, [(X, Y, Y)], "a tuple of 3"),
        (WITH_TARGETS, [(X, None)], "pairs of inputs"),
        (WITH_TARGETS, [(X[0], Y[0])], r"float32 \(4,\), int64 \(\)"),
        (WITH_TARGETS, [(Y, X)], "pairs of inputs"),
        (WITH_TARGETS, (X, Y), "a tensor of shape"),
        (WITH_TARGETS, X, r"batches=\[batch\]"),
        (WITH_TARGETS, 5, r"batches=\[batch\]"),
        (BY_NAME, [{"ids": IDS}], "keys"),
    ],
)
def test_batches_of_another_form_are_refused_at_the_door(fields, batches, words):
    with pytest.raises(InputError, match=words):
        leadline.Case(**fields, batches=batches)


@pytest.mark.parametrize("make", [DataLoader, iter])
def test_batches_that_are_not_a_list_are_checked_when_they_are_read(make):
    case = leadline.Case(**WITHOUT_TARGETS, batches=make(TensorDataset(X, Y)))
    with pytest.raises(InputError, match="this case has no targets"):
        read_batches(case, 5)


def test_starred_batches_are_read_like_any_others():
    batches = [(X, Y), (X + 1, Y)]
    case = leadline.Case(nn.Linear(4, 3), *batches[0], functional.cross_entropy, batches=batches)
    assert len(read_batches(case, 5).each) == 2


def test_a_generator_is_read_only_as_far_as_needed_and_can_be_read_again():
    source = ((X + step, Y) for step in range(10))
    case = leadline.Case(**WITH_TARGETS, batches=source)
    first, again = read_batches(case, 3), read_batches(case, 4)
    assert torch.equal(next(source)[0], X + 4)
    assert len(first.each) == 3
    assert len(again.each) == 4
    assert all(torch.equal(one[0], other[0]) for one, other in zip(first.each, again.each, strict=False))


def test_a_repair_says_how_many_batches_it_read_from_an_iterator():
    model = nn.Linear(4, 3)
    sgd = torch.optim.SGD(model.parameters(), lr=0.1)
    source = ((X, Y) for _ in range(7))
    repair = leadline.fix(model, X, Y, functional.cross_entropy, sgd, batches=source, budget=20)
    assert any("7 batches were read from your iterator" in note for note in repair.report.notes)
