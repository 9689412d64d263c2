"""Measure one tensor: cheap, exact at the extremes, and without waiting for the device.

On the CPU, numbers are floats at once, read by compiled code where there is some (`stats_kernel`). On an accelerator
they stay 0-dim tensors until `fetch_...` transfers all of them together.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from types import MappingProxyType
from typing import Any, Concatenate, NamedTuple, ParamSpec, TypeVar, cast

import torch
from torch import Tensor

from leadline.records import GradientStats, Stats, Units
from leadline.tracer import stats_kernel as kernel

# Derived: for magnitudes in this range, sums of up to 1e8 squares stay within float32's range of 1e-38 to 3e38.
SAFE_PEAK = (1e-15, 1e15)
# Calibrated by benchmarks/tensor_statistics.py: squares that one lane may add in float32, in a norm of two levels.
ROW_SIZE = 16384
# Derived: BLAS adds the products of a dot product in at least 8 lanes, so none of them adds more than one row does.
# That is also small enough for a core's own cache, in which the second and third reduction then find the numbers.
MAX_DOT_SIZE = 8 * ROW_SIZE
# Derived: share of half the range of a bounded activation; beyond it, tanh and sigmoid keep under 4 % of their slope.
SATURATION_SHARE = 0.98
_HALF = (torch.float16, torch.bfloat16)
_META = "meta tensor: shape only, no values"

Number = float | Tensor


class RawStats(NamedTuple):
    """Sums over one tensor: floats, or 0-dim tensors that have not been fetched yet."""

    size: int
    scale: Number
    """The tensor was divided by this before `total` and `norm` were computed."""
    total: Number
    norm: Number
    low: Number
    high: Number
    nonzero: Number
    non_finite: Number


class RawUnits(NamedTuple):
    """Number of units that were ever nonzero, and of saturated units; fetched or not."""

    size: int
    alive: Number
    saturated: Number | None


STRIDED_NESTED = "nested tensor of the old (strided) kind"
QUANTIZED = "quantized values"


def unobservable(x: Tensor) -> str:
    """Return why the elements of `x` cannot be read; "" if they can."""
    if kernel.can_read(x):
        return ""
    if type(x) is Tensor or type(x) is torch.nn.Parameter:
        if x.is_meta:
            return _META
        if torch._C._functorch.is_functorch_wrapped_tensor(x):
            return "inside a function transform (vmap, grad, ...)"
        if x.is_nested and x.layout is torch.strided:
            return STRIDED_NESTED
        if x.layout is torch.strided and not x.untyped_storage().nbytes() and x.numel():
            return "its memory was freed"  # reading it would crash the process
        return QUANTIZED if x.is_quantized else ""
    name = type(x).__name__
    if name in ("FakeTensor", "FunctionalTensor"):
        return f"{name}: shape only, no values"
    if name in ("DTensor", "AsyncCollectiveTensor"):
        return f"{name}: only this rank's shard is here"
    return _META if x.is_meta else ""  # last, because `is_meta` of a fake tensor is a dispatched call


P = ParamSpec("P")
T = TypeVar("T")


def attempt(
    measurement: Callable[Concatenate[Tensor, P], T], x: Tensor, *args: P.args, **kwargs: P.kwargs
) -> tuple[T | None, str]:
    """Return a measurement of `x`, or None and why there is none: a tensor of another class may refuse any op."""
    try:
        return measurement(x, *args, **kwargs), ""
    except Exception as error:
        if type(x) is Tensor or type(x) is torch.nn.Parameter:
            raise
        reason = (str(error).strip().splitlines() or ["no reason given"])[0]
        return None, f"{type(x).__name__} cannot be measured ({type(error).__name__}: {reason})"


class UnitKind(NamedTuple):
    """What is measured of the units of a value, which are slices along its axis of features."""

    dim: int
    is_activation: bool = False
    """Whether dead and saturated units are counted."""
    bounds: tuple[float, float] | None = None
    """Limits of a bounded activation."""


class ValueStats(NamedTuple):
    """What is measured of a value; the last two only if its units are."""

    forward: RawStats
    units: RawUnits | None = None
    shared_mean: Number | None = None
    """The mean square over units of each unit's mean over samples and positions."""


