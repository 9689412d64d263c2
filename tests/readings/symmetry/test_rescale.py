"""`leadline.shrink` goes as far as eps allows, explains where it cannot, and respects frozen parameters."""

from __future__ import annotations

import threading
import warnings

import pytest
import torch
from torch import nn

import leadline
from leadline.errors import InputError
from leadline.readings.symmetry.cone import combine_generators, find_even_descent
from leadline.readings.symmetry.rescale import EpsLimit, _rounded_up
from leadline.tracer.inputs import call_model
from tests.support.zoo import ZOO

X = torch.randn(16, 8, generator=torch.Generator().manual_seed(1))


def norm_behind_relu() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.LayerNorm(16), nn.Linear(16, 4))


def square(model: nn.Module) -> float:
    return sum(each.square().sum().item() for each in model.parameters())


def change(one: nn.Module, other: nn.Module) -> float:
    return ((one(X) - other(X)).norm() / one(X).norm()).item()


def test_a_shrunk_copy_computes_the_same_with_inert_tensors_at_the_factor():
    net = norm_behind_relu()
    small = leadline.shrink(net, X, 0.5)
    assert change(net, small) < 1e-3
    torch.testing.assert_close(small[0].weight, 0.5 * net[0].weight)
    torch.testing.assert_close(small[0].bias, 0.5 * net[0].bias)
    assert torch.equal(small[3].weight, net[3].weight)


def test_where_eps_limits_the_factor_the_copy_goes_as_far_as_allowed_and_warns():
    net = norm_behind_relu()
    with pytest.warns(EpsLimit, match="instead of 0.01") as said:
        small = leadline.shrink(net, X, 0.01)
    limit = said[0].message
    assert isinstance(limit, EpsLimit)
    assert 0.01 < limit.reached < 0.5
    torch.testing.assert_close(small[0].weight, limit.reached * net[0].weight)
    assert change(net, small) == pytest.approx(limit.drift, rel=0.01)
    assert 0.9e-3 < limit.drift <= 1e-3


def test_the_factor_in_the_warning_is_allowed():
    net = norm_behind_relu()
    with pytest.warns(EpsLimit) as said:
        leadline.shrink(net, X, 0.01)
    named = float(str(said[0].message).split("shrunk by ")[1].split(" ")[0])
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        leadline.shrink(net, X, named)


@pytest.mark.parametrize(
    ("number", "printed"), [(0.26781, "0.2679"), (1.00001e-5, "1.001e-05"), (0.5, "0.5")]
)
def test_the_printed_factor_is_rounded_up(number: float, printed: str):
    assert _rounded_up(number) == printed


def test_more_tolerance_allows_a_smaller_factor():
    small = leadline.shrink(norm_behind_relu(), X, 0.05, tolerance=0.1)
    torch.testing.assert_close(small[0].weight, 0.05 * norm_behind_relu()[0].weight)


@pytest.mark.parametrize("name", ["hf-llama", "hf-vit"])
@pytest.mark.filterwarnings("ignore::leadline.readings.symmetry.rescale.EpsLimit")
def test_a_stock_model_is_shrunk(name: str):
    case = ZOO[name]()
    small = leadline.shrink(case.model, case.inputs, 0.1)
    assert square(small) < square(case.model)
    one, other = (call_model(each.eval(), case.inputs).logits for each in (case.model, small))
    assert ((one - other).norm() / one.norm()).item() < 1.1e-3


def test_a_model_without_inert_parameters_cannot_be_shrunk():
    with pytest.raises(InputError, match="makes some parameter grow"):
        leadline.shrink(nn.Sequential(nn.Linear(8, 4), nn.ReLU(), nn.Linear(4, 2)), X, 0.5)


def test_a_model_whose_inert_parameters_are_zero_cannot_be_shrunk():
    case = ZOO["hf-bert"]()
    with pytest.raises(InputError, match=r"key\.bias can shrink, but are zero"):
        leadline.shrink(case.model, case.inputs, 0.5)


@pytest.mark.parametrize("factor", ["a", None, 0, -1.0, 2, float("nan"), True, [0.5]])
def test_a_factor_that_is_not_between_zero_and_one_is_refused(factor):
    with pytest.raises(InputError, match="a factor above 0"):
        leadline.shrink(norm_behind_relu(), X, factor)


def test_tensors_shrink_by_the_same_factor_where_possible():
    """In the first part all can shrink alike; in the second c must follow the product of a and b."""
    vectors = [{"w": 3, "v": 2}, {"v": 1}, {"a": 1, "c": 1}, {"b": 1, "c": 1}]
    exponents = combine_generators(vectors, find_even_descent(vectors, {"w", "v", "a", "b", "c"}))
    assert exponents["w"] == exponents["v"] == -1
    assert min(exponents[each] for each in "abc") == -1
    assert exponents["c"] == exponents["a"] + exponents["b"]


def test_no_tensor_grows_when_another_shrinks():
    vectors = [{"w": 1}, {"a": 1, "b": -1}]
    assert combine_generators(vectors, find_even_descent(vectors, {"w", "a", "b"})) == {"w": -1}


def network_with_batch_norm() -> nn.Sequential:
    """Its biases are subtracted by batch norms in training, but not in evaluation."""
    torch.manual_seed(0)
    convolutions = [
        each
        for width in (3, 4)
        for each in (nn.Conv2d(width, 4, 3, padding=1), nn.BatchNorm2d(4, eps=1e-12), nn.ReLU())
    ]
    return nn.Sequential(*convolutions, nn.Flatten(), nn.Linear(256, 2))


@pytest.mark.parametrize("rescaled", [lambda net, x: leadline.shrink(net, x, 0.1), leadline.balance])
def test_a_rescaled_copy_computes_the_same_also_in_evaluation(rescaled):
    """Running statistics are rescaled too; otherwise a batch norm in evaluation mode would change its output."""
    net, x = network_with_batch_norm(), torch.randn(5, 3, 8, 8)
    net(x)
    small = rescaled(net, x)
    assert square(small) < square(net)
    torch.testing.assert_close(net.eval()(x), small.eval()(x), rtol=1e-4, atol=1e-5)


def test_a_frozen_model_has_the_group_of_the_same_model_unfrozen():
    net = norm_behind_relu()
    free = leadline.symmetries(net, X)
    net.requires_grad_(requires_grad=False)
    found = leadline.symmetries(net, X)
    assert found.record.generators == free.record.generators
    assert found.verify().ok
    assert found.verify().missed == 0
    assert square(leadline.shrink(net, X, 0.5)) < square(net)
    assert not any(each.requires_grad for each in net.parameters())


def test_frozen_parts_are_constants():
    net = norm_behind_relu()
    net[0].requires_grad_(requires_grad=False)
    assert leadline.symmetries(net, X).dimension == 1


def test_a_model_without_parameters_has_no_rescalings():
    found = leadline.symmetries(nn.ReLU(), X)
    assert found.dimension == 0
    assert found.verify().ok
    with pytest.raises(InputError, match="0 free rescalings"):
        leadline.shrink(nn.ReLU(), X, 0.5)
    assert isinstance(leadline.balance(nn.ReLU(), X), nn.ReLU)


def test_an_attribute_that_nobody_can_copy_is_shared_with_the_model_and_named():
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 6, bias=False), nn.LayerNorm(6, bias=False), nn.Linear(6, 2))
    model[1].guard = threading.Lock()
    with pytest.warns(UserWarning, match=r"the copy shares 1\.guard with the model"):
        copied = leadline.balance(model, torch.randn(8, 4))
    assert copied[1].guard is model[1].guard
    assert copied[0].weight is not model[0].weight
