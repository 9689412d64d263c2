"""T812: parameters that should learn get no gradient."""

from __future__ import annotations

from collections.abc import Iterator

from leadline.checks._check import Symptom, check
from leadline.checks._history import ABSENT, History
from leadline.checks._ranges import of_parameters
from leadline.checks._run_examples import BLOCKS, flat, sampled

STEPS = 16  # recordings in a row; ours: experts and heads that are left out at random come back within them


@check(
    code="T812",
    name="absent-gradients",
    since="0.1",
    needs=("grad_norm",),
    sick=sampled(40, {"grad_norm": lambda _: [ABSENT, ABSENT] + [1.0] * (BLOCKS - 2)}),
    healthy=sampled(40, {"grad_norm": flat(1.0)}),
    every=16,
    calm=128,
)
def absent_gradients(history: History) -> Iterator[Symptom]:
    r"""Parameters that require a gradient never get one, or only zeros.

    ## What it measures
    In the last `STEPS` = 16 recordings, which parameters that require a gradient had none, or one of exactly zero,
    every time. A note if it never came, as in many published models, whose heads or poolers a given loss does not
    use. A warning if it is there and zero, or if it came before and stopped; an error if no parameter has one.

    ## Why it hurts
    A `detach`, a conversion to numbers and back, or a branch that is no longer taken cuts them off: they do not
    learn, and weight decay may shrink them to nothing meanwhile.

    ## When it is wrong
    Parts that are used later in the run (a head for a later phase), and heads of pretrained models that this loss
    does not need.

    ## References
    Derived. Jiang et al., "Training with confidence: catching silent errors in deep learning training with automated
    proactive checks", 2025, collects silent errors of this kind.
    """
    found = history.recent("grad_norm")
    if len(found) < STEPS:
        return
    rows = found.rows[-STEPS:]
    candidates = [index for index, each in enumerate(rows[-1]) if each in (0.0, ABSENT)]
    lost = [index for index in candidates if all(row[index] in (0.0, ABSENT) for row in rows)]
    if not lost:
        return
    asked = sum(each >= ABSENT for each in rows[-1])
    zero = any(rows[-1][index] == 0.0 for index in lost)
    earlier = history.spaced("grad_norm").rows
    stopped = any(row[index] > 0 for row in earlier for index in lost)
    where, layers = of_parameters(history.layout, lost)
    how = "stopped coming" if stopped else "is exactly zero" if zero else "never comes"
    yield Symptom(
        severity="error" if len(lost) == asked else "warning" if stopped or zero else "info",
        where=where,
        layers=layers,
        since=_since(history, lost),
        message=f"the gradient of {len(lost)} of {asked} parameters {how}",
        forecast="they do not learn",
        evidence={"without_gradient": float(len(lost)), "parameters": float(asked)},
    )


def _since(history: History, lost: list[int]) -> int:
    """The first recording after the last one in which one of them had a gradient; the recent ones are the densest."""
    for found in (history.recent("grad_norm"), history.spaced("grad_norm")):
        pairs = zip(found.steps, found.rows, strict=True)
        last = [step for step, row in pairs if any(row[index] > 0 for index in lost)]
        if last:
            return next(step for step in found.steps if step > last[-1])
    return found.steps[0]
