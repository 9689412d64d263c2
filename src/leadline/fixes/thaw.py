"""The fix thaw: train what was frozen by accident."""

from __future__ import annotations

from collections.abc import Iterator

from leadline.fixes._engine.fix import FixContext, Plan, fix
from leadline.records import Edit


@fix(name="thaw", answers=("B208", "D925", "U53"), reach="recipe", since="0.1.0")
def thaw(context: FixContext) -> Iterator[Plan]:
    r"""Makes every frozen parameter trainable, and gives it to the optimizer.

    ## What it does
    Sets `requires_grad` on the frozen parameters that the pass used, and appends them to the first group of the
    optimizer.

    ## Why it works
    Where no matrix is trainable, not even that of the head, or where what is frozen was never trained, that cannot be
    intended. Where the network only does not learn (U530, U531), what is frozen may be what it lacks.

    ## What it costs
    Memory for the gradients and the optimizer state of these parameters.

    ## When it does not help
    If the weights are trained elsewhere (another optimizer, a hypernetwork), there is nothing to repair. If pretrained
    weights should have been loaded, load them instead.

    ## References
    None: `torch.Tensor.requires_grad_`.
    """
    frozen = tuple(each.name for each in context.trace.parameters if each.used and not each.trainable)
    if frozen:
        promise = 0.9 if context.findings(("B208", "D925")) else 0.3
        edit = Edit(action="train", options={"names": frozen})
        yield Plan(title=f"{len(frozen)} frozen parameters made trainable", edits=(edit,), promise=promise)
