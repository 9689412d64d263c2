"""The op table: names are canonical, every op has one owner, and sums and products are told apart by what they read."""

from __future__ import annotations

import sys

import pytest
import torch

from leadline import ops
from leadline.collect import collect
from leadline.ops import canonical, family_of, resolve
from leadline.ops.arguments import argument, sequence, value_of
from leadline.records import Op

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


@pytest.mark.parametrize(
    ("name", "roles", "kind"),
    [
        ("matmul", ("signal", "parameter"), "weight"),
        ("matmul", ("signal", "constant"), "product"),
        ("matmul", ("signal", "signal", "parameter"), "product"),
        ("mul", ("signal", "signal"), "product"),
        ("mul", ("signal", "parameter"), "scale"),
        ("add", ("signal", "signal"), "add"),
        ("add", ("signal",), "bias"),
        ("no_such_op", ("signal",), None),
    ],
)
def test_what_a_product_or_sum_is_follows_from_what_it_reads(
    name: str, roles: tuple[str, ...], kind: str | None
):
    assert resolve(name, roles) == kind


def called(*args: object, **kwargs: object) -> Op:
    return Op(
        index=0,
        name="view",
        callable="torch.Tensor.view",
        inputs=(0,),
        outputs=(1,),
        args=args,
        kwargs=kwargs,
    )


@pytest.mark.parametrize(
    ("op", "found"),
    [
        (called("%0", 2, 3), (2, 3)),
        (called("%0", [2, 3]), (2, 3)),
        (called("%0", 2), (2,)),
        (called("%0", [2, 3], 4), ([2, 3], 4)),
        (called("%0", shape=(2, 3)), (2, 3)),
        (called("%0", shape=2), (2,)),
        (called("%0"), None),
    ],
    ids=["one by one", "a list", "one", "a list among others", "by name", "one by name", "none"],
)
def test_several_numbers_are_read_however_they_are_given(op: Op, found: tuple | None):
    assert sequence(op, "shape", 1) == found


def test_numbers_that_json_cannot_write_are_read_back():
    op = called("%0", "Infinity", value="-Infinity", name="Infinite")
    assert argument(op, "min", 1) == float("inf")
    assert argument(op, "value", 5) == float("-inf")
    assert argument(op, "name", 5) == "Infinite"
    assert argument(op, "max", 2, 7) == 7
    assert [value_of(each) for each in ("%12", "%", "%x", 12, None)] == [12, None, None, None, None]
