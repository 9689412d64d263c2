"""T832: data workers yield the same batches."""

from __future__ import annotations

from collections.abc import Iterator

from leadline.checks._check import Symptom, check
from leadline.checks._examples import constant, scalar_history
from leadline.checks._history import History
from leadline.checks._loop import STEP_WINDOW, since, value

# Heuristic: batches among the last STEP_WINDOW that equal the one before; two workers that agree make 16.
MIN_COPIES = 8


@check(
    code="T832",
    name="worker-copies",
    since="0.1.0",
    needs=("worker_copies",),
    sick=scalar_history(
        40, worker_copies=lambda step: float(min(step // 2, 16)), loader_workers=constant(2.0)
    ),
    healthy=scalar_history(40, worker_copies=constant(0.0), loader_workers=constant(2.0)),
)
def worker_copies(history: History) -> Iterator[Symptom]:
    r"""The workers of a data loader yield the same batches: each batch comes once per worker.

    ## What it measures
    How many of the last `STEP_WINDOW` = 32 batches equal the batch before, while a DataLoader with two or more workers
    feeds the loop. Fires at `MIN_COPIES` = 8.

    ## Why it hurts
    An iterable data set that does not split its data by worker yields each sample once per worker, and workers that set
    the same random seed draw the same samples: an epoch has as many times fewer different samples.

    ## When it is wrong
    Workers that add the same random numbers to different samples are not seen, because their batches differ.

    ## References
    PyTorch documentation of `torch.utils.data.IterableDataset` and "Randomness in multi-process data loading".
    """
    copies, workers = value(history, "worker_copies"), value(history, "loader_workers")
    if copies < MIN_COPIES or workers < 2:
        return
    yield Symptom(
        severity="warning",
        where="the data",
        since=since(history, "worker_copies"),
        message=f"{copies:.0f} of the last {STEP_WINDOW} batches equal the one before, with {workers:.0f} data workers",
        action="Split the data by `torch.utils.data.get_worker_info()`, and give each worker its own random seed.",
        forecast="each batch is trained on once per worker",
        evidence={"copies": copies, "workers": workers},
    )