def read_value(x: Tensor, kind: UnitKind | None = None) -> tuple[ValueStats | None, str]:
    """Measure a tensor and its units, or return None and why it cannot be read."""
    measured = _measure_in_one_read(x, kind) if kernel.can_read(x) else None
    if measured is not None:
        return measured, ""
    if reason := unobservable(x):
        return None, reason
    measured, reason = attempt(measure_value, x, kind)
    if measured is None and kind is not None:  # another class of tensor may refuse to be summed along an axis
        measured, reason = attempt(measure_value, x)
    return measured, reason


def measure(x: Tensor) -> RawStats:
    """Measure all statistics of a floating-point or complex tensor."""
    return measure_value(x).forward


def measure_value(x: Tensor, kind: UnitKind | None = None) -> ValueStats:
    """Measure all statistics of a floating-point or complex tensor, and of its units if their `kind` is given."""
    x, missing = dense(x.detach())
    x, kind = _in_memory_order(x, kind)
    measured = _measure_in_one_read(x, kind) if kernel.can_read(x) else None
    if measured is None:
        measured = _measure_by_torch(x, kind)
    if missing:
        raw = measured.forward
        measured = measured._replace(forward=raw._replace(size=raw.size + missing))
    return measured


def _in_memory_order(x: Tensor, kind: UnitKind | None) -> tuple[Tensor, UnitKind | None]:
    """Return `x` with its axes in the order of its memory, if that makes it contiguous, and the axis of its units."""
    if x.is_contiguous():
        return x, kind
    strides = x.stride()
    order = sorted(range(x.dim()), key=lambda dim: -strides[dim])
    by_stride = x.permute(order)
    if not by_stride.is_contiguous():
        return x, kind
    return by_stride, None if kind is None else kind._replace(dim=order.index(kind.dim % x.dim()))


def _measure_in_one_read(x: Tensor, kind: UnitKind | None) -> ValueStats | None:
    """Measure a tensor that the kernel can read; None if an element is not finite."""
    sums = kernel.measure(x, None if kind is None else kind.dim)
    if sums is None:
        return None
    raw = RawStats(
        x.numel(), 1.0, sums.total, math.sqrt(sums.squares), sums.low, sums.high, sums.nonzero, 0.0
    )
    if kind is None:
        return ValueStats(raw)
    count = x.shape[kind.dim]
    saturated = None if kind.bounds is None else _count_saturated(x.detach(), kind.dim, kind.bounds)
    units = RawUnits(count, sums.alive, saturated) if kind.is_activation else None
    return ValueStats(raw, units, sums.unit_squares / (x.numel() / count) ** 2 / count)


def _measure_by_torch(x: Tensor, kind: UnitKind | None) -> ValueStats:
    sums = None if kind is None else _sum_units(x, kind.dim)
    raw = measure_now(x, sums) if x.is_cpu else measure_deferred(x, sums)
    if kind is None or sums is None:
        return ValueStats(raw)
    units = measure_units(x, kind, raw.low, sums) if kind.is_activation else None
    return ValueStats(raw, units, _shared_mean(sums, x.numel()))


def measure_now(x: Tensor, sums: Tensor | None = None) -> RawStats:
    """Measure on the CPU by torch: extremes, `sum`, and one dot product each for squares and nonzero elements.

    Each of these calls is the fastest of several equivalent ones. `sums` are those of the units, if they are known.
    """
    count = x.numel()
    if count == 0:
        return RawStats(0, 1.0, math.nan, math.nan, math.nan, math.nan, 0.0, 0.0)
    flat = _flat(x)
    low, high = torch.amin(flat).item(), torch.amax(flat).item()
    if not math.isfinite(low + high):
        non_finite = torch.count_nonzero(x - x).item()
        total, norm = x.sum().item(), torch.linalg.vector_norm(x).item()
        return RawStats(count, 1.0, total, norm, low, high, torch.count_nonzero(x).item(), non_finite)
    peak = max(-low, high)
    if peak == 0:
        return RawStats(count, 1.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0)
    scale = 1.0 if SAFE_PEAK[0] < peak < SAFE_PEAK[1] else peak
    has_zeros = low <= 0 <= high
    is_summed = sums is not None and scale == 1.0
    total = sums.sum().item() if sums is not None and is_summed else 0.0
    squares = nonzero = 0.0
    for part in _parts(flat):
        scaled = part if scale == 1.0 else part / scale
        total += 0.0 if is_summed else scaled.sum().item()
        squares += torch.dot(scaled, scaled).item()
        if has_zeros:  # `count_nonzero` branches on each element: 0.8 GB/s on the output of a ReLU
            signs = torch.sign(part)
            nonzero += torch.dot(signs, signs).item()
    return RawStats(count, scale, total, math.sqrt(squares), low, high, nonzero if has_zeros else count, 0.0)


