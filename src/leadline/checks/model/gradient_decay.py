"""B201: the gradient dies before it reaches the first block."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

from leadline.checks._causes import law_symptom
from leadline.checks._check import Symptom, check
from leadline.checks._examples import geometric
from leadline.checks._laws import backward_laws, depth_margin
from leadline.records import Profile


@check(
    code="B201",
    name="gradient-decay",
    since="0.1.0",
    refuted_by="learning",
    explains=("U505", "U506", "U522", "N702", "F106"),
    margins=partial(depth_margin, direction="backward", growth=False),
    sick=geometric(blocks=64, grad_gain=0.8),
    healthy=geometric(blocks=64, grad_gain=0.99),
)
def gradient_decay(profile: Profile) -> Iterator[Symptom]:
    r"""Squared gradients shrink geometrically towards the input.

    ## What it measures
    The squared gradient $g_\ell = \sum (\partial L / \partial x_\ell)^2$ at the exit of each block but the head, the
    backward gain a block $\chi = (g_1 / g_L)^{1/(L-1)}$ and the depth scale $\xi = -1 / \ln \chi$. Fires if the stack
    is more than `MAX_EFOLDS_SGD` = 7 depth scales deep and both halves of it take part, and beyond
    `MAX_EFOLDS_ADAM` = 14 in any case.

    ## Why it hurts
    The first blocks get $e^{-L/\xi}$ of the gradient's power and stay where they were initialised, while the last ones
    learn to read noise. What decides is the product of the weight's and the activation's gain, neither of them alone:
    $\chi = \sigma_w^2\, E[\phi'^2]$.

    ## When it is wrong
    Optimisers that rescale each parameter (Adam) live with about twice the depth, until gradients fall below Adam's
    epsilon or the smallest number of the dtype. Gradients that are zero by construction (a detached or frozen part) do
    not fire.

    ## References
    Schoenholz et al., "Deep information propagation", 2017, sections 3 and 5: networks train up to about $6 \xi$.
    """
    for law in backward_laws(profile):
        if law.change < 0:
            tail = f"; it is exactly zero from {law.beyond} down" if law.beyond else ""
            message = (
                f"the gradient keeps {law.gain:.3g} of its power a block: {law.end / law.start:.3g} of what leaves "
                f"{law.first.name} reaches {law.last.name}, {law.blocks - 1} blocks earlier{tail}"
            )
            yield law_symptom(profile, law, message)
