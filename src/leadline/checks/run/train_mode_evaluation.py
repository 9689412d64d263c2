"""T823: evaluation runs in train mode."""

from __future__ import annotations

from collections.abc import Iterator

from leadline.checks._check import Symptom, check
from leadline.checks._examples import constant, scalar_history
from leadline.checks._history import History
from leadline.checks._loop import DROPOUT, since, value

# Heuristic: evaluations; one alone may be on purpose, such as a first look at the data.
MIN_EVALUATIONS = 2


@check(
    code="T823",
    name="train-mode-evaluation",
    since="0.1.0",
    needs=("train_mode_passes",),
    sick=scalar_history(40, train_mode_passes=lambda step: step // 10, train_mode_noise=constant(DROPOUT)),
    healthy=scalar_history(40, train_mode_passes=constant(0.0)),
)
def train_mode_evaluation(history: History) -> Iterator[Symptom]:
    r"""The model is evaluated in train mode: with dropout, or with the statistics of each batch.

    ## What it measures
    How often four or more different batches in a row, or a batch of an earlier evaluation again, went through the
    trained model without gradients and in train mode, with no backward pass between them. Modules with dropout or batch
    norm only. Fires at `MIN_EVALUATIONS` = 2.

    ## Why it hurts
    Dropout makes the validation loss too high and noisy. Batch norm uses the statistics of the validation batch and
    changes the running statistics of the model, so that evaluating changes what is trained.

    ## When it is wrong
    Repeated passes of one batch (Monte-Carlo dropout), single passes of new batches between steps (targets, momentum
    encoders), pictures in a game between networks, new statistics for an averaged model (`update_bn`) and batches that
    are trained on in parts are silent.

    ## References
    PyTorch documentation of `torch.nn.Module.eval`.
    """
    evaluations = value(history, "train_mode_passes")
    if evaluations < MIN_EVALUATIONS:
        return
    parts = "dropout" if value(history, "train_mode_noise") == DROPOUT else "batch norm"
    yield Symptom(
        severity="warning",
        where="the evaluation",
        since=since(history, "train_mode_passes"),
        message=f"{evaluations:.0f} evaluations or more ran the model in train mode, with {parts} as in training",
        action="Call `model.eval()` before the evaluation and `model.train()` after it.",
        evidence={"evaluations": evaluations},
    )
