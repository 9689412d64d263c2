"""Critical initialisation of plain stacks, for any activation: where depth neither forgets nor amplifies."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from leadline.errors import InputError
from leadline.nn.activations import Activation, gaussian_moments

LARGEST_Q = (
    100.0  # variances searched, from 1/100 to 100; beyond, saturating units are all saturated (derived)
)
GRID = 60  # points of that search, a factor 1.17 apart
STEP = 1e-4  # relative step of the central difference: error 1e-8, the quadrature's own being 1e-11 (derived)
SCALE_FREE = (
    1e-6  # |dq'/dq - 1| below which an activation counts as scale-free (leaky ReLU, linear): far above STEP's
)

SELF_NORMALISING = 1e-6  # error of mean and variance: SELU's constants are given to 16 digits (derived)


@dataclass(frozen=True, slots=True, kw_only=True)
class CriticalPoint:
    r"""$\sigma_w^2 = n\,\mathrm{Var}(W)$ and $\sigma_b^2 = \mathrm{Var}(b)$ at which gradients keep their
    size, at variance $q$.

    `variance_gain` is $dq'/dq$ there: below 1 the variance returns to $q$ after a disturbance, above 1 it
    runs away.
    """

    weight_variance: float
    bias_variance: float
    q: float
    variance_gain: float


def critical(activation: str | Activation, bias_variance: float | None = None) -> CriticalPoint:
    r"""The $\sigma_w^2$ at which $\chi = \sigma_w^2 E[\phi'(\sqrt q z)^2] = 1$ at the fixed point
    $q = \sigma_w^2 E[\phi(\sqrt q z)^2] + \sigma_b^2$, $z \sim N(0,1)$.

    Eliminating $\sigma_w^2$ leaves $G(q) = q - E\phi^2/E\phi'^2 = \sigma_b^2$, solved for $q$. With no
    `bias_variance`: a scale-free activation (ReLU) gets $\sigma_b^2 = 0$ at $q=1$; one whose $dq'/dq$ falls
    through 1 (GELU, SiLU) gets that point, the smallest bias variance with a stable $q$ (Roberts, Yaida and
    Hanin 2022, The principles of deep learning theory, "half-stable" points); one that keeps a centred unit
    Gaussian's mean and variance by design (SELU) gets that $q=1$, with the bias variance 0.067 that makes $\chi$ 1
    there: at $\sigma_w^2 = 1$ without it (Klambauer et al. 2017) $\chi = 1.072$, a factor 1000 over 100 layers; the
    rest (tanh) get $\sigma_b^2 = 0$, $q \to 0$. Assumes wide independent layers; at depth $L$ and width $n$ single
    networks scatter by $\exp(\pm\sqrt{5L/n})$ around it.
    """
    grid = [LARGEST_Q ** (2 * i / GRID - 1) for i in range(GRID + 1)]
    if bias_variance:
        q = _root(lambda q: _gap(activation, q) - bias_variance, grid)
        if q is None:
            raise _no_point(bias_variance, max(_gap(activation, q) for q in grid))
        return _point(activation, q, bias_variance)
    excess = [_variance_gain(activation, q) - 1 for q in grid]
    if max(map(abs, excess)) < SCALE_FREE:
        return _point(activation, 1.0, 0.0)
    if bias_variance is None and _is_self_normalising(activation):
        return _point(activation, 1.0, _gap(activation, 1.0))
    turning = _root(lambda q: 1 - _variance_gain(activation, q), grid) if bias_variance is None else None
    if turning is not None and excess[0] > 0:
        return _point(activation, turning, _gap(activation, turning))
    positive = _root(
        lambda q: _gap(activation, q), grid
    )  # phi(0) is not 0 (sigmoid, softplus): q cannot be 0
    if positive is None and _gap(activation, grid[0]) < 0:
        raise _no_point(0.0, max(_gap(activation, q) for q in grid))
    return _point(activation, grid[0] * STEP if positive is None else positive, 0.0)


def _is_self_normalising(activation: str | Activation) -> bool:
    """(mean, variance) = (0, 1) is a fixed point, and variances near it return."""
    moments = gaussian_moments(activation)
    kept = abs(moments.mean) < SELF_NORMALISING and abs(moments.square - 1) < SELF_NORMALISING
    return kept and _variance_gain(activation, 1.0) < 1


def _gap(activation: str | Activation, q: float) -> float:
    moments = gaussian_moments(activation, q)
    return q - moments.square / moments.slope_square


def _variance_gain(activation: str | Activation, q: float) -> float:
    """dq'/dq at the weight variance that makes chi 1 at q."""
    high, low = gaussian_moments(activation, q * (1 + STEP)), gaussian_moments(activation, q * (1 - STEP))
    return (high.square - low.square) / (2 * STEP * q) / gaussian_moments(activation, q).slope_square


def _point(activation: str | Activation, q: float, bias_variance: float) -> CriticalPoint:
    return CriticalPoint(
        weight_variance=1 / gaussian_moments(activation, q).slope_square,
        bias_variance=bias_variance,
        q=q,
        variance_gain=_variance_gain(activation, q),
    )


def _root(function: Callable[[float], float], grid: list[float]) -> float | None:
    """The first point of `grid`'s range where `function` rises through 0, by bisection; None if it never
    does."""
    values = [function(q) for q in grid]
    for i in range(len(grid) - 1):
        if values[i] < 0 <= values[i + 1]:
            return _bisect(function, grid[i], grid[i + 1])
    return None


def _bisect(function: Callable[[float], float], low: float, high: float) -> float:
    for _ in range(40):
        middle = (low + high) / 2
        low, high = (middle, high) if function(middle) < 0 else (low, middle)
    return (low + high) / 2


def _no_point(bias_variance: float, largest: float) -> InputError:
    return InputError(
        expected=f"a bias variance with a critical point; the largest found is {largest:.4g}",
        got=f"bias_variance={bias_variance}",
        fix="choose a smaller one, or leave it out",
    )
