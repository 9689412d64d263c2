"""T831: processes that train together have different weights."""

from __future__ import annotations

from collections.abc import Iterator

from leadline.checks._check import Symptom, check
from leadline.checks._examples import constant, scalar_history
from leadline.checks._history import History
from leadline.checks._loop import since, value


@check(
    code="T831",
    name="replica-drift",
    since="0.1.0",
    needs=("replica_drift",),
    sick=scalar_history(40, replica_drift=constant(1.0)),
    healthy=scalar_history(40, replica_drift=constant(0.0)),
)
def replica_drift(history: History) -> Iterator[Symptom]:
    r"""The replicas of a data-parallel run have different weights.

    ## What it measures
    Some elements of every parameter, compared bit for bit between processes after 8 steps, 16, 32 and so on. The number
    is how many processes differ from the first.

    ## Why it hurts
    Replicas that start with different weights, skip steps at different times or do not exchange gradients are separate
    models: each sees a part of the data, and only one of them is saved.

    ## When it is wrong
    Methods that let replicas drift between synchronizations on purpose (local SGD, DiLoCo), and processes that train
    different models.

    ## References
    Li et al., "PyTorch Distributed: experiences on accelerating data parallel training", 2020, section 3 (replicas
    start from the same weights and apply the same gradients).
    """
    count = value(history, "replica_drift")
    if not count:
        return
    yield Symptom(
        severity="warning",
        where="the processes",
        since=since(history, "replica_drift"),
        message=f"the weights of {count:.0f} processes differ from those of process 0",
        action="Wrap the model in `DistributedDataParallel`, and step on every process at the same time.",
        forecast="each process trains a model of its own",
        evidence={"processes": count},
    )
