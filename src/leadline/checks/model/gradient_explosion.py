"""B202: the gradient grows geometrically on its way to the first block."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

from leadline.checks._causes import law_symptom
from leadline.checks._check import Symptom, check
from leadline.checks._examples import geometric, power_law
from leadline.checks._laws import backward_laws, depth_margin
from leadline.readings.limits import MAX_EFOLDS_ADAM
from leadline.records import Profile, Severity


@check(
    code="B202",
    name="gradient-explosion",
    since="0.1.0",
    refuted_by="learning",
    explains=("U501", "U502", "U509", "U503", "U504", "U505", "U521", "U523", "N703"),
    margins=partial(depth_margin, direction="backward", growth=True),
    sick=geometric(blocks=64, grad_gain=1.3),
    healthy=power_law(blocks=1000),
)
def gradient_explosion(profile: Profile) -> Iterator[Symptom]:
    r"""Squared gradients grow geometrically towards the input.

    ## What it measures
    The squared gradient $g_\ell = \sum (\partial L / \partial x_\ell)^2$ at the exit of each block but the head, and
    $\ln(g_1 / g_L)$ in e-folds. Fires beyond `MAX_EFOLDS_SGD` = 7 e-folds if both halves of the stack take part,
    and beyond `MAX_EFOLDS_ADAM` = 14 in any case. Where most blocks are normalised it fires only beyond
    `MAX_EFOLDS_ADAM`, and only as a warning: a weight in front of a norm that gets large gradients grows, and its
    steps shrink by themselves.

    ## Why it hurts
    The first blocks take steps that are larger than the last ones' by the root of that factor. A rate that is safe for
    them is useless for the rest; clipping the global norm scales everybody down to the worst.

    ## When it is wrong
    A ResNet-50 at initialisation amplifies the squared gradient by 1.7 to 1.9 a block, some 9 e-folds in all, and
    trains; the 110-layer ResNet of the same paper needed a warm-up. In a pre-norm network the gradient falls as
    $1/\ell$ along the stream; that is a power law and does not fire. A plain stack of batch-norm and ReLU does explode,
    by $\pi/(\pi-1) = 1.47$ a layer, although every activation is normalised.

    ## References
    Pascanu et al., "On the difficulty of training recurrent neural networks", 2013, section 2; Yang et al., "A mean
    field theory of batch normalization", 2019; Arora et al., "Theoretical analysis of auto rate-tuning by batch
    normalization", 2019; He et al., "Deep residual learning for image recognition", 2015, section 4.2 (warm-up).
    """
    for law in backward_laws(profile):
        if law.change > (MAX_EFOLDS_ADAM if law.normalised else 0.0):
            severity: Severity = "warning" if law.normalised and law.severity == "error" else law.severity
            message = (
                f"the gradient's power grows {law.gain:.3g}x a block towards the input: {law.end / law.start:.3g}x "
                f"from {law.first.name} to {law.last.name}, {law.blocks - 1} blocks earlier"
            )
            yield law_symptom(profile, law, message, severity=severity)
