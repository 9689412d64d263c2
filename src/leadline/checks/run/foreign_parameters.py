"""T827: an optimizer holds other tensors than those that are trained."""

from __future__ import annotations

from collections.abc import Iterator

from leadline.checks._check import Symptom, check
from leadline.checks._examples import constant, scalar_history
from leadline.checks._history import History
from leadline.checks._loop import since, value


@check(
    code="T827",
    name="foreign-parameters",
    since="0.1.0",
    needs=("foreign_parameters",),
    sick=scalar_history(40, foreign_parameters=constant(4.0), orphan_parameters=constant(4.0)),
    healthy=scalar_history(40, foreign_parameters=constant(0.0), orphan_parameters=constant(0.0)),
    explains=("T802", "T811", "T812"),
)
def foreign_parameters(history: History) -> Iterator[Symptom]:
    r"""An optimizer holds tensors that no longer belong to the model, and misses those that replaced them.

    ## What it measures
    Tensors of the stepping optimizers that require a gradient, get none and belong to no module that is called; and
    trainable tensors of the called modules that get a gradient and are in no optimizer. Both must exist. Looked at
    after steps 2, 4, 8, 16 and so on.

    ## Why it hurts
    The optimizer was made before the model, or a part of it, was replaced, wrapped or copied. Its steps change tensors
    that nobody uses.

    ## When it is wrong
    Parameters that are trained without being in the optimizer on purpose, or heads that get no gradient, are silent:
    one of the two sides is missing.

    ## References
    PyTorch documentation of `torch.optim`, constructing it.
    """
    foreign, orphans = value(history, "foreign_parameters"), value(history, "orphan_parameters")
    if not foreign:
        return
    yield Symptom(
        severity="error",
        where="the optimizer",
        since=since(history, "foreign_parameters"),
        message=f"the optimizer holds {foreign:.0f} tensors that are not in the model that is called, while "
        f"{orphans:.0f} tensors of that model get a gradient and are in no optimizer",
        action="Make the optimizer after the model is complete, moved and wrapped.",
        forecast="these tensors do not learn",
        evidence={"foreign": foreign, "orphans": orphans},
    )
