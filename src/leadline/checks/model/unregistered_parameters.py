"""D915: trainable tensors that the model does not register."""

from __future__ import annotations

from collections.abc import Iterator

from leadline.checks._check import Symptom, check, in_op
from leadline.checks._wiring_examples import SITE, learner, ledger_with
from leadline.records import Profile, UnregisteredTensor


@check(
    code="D915",
    name="unregistered-parameters",
    since="0.1.0",
    explains=("D901",),  # batch norms that are not registered stay in training mode
    sick=ledger_with(learner(), unregistered=(UnregisteredTensor(shape=(64, 64), site=SITE),)),
    healthy=ledger_with(learner()),
)
def unregistered_parameters(profile: Profile) -> Iterator[Symptom]:
    r"""The pass uses trainable tensors that are not parameters of the model.

    ## What it measures
    Leaves of the graph that require a gradient and are neither parameters of the model nor part of the batch, nor held
    by the optimizer.

    ## Why it hurts
    Modules in a plain Python list or dict are invisible to `model.parameters()`, `state_dict()` and `.to(device)`. They
    stay at their random values, are not saved, and are not moved. `eval()` does not reach them either: their dropout
    goes on, and their batch norms mix the samples of an evaluation.

    ## When it is wrong
    A learnable part of the loss that its own optimizer holds is not reported if that optimizer is given, too.

    ## References
    PyTorch documentation, `torch.nn.ModuleList` and `torch.nn.ParameterList`.
    """
    leaves = [each for each in profile.ledger.unregistered if not each.in_optimizer] if profile.ledger else []
    if leaves:
        shapes = ", ".join(str(each.shape) for each in leaves[:3])
        yield Symptom(
            severity="error",
            where=leaves[0].site.module or "the model",
            message=f"{len(leaves)} trainable tensors (shapes {shapes}) are used but not registered, so no optimizer "
            f"over `model.parameters()` trains them{in_op(leaves[0].site)}",
            action="Put the layers into an `nn.ModuleList` (tensors: `nn.ParameterList`) instead of a Python list.",
            source=leaves[0].site.source,
            evidence={"tensors": float(len(leaves))},
        )
