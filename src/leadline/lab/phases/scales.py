r"""What theory says of a place in a diagram: its load, a number that grows with depth, 1 at theory's own scale.

gain      $L/\xi$ with $\xi$ the depth over which two inputs forget each other (or part): Schoenholz et al. 2017
rate      $\eta\,N$: the squared gradient of a plain network adds up over its $N$ layers, so a step of SGD does too
residual  $N \ln(1 + s^2)$: each branch adds $s^2$ times what the stream has; for small $s$ that is $N s^2$, the law
          $s \sim N^{-1/2}$
"""

from __future__ import annotations

import math

import torch

from leadline.nn.activations import find_activation
from leadline.theory import quadrature
from leadline.theory.criticality import depth_scale

ROUNDS = 4000  # of the correlation map; at a critical point it settles like one over their number
SETTLED = 1e-12
START = 0.5  # correlation the map starts from: any below 1 ends at the same point


def correlation_scale(activation: str, gain: float, bias: float) -> float:
    r"""$\xi_c = -1/\ln \chi_c$: over how many layers the correlation of two inputs comes e times closer to its end.

    The correlation moves as $c \mapsto (\sigma_w^2 E[\phi(u)\phi(v)] + \sigma_b^2)/q$ for $u, v$ Gaussian with variance
    $q$ and correlation $c$, to a fixed point $c^*$ with slope $\chi_c = \sigma_w^2 E[\phi'(u)\phi'(v)]$ there. In the
    ordered phase $c^* = 1$ and $\chi_c = \chi$, so it is the scale of the gradient too; in the chaotic phase it is not.
    Schoenholz, Gilmer, Ganguli and Sohl-Dickstein 2017, Deep information propagation, section 3.
    """
    q = depth_scale(activation, gain, bias).q
    if q is None or not 0 < q < math.inf:
        return 0.0
    z = (quadrature.nodes() * math.sqrt(q)).requires_grad_()
    with torch.enable_grad():
        y = find_activation(activation)(z)
        (slope,) = torch.autograd.grad(y.sum(), z)
    value, slope = y.detach(), slope.detach()
    ms, slope_ms = quadrature.moments(value)[1], quadrature.moments(slope)[1]
    c = START
    for _ in range(ROUNDS):
        new = min((gain * quadrature.kernel(value, ms, [c])[0] + bias) / q, 1.0)
        if abs(new - c) < SETTLED:
            break
        c = new
    chi = gain * quadrature.kernel(slope, slope_ms, [c])[0]
    return math.inf if chi >= 1 else -1 / math.log(chi)


def reach_of(kind: str, value: float, activation: str, bias: float) -> float:
    """The depth at which the load of a network with that value is 1."""
    if kind == "gain":
        return correlation_scale(activation, value, bias)
    return 1 / value if kind == "rate" else 1 / math.log1p(value**2)
