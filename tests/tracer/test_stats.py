"""Statistics of a tensor agree with a slow float64 reference, on both code paths and at the extremes."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from leadline.records import Stats
from leadline.tracer import stats, stats_kernel

FLOATS = [torch.float64, torch.float32, torch.float16, torch.bfloat16, torch.float8_e5m2, torch.complex64]
TOLERANCE = 1e-5  # float32 sums of a few thousand terms err by about 1e-6; a factor of ten for luck


def reference(x: Tensor) -> Stats:
    """The definition, element by element in Python's own exact arithmetic."""
    values = x.detach().to_dense().abs() if x.is_complex() else x.detach().to_dense()
    numbers = values.double().flatten().tolist()
    finite = all(map(math.isfinite, numbers))
    return Stats(
        count=len(numbers),
        mean=math.fsum(numbers) / len(numbers) if finite else sum(numbers) / len(numbers),
        ms=math.fsum(n * n for n in numbers) / len(numbers) if finite else sum(n * n for n in numbers),
        abs_max=math.nan if any(map(math.isnan, numbers)) else max(map(abs, numbers)),
        zero_share=numbers.count(0.0) / len(numbers),
        non_finite=sum(not math.isfinite(n) for n in numbers),
    )


def measure(x: Tensor) -> Stats:
    return stats.fetch_stats([stats.measure(x)])[0]


@pytest.fixture(params=["kernel", "torch", "deferred"])
def path(request, monkeypatch) -> str:
    """Run the test with the compiled kernel, with torch on the CPU, and on the accelerators' code path."""
    if request.param == "kernel" and stats_kernel.ABSENCE:
        pytest.skip(stats_kernel.ABSENCE)
    if request.param != "kernel":
        monkeypatch.setattr(stats_kernel, "_LIBRARY", None)
    if request.param == "deferred":
        monkeypatch.setattr(stats, "measure_now", stats.measure_deferred)
    return request.param


def assert_agrees(found: Stats, expected: Stats, tolerance: float = TOLERANCE) -> None:
    """The mean is compared in units of the root mean square: a mean of zero has no relative error."""
    assert (found.count, found.non_finite) == (expected.count, expected.non_finite)
    assert found.zero_share == pytest.approx(expected.zero_share, abs=1e-6)
    assert found.abs_max == pytest.approx(expected.abs_max, rel=tolerance, nan_ok=True)
    assert found.ms == pytest.approx(expected.ms, rel=tolerance, nan_ok=True)
    slack = tolerance * expected.rms if math.isfinite(expected.rms) else 0.0
    assert found.mean == pytest.approx(expected.mean, abs=slack, nan_ok=True)


SHAPES = {
    "scalar": lambda: torch.randn(()),
    "one element": lambda: torch.randn(1),
    "large": lambda: torch.randn(257, 65) + 0.3,
    "transposed": lambda: torch.randn(33, 17).t(),
    "strided": lambda: torch.randn(40, 30)[::3, 1::2],
    "expanded": lambda: torch.randn(5, 1).expand(5, 9),
    "channels last": lambda: torch.randn(2, 3, 4, 5).to(memory_format=torch.channels_last),
    "rectified": lambda: torch.randn(50, 50).relu(),
    "all zero": lambda: torch.zeros(7, 3),
    "negative zero": lambda: torch.tensor([-0.0, 0.0, 1.0]),
    "constant": lambda: torch.full((1000,), 3.25),
    "all negative": lambda: -torch.rand(30) - 1,
}


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
@pytest.mark.parametrize("shape", SHAPES)
def test_statistics_agree_with_the_definition(shape: str, dtype: torch.dtype, path: str):
    torch.manual_seed(0)
    x = SHAPES[shape]().to(dtype)
    assert_agrees(measure(x), reference(x))


@given(st.lists(st.floats(width=32, allow_nan=False, allow_infinity=False), min_size=1, max_size=40))
def test_statistics_agree_with_the_definition_for_any_finite_numbers(numbers: list[float]):
    x = torch.tensor(numbers, dtype=torch.float32)
    assert_agrees(measure(x), reference(x))


