"""F102: the forward signal dies out with depth."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

from leadline.checks._causes import law_symptom
from leadline.checks._check import Symptom, check
from leadline.checks._examples import geometric
from leadline.checks._laws import depth_margin, forward_laws
from leadline.records import Profile


@check(
    code="F102",
    name="forward-decay",
    since="0.1.0",
    refuted_by="learning",
    explains=("F106", "N702"),
    margins=partial(depth_margin, direction="forward", growth=False),
    sick=geometric(blocks=32, forward_gain=0.5),
    healthy=geometric(blocks=32, forward_gain=0.9),
)
def forward_decay(profile: Profile) -> Iterator[Symptom]:
    r"""Activations shrink geometrically with depth.

    ## What it measures
    The second moment $q_\ell = E[x_\ell^2]$ at the exit of each block but the head, and its fall
    $\ln(q_1 / q_L)$ in e-folds. Fires beyond `MAX_EFOLDS_SGD` = 7 e-folds if both halves of the stack take part,
    and beyond `MAX_EFOLDS_ADAM` = 14 e-folds in any case.

    ## Why it hurts
    What the last block sees no longer depends on the input but on biases and rounding: all samples get the same output.
    A ReLU layer with weight variance $\sigma_w^2 / n$ multiplies the second moment by $\sigma_w^2 / 2$; PyTorch's
    default for `nn.Linear` is $\sigma_w^2 = 1/3$, a factor of $1/6$ a layer.

    ## When it is wrong
    If every block is followed by a normalisation that the block's exit does not show, the decay is undone at once.

    ## References
    He et al., "Delving deep into rectifiers", 2015, section 2.2; Schoenholz et al., "Deep information propagation",
    2017.
    """
    for law in forward_laws(profile):
        if law.change < 0:
            tail = f", exactly zero from {law.beyond} on" if law.beyond else ""
            message = (
                f"activations shrink to {law.gain:.3g} of their mean square a block, "
                f"from {law.start:.3g} to {law.end:.3g} over {law.blocks} blocks{tail}"
            )
            yield law_symptom(profile, law, message)
