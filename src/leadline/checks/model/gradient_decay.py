"""B201: the gradient vanishes before it reaches the first block."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

from leadline.checks._causes import law_symptom, lost_per_block
from leadline.checks._check import Symptom, check
from leadline.checks._examples import geometric
from leadline.checks._laws import backward_laws, depth_margin
from leadline.records import Profile
from leadline.text import layer_label


@check(
    code="B201",
    name="gradient-decay",
    since="0.1.0",
    refuted_by="learning",
    explains=("U505", "U506", "U522", "N702", "F106", "U525"),
    margins=partial(depth_margin, direction="backward", growth=False),
    sick=geometric(blocks=64, grad_gain=0.8),
    healthy=geometric(blocks=64, grad_gain=0.99),
)
def gradient_decay(profile: Profile) -> Iterator[Symptom]:
    r"""Squared gradients shrink geometrically toward the input.

    ## What it measures
    The squared gradient $g_\ell = \sum (\partial L / \partial x_\ell)^2$ at the exit of each block except the head, the
    backward gain per block $\chi = (g_1 / g_L)^{1/(L-1)}$ and the depth scale $\xi = -1 / \ln \chi$. Fires if the stack
    is more than `MAX_EFOLDS_SGD` = 7 depth scales deep and both halves of it contribute, and always beyond
    `MAX_EFOLDS_ADAM` = 14.

    Cliffs, single blocks that change the moment far more than the others, are left out of the law: if the rest is
    harmless, the check names them in a note.

    ## Why it hurts
    The first blocks get $e^{-L/\xi}$ of the gradient's power and stay at their initialization, while the last blocks
    learn to read noise. The product of the gains of weight and activation decides, neither of them alone:
    $\chi = \sigma_w^2\, E[\phi'^2]$.

    ## When it is wrong
    Optimizers that rescale each parameter (Adam) tolerate about twice the depth, until gradients fall below Adam's
    epsilon or the smallest number of the dtype. The check does not fire on gradients that are zero by construction (a
    detached or frozen part).

    ## References
    Schoenholz et al., "Deep information propagation", 2017, sections 3 and 5: networks train up to about $6 \xi$.
    """
    for law in backward_laws(profile):
        if law.change < 0:
            zero = f", and it is exactly zero from {layer_label(law.zero_from)} down" if law.zero_from else ""
            message = (
                f"the gradient {lost_per_block(law.gain)} its power per block: only {law.end / law.start:.2g} of it "
                f"survives from {layer_label(law.first.name)} back to {layer_label(law.last.name)}{zero}"
            )
            yield law_symptom(profile, law, message)
