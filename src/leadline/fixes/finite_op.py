"""The fix finite-op: what to write instead of an op that makes NaN or infinity. Advice only."""

from __future__ import annotations

from collections.abc import Iterator

from leadline.fixes._engine.fix import FixContext, Plan, fix


@fix(name="finite-op", answers=("N701",), reach="advice", since="0.1.0")
def finite_op(context: FixContext) -> Iterator[Plan]:
    r"""Names the op that makes the first NaN or infinity, with file and line, and what to write instead.

    ## What it does
    Nothing to the model: only its author can change the expression. Where an op is undefined for its input (the
    logarithm of 0, a division by 0, a row that is masked completely, a mean over no label), no other rate,
    initialization or architecture helps, and none is tried.

    ## Why it works
    Everything after the first NaN is a consequence of it.

    ## What it costs
    Nothing.

    ## When it does not help
    If the numbers grow until they exceed the range of their dtype, the growth is the cause. Then fixes of rate,
    initialization and residual scale are tried.

    ## References
    PyTorch, "Numerical accuracy"; `torch.xlogy`, `torch.nn.functional.log_softmax`.
    """
    for finding in context.findings(("N701",)):
        yield Plan(title=finding.action.rstrip("."), code=f"# {finding.action}")
