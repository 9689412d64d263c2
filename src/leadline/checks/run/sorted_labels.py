"""T824: the data come sorted by label."""

from __future__ import annotations

from collections.abc import Iterator

from leadline.checks._check import Symptom, check
from leadline.checks._examples import constant, scalar_history
from leadline.checks._history import History
from leadline.checks._loop import since, value

# Heuristic: batches in a row at which labels were sorted; the ledger compares 24 batches at a time.
MIN_SORTED_BATCHES = 2
# Heuristic: batches in a row of a single class.
MIN_PURE_BATCHES = 64


@check(
    code="T824",
    name="sorted-labels",
    since="0.1.0",
    needs=("sorted_labels", "one_class"),
    sick=scalar_history(40, sorted_labels=lambda step: step // 4, one_class=constant(0.0)),
    healthy=scalar_history(40, sorted_labels=constant(0.0), one_class=constant(0.0)),
    explains=("T801", "T803", "T814"),
)
def sorted_labels(history: History) -> Iterator[Symptom]:
    r"""Batches come sorted by label: each holds one class, and the class changes rarely.

    ## What it measures
    The classes of the last 24 batches, read from the graph of the loss where each sample has one class. They are sorted
    if 90 % of neighboring labels within batches are equal, while two labels of all these batches are equal at most 70 %
    of the time, and the most frequent class changes in at most a quarter of the batches. Fires after
    `MIN_SORTED_BATCHES` = 2. A single class in `MIN_PURE_BATCHES` = 64 batches in a row is a note.

    ## Why it hurts
    The network learns to answer the present class and forgets the others; the loss falls and jumps up at each change.

    ## When it is wrong
    Class-incremental learning with one class at a time is sorted on purpose. Labels that are all equal by design, as in
    contrastive losses whose answer is always the first, get the note.

    ## References
    Bengio, "Practical recommendations for gradient-based training of deep architectures", 2012, section 3.1.
    """
    batches, pure = value(history, "sorted_labels"), value(history, "one_class")
    if batches >= MIN_SORTED_BATCHES:
        yield Symptom(
            severity="warning",
            where="the data",
            since=since(history, "sorted_labels"),
            message=f"the labels are sorted: in the last {batches:.0f} batches or more nearly all neighbors are equal, "
            "and the class changed rarely",
            action="Shuffle the training data: `DataLoader(..., shuffle=True)`.",
            forecast="the loss jumps up at each change of class",
            evidence={"batches": batches},
        )
    elif pure >= MIN_PURE_BATCHES:
        yield Symptom(
            severity="info",
            where="the data",
            since=since(history, "one_class"),
            message=f"all labels of the last {pure:.0f} batches or more are the same class",
            action="Check that labels are read from the right column, and that the data are shuffled.",
            evidence={"batches": pure},
        )
