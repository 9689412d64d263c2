"""The op table: names are canonical and listed once, and what an op reads distinguishes sums from products."""

from __future__ import annotations

import pytest
import torch

from leadline.ops.arguments import argument, sequence, value_of
from leadline.ops.table import OP_TABLE, OpRow, Role, canonical_name, find_op, index_rows, resolve_kind
from leadline.records import Op

BOUNDED = [(name, row.bounds) for row in OP_TABLE if row.bounds is not None for name in row.names]


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
    assert canonical_name(spelling) == name


@pytest.mark.parametrize(
    ("function", "name"),
    [(torch.nn.functional.logsigmoid, "logsigmoid"), (torch.special.expit, "sigmoid")],
    ids=["logsigmoid", "expit"],
)
def test_functions_that_pytorch_records_under_another_name_are_known(function, name):
    assert canonical_name(function.__name__) == name
    assert find_op(name) is not None


@pytest.mark.parametrize("row", OP_TABLE, ids=lambda row: row.names[0])
def test_every_name_of_the_table_is_canonical_and_every_alias_is_not(row: OpRow):
    for name in row.names:
        assert find_op(name) is row
        assert canonical_name(name) == name
    for alias, name in row.aliases.items():
        assert canonical_name(alias) == name
        assert find_op(alias) is None


def test_two_rows_that_list_one_op_are_an_error():
    with pytest.raises(ValueError, match="two rows list the op"):
        index_rows([OP_TABLE[0], OP_TABLE[0]])


@pytest.mark.parametrize(("name", "bounds"), BOUNDED)
def test_the_bounds_of_an_activation_are_those_of_the_torch_function(name: str, bounds: tuple[float, float]):
    function = getattr(torch, name, None) or getattr(torch.nn.functional, name)
    y = function(torch.linspace(-1e4, 1e4, 2001))
    assert (y.min().item(), y.max().item()) == pytest.approx(bounds, abs=2e-4)


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
        ("matmul", ["signal", "constant"], "product"),
        ("matmul", ["signal", "signal", "parameter"], "product"),
        ("add", ["signal"], "bias"),
        ("linear", ["signal", "parameter", "parameter"], "weight"),
    ],
)
def test_the_kind_of_a_sum_or_product_follows_from_what_it_reads(name: str, roles: list[Role], kind: str):
    assert resolve_kind(name, roles) == kind


def test_an_op_that_is_not_listed_is_unknown():
    assert find_op("frobnicate") is None
    assert resolve_kind("frobnicate", ["signal"]) is None


def recorded_op(*args: object, **kwargs: object) -> Op:
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
    ("op", "numbers"),
    [
        (recorded_op("%0", 2, 3), (2, 3)),
        (recorded_op("%0", [2, 3]), (2, 3)),
        (recorded_op("%0", 2), (2,)),
        (recorded_op("%0", [2, 3], 4), ([2, 3], 4)),
        (recorded_op("%0", shape=(2, 3)), (2, 3)),
        (recorded_op("%0", shape=2), (2,)),
        (recorded_op("%0"), None),
    ],
    ids=["separate", "list", "one", "list and more", "keyword", "one as keyword", "missing"],
)
def test_a_sequence_is_read_in_every_way_it_can_be_passed(op: Op, numbers: tuple | None):
    assert sequence(op, "shape", 1) == numbers


def test_infinities_that_json_cannot_write_are_read_back():
    op = recorded_op("%0", "Infinity", value="-Infinity", name="Infinite")
    assert argument(op, "min", 1) == float("inf")
    assert argument(op, "value", 5) == float("-inf")
    assert argument(op, "name", 5) == "Infinite"
    assert argument(op, "max", 2, 7) == 7
    assert [value_of(each) for each in ("%12", "%", "%x", 12, None)] == [12, None, None, None, None]
