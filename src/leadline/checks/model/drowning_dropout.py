"""F110: dropout that keeps almost nothing."""

from __future__ import annotations

import math
from collections.abc import Iterator

from msgspec.structs import replace

from leadline.checks._check import Symptom, check
from leadline.checks._examples import geometric
from leadline.checks._probability import MIN_TRAINING_PROBABILITY, read_outlook
from leadline.records import Attribution, Factor, Profile
from leadline.text import layer_label

# Calibrated by benchmarks/dropout.py: share of the units. At or below it, no network of width 64 to 1024 learns well.
MIN_KEPT_SHARE = 0.02
# Derived: noise of at least four times the signal's power. Some networks learn with it, so the first steps decide.
MIN_KEPT_SHARE_OF_LEARNERS = 0.2
DROPOUT_OPS = frozenset(
    {"dropout", "dropout1d", "dropout2d", "dropout3d", "native_dropout", "feature_dropout"}
)


def _example(rate: float) -> Profile:
    gain = -math.log1p(-rate)
    drop = Factor(block=3, kind="scale", op="dropout", forward=gain, forward_theory=gain)
    return replace(geometric(blocks=8), attribution=Attribution(factors=(drop,)))


@check(
    code="F110",
    name="drowning-dropout",
    since="0.1.0",
    explains=("B201", "B202", "U501", "U502", "U503", "U509", "U523", "U524", "U525"),
    sick=_example(0.999),
    healthy=_example(0.9),
)
def drowning_dropout(profile: Profile) -> Iterator[Symptom]:
    r"""Dropout on the only path keeps so few units that its noise drowns the signal.

    ## What it measures
    The rate $p$ of each dropout on the depth axis, in train mode. Dropout multiplies the kept units by $1/(1-p)$, which
    preserves the mean and adds noise of $p/(1-p)$ times the signal's power. Fires if at most `MIN_KEPT_SHARE` = 2 % of
    the units are kept: noise of 49 times the signal. Where a rehearsal says that the training is more likely to fail
    than to work, it fires from `MIN_KEPT_SHARE_OF_LEARNERS` = 20 % on, and for any dropout of the network.

    ## Why it hurts
    Each step sees a few other units, fifty times too large, so the next step does not see what this one has learned.
    The loss jumps from step to step, and gradients are nearly all noise. Often the share to keep was given instead of
    the share to drop.

    ## When it is wrong
    A sum over very many units averages the noise out once they have learned to agree: 2 % of ten thousand units are
    still two hundred. Without a rehearsal, dropout inside a residual branch is not checked, since the skip passes it.

    ## References
    Srivastava et al., "Dropout: a simple way to prevent neural networks from overfitting", 2014, section 7.3 (the error
    over the share that is kept).
    """
    drowned = list(_drowned_blocks(profile))
    yield from drowned
    kept = 1 - profile.facts.dropout if profile.facts else 1.0
    if not drowned and 0 < kept <= MIN_KEPT_SHARE_OF_LEARNERS and _is_failing(profile):
        yield _symptom("the dropout layers", "dropout", kept)


def _drowned_blocks(profile: Profile) -> Iterator[Symptom]:
    """One symptom for each dropout on the only path that keeps next to nothing."""
    for factor in profile.attribution.factors if profile.attribution else ():
        if factor.op not in DROPOUT_OPS or factor.forward_theory is None:
            continue
        kept = math.exp(-factor.forward_theory)
        if kept <= MIN_KEPT_SHARE and 0 <= factor.block < len(profile.blocks):
            name = profile.blocks[factor.block].name
            layers = factor.block, factor.block
            yield _symptom(name, f"dropout at {layer_label(name)}", kept, layers)


def _is_failing(profile: Profile) -> bool:
    outlook = read_outlook(profile)
    return outlook is not None and outlook.probability < MIN_TRAINING_PROBABILITY


def _symptom(where: str, subject: str, kept: float, layers: tuple[int, int] | None = None) -> Symptom:
    return Symptom(
        severity="warning",
        where=where,
        message=f"{subject} keeps {100 * kept:.2g} % of its input: its noise is {1 / kept - 1:.3g} times the signal",
        action=f"Lower the dropout rate from p={1 - kept:.3g} to at most 0.5, or pass p={kept:.2g} if this was meant "
        "as the share to keep.",
        evidence={"kept": kept, "noise_to_signal": 1 / kept - 1},
        layers=layers,
    )
