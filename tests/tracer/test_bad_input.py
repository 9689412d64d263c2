"""Bad input gets one clear error each: what was expected, what came, in the user's words, and what to do."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

import leadline
from benchmarks.footprint import differences, footprint
from leadline import InputError
from tests.support.zoo import ZOO, energy

X = torch.ones(3, 4)


def layer() -> nn.Linear:
    return nn.Linear(4, 2)


def my_elementwise_loss(output: Tensor) -> Tensor:
    return output.square()


def my_number_loss(output: Tensor) -> float:
    return output.sum().item()


class Encoder(nn.Module):
    """Has a lazy layer that was never run."""

    def __init__(self) -> None:
        super().__init__()
        self.projection = nn.LazyLinear(2)

    def forward(self, x: Tensor) -> Tensor:
        return self.projection(x)


def frozen() -> nn.Module:
    return layer().requires_grad_(requires_grad=False)


def reader() -> nn.Module:
    return nn.Sequential(nn.Embedding(10, 4), layer())


def my_double(x: Tensor) -> Tensor:
    return 2 * x


BAD: dict[str, tuple[Callable[[], object], list[str]]] = {
    "a function as model": (lambda: leadline.trace(my_double, X), ["function", "nn.Module"]),
    "a model class": (lambda: leadline.trace(nn.Linear, X), ["Linear", "class"]),
    "no model": (lambda: leadline.trace(None, X), ["None", "nn.Module"]),
    "a loss for each element": (
        lambda: leadline.trace(layer(), X, loss=my_elementwise_loss),
        ["my_elementwise_loss", "(3, 2)"],
    ),
    "a loss that is a number": (
        lambda: leadline.trace(layer(), X, loss=my_number_loss),
        ["my_number_loss", "float"],
    ),
    "a loss that is None": (lambda: leadline.trace(layer(), X, loss=lambda out: None), ["None"]),
    "an integer loss": (lambda: leadline.trace(layer(), X, loss=lambda out: out.argmax()), ["int64"]),
    "a complex loss": (lambda: leadline.trace(layer(), X, loss=lambda out: out.sum() * 1j), ["complex64"]),
    "a detached loss": (
        lambda: leadline.trace(layer(), X, loss=lambda out: out.detach().sum()),
        ["gradient", "detach"],
    ),
    "a frozen model": (lambda: leadline.trace(frozen(), X, loss=energy), ["0 of", "unfreeze"]),
    "a model without parameters": (lambda: leadline.trace(nn.ReLU(), X, loss=energy), ["parameter"]),
    "a batch on another device": (
        lambda: leadline.trace(layer(), X.to("meta"), loss=energy),
        ["meta", "cpu"],
    ),
    "a target on another device": (
        lambda: leadline.trace(layer(), X, torch.ones(3, 2, device="meta"), loss=F.mse_loss),
        ["meta", "cpu", "target"],
    ),
    "a generator": (lambda: leadline.trace(layer(), (x for x in [X]), loss=energy), ["generator", "next"]),
    "a data loader": (
        lambda: leadline.trace(layer(), DataLoader(TensorDataset(X)), loss=energy),
        ["DataLoader", "next"],
    ),
    "a list": (lambda: leadline.trace(layer(), [X], loss=energy), ["list", "tuple"]),
    "no batch": (lambda: leadline.trace(layer(), None, loss=energy), ["None", "tensor"]),
    "no loss": (lambda: leadline.trace(layer(), X), ["(3, 2)", "loss="]),
    "targets without a loss": (lambda: leadline.trace(layer(), X, X), ["targets", "loss="]),
    "a loss that cannot be called": (lambda: leadline.trace(layer(), X, X, loss="mse"), ["str", "loss"]),
    "a batch without samples": (
        lambda: leadline.trace(layer(), X[:0], X[:0, :2], F.mse_loss),
        ["(0, 4)", "at least one sample"],
    ),
    "targets without elements": (
        lambda: leadline.trace(layer(), X, X[:0], F.mse_loss),
        ["targets", "(0, 4)"],
    ),
    "a loss that asks for targets": (
        lambda: leadline.trace(layer(), X, loss=nn.CrossEntropyLoss()),
        ["CrossEntropyLoss", "'target'", "pass the targets"],
    ),
    "a loss that takes no targets": (
        lambda: leadline.trace(layer(), X, X, my_elementwise_loss),
        ["my_elementwise_loss(output)", "loss(output, targets)", "leave the targets out"],
    ),
    "a Case and a batch": (
        lambda: leadline.trace(leadline.Case(layer(), X, loss=energy), X),
        ["a Case and also inputs", "replace"],
    ),
    "token ids beyond the vocabulary": (
        lambda: leadline.trace(reader(), torch.tensor([[1, 12]]), loss=energy),
        ["0.weight has 10 rows", "the largest is 12"],
    ),
    "negative token ids": (
        lambda: leadline.trace(reader(), torch.tensor([[1, -1]]), loss=energy),
        ["0.weight has 10 rows", "the smallest is -1"],
    ),
    "a lazy model": (
        lambda: leadline.trace(Encoder(), X, loss=energy),
        ["projection.weight", "run the model once"],
    ),
}


@pytest.mark.parametrize("name", BAD)
def test_bad_input_is_refused_with_the_names_the_user_passed(name: str):
    act, words = BAD[name]
    with pytest.raises(InputError) as caught:
        act()
    error = caught.value
    assert error.expected.strip()
    assert error.got.strip()
    assert error.fix.strip()
    assert [word for word in words if word not in str(error)] == []


@pytest.mark.parametrize("name", BAD)
def test_refusing_leaves_no_footprint_on_the_process(name: str):
    case = ZOO["mlp"]()
    before = footprint(case)
    with pytest.raises(InputError):
        BAD[name][0]()
    after = footprint(case)
    after["torch random state"] = before["torch random state"]  # building the model drew numbers
    assert differences(before, after) == []


def test_check_refuses_like_trace():
    with pytest.raises(InputError, match=r"nn\.Module"):
        leadline.check(my_double, X)


def test_an_error_of_the_model_is_not_dressed_up_as_bad_input():
    with pytest.raises(RuntimeError, match="shapes cannot be multiplied"):
        leadline.trace(layer(), torch.ones(3, 5), loss=energy)


def test_a_loss_with_one_element_in_one_dimension_is_taken():
    found = leadline.trace(layer(), X, loss=lambda out: out.sum().reshape(1))
    assert found.loss is not None


def test_a_word_that_is_missing_is_noticed():
    error = InputError(expected="a", got="b", fix="c")
    assert "function" not in str(error)


def test_a_step_of_an_optimizer_of_another_model_is_refused():
    model, other = nn.Linear(4, 2), nn.Linear(4, 2)
    with pytest.raises(InputError, match="none of which is a parameter of this model"):
        leadline.update(
            model, torch.randn(3, 4), loss=torch.sum, optimizer=torch.optim.Adam(other.parameters())
        )


@pytest.mark.parametrize("optimizer", ["sgd", torch.optim.SGD, {"lr": 0.1}])
def test_what_is_no_optimizer_is_refused(optimizer: object):
    with pytest.raises(InputError, match=r"torch\.optim\.Optimizer that was built"):
        leadline.check(layer(), X, loss=torch.sum, optimizer=optimizer)


def test_the_error_for_an_array_says_how_to_make_a_tensor():
    with pytest.raises(InputError, match="from_numpy"):
        leadline.trace(layer(), X.numpy(), loss=torch.sum)


def test_a_model_without_values_is_sent_to_predict():
    with pytest.raises(InputError, match="to_empty"):
        leadline.trace(layer().to("meta"), X, loss=torch.sum)


class Picks(nn.Module):
    """Asks a list for an entry that it does not have."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = layer()

    def forward(self, x: Tensor) -> Tensor:
        return self.layer(x) * [1.0][1]


def test_an_index_error_raised_by_the_model_is_not_changed():
    with pytest.raises(IndexError, match="list index out of range"):
        leadline.trace(Picks(), X, loss=energy)


ENTRY_POINTS = (
    leadline.check,
    leadline.trace,
    leadline.update,
    leadline.symmetries,
    leadline.testing.assert_trainable,
)


@pytest.mark.parametrize("ask", ENTRY_POINTS, ids=lambda each: each.__name__)
def test_every_entry_point_takes_a_case_as_its_only_argument(ask: Callable[..., object]):
    case = small_case()
    assert type(ask(case)) is type(ask(case.model, case.inputs, case.targets, case.loss, case.optimizer))


@pytest.mark.parametrize("ask", ENTRY_POINTS, ids=lambda each: each.__name__)
def test_every_entry_point_refuses_an_empty_batch(ask: Callable[..., object]):
    case = small_case()
    with pytest.raises(InputError, match="at least one sample"):
        ask(case.model, case.inputs[:0], case.targets[:0], case.loss, case.optimizer)


def small_case() -> leadline.Case:
    model = layer()
    return leadline.Case(
        model, torch.randn(3, 4), torch.ones(3, 2), F.mse_loss, torch.optim.SGD(model.parameters(), 0.1)
    )
