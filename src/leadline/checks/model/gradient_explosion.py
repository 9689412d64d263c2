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
from leadline.text import layer_label


@check(
    code="B202",
    name="gradient-explosion",
    since="0.1.0",
    refuted_by="learning",
    explains=("U501", "U502", "U509", "U503", "U504", "U505", "U521", "U523", "N703", "U525"),
    margins=partial(depth_margin, direction="backward", growth=True),
    sick=geometric(blocks=64, grad_gain=1.3),
    healthy=power_law(blocks=1000),
)
def gradient_explosion(profile: Profile) -> Iterator[Symptom]:
    r"""Squared gradients grow geometrically toward the input.

    ## What it measures
    The squared gradient $g_\ell = \sum (\partial L / \partial x_\ell)^2$ at the exit of each block except the head, and
    $\ln(g_1 / g_L)$ in e-folds. Fires beyond `MAX_EFOLDS_SGD` = 7 e-folds if both halves of the stack contribute,
    and always beyond `MAX_EFOLDS_ADAM` = 14. If most blocks are normalized it fires only beyond `MAX_EFOLDS_ADAM`, and
    only as a warning: a weight before a norm grows if it gets large gradients, which makes its later steps smaller.

    Cliffs, single blocks that change the moment far more than the others, are left out of the law: if the rest is
    harmless, the check names them in a note.

    ## Why it hurts
    The steps of the first blocks are larger than those of the last blocks by the square root of that factor. A learning
    rate that is safe for them is useless for the rest, and clipping the global norm shrinks all steps to suit the
    worst.

    ## When it is wrong
    A ResNet-50 at initialization amplifies the squared gradient by 1.7 to 1.9 per block, about 9 e-folds in all, and
    trains; the 110-layer ResNet of the same paper needed a warm-up. In a pre-norm network the gradient falls as
    $1/\ell$ along the stream, which is a power law and does not fire. A plain stack of batch norm and ReLU does
    explode, by $\pi/(\pi-1) = 1.47$ per layer, although every activation is normalized.

    ## References
    Pascanu et al., "On the difficulty of training recurrent neural networks", 2013, section 2; Yang et al., "A mean
    field theory of batch normalization", 2019; Arora et al., "Theoretical analysis of auto rate-tuning by batch
    normalization", 2019; He et al., "Deep residual learning for image recognition", 2015, section 4.2 (warm-up).
    """
    for law in backward_laws(profile):
        growth = law.change if law.one_block else law.rest
        if growth > (MAX_EFOLDS_ADAM if law.normalized else 0.0):
            severity: Severity = "warning" if law.normalized and law.severity == "error" else law.severity
            message = (
                f"the gradient's power grows by a factor of {law.gain:.3g} per block toward the input: by "
                f"{law.end / law.start:.2g} from {layer_label(law.first.name)} back to {layer_label(law.last.name)}"
            )
            yield law_symptom(profile, law, message, severity=severity)