def _flat(x: Tensor) -> Tensor:
    """Return the elements of `x` as a vector in any order: a view of them, unless there are gaps between them."""
    return _in_memory_order(x, None)[0].reshape(-1)


def _parts(flat: Tensor) -> Sequence[Tensor]:
    """Return the vector in parts of which the sum of squares is exact enough in float32.

    One sum of 5 million squares would be wrong by 0.4 %.
    """
    return (flat,) if flat.numel() <= MAX_DOT_SIZE else torch.split(flat, MAX_DOT_SIZE)


def measure_deferred(x: Tensor, sums: Tensor | None = None) -> RawStats:
    """Measure on an accelerator: compute the same sums without fetching any of them."""
    count = x.numel()
    if count == 0:
        return measure_now(x)
    low, high = torch.aminmax(x)
    peak = torch.maximum(-low, high)
    scale = torch.where(torch.isfinite(peak) & (peak > 0), peak, torch.ones_like(peak))
    scaled = x / scale
    return RawStats(
        count,
        scale,
        scaled.sum() if sums is None else (sums / scale).sum(),
        torch.linalg.vector_norm(scaled),
        low,
        high,
        torch.count_nonzero(x),
        torch.count_nonzero(x - x),
    )


def measure_norm(x: Tensor) -> RawStats:
    """Measure mean, norm and non-finite elements only: all that a parameter needs, at a third of the cost."""
    norm = _safe_norm(x)
    if norm is None:
        return measure(x)
    total = sum(part.sum().item() for part in _parts(_flat(x.detach())))
    return _norm_only(x.numel(), norm, total)


def read_gradient(x: Tensor) -> RawStats | None:
    """Measure a gradient, or return None if it cannot be read."""
    if kernel.can_read(x):
        norm = math.sqrt(kernel.squares(x))
        if _is_safe(norm):
            return _norm_only(x.numel(), norm)
    return None if unobservable(x) else attempt(measure_gradient, x)[0]


def measure_gradient(x: Tensor) -> RawStats:
    """Measure norm and non-finite elements only, where the norm shows that no element is near the dtype's limits."""
    norm = _safe_norm(x)
    return measure(x) if norm is None else _norm_only(x.numel(), norm)


def _norm_only(size: int, norm: float, total: float = math.nan) -> RawStats:
    return RawStats(size, 1.0, total, norm, math.nan, math.nan, math.nan, 0.0)


def _safe_norm(x: Tensor) -> float | None:
    """Return the norm of float32 numbers on the CPU; None if their squares may leave the range of float32."""
    if kernel.can_read(x):
        norm = math.sqrt(kernel.squares(x))
    elif x.is_cpu and x.layout is torch.strided and x.dtype is torch.float32:
        norm = math.sqrt(sum(torch.dot(part, part).item() for part in _parts(_flat(x.detach()))))
    else:
        return None
    return norm if _is_safe(norm) else None


def _is_safe(norm: float) -> bool:
    """Whether the norm is that of finite numbers whose squares are within the range of float32."""
    return SAFE_PEAK[0] < norm < SAFE_PEAK[1]


class PairStats(NamedTuple):
    """What is measured of a parameter and its gradient; None where one of them is missing or cannot be read."""

    weight: RawStats | None = None
    grad: RawStats | None = None
    product: Number | None = None
    r"""$\langle g, w \rangle$."""
    unobserved: str = ""
    """Why the parameter cannot be read; "" if it can."""


