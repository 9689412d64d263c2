"""D925: random weights that are frozen."""

from __future__ import annotations

from collections.abc import Iterator

from leadline.checks._check import Symptom, check
from leadline.checks._ranges import first_names
from leadline.checks._wiring_examples import with_parts
from leadline.records import FrozenWeights, Profile

EXAMPLE = FrozenWeights(names=("backbone.0.weight",), count=4096, share=0.9, feeds_learning=True)


@check(
    code="D925",
    name="frozen-random-weights",
    since="0.1.0",
    explains=("B208",),
    sick=with_parts(frozen=EXAMPLE),
    healthy=with_parts(frozen=None),
)
def frozen_random_weights(profile: Profile) -> Iterator[Symptom]:
    r"""Weights are frozen, and they are random: no pretrained ones were loaded.

    ## What it measures
    Whether the entries of frozen matrices are independent, as an initializer leaves them: the mean squares of rows and
    columns scatter no more than chance, no singular value stands out from those of a random matrix, and the tails are
    those of a normal or uniform distribution. The message says which part of all parameters such matrices hold, and
    whether something that learns reads their result (a head on a backbone, a frozen block) while nothing that
    learns is between or beside them, as adapters are.

    ## Why it hurts
    A head on random features learns far less than on trained ones, and adapters of a random base adapt nothing. The
    usual causes are `weights=None`, a checkpoint that was not loaded, or one whose names did not match
    (`strict=False`).

    ## When it is wrong
    Random features, reservoirs and lottery tickets freeze random weights on purpose, and tests of adapters run on small
    random bases. One batch cannot tell them from a checkpoint that was not loaded, so this is always a note. Matrices
    of fewer than 1024 entries are not judged.

    ## References
    Martin and Mahoney, "Implicit self-regularization in deep neural networks", 2021 (spectra of random and trained
    weights); Marchenko and Pastur, 1967.
    """
    frozen = profile.parts.frozen if profile.parts else None
    if frozen is None or not profile.backward_ran:
        return
    yield Symptom(
        severity="info",
        where=frozen.names[0],
        message=f"{len(frozen.names)} frozen matrices with {100 * frozen.share:.0f} % of all parameters are "
        f"random, not trained{', and what learns reads only their result' if frozen.feeds_learning else ''}: "
        f"{first_names(list(frozen.names))}",
        action="Load the pretrained weights before freezing, and check what `load_state_dict` returns, or train them.",
        evidence={"matrices": float(len(frozen.names)), "share": frozen.share},
    )
