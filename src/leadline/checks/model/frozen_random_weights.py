"""D925: random weights that are frozen."""

from __future__ import annotations

from collections.abc import Iterator

from leadline.checks._check import Symptom, check
from leadline.checks._ranges import first_names
from leadline.checks._wiring_examples import with_parts
from leadline.records import FrozenWeights, Profile

# Heuristic: below one half, the network is mostly what it learns.
MIN_FROZEN_SHARE = 0.5


def _example(share: float) -> Profile:
    weights = FrozenWeights(names=("backbone.0.weight",), count=4096, share=share, feeds_learning=True)
    return with_parts(frozen=weights)


@check(
    code="D925",
    name="frozen-random-weights",
    since="0.1.0",
    explains=("B208",),
    sick=_example(0.9),
    healthy=_example(0.1),
)
def frozen_random_weights(profile: Profile) -> Iterator[Symptom]:
    r"""Most of the network is frozen, and what is frozen is random: no pretrained weights were loaded.

    ## What it measures
    Whether the entries of frozen matrices are independent, as an initializer leaves them: the mean squares of rows and
    columns scatter no more than chance, no singular value stands out from those of a random matrix, and the tails are
    those of a normal or uniform distribution. Fires if such matrices hold at least half of all parameters. The message
    says whether something that learns reads their result (a head on a backbone, a frozen block) while nothing that
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
    if frozen is None or frozen.share < MIN_FROZEN_SHARE or not profile.backward_ran:
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