@given(st.lists(st.floats(width=32), min_size=1, max_size=40))
def test_both_code_paths_agree_on_any_numbers(numbers: list[float]):
    x = torch.tensor(numbers, dtype=torch.float32)
    now, deferred = stats.fetch_stats([stats.measure_now(x), stats.measure_deferred(x)])
    assert_agrees(deferred, now)


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
@pytest.mark.parametrize("shape", SHAPES)
def test_a_gradient_has_the_mean_square_and_the_largest_element_of_the_definition(
    shape: str, dtype: torch.dtype, path: str
):
    torch.manual_seed(0)
    x = SHAPES[shape]().to(dtype)
    found, expected = stats.fetch_gradients([stats.measure_gradient(x)])[0], reference(x)
    assert (found.count, found.non_finite) == (expected.count, 0)
    assert found.rms == pytest.approx(expected.rms, rel=TOLERANCE)
    assert found.abs_max == pytest.approx(expected.abs_max, rel=TOLERANCE) or found.abs_max is None


@pytest.mark.parametrize("size", [1e-40, 1e-25, 1e-3, 1e25, 3e38, math.nan, math.inf])
def test_the_largest_element_of_a_gradient_is_left_out_only_where_it_is_far_from_the_limits(
    size: float, path: str
):
    x = torch.randn(300)
    x[7] = size
    found = stats.fetch_gradients([stats.measure_gradient(x)])[0]
    is_far = abs(size) <= 1
    assert (found.abs_max is None) == is_far
    assert found.non_finite == (0 if math.isfinite(size) else 1)
    if not is_far:
        assert found.abs_max == pytest.approx(size, nan_ok=True)
    half = stats.fetch_gradients([stats.measure_gradient(torch.randn(300).half())])[0]
    assert half.abs_max is not None


@pytest.mark.parametrize(
    ("dtype", "size"),
    [
        (torch.float16, 6e4),
        (torch.float16, 6e-8),
        (torch.bfloat16, 1e38),
        (torch.float32, 1e25),
        (torch.float32, 3e38),
        (torch.float32, 1e-25),
        (torch.float32, 1e-40),
        (torch.float64, 1e150),
        (torch.float64, 1e-150),
    ],
    ids=str,
)
def test_squares_neither_overflow_nor_vanish(dtype: torch.dtype, size: float, path: str):
    x = torch.full((4096,), size, dtype=dtype)
    x[::2] *= -0.5
    found = measure(x)
    assert 0 < found.ms < math.inf
    assert_agrees(found, reference(x))


def test_a_mean_square_beyond_float64_is_infinite_and_no_error():
    found = measure(torch.tensor([1e200, -1e300], dtype=torch.float64))
    assert found.ms == math.inf
    assert found.abs_max == 1e300
    assert found.var == math.inf


@pytest.mark.parametrize(
    "bad", [[math.nan], [math.inf], [-math.inf], [math.inf, -math.inf, math.nan, math.nan]], ids=str
)
def test_numbers_that_are_not_finite_are_counted(bad: list[float], path: str):
    x = torch.cat([torch.zeros(3), torch.tensor(bad), torch.ones(2)])
    found = measure(x)
    assert found.non_finite == len(bad)
    assert found.zero_share == pytest.approx(3 / x.numel())
    assert not math.isfinite(found.ms)


def test_an_empty_tensor_has_no_statistics_and_raises_nothing():
    found = measure(torch.empty(0, 4))
    assert found.count == 0
    assert math.isnan(found.mean)
    assert math.isnan(found.ms)
    assert found.non_finite == 0


def test_a_sum_over_millions_of_elements_keeps_its_accuracy():
    x = torch.full((5_000_000,), 1.1)
    x[17] = 0.0
    found = measure(x)
    assert found.ms == pytest.approx(1.1**2, rel=1e-4)
    assert found.mean == pytest.approx(1.1, rel=1e-4)
    assert 0 <= found.zero_share < 1e-6


@pytest.mark.filterwarnings("ignore:Sparse invariant checks are implicitly disabled:UserWarning")
def test_a_sparse_tensor_counts_its_absent_zeros_and_adds_its_duplicates(path: str):
    x = torch.sparse_coo_tensor([[1, 1, 4]], torch.tensor([[1.0, 2.0], [3.0, 4.0], [5.0, 0.0]]), (6, 2))
    assert_agrees(measure(x), reference(x))


@pytest.mark.filterwarnings("ignore:Sparse invariant checks are implicitly disabled:UserWarning")
def test_a_sparse_tensor_without_entries_is_all_zero():
    found = measure(torch.sparse_coo_tensor(torch.empty(1, 0, dtype=torch.long), torch.empty(0, 2), (6, 2)))
    assert (found.count, found.ms, found.mean, found.zero_share) == (12, 0.0, 0.0, 1.0)


