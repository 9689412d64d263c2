"""D920: an optimizer that holds no parameter of the model."""

from __future__ import annotations

from collections.abc import Iterator

from leadline.checks._check import Symptom, check
from leadline.checks._wiring_examples import learner, ledger_with
from leadline.records import Optimizer, Profile


@check(
    code="D920",
    name="foreign-optimizer",
    since="0.1.0",
    explains=("D914", "U508"),
    sick=ledger_with(
        *(learner(i, in_optimizer=0, moved=None) for i in range(2)), optimizers=("AdamW",), foreign=2
    ),
    healthy=ledger_with(learner(0), learner(1), optimizers=("AdamW",)),
)
def foreign_optimizer(profile: Profile) -> Iterator[Symptom]:
    r"""The optimizer was built on another model: none of its tensors is a parameter of this one.

    ## What it measures
    How many of the model's trainable tensors are in the optimizer, compared as objects. It fires if the answer is zero
    and no tensor of the optimizer takes part in the pass in another way.

    ## Why it hurts
    `loss.backward()` fills the gradients of this model, and `optimizer.step()` changes another one. The loss stays
    where it is. Typical causes: the model was copied, rebuilt, wrapped or moved by a call that makes new parameters
    (`copy.deepcopy`, `to_empty`, sharding) after the optimizer was built.

    ## When it is wrong
    If the optimizer keeps copies of the parameters on purpose and writes them back (master weights of a mixed-precision
    library). Pass the optimizer that your loop steps, with `optimizer.param_groups` that hold the model's parameters.

    ## References
    PyTorch documentation, `torch.optim` (constructing it).
    """
    ledger = profile.ledger
    if ledger is None or not ledger.optimizers:
        return
    if any(row.in_optimizer for row in ledger.rows):
        yield from _idle_members(profile.optimizer)
        return
    trainable = [row for row in ledger.rows if row.trainable]
    if not trainable or any(each.in_optimizer for each in ledger.unregistered):
        return
    names = " + ".join(ledger.optimizers)
    holds = f"{ledger.foreign} tensors of another model" if ledger.foreign else "no tensor at all"
    yield Symptom(
        severity="error",
        where=trainable[0].name,
        message=f"0 of {len(trainable)} trainable tensors are in the optimizer: {names} holds {holds}",
        action=f"Build it on the model that is trained, after the last change of the model: "
        f"`torch.optim.{ledger.optimizers[0]}(model.parameters(), ...)`.",
        evidence={"trainable": float(len(trainable)), "foreign": float(ledger.foreign)},
    )


def _idle_members(optimizer: Optimizer | None) -> Iterator[Symptom]:
    """A note about those of several optimizers that hold no parameter of the model: they may train something else."""
    groups = () if optimizer is None else optimizer.groups
    for member in sorted({group.member for group in groups}):
        own = [group for group in groups if group.member == member]
        held = [name for group in own for name in group.parameters]
        if held and all(name == "?" for name in held):
            name = own[0].optimizer or f"optimizer {member}"
            yield Symptom(
                severity="info",
                where=name,
                message=f"{name}, optimizer {member} of the list, holds {len(held)} tensors and none of this model",
                action="Leave it out of the list if it trains another model, or build it on this one.",
                evidence={"foreign": float(len(held))},
            )
