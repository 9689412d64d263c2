"""Measure one tensor: cheap, exact at the extremes, and without waiting for the device.

On the CPU, numbers are floats at once. On an accelerator they stay 0-dim tensors until `fetch_...` transfers all of
them together.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from types import MappingProxyType
from typing import Any, Concatenate, NamedTuple, ParamSpec, TypeVar

import torch
from torch import Tensor

from leadline.records import Attended, Stats, Units

# Derived: for magnitudes in this range, sums of up to 1e8 squares stay within float32's range of 1e-38 to 3e38.
SAFE_PEAK = (1e-15, 1e15)
# Calibrated by benchmarks/tensor_statistics.py: squares that one lane may add in float32, in a norm of two levels.
ROW_SIZE = 16384
# Derived: BLAS adds the products of a dot product in at least 8 lanes, so none of them adds more than one row does.
# That is also small enough for a core's own cache, in which the second and third reduction then find the numbers.
MAX_DOT_SIZE = 8 * ROW_SIZE
# Derived: share of half the range of a bounded activation; beyond it, tanh and sigmoid keep under 4 % of their slope.
SATURATION_SHARE = 0.98
# Heuristic: masks add -1e4 or less to a logit, which may itself be large; the softmax of either is zero in every dtype.
MAX_MASKED_LOGIT = -5e3
# Heuristic: queries per head and sample to measure; over all heads and samples that is dozens, and at 64 queries it
# takes 1/16 of the cost of measuring all.
MAX_QUERY_ROWS = 4
# Heuristic: heads times samples of one attention whose logits are kept one by one.
MAX_SLICES = 4096
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


class RawAttention(NamedTuple):
    """Number of keys; then purity, entropy, and variance and largest magnitude of the logits, of some rows."""

    keys: int
    numbers: tuple[Number, ...]
    slices: Tensor | None
    """Largest magnitude of the logits, then purity, of each head or each index of the first axis: (2, slices)."""


def unobservable(x: Tensor) -> str:
    """Return why the elements of `x` cannot be read; "" if they can."""
    if type(x) is Tensor or type(x) is torch.nn.Parameter:
        if x.is_meta:
            return _META
        if torch._C._functorch.is_functorch_wrapped_tensor(x):
            return "inside a function transform (vmap, grad, ...)"
        if x.is_nested and x.layout is torch.strided:
            return "nested tensor of the old (strided) kind"
        if x.layout is torch.strided and not x.untyped_storage().nbytes() and x.numel():
            return "its memory was freed"  # reading it would crash the process
        return "quantized values" if x.is_quantized else ""
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


def measure(x: Tensor) -> RawStats:
    """Measure all statistics of a floating-point or complex tensor."""
    x, missing = _dense(x.detach())
    raw = measure_now(x) if x.device.type == "cpu" else measure_deferred(x)
    return raw._replace(size=raw.size + missing) if missing else raw


def measure_now(x: Tensor) -> RawStats:
    """Measure on the CPU with `aminmax`, `sum`, and one dot product each for the squares and for the nonzero elements.

    Each of these calls is the fastest of several equivalent ones.
    """
    count = x.numel()
    if count == 0:
        return RawStats(0, 1.0, math.nan, math.nan, math.nan, math.nan, 0.0, 0.0)
    flat = _flat(x)
    bounds = torch.aminmax(flat)
    low, high = bounds[0].item(), bounds[1].item()
    if not (math.isfinite(low) and math.isfinite(high)):
        non_finite = torch.count_nonzero(x - x).item()
        total, norm = x.sum().item(), torch.linalg.vector_norm(x).item()
        return RawStats(count, 1.0, total, norm, low, high, torch.count_nonzero(x).item(), non_finite)
    peak = max(-low, high)
    if peak == 0:
        return RawStats(count, 1.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0)
    scale = 1.0 if SAFE_PEAK[0] < peak < SAFE_PEAK[1] else peak
    has_zeros = low <= 0 <= high
    total = squares = nonzero = 0.0
    for part in _parts(flat):
        scaled = part if scale == 1.0 else part / scale
        total += scaled.sum().item()
        squares += torch.dot(scaled, scaled).item()
        if has_zeros:  # `count_nonzero` branches on each element: 0.8 GB/s on the output of a ReLU
            signs = torch.sign(part)
            nonzero += torch.dot(signs, signs).item()
    return RawStats(count, scale, total, math.sqrt(squares), low, high, nonzero if has_zeros else count, 0.0)


def _flat(x: Tensor) -> Tensor:
    """Return the elements of `x` as a vector in any order: a view of them, unless there are gaps between them."""
    if x.is_contiguous():
        return x.view(-1)
    strides = x.stride()
    by_stride = x.permute(sorted(range(x.dim()), key=lambda dim: -strides[dim]))
    return by_stride.view(-1) if by_stride.is_contiguous() else x.reshape(-1)


def _parts(flat: Tensor) -> Sequence[Tensor]:
    """Return the vector in parts of which the sum of squares is exact enough in float32.

    One sum of 5 million squares would be wrong by 0.4 %.
    """
    return (flat,) if flat.numel() <= MAX_DOT_SIZE else torch.split(flat, MAX_DOT_SIZE)


def measure_deferred(x: Tensor) -> RawStats:
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
        scaled.sum(),
        torch.linalg.vector_norm(scaled),
        low,
        high,
        torch.count_nonzero(x),
        torch.count_nonzero(x - x),
    )


def measure_norm(x: Tensor) -> RawStats:
    """Measure mean, norm and non-finite elements only: all that a parameter needs, at a third of the cost."""
    if x.device.type == "cpu" and x.layout is torch.strided and x.dtype is torch.float32:
        parts = _parts(_flat(x.detach()))
        norm = math.sqrt(sum(torch.dot(part, part).item() for part in parts))
        if SAFE_PEAK[0] < norm < SAFE_PEAK[1]:
            total = sum(part.sum().item() for part in parts)
            return RawStats(x.numel(), 1.0, total, norm, math.nan, math.nan, math.nan, 0.0)
    return measure(x)


def sum_units(y: Tensor, unit_dim: int) -> Tensor:
    """Return the sum of each unit (slice along `unit_dim`) over samples and positions."""
    y, _ = _dense(y.detach())
    last = y.dim() - 1
    if unit_dim in (-1, last) and y.is_contiguous():
        return y.view(-1, y.shape[-1]).sum(0)
    return y.sum([dim for dim in range(last + 1) if dim != unit_dim % (last + 1)])


def measure_units(
    y: Tensor, unit_dim: int, bounds: tuple[float, float] | None, raw: RawStats, sums: Tensor
) -> RawUnits:
    """Count units (slices along `unit_dim`) that are dead or saturated over all samples and positions.

    `raw` and `sums` are the statistics of `y` and its `sum_units`. If there are no zeros, no unit is dead. If nothing
    is negative, as after a ReLU, a unit is dead if its sum is zero.
    """
    units = y.shape[unit_dim]
    alive: Number = units
    if _is_known(raw.nonzero, raw.size) and bounds is None:
        return RawUnits(units, alive, None)
    y, _ = _dense(y.detach())
    others = [dim for dim in range(y.dim()) if dim != unit_dim % y.dim()]
    if not _is_known(raw.nonzero, raw.size):
        alive = _count(sums if _is_known(raw.low, 0.0) else y.abs().amax(others))
    if bounds is None:
        return RawUnits(units, alive, None)
    middle, half = (bounds[0] + bounds[1]) / 2, (bounds[1] - bounds[0]) / 2
    nearest = (y - middle).abs().amin(others)
    return RawUnits(units, alive, _count(nearest > SATURATION_SHARE * half))


def measure_shared_mean(sums: Tensor, size: int) -> Number:
    """Return the mean square over units of each unit's mean over samples and positions.

    `sums` are the `sum_units` of a tensor of `size` elements.
    """
    units = sums.numel()
    means = sums / (size / units)
    mean_square = torch.dot(means, means)
    return (mean_square.item() if mean_square.device.type == "cpu" else mean_square) / units


CHOICES = frozenset({"topk", "argmax", "max"})
"""Ops that return the indices of the largest elements."""
# Heuristic: more alternatives than any router has experts; classes of a large vocabulary are not counted.
MAX_CHOICES = 1024


def count_choices(inputs: Sequence[Tensor], outputs: Sequence[Tensor]) -> Tensor | None:
    """How often each index along the last axis of the input was chosen; None if there are no such indices."""
    indices = outputs[-1]
    if not inputs or indices.dtype != torch.int64 or unobservable(indices) or not inputs[0].dim():
        return None
    if not inputs[0].is_floating_point():  # the maximum of integers is a value, not an index
        return None
    alternatives = inputs[0].size(-1)
    is_per_row = indices.numel() % max(inputs[0].numel() // max(alternatives, 1), 1) == 0
    if not 1 < alternatives <= MAX_CHOICES or not indices.numel() or not is_per_row:
        return None
    # not `bincount`, which waits for the device to learn the length of its result
    flat = indices.detach().reshape(-1)
    return flat.new_zeros(alternatives).scatter_add_(0, flat, torch.ones_like(flat))


def measure_slices(grad: Tensor) -> Tensor | None:
    """Norms at each index of the first axis of stacked matrices, as the experts of a mixture are; else None."""
    is_stack = grad.layout is torch.strided and grad.dim() > 2 and 1 < grad.shape[0] <= MAX_CHOICES
    if not is_stack or not grad.is_floating_point() or not grad.numel():
        return None
    dense, _ = _dense(grad.detach())
    norms: Tensor = torch.linalg.vector_norm(dense.flatten(1), dim=1)
    return norms


def _count(x: Tensor) -> Number:
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
    rows = _fetch([raw[1:] for raw in raws], known)
    return [_stats(raw.size, row) for raw, row in zip(raws, rows, strict=True)]


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


def fetch_attention(raws: Sequence[RawAttention], known: Known = NOTHING_KNOWN) -> list[Attended]:
    """Fetch the statistics of attentions, in one transfer per device."""
    rows = _fetch([raw.numbers for raw in raws], known)
    slices = {**known, **transfer(raw.slices for raw in raws if id(raw.slices) not in known)}
    return [
        Attended(
            keys=raw.keys,
            purity=row[0],
            entropy=row[1],
            logit_var=row[2],
            logit_max=row[3],
            slice_logits=tuple(slices.get(id(raw.slices), ())[: _slice_count(raw)]),
            slice_purities=tuple(slices.get(id(raw.slices), ())[_slice_count(raw) :]),
        )
        for raw, row in zip(raws, rows, strict=True)
    ]


def _slice_count(raw: RawAttention) -> int:
    return 0 if raw.slices is None else raw.slices.shape[1]


def inner_product(a: Tensor, b: Tensor) -> Number:
    r"""Return $\langle a, b \rangle$ in at least float32: a float on the CPU, an unfetched tensor elsewhere."""
    a, b = (each.detach().reshape(-1) for each in (a, b))
    if a.dtype in _HALF:
        a, b = a.float(), b.float()
    product = torch.vdot(a, b).real if a.is_complex() else torch.dot(a, b)
    return product.item() if product.device.type == "cpu" else product


def fetch(numbers: Sequence[Number], known: Known = NOTHING_KNOWN) -> list[float]:
    """Return the numbers as floats, in one transfer per device."""
    return [row[0] for row in _fetch([(number,) for number in numbers], known)]


def _is_known(number: Number, expected: float) -> bool:
    """Whether the number is fetched and equals `expected`."""
    return not isinstance(number, Tensor) and number == expected


def _dense(x: Tensor) -> tuple[Tensor, int]:
    """Return `x` as a strided real tensor of a dtype that reductions support, and how many zeros that leaves out."""
    if x.dtype is torch.float32 and x.layout is torch.strided:
        return x, 0
    if x.layout is not torch.strided:
        if x.layout is torch.jagged:
            x = x.values()
        else:
            stored = (x.coalesce() if x.layout is torch.sparse_coo else x).values()
            stored = stored if stored.numel() else stored.new_zeros(1)
            return _dense(stored)[0], x.numel() - stored.numel()
    if x.is_complex():
        x = x.abs()
    if x.dtype in _HALF or x.element_size() == 1 or not x.is_floating_point():
        x = x.float()
    return x, 0


def _fetch(rows: Sequence[tuple[Number, ...]], known: Known) -> list[list[float]]:
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


# How an attention spreads over its keys. A fused one never forms its weights, so a few rows of them are computed here.


def measure_attention(  # noqa: PLR0913  (the signature of the measured op)
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attn_mask: Tensor | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    scale: float | None = None,
    enable_gqa: bool = False,
) -> RawAttention | None:
    """Measure the logits and weights of the last rows, which see (nearly) all keys under a causal mask.

    Returns None if the tensors cannot be read. The pass is not changed.
    """
    if unobservable(query) or unobservable(key) or query.is_nested or not query.numel():
        return None
    with torch.no_grad(), torch._C.DisableTorchFunction():
        rows = min(MAX_QUERY_ROWS, query.shape[-2])
        q, k = query.detach()[..., -rows:, :].float(), key.detach().float()
        if enable_gqa and q.dim() > 2 and k.shape[-3] != q.shape[-3]:
            k = k.repeat_interleave(q.shape[-3] // k.shape[-3], dim=-3)
        logits = (q @ k.mT) * (scale if scale is not None else 1 / math.sqrt(q.shape[-1]))
        summary = None if is_causal or attn_mask is not None else _plain_summary(logits)
        return summary or _summary(_masked(logits, query.shape[-2], attn_mask, is_causal))


def measure_softmax(logits: Tensor) -> RawAttention | None:
    """Measure the last rows of logits (..., queries, keys) that a softmax over the keys reads, as of a fused attention.

    Returns None if they cannot be read, or have no axis in front of queries and keys.
    """
    if logits.dim() < 3 or not logits.is_floating_point() or logits.is_nested or not logits.numel():
        return None
    if unobservable(logits):
        return None
    with torch.no_grad(), torch._C.DisableTorchFunction():
        return _summary(logits.detach()[..., -MAX_QUERY_ROWS:, :].float())


def _masked(logits: Tensor, queries: int, mask: Tensor | None, causal: bool) -> Tensor:
    rows, keys = logits.shape[-2:]
    if causal:
        visible = torch.arange(keys, device=logits.device) <= torch.arange(
            queries - rows, queries, device=logits.device
        ).unsqueeze(-1)
        return logits.masked_fill(~visible, -math.inf)
    if mask is None:
        return logits
    mask = mask.detach()
    mask = mask[..., -rows:, :] if mask.dim() > 1 and mask.shape[-2] > 1 else mask
    return logits.masked_fill(~mask, -math.inf) if mask.dtype is torch.bool else logits + mask.float()


def _plain_summary(logits: Tensor) -> RawAttention | None:
    """Return what `_summary` returns in a third of its calls; None if it cannot be known that nothing is masked."""
    if logits.device.type != "cpu":
        return None
    bounds = torch.aminmax(logits)
    low, high = bounds[0].item(), bounds[1].item()
    if not (low > MAX_MASKED_LOGIT and high < math.inf):
        return None
    keys, sizes = logits.shape[-1], logits.abs()
    logits = logits.reshape(-1, keys)
    log_weights = logits.log_softmax(-1).view(-1)
    weights = log_weights.exp()
    purities = weights.square().view(sizes.shape).sum(-1)
    rows = logits.shape[0]
    purity, entropy = (
        torch.dot(weights, weights).item() / rows,
        -torch.dot(weights, log_weights).item() / rows,
    )
    flat, means = logits.view(-1), logits.mean(-1)
    mean_square = torch.dot(flat, flat).item() / flat.numel()
    variance = max(mean_square - torch.dot(means, means).item() / rows, 0.0)
    return RawAttention(keys, (purity, entropy, variance, max(-low, high)), _by_slice(sizes, purities))


def _summary(logits: Tensor) -> RawAttention:
    weights = logits.softmax(-1).nan_to_num(0.0)  # a fully masked row attends to nothing
    purities = weights.square().sum(-1)
    entropy = -torch.xlogy(weights, weights).sum(-1).mean()
    visible = torch.isfinite(logits) & (logits > MAX_MASKED_LOGIT)
    count = visible.sum(-1).clamp_min(1)
    unmasked = torch.where(visible, logits, torch.zeros_like(logits))
    mean = unmasked.sum(-1) / count
    variance = (unmasked.square().sum(-1) / count - mean.square()).clamp_min(0).mean()
    sizes = unmasked.abs()
    return RawAttention(
        logits.shape[-1], (purities.mean(), entropy, variance, sizes.amax()), _by_slice(sizes, purities)
    )


def _by_slice(sizes: Tensor, purities: Tensor) -> Tensor | None:
    """Reduce (batch, heads, queries, keys) to one column per head, and three axes to one per index of the first."""
    if sizes.dim() not in (3, 4):
        return None
    axis = sizes.dim() - 3
    if sizes.shape[axis] > MAX_SLICES:
        return None
    others = [dim for dim in range(sizes.dim()) if dim != axis]
    return torch.stack((sizes.amax(others), purities.mean(others[:-1])))


# A loss of classes whose result is a sum: how many targets it sums over.

CLASS_LOSSES = frozenset({"torch.nn.functional.cross_entropy", "torch.nn.functional.nll_loss"})


def count_targets(  # noqa: PLR0913  (the signature of the measured ops)
    input: Tensor,  # noqa: A002
    target: Tensor,
    weight: Tensor | None = None,
    size_average: bool | None = None,
    ignore_index: int = -100,
    reduce: bool | None = None,
    reduction: str = "mean",
    label_smoothing: float = 0.0,
) -> Number | None:
    """Return the number of targets that are not ignored, each with the weight of its class; None for a mean."""
    if reduction == "mean" or target.is_floating_point() or unobservable(target):
        return None
    with torch.no_grad(), torch._C.DisableTorchFunction():
        is_counted = target.detach() != ignore_index
        if weight is None:
            return _count(is_counted)
        # every target is looked up, because selecting the counted ones would wait for the device
        classes = target.detach().masked_fill(~is_counted, 0)
        total = (weight.detach()[classes] * is_counted).sum()
        return total.item() if total.device.type == "cpu" else total
