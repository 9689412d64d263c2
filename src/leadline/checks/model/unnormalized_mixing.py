"""R413: matrices that should be doubly stochastic and are not."""

from __future__ import annotations

from collections.abc import Iterator

from leadline.checks._check import Symptom, check
from leadline.checks._streams import between, mixings_of, streams_example
from leadline.records import Profile

# Heuristic: distance of a sum from 1; over 24 layers, a sum of 1.1 makes a gain of 10.
MAX_SUM_ERROR = 0.1


@check(
    code="R413",
    name="unnormalized-mixing",
    since="0.2.0",
    sick=streams_example(row_error=0.4),
    healthy=streams_example(row_error=0.02),
)
def unnormalized_mixing(profile: Profile) -> Iterator[Symptom]:
    r"""Matrices that mix residual streams are normalized, but their rows or columns do not sum to one.

    ## What it measures
    The sums of the rows and of the columns of matrices that mix streams, for each token, where both axes of the
    matrices are normalized (alternating softmaxes, or divisions by sums, as in Sinkhorn's iteration). Fires if a sum
    differs from 1 by more than `MAX_SUM_ERROR` = 0.1.

    ## Why it hurts
    Rows that sum to one keep a signal that all streams share, columns that sum to one keep its gradient. Sinkhorn's
    iteration makes the axis that it normalizes last exact and the other one only in the limit: after too few
    iterations, or of logits that are too large, one of the two promises is broken, and the error multiplies over depth.

    ## When it is wrong
    If only one of the two sums matters to you, normalize only that axis.

    ## References
    Sinkhorn and Knopp, 1967; Xie et al., "mHC", 2025 (20 iterations); Yang and Gao, "mHC-lite", 2026.
    """
    broken = [
        each
        for each in mixings_of(profile)
        if each.is_normalized and max(each.row_error, each.column_error) > MAX_SUM_ERROR
    ]
    if not broken:
        return
    worst = max(broken, key=lambda each: max(each.row_error, each.column_error))
    axis = "rows" if worst.row_error > worst.column_error else "columns"
    yield Symptom(
        severity="warning",
        where=between(worst),
        message=f"{axis} of matrices that mix {worst.streams} streams miss the sum of 1 by up to "
        f"{max(worst.row_error, worst.column_error):.2g}, although both axes are normalized",
        action="Run more Sinkhorn iterations (20), keep the logits within about 10 of each other, or use a mean of "
        "permutations (the scheme `mhc-lite` of `leadline.nn`).",
        source=worst.site.source,
        evidence={"row_error": worst.row_error, "column_error": worst.column_error},
    )
