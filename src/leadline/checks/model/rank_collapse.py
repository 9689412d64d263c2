"""F106: all samples or tokens become the same vector."""

from __future__ import annotations

from collections.abc import Iterator

from leadline.checks._check import Symptom, check
from leadline.checks._examples import stack_with_likeness
from leadline.checks._ranges import body
from leadline.checks._steps import optimizer_family
from leadline.records import LimitLevel, Margin, Profile
from leadline.text import layer_label

# Calibrated by benchmarks/verdicts: correlation after the last block; hardly any network above it learned.
MAX_LAST_CORRELATION = {"adam": 0.985, "sgd": 0.95}
# Heuristic: correlation after the first block; inputs that are more alike do not count as different.
MAX_FIRST_CORRELATION = 0.9
# Heuristic: blocks; a collapse builds up with depth, and in fewer the biases of a recurrent cell look the same.
MIN_BLOCKS = 4


def _margins(profile: Profile) -> Iterator[Margin]:
    known = [
        [rho for i in body(profile, stream) if (rho := profile.blocks[i].likeness) is not None]
        for stream in range(len(profile.streams))
    ]
    last = [correlations[-1] for correlations in known if correlations]
    if last:
        limit = MAX_LAST_CORRELATION[optimizer_family(profile) or "adam"]
        everywhere = LimitLevel(quantity="likeness", level=limit, blocks=(0, len(profile.blocks) - 1))
        yield Margin(
            quantity="correlation of samples after the last block",
            value=max(last),
            limit=limit,
            over_depth=everywhere,
        )


@check(
    code="F106",
    name="rank-collapse",
    since="0.1.0",
    refuted_by="learning",
    explains=("B204", "U525"),
    margins=_margins,
    sick=stack_with_likeness([0.1, 0.4, 0.8, 0.93, 0.97, 0.99]),
    healthy=stack_with_likeness([0.1, 0.2, 0.3, 0.5, 0.7, 0.8]),
)
def rank_collapse(profile: Profile) -> Iterator[Symptom]:
    r"""Samples or tokens that differ after the first block are the same vector after the last.

    ## What it measures
    The mean correlation $\rho = (T s - 1)/(T - 1)$ of the $T$ vectors (samples and positions) at a block's exit, where
    $s$ is the share of the second moment that their common mean has. It is not centered. Fires if it is below
    `MAX_FIRST_CORRELATION` = 0.9 after the first block and above `MAX_LAST_CORRELATION` after the last block before the
    head: 0.95 for SGD, 0.985 for Adam and similar optimizers. Stacks of fewer than `MIN_BLOCKS` = 4 blocks are left
    out: an untrained LSTM adds the same biases to all outputs, which are then alike without any collapse.

    ## Why it hurts
    The input of the head hardly depends on the data. Gradients of different samples point the same way, and with
    attention the gradient of queries and keys vanishes with the differences between tokens.

    ## When it is wrong
    Inputs that are alike at the start (one image, augmented) are alike at the end. A norm that centers over samples
    (batch norm) before the head makes them different again.

    ## References
    Dong et al., "Attention is not all you need", 2021; Noci et al., "Signal propagation in transformers", 2022,
    section 3; Schoenholz et al., "Deep information propagation", 2017, section 3.
    """
    limit = MAX_LAST_CORRELATION[optimizer_family(profile) or "adam"]
    for stream in range(len(profile.streams)):
        known = [(i, rho) for i in body(profile, stream) if (rho := profile.blocks[i].likeness) is not None]
        if len(known) < MIN_BLOCKS:
            continue
        (_, start), (last, end) = known[0], known[-1]
        if start < MAX_FIRST_CORRELATION and end > limit:
            begin = next(i for i, rho in known if rho > limit)
            yield Symptom(
                severity="warning",
                where=f"{profile.blocks[begin].name} … {profile.blocks[last].name}",
                message=f"samples and positions have a correlation of {end:.6g} after the last block: the head can "
                "hardly distinguish them",
                action=f"Add skip connections from {layer_label(profile.blocks[begin].name)} on, or scale down the "
                "branches if there are skips already.",
                evidence={"first": start, "last": end, "difference_left": 1 - end},
                layers=(begin, last),
            )