def read_pair(weight: Tensor, grad: Tensor | None) -> PairStats:
    """Measure a parameter and its gradient."""
    if grad is not None and kernel.can_read(weight) and kernel.can_read(grad):
        sums, count = kernel.measure_pair(weight, grad), weight.numel()
        norms = math.sqrt(sums.squares), math.sqrt(sums.other_squares)
        if _is_safe(norms[0]) and _is_safe(norms[1]):
            return PairStats(
                _norm_only(count, norms[0], sums.total), _norm_only(count, norms[1]), sums.product
            )
    measured_grad = None if grad is None else read_gradient(grad)
    if reason := unobservable(weight):
        return PairStats(grad=measured_grad, unobserved=reason)
    measured_weight = attempt(measure_norm, weight)[0]
    if grad is None or measured_grad is None:
        return PairStats(measured_weight, measured_grad)
    dense = grad if grad.layout == weight.layout else grad.to_dense()
    return PairStats(measured_weight, measured_grad, attempt(inner_product, dense, weight)[0])


def _sum_units(y: Tensor, unit_dim: int) -> Tensor:
    """Return the sum of each unit over samples and positions."""
    if unit_dim in (-1, y.dim() - 1) and y.is_contiguous():
        return y.view(-1, y.shape[-1]).sum(0)
    return y.sum(_all_but(unit_dim, y))


def measure_units(y: Tensor, kind: UnitKind, low: Number, sums: Tensor) -> RawUnits:
    """Count units that are dead or saturated over all samples and positions.

    `low` is the smallest element of `y`, and `sums` are those of its units. A unit whose sum is not zero is alive. If
    nothing is negative, as after a ReLU, all others are dead.
    """
    count, alive = y.shape[kind.dim], count_nonzero(sums)
    is_counted = (type(low) is float and low == 0) or (not isinstance(alive, Tensor) and alive == count)
    if not is_counted:
        alive = count_nonzero(y.abs().amax(_all_but(kind.dim, y)))
    saturated = None if kind.bounds is None else _count_saturated(y, kind.dim, kind.bounds)
    return RawUnits(count, alive, saturated)


def _count_saturated(y: Tensor, dim: int, bounds: tuple[float, float]) -> Number:
    """Count units that are near a bound of their range in all samples and positions."""
    middle, half = (bounds[0] + bounds[1]) / 2, (bounds[1] - bounds[0]) / 2
    nearest = (y - middle).abs().amin(_all_but(dim, y))
    return count_nonzero(nearest > SATURATION_SHARE * half)


def _all_but(dim: int, y: Tensor) -> list[int]:
    return [each for each in range(y.dim()) if each != dim % y.dim()]


def _shared_mean(sums: Tensor, size: int) -> Number:
    """Return the mean square of the units' means; `sums` are those of a tensor of `size` elements."""
    units = sums.numel()
    means = sums / (size / units)
    mean_square = torch.dot(means, means)
    return (mean_square.item() if mean_square.is_cpu else mean_square) / units


def count_nonzero(x: Tensor) -> Number:
    """Return the number of nonzero elements; fetched on the CPU only."""
    count = torch.count_nonzero(x)
    return count.item() if count.device.type == "cpu" else count


Known = Mapping[int, Sequence[float]]
"""Numbers that were already transferred, by the `id` of their tensor."""
NOTHING_KNOWN: Known = MappingProxyType({})


def transfer(tensors: Iterable[Any]) -> dict[int, list[float]]:
    """Return the elements of all tensors among `tensors` by their `id`, in one transfer per device."""
    pending: dict[torch.device, list[Tensor]] = {}
    for tensor in tensors:
        if type(tensor) is not float and isinstance(tensor, Tensor):
            pending.setdefault(tensor.device, []).append(tensor)
    known: dict[int, list[float]] = {}
    for group in pending.values():
        flat = [each.detach().reshape(-1) for each in group]
        wide = [each if each.dtype == torch.float64 else each.float() for each in flat]
        numbers: list[float] = torch.cat(wide).cpu().tolist()
        start = 0
        for tensor in group:
            known[id(tensor)] = numbers[start : start + tensor.numel()]
            start += tensor.numel()
    return known


def fetch_stats(raws: Sequence[RawStats], known: Known = NOTHING_KNOWN) -> list[Stats]:
    """Fetch sums that are still on a device, in one transfer per device, and turn them into statistics."""
    return [_stats(raw.size, row) for raw, row in zip(raws, _fetch_sums(raws, known), strict=True)]


