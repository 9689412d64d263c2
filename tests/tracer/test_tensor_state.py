"""Two tensors are the same only if every bit is, whatever their dtype and layout."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from leadline.tracer.tensor_state import memory_range, same_bits

DTYPES = [
    *(torch.float64, torch.float32, torch.bfloat16, torch.float8_e5m2, torch.complex64, torch.complex128),
    *(torch.int64, torch.uint8, torch.bool),
]
LAYOUTS = {
    "contiguous": lambda x: x,
    "transposed": lambda x: x.t(),
    "strided": lambda x: x[:, ::2],
    "sparse": lambda x: x.to_sparse(),
}


def pair(dtype: torch.dtype, layout: str, **changed: complex) -> tuple[Tensor, Tensor]:
    """Two tensors in this layout, of which the second has another number at its first place."""
    one = (
        torch.tensor([[1, 0, 1, 1], [0, 1, 1, 0], [1, 1, 0, 1]])
        .to(torch.complex128 if dtype.is_complex else dtype)
        .to(dtype)
    )
    other = one.clone()
    for number in changed.values():
        other[0, 0] = number
    return LAYOUTS[layout](one), LAYOUTS[layout](other)


KINDS = [(dtype, layout) for dtype in DTYPES for layout in LAYOUTS]
KINDS.remove((torch.float8_e5m2, "sparse"))  # torch has no such tensors


@pytest.mark.parametrize(("dtype", "layout"), KINDS, ids=str)
def test_a_tensor_has_the_bits_of_its_copy_and_not_those_of_a_changed_one(dtype: torch.dtype, layout: str):
    assert same_bits(*pair(dtype, layout))
    assert not same_bits(*pair(dtype, layout, number=0))


@pytest.mark.parametrize("layout", ["contiguous", "transposed", "strided"])
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16, torch.complex64], ids=str)
def test_nan_has_the_bits_of_itself_and_zero_not_those_of_its_negative(dtype: torch.dtype, layout: str):
    nan, _ = pair(dtype, layout)
    nan.fill_(torch.nan)
    assert same_bits(nan, nan.clone())
    zero = torch.zeros_like(nan)
    assert not same_bits(zero, -zero)


@pytest.mark.parametrize(
    "other",
    [
        torch.zeros(3, 2),
        torch.zeros(2, 3, dtype=torch.int32),
        torch.zeros(2, 3).to_sparse(),
    ],
    ids=["shape", "dtype", "layout"],
)
def test_tensors_of_another_kind_are_not_the_same(other: Tensor):
    assert not same_bits(torch.zeros(2, 3), other)


def test_empty_tensors_are_the_same():
    assert same_bits(torch.zeros(0, 3), torch.zeros(0, 3))


def test_the_memory_of_a_tensor_is_that_of_its_storage():
    whole = torch.zeros(8)
    start, end = memory_range(whole) or (0, 0)
    assert end - start == 32
    assert memory_range(whole[2:4]) == (start, end)


@pytest.mark.parametrize(
    "tensor",
    [torch.zeros(3, device="meta"), torch.zeros(0), torch.eye(3).to_sparse()],
    ids=["meta", "empty", "sparse"],
)
def test_what_has_no_memory_of_its_own_has_no_addresses(tensor: Tensor):
    assert memory_range(tensor) is None
