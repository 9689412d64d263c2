"""T829: one of several optimizers never steps."""

from __future__ import annotations

from collections.abc import Iterator

from leadline.checks._check import Symptom, check
from leadline.checks._examples import constant, scalar_history
from leadline.checks._history import History
from leadline.checks._loop import since, value


@check(
    code="T829",
    name="idle-optimizer",
    since="0.1.0",
    needs=("idle_optimizers",),
    sick=scalar_history(80, idle_optimizers=lambda step: float(step >= 64)),
    healthy=scalar_history(80, idle_optimizers=constant(0.0)),
    explains=("T811",),
)
def idle_optimizer(history: History) -> Iterator[Symptom]:
    r"""One of several optimizers never steps, although its parameters get gradients.

    ## What it measures
    After 64 steps of the others, and each time their number has doubled: optimizers that were given to the watch, have
    not stepped once, and whose parameters have a gradient.

    ## Why it hurts
    Its parameters keep their initial values, and their gradients add up unused.

    ## When it is wrong
    A phase in which one part is trained alone although the other one gets gradients too. A part that gets none, such as
    a generator while its critic is trained on detached samples, is silent.

    ## References
    Derived.
    """
    count = value(history, "idle_optimizers")
    if not count:
        return
    yield Symptom(
        severity="warning",
        where="the optimizer",
        since=since(history, "idle_optimizers"),
        message=f"{count:.0f} of the optimizers has never stepped although its parameters get gradients",
        action="Call `step()` of every optimizer, or freeze its parameters with `requires_grad_(False)`.",
        forecast="its parameters do not learn",
        evidence={"optimizers": count},
    )
