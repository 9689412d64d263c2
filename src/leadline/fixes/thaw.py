"""thaw: train what was frozen by accident."""

from __future__ import annotations

from collections.abc import Iterator

from leadline.fixes._engine.fix import Patient, Plan, fix
from leadline.records import Edit


@fix(name="thaw", answers=("B208",), reach="recipe", since="0.2")
def thaw(patient: Patient) -> Iterator[Plan]:
    r"""Makes every frozen weight matrix trainable, and gives it to the optimiser.

    ## What it does
    Sets `requires_grad` on the parameters that the pass used and that are frozen, and appends them to the optimiser's
    first group.

    ## Why it works
    It is tried only where not one matrix is trainable, not even the head's: nobody means that.

    ## What it costs
    Memory for gradients and the optimiser's state of these parameters.

    ## When it does not help
    If the weights are trained elsewhere (another optimiser, a hypernetwork), there is nothing to repair.

    ## References
    None: `torch.Tensor.requires_grad_`.
    """
    frozen = tuple(each.name for each in patient.trace.parameters if each.used and not each.trainable)
    if frozen and patient.findings(("B208",)):
        edit = Edit(action="train", options={"names": frozen})
        yield Plan(title=f"{len(frozen)} frozen parameters made trainable", edits=(edit,), promise=0.9)