def fetch_gradients(raws: Sequence[RawStats], known: Known = NOTHING_KNOWN) -> list[GradientStats]:
    """Fetch sums of gradients that are still on a device, in one transfer per device, and return their statistics."""
    return [_gradient_stats(raw.size, row) for raw, row in zip(raws, _fetch_sums(raws, known), strict=True)]


def _fetch_sums(raws: Sequence[RawStats], known: Known) -> Iterator[Sequence[float]]:
    fetched = iter(fetch_rows([raw[1:] for raw in raws if is_deferred(raw)], known))
    return (next(fetched) if is_deferred(raw) else cast(Sequence[float], raw[1:]) for raw in raws)


def is_deferred(raw: RawStats) -> bool:
    """Whether the sums are still on a device: all of them are, or none is."""
    return type(raw.norm) is not float


def fetch_units(raws: Sequence[RawUnits], known: Known = NOTHING_KNOWN) -> list[Units]:
    """Fetch unit counts, in one transfer per device."""
    alive = fetch([raw.alive for raw in raws], known)
    saturated = iter(fetch([each.saturated for each in raws if each.saturated is not None], known))
    return [
        Units(
            count=raw.size,
            dead=raw.size - int(count),
            saturated=None if raw.saturated is None else int(next(saturated)),
        )
        for raw, count in zip(raws, alive, strict=True)
    ]


def inner_product(a: Tensor, b: Tensor) -> Number:
    r"""Return $\langle a, b \rangle$ in at least float32: a float on the CPU, an unfetched tensor elsewhere."""
    a, b = (each.detach().reshape(-1) for each in (a, b))
    if a.dtype in _HALF:
        a, b = a.float(), b.float()
    product = torch.vdot(a, b).real if a.is_complex() else torch.dot(a, b)
    return product.item() if product.device.type == "cpu" else product


def fetch(numbers: Sequence[Number], known: Known = NOTHING_KNOWN) -> list[float]:
    """Return the numbers as floats, in one transfer per device."""
    return [row[0] for row in fetch_rows([(number,) for number in numbers], known)]


def dense(x: Tensor) -> tuple[Tensor, int]:
    """Return `x` as a strided real tensor of a dtype that reductions support, and how many zeros that leaves out."""
    if x.dtype is torch.float32 and x.layout is torch.strided:
        return x, 0
    if x.layout is not torch.strided:
        if x.layout is torch.jagged:
            x = x.values()
        else:
            stored = (x.coalesce() if x.layout is torch.sparse_coo else x).values()
            stored = stored if stored.numel() else stored.new_zeros(1)
            return dense(stored)[0], x.numel() - stored.numel()
    if x.is_complex():
        x = x.abs()
    if x.dtype in _HALF or x.element_size() == 1 or not x.is_floating_point():
        x = x.float()
    return x, 0


def fetch_rows(rows: Sequence[tuple[Number, ...]], known: Known) -> list[list[float]]:
    """Fetch rows of numbers, in one transfer per device."""
    numbers = (number for row in rows for number in row if type(number) is not float)
    fetched = {**known, **transfer(number for number in numbers if id(number) not in known)}
    return [[n if type(n) is float else _number(n, fetched) for n in row] for row in rows]


def _number(number: Number, fetched: Known) -> float:
    return fetched[id(number)][0] if isinstance(number, Tensor) else float(number)


def _stats(count: int, row: Sequence[float]) -> Stats:
    scale, total, norm, low, high, nonzero, non_finite = row
    if count == 0:
        return Stats(count=0, mean=math.nan, ms=math.nan, abs_max=math.nan, zero_share=math.nan, non_finite=0)
    length = norm * scale
    return Stats(
        count=count,
        mean=total * scale / count,
        ms=length * length / count,
        abs_max=math.nan if math.isnan(high) else max(-low, high),
        zero_share=1 - nonzero / count,
        non_finite=int(non_finite),
    )


def _gradient_stats(count: int, row: Sequence[float]) -> GradientStats:
    scale, _, norm, low, high, _, non_finite = row
    if count == 0:
        return GradientStats(count=0, ms=math.nan, non_finite=0)
    length = norm * scale
    peak = math.nan if math.isnan(high) else max(-low, high)
    return GradientStats(
        count=count,
        ms=length * length / count,
        non_finite=int(non_finite),
        abs_max=None if math.isnan(peak) and non_finite == 0 else peak,
    )
