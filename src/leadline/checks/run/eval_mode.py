"""T822: training runs in eval mode."""

from __future__ import annotations

from collections.abc import Iterator

from leadline.checks._check import Symptom, check
from leadline.checks._examples import constant, scalar_history
from leadline.checks._history import History
from leadline.checks._loop import DROPOUT, FRESH_NORM, OLD_NORM, since, value
from leadline.records import Severity

# Heuristic: steps in a row; a single pass in eval mode with a gradient measures something.
MIN_EVAL_STEPS = 8


@check(
    code="T822",
    name="eval-mode",
    since="0.1.0",
    needs=("eval_steps",),
    sick=scalar_history(40, eval_steps=lambda step: step, eval_noise=constant(DROPOUT)),
    healthy=scalar_history(40, eval_steps=constant(0.0), eval_noise=constant(0.0)),
)
def eval_mode(history: History) -> Iterator[Symptom]:
    r"""The model is trained in eval mode, in which dropout and batch norm do not act as in training.

    ## What it measures
    Steps in a row whose last forward pass before `backward` ran in eval mode with a gradient, in a module that has
    dropout with a rate above 0 or batch norm with running statistics. Fires at `MIN_EVAL_STEPS` = 8.

    ## Why it hurts
    Without dropout the network fits its training data faster and generalizes worse. Batch norm in eval mode
    normalizes with the statistics it has: those of an untrained layer are 0 and 1, so that nothing is normalized.

    ## When it is wrong
    Fine-tuning with frozen batch norm statistics is done on purpose, so it is a note if the layers have statistics,
    there is no dropout, and no step ran in train mode before. Freezing single layers (`layer.eval()`) is silent.

    ## References
    PyTorch documentation of `torch.nn.Module.train`; models from `transformers` are loaded in eval mode.
    """
    steps, noise = value(history, "eval_steps"), value(history, "eval_noise")
    if steps < MIN_EVAL_STEPS or not noise:
        return
    changed = value(history, "eval_after_train") > 0
    severity: Severity = "info" if noise == OLD_NORM and not changed else "warning"
    parts = {DROPOUT: "dropout", FRESH_NORM: "batch norm without statistics"}.get(noise, "batch norm")
    yield Symptom(
        severity=severity,
        where="the model",
        since=since(history, "eval_steps"),
        message=f"the last {steps:.0f} steps or more trained the model in eval mode, which switches off its {parts}",
        action="Call `model.train()` again after each evaluation."
        if changed
        else "Call `model.train()` before the first step.",
        evidence={"steps": steps},
    )
