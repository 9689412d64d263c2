"""F101: the forward signal grows geometrically with depth."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

from leadline.checks._causes import law_symptom
from leadline.checks._check import Symptom, check
from leadline.checks._examples import geometric, power_law
from leadline.checks._laws import depth_margin, forward_laws
from leadline.records import Profile


@check(
    code="F101",
    name="forward-growth",
    since="0.1.0",
    refuted_by="learning",
    explains=(
        "B202",
        "I308",
        "N703",
        "F107",
        "U501",
        "U502",
        "U509",
        "U503",
        "U504",
        "U505",
        "U521",
        "U523",
        "U525",
    ),
    margins=partial(depth_margin, direction="forward", growth=True),
    sick=geometric(blocks=32, forward_gain=2.0),
    healthy=power_law(blocks=1000),
)
def forward_growth(profile: Profile) -> Iterator[Symptom]:
    r"""Activations grow geometrically with depth.

    ## What it measures
    The second moment $q_\ell = E[x_\ell^2]$ at the exit of each block except the head, and its growth
    $\ln(q_L / q_1)$ in e-folds. Fires beyond `MAX_EFOLDS_SGD` = 7 e-folds if both halves of the stack contribute (a
    geometric law), and always beyond `MAX_EFOLDS_ADAM` = 14 e-folds.

    Cliffs, single blocks that change the moment far more than the others, are left out of the law: if the rest is
    harmless, the check names them in a note.

    ## Why it hurts
    An unscaled residual stack $x + f(x)$ whose branches preserve the size of the signal doubles the second moment in
    each block: $2^N$. Gradients of early weights then scale with the product of all later gains, one step moves the
    output by as much, and in half precision activations overflow.

    ## When it is wrong
    If a final norm divides the growth out and the optimizer is insensitive to scale, such a network can still learn,
    but slowly, because its last blocks dominate. Growth as a power of depth (pre-norm: $q_\ell \propto \ell$) is normal
    and does not fire.

    ## References
    Hanin and Rolnick, "How to start training", 2018, section 3 (mean activation length); De and Smith, "Batch
    normalization biases residual blocks", 2020, section 2 (variance doubles per block).
    """
    for law in forward_laws(profile):
        if law.change > 0:
            message = (
                f"activations grow by a factor of {law.gain:.3g} per block in mean square: from {law.start:.2g} to "
                f"{law.end:.2g} over {law.blocks} blocks"
            )
            yield law_symptom(profile, law, message)
