"""The fix complete-optimizer: give the optimizer what it misses."""

from __future__ import annotations

from collections.abc import Iterator

from leadline.fixes._engine.fix import FixContext, Plan, fix
from leadline.records import Edit


@fix(name="complete-optimizer", answers=("D914", "D920", "U53"), reach="recipe", since="0.1.0")
def complete_optimizer(context: FixContext) -> Iterator[Plan]:
    r"""Gives the optimizer every parameter that has a gradient and that no optimizer holds.

    ## What it does
    Appends these parameters to the first group of the optimizer; with several optimizers, of the one that already
    trains tensors with as many dimensions.

    ## Why it works
    A gradient changes nothing unless an optimizer reads it.

    ## What it costs
    Memory for the optimizer state of these parameters.

    ## When it does not help
    If the parameters are trained elsewhere, by another loop or another optimizer that was not passed.

    ## References
    PyTorch, `torch.optim`: "constructing it".
    """
    ledger = context.profile.ledger
    rows = () if ledger is None else ledger.rows
    missing = tuple(
        row.name for row in rows if row.trainable and row.gradient == "finite" and row.in_optimizer == 0
    )
    if missing:
        edit = Edit(action="train", options={"names": missing})
        title = f"{len(missing)} parameters with a gradient given to the optimizer"
        yield Plan(title=title, edits=(edit,), promise=1.0)
