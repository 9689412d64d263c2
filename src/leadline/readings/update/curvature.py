r"""The largest curvature that an optimizer sees: the top eigenvalue of $P^{1/2} H P^{1/2}$, by Lanczos iteration.

$H$ is the Hessian of the loss on the batch. $P$ is the diagonal by which the optimizer multiplies gradients: 1 for
SGD, $1/(\sqrt{\hat v} + \epsilon)$ for Adam and its variants, read from their state. The iteration needs only products
$Hv$, each of which costs about two passes.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel

from leadline.joint_optimizer import members_of
from leadline.readings.update import tensor_sums as sums
from leadline.readings.update.probe import StepProbe
from leadline.tracer.optimizer import rule_of

# Calibrated by benchmarks/update.py: the top eigenvalue is then within a few percent.
LANCZOS_ITERATIONS = 8
# Heuristic: before this many steps the running mean squares describe single gradients, not a metric.
MIN_STEPS_FOR_METRIC = 10
# Derived: the cube root of float32's spacing, rounded down, balances truncation and rounding of a central difference.
DIFFERENCE_STEP = 1e-3
START_VECTOR_SEED = 0

Product = Callable[[Sequence[Tensor]], list[Tensor]]
Diagonal = list[Tensor | float]


def largest_curvature(probe: StepProbe, steps: int) -> tuple[float | None, str]:
    """The eigenvalue, in units of one over the largest rate, and a note on the method; or None and the reason."""
    root = _root_preconditioner(probe, steps)
    if isinstance(root, str):
        return None, root
    probe.move(probe.start, 0.0, ())
    try:
        with sdpa_kernel(SDPBackend.MATH):  # the fused kernels have no second derivative
            return _lanczos(_product_by_double_backward(probe), root, probe.start), ""
    except (RuntimeError, NotImplementedError) as error:
        reason = str(error).splitlines()[0][:80]
        note = f"second derivatives are not available ({reason}); finite differences are used instead"
    return _lanczos(_product_by_differences(probe), root, probe.start), note


def _lanczos(product: Product, root: Diagonal, like: Sequence[Tensor]) -> float:
    """The top eigenvalue, with three vectors in memory.

    Vectors are not orthogonalized again: in so few iterations the top eigenvalue does not need it.
    """
    generator = torch.Generator().manual_seed(START_VECTOR_SEED)
    vector = [torch.randn(each.shape, generator=generator).to(each) for each in like]
    vector = _scaled(vector, 1 / sums.total_norm(vector))
    previous, beta = [torch.zeros_like(each) for each in vector], 0.0
    diagonal, off_diagonal = [], []
    for _ in range(LANCZOS_ITERATIONS):
        image = _times(root, product(_times(root, vector)))
        alpha = sum(sums.inner_products(vector, image))
        diagonal.append(alpha)
        image = [w - alpha * v - beta * u for w, v, u in zip(image, vector, previous, strict=True)]
        beta = sums.total_norm(image)
        if not math.isfinite(beta) or beta <= 1e-12 * abs(alpha):
            break
        off_diagonal.append(beta)
        previous, vector = vector, _scaled(image, 1 / beta)
    return _top_eigenvalue(diagonal, off_diagonal[: len(diagonal) - 1])


def _top_eigenvalue(diagonal: Sequence[float], off_diagonal: Sequence[float]) -> float:
    matrix = torch.diag(torch.tensor(diagonal, dtype=torch.float64))
    if off_diagonal:
        off = torch.tensor(off_diagonal, dtype=torch.float64)
        matrix = matrix + torch.diag(off, 1) + torch.diag(off, -1)
    return float(torch.linalg.eigvalsh(matrix)[-1]) if matrix.isfinite().all() else math.nan


def _product_by_double_backward(probe: StepProbe) -> Product:
    loss, _ = probe.forward()
    leaves = [parameter for parameter in probe.parameters if parameter.requires_grad]
    gradients = torch.autograd.grad(loss, leaves, create_graph=True, allow_unused=True)
    used = [(g, index) for index, g in enumerate(gradients) if g is not None and g.requires_grad]
    if len(used) < sum(g is not None for g in gradients):
        raise RuntimeError("a gradient has no graph")

    def product(vector: Sequence[Tensor]) -> list[Tensor]:
        components = [v for v, p in zip(vector, probe.parameters, strict=True) if p.requires_grad]
        images = torch.autograd.grad(
            [g for g, _ in used],
            leaves,
            [components[i] for _, i in used],
            retain_graph=True,
            allow_unused=True,
        )
        if any(images[index] is None for _, index in used):
            raise RuntimeError("a gradient has no graph")
        by_leaf = {id(leaf): image for leaf, image in zip(leaves, images, strict=True)}
        return [_or_zeros(by_leaf.get(id(p)), p) for p in probe.parameters]

    return product


def _product_by_differences(probe: StepProbe) -> Product:
    size = sums.total_norm(probe.start)

    def product(vector: Sequence[Tensor]) -> list[Tensor]:
        step = DIFFERENCE_STEP * size / max(sums.total_norm(vector), 1e-30)
        probe.move(vector, step)
        above = probe.gradient()[2]
        probe.move(vector, -step)
        below = probe.gradient()[2]
        return [(a - b) / (2 * step) for a, b in zip(above, below, strict=True)]

    return product


def _root_preconditioner(probe: StepProbe, steps: int) -> Diagonal | str:
    r"""$P^{1/2}$ for each parameter, in the order of the parameters; or the reason why it is not known."""
    roots: dict[int, Tensor | float] = {}
    owned = [(member, group) for member in members_of(probe.optimizer) for group in member.param_groups]
    rates = [float(group.get("lr") or 0.0) for _, group in owned]
    for (member, group), rate in zip(owned, rates, strict=True):
        share = math.sqrt(rate / max(rates)) if max(rates) > 0 else 1.0
        for parameter in group["params"]:
            root = _root_of(member, group, parameter, steps)
            if isinstance(root, str):
                return root
            roots[id(parameter)] = root * share
    return [roots[id(parameter)] for parameter in probe.parameters]


def _root_of(
    optimizer: torch.optim.Optimizer, group: dict[str, Any], parameter: Tensor, steps: int
) -> Tensor | float | str:
    name = type(optimizer).__name__
    state = optimizer.state.get(parameter, {})
    square = state.get("max_exp_avg_sq", state.get("exp_avg_sq", state.get("square_avg", state.get("sum"))))
    if square is None:
        rule = rule_of(optimizer, group)
        is_plain = not state if rule is None or rule.step == "rescaled" else rule.step == "linear"
        return 1.0 if is_plain else f"{name} does not scale each entry of a gradient by a known number"
    if not isinstance(square, Tensor) or square.shape != parameter.shape:
        return f"the state of {name} does not hold one number per entry of the parameter"
    if steps < MIN_STEPS_FOR_METRIC:
        return (
            f"the running mean squares of {name} average only {steps} gradients; "
            f"measure again after {MIN_STEPS_FOR_METRIC} steps"
        )
    if "exp_avg_sq" in state and "betas" in group:
        square = square / (1 - float(group["betas"][1]) ** float(state["step"]))
    scale: Tensor = (square.sqrt() + float(group.get("eps", 0.0))).rsqrt()
    return scale


def _times(root: Diagonal, vector: Sequence[Tensor]) -> list[Tensor]:
    return [r * v for r, v in zip(root, vector, strict=True)]


def _scaled(vector: Sequence[Tensor], factor: float) -> list[Tensor]:
    return [factor * each for each in vector]


def _or_zeros(image: Tensor | None, like: Tensor) -> Tensor:
    return torch.zeros_like(like) if image is None else image.detach()
