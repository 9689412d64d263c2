r"""The same group by numbers, twice, so that a mistake in the table of ops cannot hide.

First, by doing it: a random element of the group is applied and outputs are compared. All factors are powers of two,
so that rounding does not come into it. Second, without the table: for random cotangents $v$ and random parameters
$\theta$ the matrix of $\langle \partial (v \cdot f) / \partial\theta_i, \theta_i \rangle$ vanishes on exactly the
exponents of the group (Euler's identity for homogeneous functions), so its null space is measured and compared.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from leadline.case import Case
from leadline.readings.symmetry.exact_model import ExactModel, open_exact_model
from leadline.records import Symmetry
from leadline.tracer import stats

TOLERANCE = (
    1e-8  # derived: double precision through a thousand ops leaves 1e-12; the root of 1e-16 is far from both
)
JITTER = 0.3  # ours: relative change of parameters from one row to the next, far from any special point
SPARE_ROWS = 4  # rows beyond the number that fixes the rank, so that a chance dependence does not matter
MOST_ROWS = 600  # ours: more passes than anybody would wait for


@dataclass(frozen=True, slots=True, kw_only=True)
class Verification:
    """How far the numbers bear the table out. As a number it is the drift: `found.verify() < 1e-6`."""

    drift: float
    """Relative change of the outputs under a random element of the group, with eps taken out."""
    drift_with_eps: float
    """The same as the model really runs."""
    refuted: tuple[int, ...]
    """Generators (by index) that the numbers deny: the table knows a freedom that is not there."""
    missed: int | None
    """Free directions that the gradients show and the table does not know; None: it could not be asked (`why`)."""
    held: tuple[str, ...]
    """Ops whose inputs the table held fixed without knowing better: they may explain what was missed."""
    suspects: tuple[str, ...]
    """Parameters that take part in what was refuted or missed."""
    passes: int
    why: str = ""

    @property
    def ok(self) -> bool:
        """Nothing denies the table."""
        return self.drift <= TOLERANCE and not self.refuted and (not self.missed or bool(self.held))

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
                f"DISAGREEMENT, a mistake in leadline's table of ops: drift {self.drift:.1e}, {len(self.refuted)} "
                f"generators refuted, {self.missed} missed; look at {', '.join(self.suspects[:6])}. Please report it."
            )
        said = (
            f"confirmed by {self.passes} passes: drift {self.drift:.1e}, with eps {self.drift_with_eps:.1e}"
        )
        if self.missed is None:
            return f"{said}; completeness was not asked: {self.why}"
        held = ", ".join(self.held[:3])
        return f"{said}; {self.missed} more free directions, held by {held}" if self.missed else said


def verify(found: Symmetry, case: Case, *, seed: int = 0, passes: int | None = None) -> Verification:
    """Ask the model itself whether the group that was read off its trace is its group."""
    names = [each.name for each in found.tensors]
    vectors = [generator.exponents for generator in found.generators]
    eps = frozenset(site.eps for site in found.eps) | {0.0}
    generator = torch.Generator().manual_seed(seed)
    enough = len(names) - len(vectors) + SPARE_ROWS
    wanted = min(enough, MOST_ROWS) if passes is None else passes
    with open_exact_model(case, seed=seed) as model:
        start = {name: model.parameters[name].data.clone() for name in names}
        moved = apply(start, _element(vectors, generator), base=2.0)
        drift, with_eps = (_drift(model, start, moved, each) for each in (eps, frozenset[float]()))
        rows = [_row(model, start, eps, generator) for _ in range(wanted if names else 0)]
        denied, missed, suspects = compare(rows, names, vectors)
        refuted = [
            each for each in denied if _drift(model, start, _doubled(start, vectors[each]), eps) > TOLERANCE
        ]
    why = _why(rows, enough, surrogate=len(denied) > len(refuted))
    return Verification(
        drift=drift,
        drift_with_eps=with_eps,
        refuted=tuple(refuted),
        missed=None if why else missed,
        held=found.held,
        suspects=tuple(suspects) if refuted or (missed and not why) else (),
        passes=2 + len(rows),
        why=why,
    )


def _why(rows: Sequence[Tensor], enough: int, *, surrogate: bool) -> str:
    """Why the gradients cannot tell the whole group; "" if they can."""
    if surrogate:
        return "the gradients of this model are not, or not precisely enough, the derivatives of its outputs"
    if not all(row.isfinite().all() for row in rows):
        return "some gradients are not finite"
    if rows and not any(row.any() for row in rows):
        return "no output has a derivative"
    return f"{len(rows)} of {enough} passes" if len(rows) < enough else ""


def _doubled(start: Mapping[str, Tensor], vector: Mapping[str, int]) -> dict[str, Tensor]:
    return apply(start, vector, base=2.0)


def apply(start: Mapping[str, Tensor], exponents: Mapping[str, float], *, base: float) -> dict[str, Tensor]:
    """Each tensor times base to the power of its exponent."""
    return {name: value * base ** exponents.get(name, 0) for name, value in start.items()}


def _element(vectors: Sequence[Mapping[str, int]], generator: torch.Generator) -> dict[str, int]:
    """Every generator once, up or down."""
    total: dict[str, int] = {}
    for vector in vectors:
        sign = 1 if torch.rand((), generator=generator) < 0.5 else -1
        for name, exponent in vector.items():
            total[name] = total.get(name, 0) + sign * exponent
    return total


def _drift(
    model: ExactModel, start: Mapping[str, Tensor], moved: Mapping[str, Tensor], eps: frozenset[float]
) -> float:
    before, after = (model.run(values, eps, _copies) for values in (start, moved))
    return relative_change(before, after)


def _copies(outputs: list[Tensor]) -> list[Tensor]:
    return [each.detach().clone() for each in outputs]


def relative_change(before: Sequence[Tensor], after: Sequence[Tensor]) -> float:
    """The largest relative change among pairs of tensors, in the root of the mean square."""
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
    """One row of the matrix, at parameters and a cotangent of its own."""
    for buffer in model.buffers:
        seen = buffer.is_floating_point() and not stats.unobservable(buffer)
        if seen and buffer.dim() == 1 and not buffer.any():  # a running mean that is still zero
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
    """The tensor moved at random: by a share of its own size, or of one over the root of its fan-in if it is zero."""
    size = (
        value.abs().square().mean().sqrt().item()
        or (max(value.numel(), 1) / max(value.shape, default=1)) ** -0.5
    )
    noise = torch.randn(value.shape, generator=generator, dtype=torch.float64)
    return value + JITTER * size * noise.to(value.dtype)


def compare(
    rows: Sequence[Tensor], names: Sequence[str], vectors: Sequence[Mapping[str, int]]
) -> tuple[list[int], int, list[str]]:
    """Generators that the rows deny, how many free directions they show beyond the others, and who is involved."""
    if not rows or not all(row.isfinite().all() for row in rows):
        return [], 0, []
    matrix = torch.stack(list(rows))
    null = torch.zeros(len(names), len(vectors), dtype=torch.float64)
    for column, vector in enumerate(vectors):
        for name, exponent in vector.items():
            null[names.index(name), column] = exponent
    size = matrix.abs().amax(dim=0)
    live = size > 1e-13  # derived: rounding of a row whose largest entry is one
    scale = torch.where(live, size, torch.ones_like(size))
    scaled = torch.where(live, matrix / scale, torch.zeros_like(matrix))
    exponents = null * torch.where(live, scale, torch.zeros_like(scale)).unsqueeze(1)
    sizes = exponents.abs().amax(dim=0, keepdim=True).clamp_min(torch.finfo(torch.float64).tiny)
    residuals = (scaled @ (exponents / sizes)).abs().amax(dim=0)
    denied: list[int] = (residuals > TOLERANCE).nonzero().flatten().tolist()
    _, singular, right = torch.linalg.svd(scaled, full_matrices=True)
    rank = int((singular > TOLERANCE * singular.max().clamp_min(1e-300)).sum())
    missed = len(names) - rank - (len(vectors) - len(denied))
    suspects = null[:, denied].abs().sum(dim=1).nonzero().flatten().tolist()
    suspects += _beyond(right[rank:].T / scale.unsqueeze(1), null) if missed > 0 else []
    return denied, missed, [names[index] for index in dict.fromkeys(suspects)]


def _beyond(numeric: Tensor, null: Tensor) -> list[int]:
    """Parameters with a part in measured free directions that lie outside of the table's."""
    if null.shape[1]:
        basis, _ = torch.linalg.qr(null)
        numeric = numeric - basis @ (basis.T @ numeric)
    part = numeric.abs().amax(dim=1)
    return [index for index in part.argsort(descending=True).tolist() if part[index] > 0.1 * part.max()]
