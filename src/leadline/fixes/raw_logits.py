"""raw-logits: a loss that expects logits gets them."""

from __future__ import annotations

from collections.abc import Iterator

from leadline.fixes._engine.fix import Patient, Plan, fix
from leadline.fixes._engine.lookup import edit_of_activation, owns_op
from leadline.records import Op


@fix(name="raw-logits", answers=("I309",), reach="architecture", since="0.2")
def raw_logits(patient: Patient) -> Iterator[Plan]:
    r"""Takes the softmax, sigmoid or ReLU out from between the last layer and the loss.

    ## What it does
    If the squashing function is a module, that module becomes `nn.Identity`. If it is a call in some module's code,
    that call returns its input there, and only there.

    ## Why it works
    `cross_entropy` takes a softmax itself. Of probabilities it takes a second one: logits between 0 and 1 cannot make
    a loss below $\ln(1 + (C-1)/e)$, and gradients shrink by the first softmax's slope.

    ## What it costs
    The model's output is logits from now on: take the softmax where you use it.

    ## When it does not help
    If the loss is meant for probabilities (`nll_loss` of `log_softmax`), I309 does not fire.

    ## References
    PyTorch, `torch.nn.CrossEntropyLoss`: "expected to contain the unnormalized logits".
    """
    head = patient.profile.facts.head if patient.profile.facts else None
    op = _squash(patient, head.behind) if head is not None and head.behind else None
    if op is None:
        return
    edit = edit_of_activation(op.module, op.name, "identity", own=owns_op(patient, op))
    yield Plan(title=f"no {op.name} in front of the loss", edits=(edit,), promise=1.0)


def _squash(patient: Patient, name: str) -> Op | None:
    """The last op of that name in the forward pass."""
    found = [op for op in patient.trace.ops if op.name == name and op.phase == "forward"]
    return found[-1] if found else None