@pytest.mark.filterwarnings("ignore:Sparse CSR tensor support is in beta:UserWarning")
def test_a_compressed_sparse_tensor_is_measured():
    x = torch.tensor([[0.0, 2.0], [0.0, 0.0], [3.0, -4.0]])
    assert_agrees(measure(x.to_sparse_csr()), reference(x))


@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors:UserWarning")
@pytest.mark.parametrize("layout", [torch.strided, torch.jagged], ids=str)
def test_a_nested_tensor_is_measured_or_reported_as_unobserved(layout: torch.layout):
    parts = [torch.randn(2, 3), torch.randn(4, 3)]
    nested = torch.nested.nested_tensor(parts, layout=layout)
    if not stats.unobservable(nested):
        assert_agrees(measure(nested), reference(torch.cat(parts)))


def test_a_tensor_whose_memory_was_freed_is_unobservable():
    """Sharding and some pipelines free the memory of tensors; reading such a tensor crashes the process."""
    freed = torch.ones(8)
    freed.untyped_storage().resize_(0)
    assert stats.unobservable(freed) == "its memory was freed"
    assert stats.unobservable(torch.empty(0)) == ""


def test_a_meta_tensor_is_unobservable():
    assert "meta" in stats.unobservable(torch.empty(2, device="meta"))


@pytest.mark.filterwarnings("ignore:torch.quantize_per_tensor:UserWarning")
def test_a_quantized_tensor_is_unobservable():
    assert "quantized" in stats.unobservable(torch.quantize_per_tensor(torch.rand(3), 0.1, 0, torch.quint8))


def test_what_a_function_transform_holds_is_unobservable():
    reasons: list[str] = []
    torch.func.vmap(lambda row: (reasons.append(stats.unobservable(row)), row * 2)[1])(torch.randn(3, 2))
    assert "transform" in reasons[0]


def test_an_ordinary_tensor_is_observable():
    assert stats.unobservable(torch.randn(2)) == ""


def test_measuring_leaves_the_tensor_and_its_graph_alone():
    x = torch.randn(5, requires_grad=True)
    y = x * 2
    before, version = y.detach().clone(), y._version
    stats.measure(y)
    assert torch.equal(y, before)
    assert y._version == version
    y.sum().backward()
    assert torch.equal(x.grad, torch.full((5,), 2.0))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16, torch.complex64], ids=str)
def test_an_inner_product_agrees_with_the_definition(dtype: torch.dtype):
    torch.manual_seed(0)
    a, b = torch.randn(40, 3).to(dtype), torch.randn(3, 40).to(dtype).t()
    wide = torch.complex128 if dtype.is_complex else torch.float64
    expected = (a.to(wide).conj() * b.to(wide)).sum().real.item()
    assert stats.fetch([stats.inner_product(a, b)])[0] == pytest.approx(expected, rel=1e-4)


def test_units_that_never_fire_are_dead_and_units_at_a_bound_are_saturated(path: str):
    y = torch.tensor([[0.0, 0.5, 1.0, -1.0], [0.0, 0.0, 0.99, -0.999]])
    (units,) = stats.fetch_units(
        [stats.measure_value(y, stats.UnitKind(-1, is_activation=True, bounds=(-1.0, 1.0))).units]
    )
    assert (units.count, units.dead, units.saturated) == (4, 1, 2)


def test_units_of_a_tensor_without_zeros_are_all_alive_and_unbounded_ones_never_saturated(path: str):
    y = torch.rand(3, 4, 5) + 0.1
    (units,) = stats.fetch_units([stats.measure_value(y, stats.UnitKind(1, is_activation=True)).units])
    assert (units.count, units.dead, units.saturated) == (4, 0, None)


@pytest.mark.parametrize("axis", [0, 1, 2, -1])
@pytest.mark.parametrize("layout", ["contiguous", "permuted", "strided"])
def test_the_means_of_units_agree_with_the_definition_along_any_axis(layout: str, axis: int, path: str):
    torch.manual_seed(0)
    shape = (5, 6, 7)
    x = {
        "contiguous": torch.randn(shape) + 0.1,
        "permuted": torch.randn(7, 5, 6).permute(1, 2, 0),
        "strided": torch.randn(10, 6, 7)[::2],
    }[layout]
    x.select(axis, 1).zero_()
    x.select(axis, 2).copy_(torch.tensor(1.0).expand_as(x.select(axis, 2)))
    measured = stats.measure_value(x, stats.UnitKind(axis, is_activation=True))
    others = [dim for dim in range(3) if dim != axis % 3]
    assert stats.fetch([measured.shared_mean])[0] == pytest.approx(
        x.mean(others).square().mean().item(), rel=1e-5
    )
    assert stats.fetch_units([measured.units])[0].dead == 1


