"""Critical initialization of plain stacks for any activation, at which gradients keep their size over depth."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from leadline.errors import InputError
from leadline.nn.activations import Activation, gaussian_moments

# Derived: variances from 1/100 to 100 are searched; beyond, saturating units are all saturated.
MAX_SEARCHED_Q = 100.0

# Heuristic: points of that search, a factor of 1.17 apart, which resolves the sign changes of all activations here.
SEARCH_POINTS = 60

# Derived: relative step of the central difference; its error is 1e-8, that of the quadrature 1e-11.
DIFFERENCE_STEP = 1e-4

# Derived: below this |dq'/dq - 1| an activation is scale-free (leaky ReLU, linear); far above the error of the step.
MAX_SCALE_FREE_GAP = 1e-6

# Derived: error of mean and variance of a self-normalizing activation; the constants of SELU have 16 digits.
MAX_SELF_NORMALIZING_ERROR = 1e-6

# Derived: 40 bisections of a factor of 1.17 reach the last digit of a double.
BISECTIONS = 40


@dataclass(frozen=True, slots=True, kw_only=True)
class CriticalPoint:
    r"""$\sigma_w^2 = n\,\mathrm{Var}(W)$ and $\sigma_b^2 = \mathrm{Var}(b)$ at which gradients keep their
    size, at variance $q$.

    `variance_gain` is $dq'/dq$ there: below 1 the variance returns to $q$ after a disturbance, above 1 it
    diverges.
    """

    weight_variance: float
    bias_variance: float
    q: float
    variance_gain: float


def critical(activation: str | Activation, bias_variance: float | None = None) -> CriticalPoint:
    r"""The $\sigma_w^2$ at which $\chi = \sigma_w^2 E[\phi'(\sqrt q z)^2] = 1$ at the fixed point
    $q = \sigma_w^2 E[\phi(\sqrt q z)^2] + \sigma_b^2$, $z \sim N(0,1)$.

    Eliminating $\sigma_w^2$ leaves $G(q) = q - E\phi^2/E\phi'^2 = \sigma_b^2$, solved for $q$. Without a
    `bias_variance`, the point depends on the activation:

    - A scale-free one (ReLU) gets $\sigma_b^2 = 0$ at $q=1$.
    - One whose $dq'/dq$ falls through 1 (GELU, SiLU) gets that point, the smallest bias variance with a stable $q$
      (Roberts, Yaida and Hanin 2022, The principles of deep learning theory, "half-stable" points).
    - One that preserves the mean and variance of a centered unit Gaussian by design (SELU) gets $q=1$, with the bias
      variance 0.067 that makes $\chi$ 1 there. At $\sigma_w^2 = 1$ without it (Klambauer et al. 2017) $\chi = 1.072$,
      a factor of 1000 over 100 layers.
    - The others (tanh) get $\sigma_b^2 = 0$, $q \to 0$.

    The layers must be wide and independent; at depth $L$ and width $n$ single networks differ by a factor of
    $\exp(\pm\sqrt{5L/n})$.
    """
    grid = [MAX_SEARCHED_Q ** (2 * i / SEARCH_POINTS - 1) for i in range(SEARCH_POINTS + 1)]
    if bias_variance:
        q = _root(lambda q: _gap(activation, q) - bias_variance, grid)
        if q is None:
            raise _no_point(bias_variance, max(_gap(activation, q) for q in grid))
        return _point(activation, q, bias_variance)
    excess = [_variance_gain(activation, q) - 1 for q in grid]
    if max(map(abs, excess)) < MAX_SCALE_FREE_GAP:
        return _point(activation, 1.0, 0.0)
    if bias_variance is None and _is_self_normalizing(activation):
        return _point(activation, 1.0, _gap(activation, 1.0))
    turning = _root(lambda q: 1 - _variance_gain(activation, q), grid) if bias_variance is None else None
    if turning is not None and excess[0] > 0:
        return _point(activation, turning, _gap(activation, turning))
    # Where phi(0) is not 0 (sigmoid, softplus), q cannot be 0.
    positive = _root(lambda q: _gap(activation, q), grid)
    if positive is None and _gap(activation, grid[0]) < 0:
        raise _no_point(0.0, max(_gap(activation, q) for q in grid))
    return _point(activation, grid[0] * DIFFERENCE_STEP if positive is None else positive, 0.0)


def _is_self_normalizing(activation: str | Activation) -> bool:
    """Whether mean 0 and variance 1 are a stable fixed point."""
    moments = gaussian_moments(activation)
    is_fixed_point = (
        abs(moments.mean) < MAX_SELF_NORMALIZING_ERROR
        and abs(moments.square - 1) < MAX_SELF_NORMALIZING_ERROR
    )
    return is_fixed_point and _variance_gain(activation, 1.0) < 1


def _gap(activation: str | Activation, q: float) -> float:
    """The bias variance at which q is critical."""
    moments = gaussian_moments(activation, q)
    return q - moments.square / moments.slope_square


def _variance_gain(activation: str | Activation, q: float) -> float:
    """dq'/dq at the weight variance that makes chi 1 at q."""
    high, low = (
        gaussian_moments(activation, q * (1 + DIFFERENCE_STEP)),
        gaussian_moments(activation, q * (1 - DIFFERENCE_STEP)),
    )
    return (
        (high.square - low.square) / (2 * DIFFERENCE_STEP * q) / gaussian_moments(activation, q).slope_square
    )


def _point(activation: str | Activation, q: float, bias_variance: float) -> CriticalPoint:
    return CriticalPoint(
        weight_variance=1 / gaussian_moments(activation, q).slope_square,
        bias_variance=bias_variance,
        q=q,
        variance_gain=_variance_gain(activation, q),
    )


def _root(function: Callable[[float], float], grid: list[float]) -> float | None:
    """The first point in the range of `grid` where `function` rises through 0, by bisection; None if there is none."""
    values = [function(q) for q in grid]
    for i in range(len(grid) - 1):
        if values[i] < 0 <= values[i + 1]:
            return _bisect(function, grid[i], grid[i + 1])
    return None


def _bisect(function: Callable[[float], float], low: float, high: float) -> float:
    for _ in range(BISECTIONS):
        middle = (low + high) / 2
        low, high = (middle, high) if function(middle) < 0 else (low, middle)
    return (low + high) / 2


def _no_point(bias_variance: float, largest: float) -> InputError:
    return InputError(
        expected=f"a bias variance with a critical point; the largest one is {largest:.4g}",
        got=f"bias_variance={bias_variance}",
        fix="pass a smaller bias_variance, or leave it out",
    )
