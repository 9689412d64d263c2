r"""The laws by which schemes scale skip, branch and weights with depth.

$S$ is the number of residual sub-layers of the stack, $l$ the number of a block, from 1, $N$ and $M$ the blocks of an
encoder and a decoder.
"""

from __future__ import annotations

import math

from leadline.nn.scheme import Place


def deepnorm_skip(place: Place) -> float:
    r"""$\alpha = S^{1/4}$; in the encoder of a pair $0.81\,(N^4 M)^{1/16}$."""
    if place.layout.stack == "encoder" and place.layout.partner is not None:
        return float(0.81 * (place.depth**4 * place.layout.partner) ** (1 / 16))
    return float(place.total**0.25)


def deepnorm_gain(place: Place) -> float:
    r"""$\beta = (4S)^{-1/4}$, so that $S \cdot 2\beta^2/\alpha^2 = 1$; in the encoder of a pair $0.87\,(N^4
    M)^{-1/16}$."""
    if place.layout.stack == "encoder" and place.layout.partner is not None:
        return float(0.87 * (place.depth**4 * place.layout.partner) ** (-1 / 16))
    return float((4 * place.total) ** -0.25)


def sublayers(place: Place) -> float:
    """$S$."""
    return float(place.total)


def sqrt_sublayers(place: Place) -> float:
    r"""$\sqrt{S}$."""
    return math.sqrt(place.total)


def inverse_sqrt_sublayers(place: Place) -> float:
    r"""$1/\sqrt{S}$."""
    return 1 / math.sqrt(place.total)


def inverse_sublayers(place: Place) -> float:
    """$1/S$."""
    return 1 / place.total


def inverse_sqrt_block_number(place: Place) -> float:
    r"""$1/\sqrt{l}$, where $l$ is the number of the block from 1."""
    return 1 / math.sqrt(place.index + 1)


def zero(place: Place) -> float:
    """0."""
    return 0.0


def layerscale_start(place: Place) -> float:
    r"""$0.1$ up to 18 blocks, $10^{-5}$ up to 24, $10^{-6}$ deeper."""
    if place.depth <= 18:
        return 0.1
    return 1e-5 if place.depth <= 24 else 1e-6


def fixup_gain(place: Place) -> float:
    r"""$S^{-1/(2m-2)}$, where $m$ is the number of weight matrices in a branch."""
    return float(place.total ** (-1 / max(2 * place.layout.matrices - 2, 1)))


def t_fixup_gain(place: Place) -> float:
    r"""$0.67\,N^{-1/4}$ in an encoder; $(3S)^{-1/4}$ in a decoder, which is $(9M)^{-1/4}$ with
    cross-attention."""
    if place.layout.stack == "decoder":
        return float((3 * place.total) ** -0.25)
    return float(0.67 * place.depth**-0.25)


def t_fixup_embedding_gain(place: Place) -> float:
    r"""$(9N)^{-1/4}$."""
    return float((9 * place.depth) ** -0.25)


def magneto_gain(place: Place) -> float:
    r"""$\sqrt{\ln S}$; in the encoder of a pair $\sqrt{\tfrac13 \ln(3M)\ln(2N)}$."""
    if place.layout.stack == "encoder" and place.layout.partner is not None:
        return math.sqrt(math.log(3 * place.layout.partner) * math.log(place.total) / 3)
    return math.sqrt(math.log(max(place.total, 2)))


def admin_skip(place: Place) -> float:
    r"""$\omega_i = \sqrt{i}$, where $i$ is the number of the sub-layer: the value before profiling, which assumes that
    every branch has variance 1."""
    return math.sqrt(place.number)
