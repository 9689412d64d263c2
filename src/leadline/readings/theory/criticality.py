r"""The critical gain of an activation, at which gradients keep their size, and the depth scale away from it."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Literal

from leadline.errors import InputError
from leadline.nn.activations import Activation, gaussian_moments
from leadline.nn.critical import critical
from leadline.readings.limits import MAX_EFOLDS_SGD
from leadline.records import DepthScale

# Derived: below this |ln chi| the depth scale xi is beyond 1000 layers.
MAX_CRITICAL_LOG_CHI = 1e-3

# Heuristic: iterations of the variance map; near a critical point it converges only as one over the number of layers.
MAX_ITERATIONS = 2000

# Heuristic: relative change of the variance at which it counts as converged.
MAX_RELATIVE_CHANGE = 1e-10

# Derived: variances beyond these diverge, because every activation of the table is scale-free there.
MIN_VARIANCE, MAX_VARIANCE = 1e-12, 1e12


def critical_gain(activation: str | Activation, bias_variance: float | None = None) -> float:
    r"""The gain $\sigma_w^2 = n\,\mathrm{Var}(W)$ at which gradients keep their size: 2 for ReLU, He's gain.

    There $\chi = \sigma_w^2 E[\phi'(\sqrt{q} z)^2] = 1$ and $q$ is the fixed point of
    $q \mapsto \sigma_w^2 E[\phi(\sqrt q z)^2] + \sigma_b^2$. See `leadline.nn.critical`, which also says which bias
    variance is used if none is given. It holds for plain stacks of wide layers with $n$ inputs. The gain is a variance,
    as in findings and in `depth_scale`; PyTorch's `calculate_gain` is its square root.

    >>> round(critical_gain("relu"), 4)
    2.0
    """
    return critical(activation, bias_variance).weight_variance


def depth_scale(
    activation: str | Activation, weight_variance: float, bias_variance: float = 0.0
) -> DepthScale:
    r"""How deep a plain stack of equal layers can be: $\chi$, $\xi$, the phase and the trainable depth.

    $\chi = \sigma_w^2 E[\phi'(\sqrt{q^*} z)^2]$ at the variance $q^*$ to which the stack converges, for weights with
    $\sigma_w^2 = n\,\mathrm{Var}(W)$ and biases with $\sigma_b^2$. $\chi < 1$: ordered, gradients vanish and inputs
    become alike; $\chi > 1$: chaotic, gradients explode. The trainable depth is `MAX_EFOLDS_SGD` $\xi$: networks were
    measured to train with that many e-folds of squared gradient. (Schoenholz et al. 2017, Deep information propagation:
    about $6 \xi$ of their correlation scale.) The width must be far above the depth.
    """
    if weight_variance <= 0 or bias_variance < 0:
        raise InputError(
            expected="weight_variance > 0 and bias_variance >= 0",
            got=f"weight_variance={weight_variance}, bias_variance={bias_variance}",
            fix="pass n * Var(W) of the layers, 2.0 for He's initialization",
        )
    q = _fixed_point(activation, weight_variance, bias_variance)
    bounded = min(max(q, MIN_VARIANCE), MAX_VARIANCE)
    chi = weight_variance * gaussian_moments(activation, bounded).slope_square
    return _depth_scale(chi, q=q)


def _depth_scale(chi: float, q: float | None = None) -> DepthScale:
    """The depth scale of a gain per layer."""
    folds = abs(math.log(chi)) if chi > 0 else math.inf
    phase: Literal["critical", "ordered", "chaotic"]
    phase = "ordered" if chi < 1 else "chaotic"
    if folds < MAX_CRITICAL_LOG_CHI:
        phase = "critical"
    xi = math.inf if phase == "critical" else 1 / folds
    return DepthScale(chi=chi, xi=xi, phase=phase, trainable_depth=MAX_EFOLDS_SGD * xi, q=q)


def _fixed_point(activation: str | Activation, weight_variance: float, bias_variance: float) -> float:
    """The variance to which a stack converges, starting from 1."""

    def layer(q: float) -> float:
        return weight_variance * gaussian_moments(activation, q).square + bias_variance

    q = 1.0
    for _ in range(MAX_ITERATIONS):
        new = layer(q)
        if not MIN_VARIANCE < new < MAX_VARIANCE:
            return 0.0 if new <= MIN_VARIANCE else math.inf
        if abs(new - q) <= MAX_RELATIVE_CHANGE * q:
            return new
        q = new
    return _lower_fixed_point(layer, q) if layer(q) < q else q


def _lower_fixed_point(layer: Callable[[float], float], high: float) -> float:
    """Where a variance that still falls at `high` ends: at the next fixed point below, or at zero."""
    low = MIN_VARIANCE
    if layer(low) <= low:
        return 0.0
    while high / low > 1 + MAX_RELATIVE_CHANGE:
        middle = math.sqrt(low * high)
        low, high = (low, middle) if layer(middle) < middle else (middle, high)
    return high
