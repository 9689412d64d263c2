r"""The largest curvature that an optimiser sees: top eigenvalue of $P^{1/2} H P^{1/2}$ by Lanczos iteration.

$H$ is the Hessian of the loss on the batch and $P$ the diagonal that the optimiser multiplies gradients with: 1 for
SGD, $1/(\sqrt{\hat v} + \epsilon)$ for Adam and its kin, read off their state. Only products $Hv$ are needed, each
about two passes.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel

from leadline.readings.update import tensor_sums as sums
from leadline.readings.update.probe import StepProbe

ITERATIONS = 8  # measured by benchmarks/update.py: the top eigenvalue is then within a few per cent
FIRST_STEPS = 10  # ours: before, running mean squares are those of single gradients and no metric
DIFFERENCE = (
    1e-3  # relative length of the step of a finite difference: cube root of float32's spacing, rounded down
)
SEED = 0  # of the start vector

Product = Callable[[Sequence[Tensor]], list[Tensor]]
Diagonal = list[Tensor | float]


def largest_curvature(probe: StepProbe, steps: int) -> tuple[float | None, str]:
    """The eigenvalue, in units of one over the largest rate, and a note on how; None and why not."""
    root = _root_preconditioner(probe, steps)
    if isinstance(root, str):
        return None, root
    probe.move(probe.start, 0.0, ())
    try:
        with sdpa_kernel(SDPBackend.MATH):  # the fused kernels have no second derivative
            return _lanczos(_by_double_backward(probe), root, probe.start), ""
    except (RuntimeError, NotImplementedError) as error:
        note = f"second derivatives are not available ({str(error).splitlines()[0][:80]}); finite differences instead"
    return _lanczos(_by_differences(probe), root, probe.start), note


def _lanczos(product: Product, root: Diagonal, like: Sequence[Tensor]) -> float:
    """Three vectors at a time; the few iterations lose no orthogonality that the top eigenvalue would notice."""
    generator = torch.Generator().manual_seed(SEED)
    vector = [torch.randn(each.shape, generator=generator).to(each) for each in like]
    vector = _scaled(vector, 1 / _length(vector))
    before, beta = [torch.zeros_like(each) for each in vector], 0.0
    diagonal, beside = [], []
    for _ in range(ITERATIONS):
        image = _times(root, product(_times(root, vector)))
        alpha = sum(sums.inner_products(vector, image))
        diagonal.append(alpha)
        image = [w - alpha * v - beta * u for w, v, u in zip(image, vector, before, strict=True)]
        beta = _length(image)
        if not math.isfinite(beta) or beta <= 1e-12 * abs(alpha):
            break
        beside.append(beta)
        before, vector = vector, _scaled(image, 1 / beta)
    return _top_eigenvalue(diagonal, beside[: len(diagonal) - 1])


def _top_eigenvalue(diagonal: Sequence[float], beside: Sequence[float]) -> float:
    matrix = torch.diag(torch.tensor(diagonal, dtype=torch.float64))
    if beside:
        off = torch.tensor(beside, dtype=torch.float64)
        matrix = matrix + torch.diag(off, 1) + torch.diag(off, -1)
    return float(torch.linalg.eigvalsh(matrix)[-1]) if matrix.isfinite().all() else math.nan


def _by_double_backward(probe: StepProbe) -> Product:
    loss, _ = probe.forward()
    leaves = [parameter for parameter in probe.parameters if parameter.requires_grad]
    found = torch.autograd.grad(loss, leaves, create_graph=True, allow_unused=True)
    used = [(g, index) for index, g in enumerate(found) if g is not None and g.requires_grad]
    if len(used) < sum(g is not None for g in found):
        raise RuntimeError("a gradient does not say what it depends on")

    def product(vector: Sequence[Tensor]) -> list[Tensor]:
        here = [v for v, p in zip(vector, probe.parameters, strict=True) if p.requires_grad]
        images = torch.autograd.grad(
            [g for g, _ in used], leaves, [here[i] for _, i in used], retain_graph=True, allow_unused=True
        )
        if any(images[index] is None for _, index in used):
            raise RuntimeError("a gradient does not say what it depends on")
        by_leaf = {id(leaf): image for leaf, image in zip(leaves, images, strict=True)}
        return [_or_zeros(by_leaf.get(id(p)), p) for p in probe.parameters]

    return product


def _by_differences(probe: StepProbe) -> Product:
    size = _length(probe.start)

    def product(vector: Sequence[Tensor]) -> list[Tensor]:
        step = DIFFERENCE * size / max(_length(vector), 1e-30)
        probe.move(vector, step)
        above = probe.gradient()[2]
        probe.move(vector, -step)
        below = probe.gradient()[2]
        return [(a - b) / (2 * step) for a, b in zip(above, below, strict=True)]

    return product


def _root_preconditioner(probe: StepProbe, steps: int) -> Diagonal | str:
    r"""$P^{1/2}$ for each parameter, in the order of the parameters; or why it is not known."""
    found: dict[int, Tensor | float] = {}
    rates = [float(group.get("lr") or 0.0) for group in probe.optimizer.param_groups]
    for group, rate in zip(probe.optimizer.param_groups, rates, strict=True):
        share = math.sqrt(rate / max(rates)) if max(rates) > 0 else 1.0
        for parameter in group["params"]:
            root = _root_of(probe.optimizer, group, parameter, steps)
            if isinstance(root, str):
                return root
            found[id(parameter)] = root * share
    return [found[id(parameter)] for parameter in probe.parameters]


def _root_of(
    optimizer: torch.optim.Optimizer, group: dict[str, Any], parameter: Tensor, steps: int
) -> Tensor | float | str:
    state = optimizer.state.get(parameter, {})
    square = state.get("max_exp_avg_sq", state.get("exp_avg_sq", state.get("square_avg", state.get("sum"))))
    if square is None:
        plain = type(optimizer).__name__ in ("SGD", "ASGD") or not state
        return (
            1.0 if plain else f"how {type(optimizer).__name__} scales a gradient is not known to this version"
        )
    if not isinstance(square, Tensor) or square.shape != parameter.shape:
        return f"the state of {type(optimizer).__name__} is not one number an entry"
    if steps < FIRST_STEPS:
        return f"its running mean squares have seen {steps} gradients: too few to be a metric"
    if "exp_avg_sq" in state and "betas" in group:
        square = square / (1 - float(group["betas"][1]) ** float(state["step"]))
    scale: Tensor = (square.sqrt() + float(group.get("eps", 0.0))).rsqrt()
    return scale


def _times(root: Diagonal, vector: Sequence[Tensor]) -> list[Tensor]:
    return [r * v for r, v in zip(root, vector, strict=True)]


def _scaled(vector: Sequence[Tensor], factor: float) -> list[Tensor]:
    return [factor * each for each in vector]


def _length(vector: Sequence[Tensor]) -> float:
    return math.sqrt(sum(norm**2 for norm in sums.norms(vector)))


def _or_zeros(image: Tensor | None, like: Tensor) -> Tensor:
    return torch.zeros_like(like) if image is None else image.detach()
