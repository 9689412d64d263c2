"""The fix raw-logits: a loss that expects logits gets them."""

from __future__ import annotations

from collections.abc import Iterator

from leadline.fixes._engine.edit_builders import activation_edit
from leadline.fixes._engine.fix import FixContext, Plan, fix
from leadline.fixes._engine.lookup import is_own_module, last_op


@fix(name="raw-logits", answers=("I309",), reach="architecture", since="0.1.0")
def raw_logits(context: FixContext) -> Iterator[Plan]:
    r"""Removes the softmax, sigmoid or ReLU between the last layer and the loss.

    ## What it does
    If the squashing function is a module, that module becomes `nn.Identity`. If it is a call in the code of a module,
    that call returns its input, in this module only.

    ## Why it works
    `cross_entropy` applies a softmax itself. Applied to probabilities it is a second one: logits between 0 and 1 cannot
    reach a loss below $\ln(1 + (C-1)/e)$ for $C$ classes, and the slope of the first softmax shrinks the gradients.

    ## What it costs
    The output of the model becomes logits: apply the softmax where you use them.

    ## When it does not help
    If the loss expects probabilities (`nll_loss` of `log_softmax`); I309 does not fire there.

    ## References
    PyTorch, `torch.nn.CrossEntropyLoss`: "expected to contain the unnormalized logits".
    """
    head = context.profile.facts.head if context.profile.facts else None
    op = last_op(context, head.behind) if head is not None and head.behind else None
    if op is None:
        return
    edit = activation_edit(op.module, op.name, "identity", own_module=is_own_module(context, op))
    yield Plan(title=f"no {op.name} before the loss", edits=(edit,), promise=1.0)
