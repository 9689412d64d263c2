"""F110: dropout that leaves next to nothing."""

from __future__ import annotations

import math
from collections.abc import Iterator

from msgspec.structs import replace

from leadline.checks._check import Symptom, check
from leadline.checks._examples import geometric
from leadline.records import Attribution, Factor, Profile

KEPT = 0.02  # of all units; calibrated by benchmarks/dropout.py: from there on no width of 64 to 1024 learns well


def _example(rate: float) -> Profile:
    gain = -math.log1p(-rate)
    drop = Factor(block=3, kind="scale", op="dropout", forward=gain, forward_theory=gain)
    return replace(geometric(blocks=8), attribution=Attribution(factors=(drop,)))


@check(
    code="F110",
    name="drowning-dropout",
    since="0.1.0",
    explains=("B201", "B202", "U501", "U502", "U503", "U509", "U523", "U524"),
    sick=_example(0.999),
    healthy=_example(0.9),
)
def drowning_dropout(profile: Profile) -> Iterator[Symptom]:
    r"""Dropout on the only path leaves so few units that its noise drowns the signal.

    ## What it measures
    The rate $p$ of each dropout on the depth axis, as it was called, in train mode. What is kept is multiplied by
    $1/(1-p)$, so that the mean stays and noise of $p/(1-p)$ times the signal's power comes on top. Fires where at most
    `KEPT` = 2 % is kept: noise of 49 times the signal.

    ## Why it hurts
    Each step sees another few units, and sees them fifty times too large: what one step teaches the next one does not
    see. The loss jumps from step to step, and gradients are nearly all noise. Often a share to keep was given as a
    share to drop.

    ## When it is wrong
    A sum over very many units averages the noise out once they have learned to agree: with ten thousand of them 2 % are
    still two hundred. Dropout inside a residual branch is not looked at, since the skip goes around it.

    ## References
    Srivastava et al., "Dropout: a simple way to prevent neural networks from overfitting", 2014, section 7.3 (the error
    over the share that is kept).
    """
    for factor in profile.attribution.factors if profile.attribution else ():
        if factor.op not in DROPOUTS or factor.forward_theory is None:
            continue
        kept = math.exp(-factor.forward_theory)
        if kept <= KEPT and 0 <= factor.block < len(profile.blocks):
            name = profile.blocks[factor.block].name
            yield Symptom(
                severity="warning",
                where=name,
                message=f"{factor.op} at {name} keeps {kept:.2g} of its input and multiplies it by {1 / kept:.3g}: "
                f"noise of {1 / kept - 1:.3g} times the signal; was a share to keep given as one to drop?",
                evidence={"kept": kept, "noise_to_signal": 1 / kept - 1},
                layers=(factor.block, factor.block),
            )


DROPOUTS = frozenset({"dropout", "dropout1d", "dropout2d", "dropout3d", "native_dropout", "feature_dropout"})
