"""The op table: names are canonical, every op has one owner, and sums and products are told apart by what they read."""

from __future__ import annotations

import sys

import pytest
import torch

from leadline import ops
from leadline.collect import collect
from leadline.ops import canonical, family_of, resolve

FAMILIES = collect(sys.modules["leadline.ops"], ops.Family)


@pytest.mark.parametrize(
    ("spelling", "name"),
    [
        ("add", "add"),
        ("add_", "add"),
        ("__iadd__", "add"),
        ("__radd__", "add"),
        ("__rsub__", "rsub"),
        ("true_divide", "div"),
        ("__itruediv__", "div"),
        ("__matmul__", "matmul"),
        ("_max_pool2d", "max_pool2d"),
        ("index_add", "index_add"),
        ("invert", "invert"),
        ("__getitem__", "getitem"),
        ("log_sigmoid", "logsigmoid"),
        ("special_expit", "sigmoid"),
        ("special_erfc", "erfc"),
    ],
)
def test_every_spelling_of_an_op_has_one_canonical_name(spelling: str, name: str):
    assert canonical(spelling) == name


@pytest.mark.parametrize(
    ("function", "name"),
    [(torch.nn.functional.logsigmoid, "logsigmoid"), (torch.special.expit, "sigmoid")],
    ids=["logsigmoid", "expit"],
)
def test_functions_that_pytorch_records_under_another_name_are_known(function, name):
    assert canonical(function.__name__) == name
    assert family_of(name) is not None


@pytest.mark.parametrize("family", FAMILIES, ids=lambda family: family.kind)
def test_names_in_the_table_are_canonical_and_owned_once(family: ops.Family):
    for name in family.names:
        assert family_of(name) is family
        assert canonical(name) == name
    assert set(family.bounds) <= family.names


@pytest.mark.parametrize("name", sorted(family_of("tanh").bounds))
def test_bounds_are_those_of_the_op(name: str):
    function = getattr(torch, name, None) or getattr(torch.nn.functional, name)
    low, high = family_of("tanh").bounds[name]
    y = function(torch.linspace(-1e4, 1e4, 2001))
    assert y.min().item() == pytest.approx(low, abs=2e-4)
    assert y.max().item() == pytest.approx(high, abs=2e-4)


@pytest.mark.parametrize(
    ("name", "roles", "kind"),
    [
        ("matmul", ["signal", "parameter"], "weight"),
        ("matmul", ["signal", "signal"], "product"),
        ("mul", ["signal"], "scale"),
        ("mul", ["signal", "parameter"], "scale"),
        ("mul", ["signal", "signal"], "product"),
        ("add", ["signal", "signal"], "add"),
        ("add", ["signal", "parameter"], "bias"),
        ("add", ["signal", "constant"], "bias"),
        ("linear", ["signal", "parameter", "parameter"], "weight"),
    ],
)
def test_sums_and_products_are_told_apart_by_what_they_read(name: str, roles: list[ops.Role], kind: str):
    assert resolve(name, roles) == kind


def test_an_op_that_nobody_listed_is_unknown_and_not_harmless():
    assert family_of("frobnicate") is None
    assert resolve("frobnicate", ["signal"]) is None
