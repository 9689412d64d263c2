"""Theory follows tensors that are allocated first and written region by region."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

import leadline
from leadline.records import Trace

FIRST, SECOND = 64, 32
Join = Callable[[Tensor, Tensor], Tensor]


def copied_into_views(first: Tensor, second: Tensor) -> Tensor:
    whole = first.new_empty(*first.shape[:-1], FIRST + SECOND)
    whole[..., :FIRST].copy_(first)
    whole[..., FIRST:].copy_(second)
    return whole


def assigned_to_slices(first: Tensor, second: Tensor) -> Tensor:
    whole = torch.empty(*first.shape[:-1], FIRST + SECOND)
    whole[..., :FIRST] = first
    whole[..., FIRST:] = second
    return whole


def assigned_into_zeros(first: Tensor, second: Tensor) -> Tensor:
    whole = torch.zeros(*first.shape[:-1], FIRST + SECOND)
    whole[..., :FIRST] = first
    whole[..., FIRST:] = second
    return whole


def added_at_indices(first: Tensor, second: Tensor) -> Tensor:
    whole = torch.zeros(first.shape[0], FIRST + SECOND)
    whole = whole.index_add(1, torch.arange(FIRST), first)
    return whole.index_add(1, torch.arange(FIRST, FIRST + SECOND), second)


def assigned_row_by_row(first: Tensor, second: Tensor) -> Tensor:
    joined = torch.cat([first, second], dim=-1)
    whole = torch.empty_like(joined)
    for row in range(joined.shape[0]):
        whole[row] = joined[row]
    return whole


class TwoParts(nn.Module):
    def __init__(self, join: Join) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(48, FIRST), nn.Linear(48, SECOND)
        self.last = nn.Linear(FIRST + SECOND, 16)
        self.join = join

    def forward(self, x: Tensor) -> Tensor:
        return self.last(self.join(self.first(x), 3 * self.second(x)))


def trace_of(join: Join) -> Trace:
    torch.manual_seed(0)
    return leadline.trace(TwoParts(join), torch.randn(16, 48), loss=lambda y: y.square().mean())


def predictions(trace: Trace, module: str) -> tuple[float | None, float | None]:
    """Predicted second moment and gradient of the output of the linear layer of a module."""
    op = next(op for op in trace.ops if op.module == module and op.name == "linear")
    return op.forward_ms_predicted, op.backward_ms_predicted


@pytest.mark.parametrize(
    "join",
    [copied_into_views, assigned_to_slices, assigned_into_zeros, added_at_indices, assigned_row_by_row],
)
def test_writing_the_parts_of_a_tensor_is_predicted_like_joining_them(join: Join) -> None:
    joined = trace_of(lambda first, second: torch.cat([first, second], dim=-1))
    written = trace_of(join)
    for module in ("last", "first", "second"):
        for one, other in zip(predictions(written, module), predictions(joined, module), strict=True):
            assert one == pytest.approx(other, rel=0.05), module


def test_what_an_in_place_op_does_to_a_view_reaches_the_tensor_behind_it() -> None:
    def doubled(first: Tensor, second: Tensor) -> Tensor:
        whole = torch.cat([first, second], dim=-1) * 1.0
        whole[:, :].mul_(2.0)
        return whole

    joined = trace_of(lambda first, second: torch.cat([first, second], dim=-1))
    one, other = predictions(trace_of(doubled), "last")[0], predictions(joined, "last")[0]
    assert one is not None
    assert other is not None
    assert one == pytest.approx(4 * other, rel=0.1)


def test_memory_that_nothing_has_written_is_not_predicted() -> None:
    def forgotten(first: Tensor, second: Tensor) -> Tensor:
        whole = torch.empty(*first.shape[:-1], FIRST + SECOND)
        whole[..., :FIRST] = first
        return torch.nan_to_num(whole).clamp(-1, 1) + 0 * torch.cat([first, second], dim=-1)

    trace = trace_of(forgotten)
    op = next(op for op in trace.ops if op.name == "nan_to_num")
    assert op.forward_ms_predicted is None
