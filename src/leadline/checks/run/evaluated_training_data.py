"""T830: evaluation uses samples that were trained on."""

from __future__ import annotations

from collections.abc import Iterator

from leadline.checks._check import Symptom, check
from leadline.checks._examples import constant, scalar_history
from leadline.checks._history import History
from leadline.checks._loop import since, value

# Heuristic: samples of evaluations that were trained on; fewer may be duplicates in the data.
MIN_TRAINED_ROWS = 32
# Heuristic: share of all samples of evaluations; published data sets have some percent of duplicates.
MIN_TRAINED_SHARE = 0.2


@check(
    code="T830",
    name="evaluated-training-data",
    since="0.1.0",
    needs=("trained_rows",),
    sick=scalar_history(40, trained_rows=lambda step: 4.0 * step, evaluated_rows=lambda step: 4.0 * step),
    healthy=scalar_history(40, trained_rows=constant(2.0), evaluated_rows=lambda step: 4.0 * step),
)
def evaluated_training_data(history: History) -> Iterator[Symptom]:
    r"""Evaluation sees samples that training has seen.

    ## What it measures
    The share of samples in passes without gradients that were in training batches, known by some of their elements. A
    note at `MIN_TRAINED_SHARE` = 20 % and `MIN_TRAINED_ROWS` = 32 samples. Samples are compared only if those of one
    batch differ from each other.

    ## Why it hurts
    A validation loss on training data falls as long as the network memorizes: overfitting cannot be seen.

    ## When it is wrong
    Measuring the accuracy on training data on purpose. Data that are augmented at random are not recognized.

    ## References
    Derived.
    """
    rows, total = value(history, "trained_rows"), value(history, "evaluated_rows")
    if rows < MIN_TRAINED_ROWS or rows < MIN_TRAINED_SHARE * total:
        return
    yield Symptom(
        severity="info",
        where="the evaluation",
        since=since(history, "trained_rows"),
        message=f"at least {rows:.0f} samples that were evaluated without gradients had been trained on",
        action="Evaluate on samples that are not in the training data.",
        evidence={"trained": rows, "evaluated": total},
    )
