"""T812: parameters that require a gradient do not get one."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from leadline.checks._check import Symptom, check
from leadline.checks._examples import BLOCKS, every_block, vector_history
from leadline.checks._history import ABSENT, History
from leadline.checks._ranges import locate_parameters
from leadline.records import Severity

# Heuristic: experts and heads that are left out at random come back within 16 recordings.
MIN_RECORDINGS = 16

_MEASURED = {
    "stopped": "no longer get one",
    "zero": "get one that is exactly zero",
    "never": "have never got one",
}
_ACTIONS = {
    "stopped": "Look for a `detach()`, a `torch.no_grad()` block or a branch that is no longer taken since that step.",
    "zero": "Look for an op without a gradient after them, such as rounding, `argmax` or a multiplication by zero.",
    "never": "Remove the `detach()` or `.item()` that cuts them off, or freeze them with `requires_grad_(False)`.",
}


@check(
    code="T812",
    name="absent-gradients",
    since="0.1.0",
    needs=("grad_norm",),
    sick=vector_history(40, {"grad_norm": lambda _: [ABSENT, ABSENT] + [1.0] * (BLOCKS - 2)}),
    healthy=vector_history(40, {"grad_norm": every_block(1.0)}),
    every=16,
    calm=128,
)
def absent_gradients(history: History) -> Iterator[Symptom]:
    r"""Parameters that require a gradient never get one, or only zeros.

    ## What it measures
    The parameters that require a gradient and had none, or one of exactly zero, in each of the last
    `MIN_RECORDINGS` = 16 recordings. The finding is a note if the gradient never came, as in many published models
    whose heads or poolers a given loss does not use. It is a warning if the gradient is zero, or came before and
    stopped, and an error if no parameter has a gradient.

    ## Why it hurts
    A `detach`, a conversion to Python numbers and back, or a branch that is no longer taken cuts these parameters off
    from the loss. They do not learn, and weight decay may shrink them to zero.

    ## When it is wrong
    Parts that are used later in the run (a head for a later phase), and heads of pretrained models that this loss
    does not need.

    ## References
    Derived. Jiang et al., "Training with confidence: catching silent errors in deep learning training with automated
    proactive checks", 2025, collects silent errors of this kind.
    """
    recordings = history.recent("grad_norm")
    if len(recordings) < MIN_RECORDINGS:
        return
    rows = recordings.rows[-MIN_RECORDINGS:]
    candidates = [index for index, norm in enumerate(rows[-1]) if norm in (0.0, ABSENT)]
    missing = [index for index in candidates if all(row[index] in (0.0, ABSENT) for row in rows)]
    if not missing:
        return
    required = sum(norm >= ABSENT for norm in rows[-1])
    kind = _kind(history, rows[-1], missing)
    where, layers = locate_parameters(history.layout, missing)
    severity: Severity = "info" if kind == "never" else "warning"
    yield Symptom(
        severity="error" if len(missing) == required else severity,
        where=where,
        layers=layers,
        since=_since(history, missing),
        message=f"{len(missing)} of {required} parameters that require a gradient {_MEASURED[kind]}",
        action=_ACTIONS[kind],
        forecast="they do not learn",
        evidence={"without_gradient": float(len(missing)), "parameters": float(required)},
    )


def _kind(history: History, row: Sequence[float], missing: list[int]) -> str:
    """Whether the gradient "stopped" coming, is "zero", or "never" came."""
    if any(earlier[index] > 0 for earlier in history.spaced("grad_norm").rows for index in missing):
        return "stopped"
    return "zero" if any(row[index] == 0.0 for index in missing) else "never"


def _since(history: History, missing: list[int]) -> int:
    """The first recording after the last one in which one of them had a gradient; the recent ones are the densest."""
    for recordings in (history.recent("grad_norm"), history.spaced("grad_norm")):
        pairs = zip(recordings.steps, recordings.rows, strict=True)
        present = [step for step, row in pairs if any(row[index] > 0 for index in missing)]
        if present:
            return next(step for step in recordings.steps if step > present[-1])
    return recordings.steps[0]
