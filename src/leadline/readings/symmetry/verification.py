r"""Confirm the group that was read from a trace by numbers, in two ways, so that a mistake in the op table shows.

First, a random element of the group is applied and the outputs are compared. All factors are powers of two, so that
they cause no rounding. Second, without the op table: for random cotangents $v$ and random parameters
$\theta$ the matrix of $\langle \partial (v \cdot f) / \partial\theta_i, \theta_i \rangle$ vanishes on exactly the
exponents of the group (Euler's identity for homogeneous functions), so its null space is measured and compared.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from leadline.case import Case
from leadline.readings.symmetry.exact_model import ExactModel, open_exact_model
from leadline.records import Symmetry
from leadline.tracer import stats
from leadline.tracer.inputs import why_without_values
from leadline.tracer.shield import shielded

# Derived: double precision through a thousand ops leaves 1e-12; a wrong exponent changes outputs by far more than 1e-8.
MAX_DRIFT = 1e-8

# Heuristic: relative change of the parameters from one row to the next, which leaves any special point.
JITTER = 0.3

# Heuristic: rows beyond the number that determines the rank, so that a chance dependence does not matter.
SPARE_ROWS = 4

# Heuristic: more passes take minutes even on a small model.
MAX_ROWS = 600

# Derived: the rounding error of a row whose largest entry is one.
MIN_ENTRY = 1e-13


@dataclass(frozen=True, slots=True, kw_only=True)
class Verification:
    """How well the numbers confirm the group. It compares as its drift: `symmetries.verify() < 1e-6`."""

    drift: float
    """Relative change of the outputs under a random element of the group, with every eps set to zero; NaN if it was
    not measured (see `why`)."""
    drift_with_eps: float
    """Relative change of the outputs with every eps in place."""
    refuted: tuple[int, ...]
    """Indices of generators that the numbers refute: the op table allows a rescaling that changes the outputs."""
    missed: int | None
    """Free directions that the gradients show and the op table misses; None if it was not measured (see `why`)."""
    held: tuple[str, ...]
    """Ops without a scale rule, whose inputs were held fixed: they may explain what was missed."""
    suspects: tuple[str, ...]
    """Parameters that take part in a refuted or missed rescaling."""
    passes: int
    why: str = ""
    """Why `missed`, or anything at all, was not measured."""

    @property
    def ok(self) -> bool:
        """Whether no measurement contradicts the op table."""
        return not self.drift > MAX_DRIFT and not self.refuted and (not self.missed or bool(self.held))

    def __float__(self) -> float:
        return self.drift

    def __lt__(self, limit: float) -> bool:
        return self.drift < limit

    def __le__(self, limit: float) -> bool:
        return self.drift <= limit

    def __gt__(self, limit: float) -> bool:
        return self.drift > limit

    def __ge__(self, limit: float) -> bool:
        return self.drift >= limit

    def __str__(self) -> str:
        if not self.ok:
            return (
                f"DISAGREEMENT, a mistake in leadline's op table: drift {self.drift:.1e}, {len(self.refuted)} "
                f"generators refuted, {self.missed} missed; look at {', '.join(self.suspects[:6])}. Please report it."
            )
        if not self.passes:
            return f"not confirmed: {self.why}"
        confirmed = (
            f"confirmed by {self.passes} passes: drift {self.drift:.1e}, with eps {self.drift_with_eps:.1e}"
        )
        if self.missed is None:
            return f"{confirmed}; completeness was not measured: {self.why}"
        held = ", ".join(self.held[:3])
        return (
            f"{confirmed}; {self.missed} more free directions, held by {held}" if self.missed else confirmed
        )


@shielded
def verify(symmetry: Symmetry, case: Case, *, seed: int = 0, passes: int | None = None) -> Verification:
    """Compare the group that was read from the trace with measurements on the model itself.

    A model that holds no values, or does not run in double precision, is not measured, and `why` says so.
    """
    if why := why_without_values(case.model):
        return _unmeasured(symmetry, why)
    try:
        return _measure(symmetry, case, seed=seed, passes=passes)
    except Exception as error:  # many kernels, such as quantized ones, refuse double precision
        reason = (str(error).splitlines() or [""])[0]
        return _unmeasured(
            symmetry, f"the model does not run in double precision: {type(error).__name__}: {reason}"
        )


def _unmeasured(symmetry: Symmetry, why: str) -> Verification:
    return Verification(
        drift=math.nan,
        drift_with_eps=math.nan,
        refuted=(),
        missed=None,
        held=symmetry.held,
        suspects=(),
        passes=0,
        why=why,
    )


def _measure(symmetry: Symmetry, case: Case, *, seed: int, passes: int | None) -> Verification:
    names = [each.name for each in symmetry.tensors]
    vectors = [generator.exponents for generator in symmetry.generators]
    eps = frozenset(site.eps for site in symmetry.eps) | {0.0}
    generator = torch.Generator().manual_seed(seed)
    needed_rows = len(names) - len(vectors) + SPARE_ROWS
    row_count = min(needed_rows, MAX_ROWS) if passes is None else passes
    with open_exact_model(case, seed=seed) as model:
        start = {name: model.parameters[name].data.clone() for name in names}
        if _drift(model, start, start, eps) > MAX_DRIFT:
            return _unmeasured(symmetry, "the outputs differ between two passes with the same parameters")
        rescaled = rescale_tensors(start, _random_element(vectors, generator), base=2.0)
        drift, with_eps = (_drift(model, start, rescaled, each) for each in (eps, frozenset[float]()))
        rows = [_row(model, start, eps, generator) for _ in range(row_count if names else 0)]
        contradicted, missed, suspects = compare(rows, names, vectors)
        doubled = {each: rescale_tensors(start, vectors[each], base=2.0) for each in contradicted}
        refuted = [each for each in contradicted if _drift(model, start, doubled[each], eps) > MAX_DRIFT]
    why = _reason_not_measured(rows, needed_rows, surrogate=len(contradicted) > len(refuted))
    return Verification(
        drift=drift,
        drift_with_eps=with_eps,
        refuted=tuple(refuted),
        missed=None if why else missed,
        held=symmetry.held,
        suspects=tuple(suspects) if refuted or (missed and not why) else (),
        passes=2 + len(rows),
        why=why,
    )


def _reason_not_measured(rows: Sequence[Tensor], needed_rows: int, *, surrogate: bool) -> str:
    """Why the gradients do not determine the whole group; "" if they do."""
    if surrogate:
        return "the gradients of this model are not precisely the derivatives of its outputs"
    if not all(row.isfinite().all() for row in rows):
        return "some gradients are not finite"
    if rows and not any(row.any() for row in rows):
        return "no output has a derivative"
    return f"{len(rows)} of {needed_rows} passes" if len(rows) < needed_rows else ""


def rescale_tensors(
    start: Mapping[str, Tensor], exponents: Mapping[str, float], *, base: float
) -> dict[str, Tensor]:
    """Each tensor multiplied by `base` to the power of its exponent."""
    return {name: value * base ** exponents.get(name, 0) for name, value in start.items()}


def _random_element(vectors: Sequence[Mapping[str, int]], generator: torch.Generator) -> dict[str, int]:
    """A random element of the group: every generator once, with a random sign."""
    total: dict[str, int] = {}
    for vector in vectors:
        sign = 1 if torch.rand((), generator=generator) < 0.5 else -1
        for name, exponent in vector.items():
            total[name] = total.get(name, 0) + sign * exponent
    return total


def _drift(
    model: ExactModel, start: Mapping[str, Tensor], rescaled: Mapping[str, Tensor], eps: frozenset[float]
) -> float:
    before, after = (model.run(values, eps, _copies) for values in (start, rescaled))
    return relative_change(before, after)


def _copies(outputs: list[Tensor]) -> list[Tensor]:
    return [each.detach().clone() for each in outputs]


def relative_change(before: Sequence[Tensor], after: Sequence[Tensor]) -> float:
    """The largest relative change among pairs of tensors, as a ratio of Euclidean norms."""
    pairs = zip(before, after, strict=True)
    return max((_relative(one, other) for one, other in pairs if one.numel()), default=0.0)


def _relative(one: Tensor, other: Tensor) -> float:
    both = one.isfinite() & other.isfinite()
    if not torch.equal(one.isfinite(), other.isfinite()):
        return float("inf")
    size = one[both].abs().square().sum().sqrt().item()
    change = (one[both] - other[both]).abs().square().sum().sqrt().item()
    return change / size if size else change


def _row(
    model: ExactModel, start: Mapping[str, Tensor], eps: frozenset[float], generator: torch.Generator
) -> Tensor:
    """One row of the matrix, at random parameters and with a random cotangent."""
    for buffer in model.buffers:
        observable = buffer.is_floating_point() and not stats.unobservable(buffer)
        if observable and buffer.dim() == 1 and not buffer.any():  # a running mean that is still zero
            buffer.data = JITTER * torch.randn(buffer.shape, generator=generator, dtype=torch.float64)
    values = {name: _jittered(value, generator) for name, value in start.items()}
    return model.run(values, eps, lambda outputs: _products(model, outputs, list(start), generator))


def _products(
    model: ExactModel, outputs: list[Tensor], names: Sequence[str], generator: torch.Generator
) -> Tensor:
    leaves = [model.parameters[name] for name in names]
    total = torch.zeros((), dtype=torch.float64)
    for output in outputs:
        weight = torch.randn(output.shape, generator=generator, dtype=torch.float64)
        total = total + (output * weight).real.sum()
    if total.requires_grad:
        torch.autograd.backward(total)
    row = torch.stack([_inner(leaf) for leaf in leaves])
    return row / row.abs().max().clamp_min(torch.finfo(torch.float64).tiny)


def _inner(leaf: Tensor) -> Tensor:
    grad = leaf.grad
    if grad is None:
        return torch.zeros((), dtype=torch.float64)
    dense = grad.to_dense() if grad.layout is not torch.strided else grad
    return (leaf.detach().conj() * dense).real.sum()


def _jittered(value: Tensor, generator: torch.Generator) -> Tensor:
    """The tensor plus noise in proportion to its size, or to one over the root of its fan-in if it is zero."""
    size = (
        value.abs().square().mean().sqrt().item()
        or (max(value.numel(), 1) / max(value.shape, default=1)) ** -0.5
    )
    noise = torch.randn(value.shape, generator=generator, dtype=torch.float64)
    return value + JITTER * size * noise.to(value.dtype)


def compare(
    rows: Sequence[Tensor], names: Sequence[str], vectors: Sequence[Mapping[str, int]]
) -> tuple[list[int], int, list[str]]:
    """Generators that the rows contradict, the number of free directions they miss, and the parameters involved."""
    if not rows or not all(row.isfinite().all() for row in rows):
        return [], 0, []
    matrix = torch.stack(list(rows))
    null = torch.zeros(len(names), len(vectors), dtype=torch.float64)
    for column, vector in enumerate(vectors):
        for name, exponent in vector.items():
            null[names.index(name), column] = exponent
    size = matrix.abs().amax(dim=0)
    live = size > MIN_ENTRY
    scale = torch.where(live, size, torch.ones_like(size))
    scaled = torch.where(live, matrix / scale, torch.zeros_like(matrix))
    exponents = null * torch.where(live, scale, torch.zeros_like(scale)).unsqueeze(1)
    sizes = exponents.abs().amax(dim=0, keepdim=True).clamp_min(torch.finfo(torch.float64).tiny)
    residuals = (scaled @ (exponents / sizes)).abs().amax(dim=0)
    contradicted: list[int] = (residuals > MAX_DRIFT).nonzero().flatten().tolist()
    _, singular, right = torch.linalg.svd(scaled, full_matrices=True)
    rank = int((singular > MAX_DRIFT * singular.max().clamp_min(1e-300)).sum())
    missed = len(names) - rank - (len(vectors) - len(contradicted))
    suspects = null[:, contradicted].abs().sum(dim=1).nonzero().flatten().tolist()
    suspects += _outside(right[rank:].T / scale.unsqueeze(1), null) if missed > 0 else []
    return contradicted, missed, [names[index] for index in dict.fromkeys(suspects)]


def _outside(numeric: Tensor, null: Tensor) -> list[int]:
    """Parameters that take part in measured free directions outside the span of the generators."""
    if null.shape[1]:
        basis, _ = torch.linalg.qr(null)
        numeric = numeric - basis @ (basis.T @ numeric)
    part = numeric.abs().amax(dim=1)
    return [index for index in part.argsort(descending=True).tolist() if part[index] > 0.1 * part.max()]
