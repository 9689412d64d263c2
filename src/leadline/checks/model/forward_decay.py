"""F102: the forward signal vanishes with depth."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

from leadline.checks._causes import law_symptom, lost_per_block
from leadline.checks._check import Symptom, check
from leadline.checks._examples import geometric
from leadline.checks._laws import depth_margin, forward_laws
from leadline.records import Profile
from leadline.text import layer_label


@check(
    code="F102",
    name="forward-decay",
    since="0.1.0",
    refuted_by="learning",
    explains=("F106", "N702", "U525"),
    margins=partial(depth_margin, direction="forward", growth=False),
    sick=geometric(blocks=32, forward_gain=0.5),
    healthy=geometric(blocks=32, forward_gain=0.9),
)
def forward_decay(profile: Profile) -> Iterator[Symptom]:
    r"""Activations shrink geometrically with depth.

    ## What it measures
    The second moment $q_\ell = E[x_\ell^2]$ at the exit of each block except the head, and its decrease
    $\ln(q_1 / q_L)$ in e-folds. Fires beyond `MAX_EFOLDS_SGD` = 7 e-folds if both halves of the stack contribute,
    and always beyond `MAX_EFOLDS_ADAM` = 14 e-folds.

    Cliffs, single blocks that change the moment far more than the others, are left out of the law: if the rest is
    harmless, the check names them in a note.

    ## Why it hurts
    The input of the last block depends on biases and rounding instead of on the data: all samples get the same output.
    A ReLU layer with weight variance $\sigma_w^2 / n$ multiplies the second moment by $\sigma_w^2 / 2$; PyTorch's
    default for `nn.Linear` is $\sigma_w^2 = 1/3$, a factor of $1/6$ per layer.

    ## When it is wrong
    If a normalization that is not part of the block follows every block, it undoes the decay at once.

    ## References
    He et al., "Delving deep into rectifiers", 2015, section 2.2; Schoenholz et al., "Deep information propagation",
    2017.
    """
    for law in forward_laws(profile):
        if law.change < 0:
            zero = f", and is exactly zero from {layer_label(law.zero_from)} on" if law.zero_from else ""
            message = (
                f"the signal {lost_per_block(law.gain)} its mean square per block: it falls from {law.start:.2g} to "
                f"{law.end:.2g} over {law.blocks} blocks{zero}"
            )
            yield law_symptom(profile, law, message)
