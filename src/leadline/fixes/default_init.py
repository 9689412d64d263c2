"""The fix default-init: the initial weights that torch would have drawn."""

from __future__ import annotations

from collections.abc import Iterator

from leadline.fixes._engine.fix import FixContext, Plan, fix
from leadline.fixes._engine.lookup import is_fresh
from leadline.records import Edit


@fix(
    name="default-init",
    answers=("U53", "U509", "U522", "U525", "F10", "B20", "I30", "N70"),
    reach="init",
    since="0.2.0",
)
def default_init(context: FixContext) -> Iterator[Plan]:
    r"""Initializes every layer as PyTorch does by default, instead of with its present initial values.

    ## What it does
    Calls `reset_parameters` of every layer that has it, after `torch.manual_seed(0)`. Parameters that belong to no such
    layer keep their values.

    ## Why it works
    Initial values that are too large, too small, constant or zero often come from a line that was meant to help. The
    defaults of torch are not the best for great depth, but hardly ever so bad that a network of usual depth does not
    learn. The check `behind-reference` (U530) has trained the network from these values before it is proposed.

    ## What it costs
    What the weights had learned. It is proposed only before the first step of training.

    ## When it does not help
    If the network is deep: the defaults shrink a ReLU signal to a sixth of its power per layer (see critical-init). Or
    if the cause is not in the weights.

    ## References
    PyTorch, `torch.nn.Linear`: "the values are initialized from"; He et al., arXiv 1502.01852, for depth.
    """
    if is_fresh(context):
        is_proved = any("reset_reached" in each.evidence for each in context.findings(("U530",)))
        edit = Edit(action="reset", options={"seed": 0})
        yield Plan(
            title="all layers initialized as torch does by default",
            edits=(edit,),
            promise=1.0 if is_proved else 0.35,
        )
