r"""Where depth neither forgets nor amplifies: the critical gain of an activation, and the depth scale off it."""

from __future__ import annotations

import math
from collections.abc import Callable

from leadline.errors import InputError
from leadline.nn.activations import Activation, gaussian_moments
from leadline.nn.critical import critical
from leadline.readings.limits import MAX_EFOLDS_SGD
from leadline.records import DepthScale

CRITICAL = (
    1e-3  # |ln chi| below which a stack counts as critical: its xi is then beyond 1000 layers (derived)
)
ROUNDS = (
    2000  # of the variance map; near a critical point it settles as slowly as one over the number of layers
)
SETTLED = 1e-10  # relative change of the variance at which it counts as settled
SMALLEST, LARGEST = (
    1e-12,
    1e12,
)  # variances beyond these have run away: all activations are scale-free there (derived)


def critical_gain(activation: str | Activation, bias_variance: float | None = None) -> float:
    r"""The gain $\sigma_w^2 = n\,\mathrm{Var}(W)$ at which gradients keep their size: 2 for ReLU, He's gain.

    There $\chi = \sigma_w^2 E[\phi'(\sqrt{q} z)^2] = 1$ and $q$ is the fixed point of
    $q \mapsto \sigma_w^2 E[\phi(\sqrt q z)^2] + \sigma_b^2$: see `leadline.nn.critical`, which also says which bias
    variance belongs to it if none is given. For plain stacks of wide layers with $n$ inputs. It is a variance, as in
    findings and in `depth_scale`; PyTorch's `calculate_gain` is its square root.

    >>> round(critical_gain("relu"), 4)
    2.0
    """
    return critical(activation, bias_variance).weight_variance


def depth_scale(
    activation: str | Activation, weight_variance: float, bias_variance: float = 0.0
) -> DepthScale:
    r"""How deep a plain stack of equal layers can be: $\chi$, $\xi$, the phase and the trainable depth.

    $\chi = \sigma_w^2 E[\phi'(\sqrt{q^*} z)^2]$ at the variance $q^*$ that the stack settles at, for weights with
    $\sigma_w^2 = n\,\mathrm{Var}(W)$ and biases with $\sigma_b^2$. $\chi < 1$: ordered, gradients vanish and inputs
    become alike; $\chi > 1$: chaotic, gradients explode. The trainable depth is `MAX_EFOLDS_SGD` $\xi$: that many
    e-folds of squared gradient networks were seen to bear. (Schoenholz et al. 2017, Deep information propagation:
    about $6 \xi$ of their correlation scale.) Assumes width far above depth.
    """
    if weight_variance <= 0 or bias_variance < 0:
        raise InputError(
            expected="weight_variance > 0 and bias_variance >= 0",
            got=f"weight_variance={weight_variance}, bias_variance={bias_variance}",
            fix="pass n * Var(W) of the layers, 2.0 for He's initialisation",
        )
    q = _settled(activation, weight_variance, bias_variance)
    bounded = min(max(q, SMALLEST), LARGEST)
    chi = weight_variance * gaussian_moments(activation, bounded).slope_square
    return scale_of(chi, q=q)


def scale_of(chi: float, q: float | None = None) -> DepthScale:
    """The record of a gain a layer."""
    folds = abs(math.log(chi)) if chi > 0 else math.inf
    phase = "critical" if folds < CRITICAL else "ordered" if chi < 1 else "chaotic"
    xi = math.inf if phase == "critical" else 1 / folds
    return DepthScale(chi=chi, xi=xi, phase=phase, trainable_depth=MAX_EFOLDS_SGD * xi, q=q)  # type: ignore[arg-type]


def _settled(activation: str | Activation, weight_variance: float, bias_variance: float) -> float:
    """The variance that a stack settles at, starting from 1."""

    def through(q: float) -> float:
        return weight_variance * gaussian_moments(activation, q).square + bias_variance

    q = 1.0
    for _ in range(ROUNDS):
        new = through(q)
        if not SMALLEST < new < LARGEST:
            return 0.0 if new <= SMALLEST else math.inf
        if abs(new - q) <= SETTLED * q:
            return new
        q = new
    return _lower_end(through, q) if through(q) < q else q


def _lower_end(through: Callable[[float], float], high: float) -> float:
    """Where a variance that still falls at `high` will end: at the next fixed point below, or at nothing."""
    low = SMALLEST
    if through(low) <= low:
        return 0.0
    while high / low > 1 + SETTLED:
        middle = math.sqrt(low * high)
        low, high = (low, middle) if through(middle) < middle else (middle, high)
    return high