def test_a_unit_whose_numbers_cancel_is_alive(path: str):
    x = torch.tensor([[1.0, 0.0, 2.0], [-1.0, 0.0, 2.0]])
    (units,) = stats.fetch_units([stats.measure_value(x, stats.UnitKind(-1, is_activation=True)).units])
    assert units.dead == 1


PAIRS = {
    "ordinary": (torch.randn(6, 8), torch.randn(6, 8)),
    "transposed": (torch.randn(6, 8), torch.randn(8, 6).t()),
    "more than one dot product": (torch.randn(3, stats.MAX_DOT_SIZE), torch.randn(3, stats.MAX_DOT_SIZE)),
    "no gradient": (torch.randn(6, 8), torch.zeros(6, 8)),
    "a huge weight": (torch.randn(6, 8) * 1e30, torch.randn(6, 8)),
    "a tiny gradient": (torch.randn(6, 8), torch.randn(6, 8) * 1e-30),
    "half precision": (torch.randn(6, 8).bfloat16(), torch.randn(6, 8).bfloat16()),
    "a sparse gradient": (torch.randn(6, 8), torch.eye(6, 8).to_sparse()),
}


@pytest.mark.parametrize("case", PAIRS)
def test_a_parameter_and_its_gradient_have_the_norms_and_the_product_of_the_definition(case: str, path: str):
    weight, grad = PAIRS[case]
    pair = stats.read_pair(torch.nn.Parameter(weight), grad)
    dense, wide = grad.to_dense().double(), weight.double()
    (found,), (found_grad,) = stats.fetch_stats([pair.weight]), stats.fetch_gradients([pair.grad])
    assert found.mean == pytest.approx(wide.mean().item(), abs=TOLERANCE * found.rms)
    assert found.ms == pytest.approx(wide.square().mean().item(), rel=TOLERANCE)
    assert found_grad.ms == pytest.approx(dense.square().mean().item(), rel=TOLERANCE)
    scale = wide.norm().item() * dense.norm().item()
    assert pair.product == pytest.approx((wide * dense).sum().item(), abs=1e-3 * scale)


def test_a_parameter_that_cannot_be_read_leaves_its_gradient_measured():
    x, meta = torch.randn(3), torch.randn(3, device="meta")
    unreadable = stats.read_pair(meta, x)
    assert unreadable.grad is not None
    assert unreadable.weight is unreadable.product is None
    assert "no values" in unreadable.unobserved


@pytest.mark.parametrize("grad", [None, torch.randn(3, device="meta")], ids=["none", "unreadable"])
def test_a_parameter_without_a_gradient_is_measured_alone(grad: Tensor | None):
    pair = stats.read_pair(torch.randn(3), grad)
    assert pair.weight is not None
    assert pair.grad is pair.product is None
    assert not pair.unobserved


@pytest.mark.parametrize("field", ["mean", "ms", "abs_max", "zero_share"])
def test_a_statistic_wrong_by_one_percent_is_caught(field: str):
    x = torch.randn(100).relu() + 0.0
    right = reference(x)
    wrong = Stats(
        **{name: getattr(right, name) * (1.01 if name == field else 1) for name in right.__struct_fields__}
    )
    assert_agrees(right, right)
    with pytest.raises(AssertionError):
        assert_agrees(wrong, right)


def test_a_value_that_cannot_be_read_has_a_reason_and_no_statistics():
    measured, reason = stats.read_value(torch.ones(3, device="meta"))
    assert measured is None
    assert "no values" in reason


def test_an_error_about_a_plain_tensor_is_ours_and_is_raised():
    with pytest.raises(ZeroDivisionError):
        stats.attempt(lambda x: 1 // 0, torch.ones(1))
    measured, reason = stats.attempt(lambda x: 1 // 0, torch.ones(1).as_subclass(type("Own", (Tensor,), {})))
    assert measured is None
    assert reason.startswith("Own cannot be measured (ZeroDivisionError")


def test_an_empty_tensor_has_the_same_statistics_on_both_paths():
    assert stats.measure_deferred(torch.empty(0)) == stats.measure_now(torch.empty(0))
