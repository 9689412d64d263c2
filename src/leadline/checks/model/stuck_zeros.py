"""D933: a layer of zeros that gets an input of zeros."""

from __future__ import annotations

from collections.abc import Iterator

from leadline.checks._check import Symptom, check, in_op
from leadline.checks._wiring_examples import SITE, learner, ledger_with
from leadline.records import FlatStep, Profile

# Heuristic: share of the trainable tensors; beyond half, most of the network is a fixed function.
MAX_STUCK_SHARE = 0.5


@check(
    code="D933",
    name="stuck-zeros",
    since="0.2.0",
    sick=ledger_with(
        learner(0, gradient="zero"),
        learner(1, gradient="zero"),
        flat=(FlatStep(site=SITE, tensors=2, cause="zeros", weight="layers.1.weight"),),
    ),
    healthy=ledger_with(learner(0), learner(1)),
)
def stuck_zeros(profile: Profile) -> Iterator[Symptom]:
    r"""A layer of zeros gets an input of zeros, so neither it nor what comes before it ever learns.

    ## What it measures
    Weight layers whose matrix is zero, whose input is zero for the whole batch, and whose output has a gradient that is
    not zero. It is an error if more than half of the trainable tensors are stuck.

    ## Why it hurts
    The gradient of $y = W x$ is $g x^\top$ for the matrix and $W^\top g$ for the input. If one of the two is zero, as
    in a branch that starts closed, the other still learns and opens it. If both are zero, both gradients are zero, at
    this step and at every later one.

    ## When it is wrong
    If the input is zero in this batch only, such as features that are missing in all of its samples.

    ## References
    Zhang, Dauphin and Ma, "Fixup initialization", 2019 (only the last layer of a branch is zero); Hu et al., "LoRA",
    2021 (only one of the two matrices is).
    """
    ledger = profile.ledger
    steps = [] if ledger is None else [each for each in ledger.flat if each.cause == "zeros"]
    trainable = 0 if ledger is None else sum(row.trainable for row in ledger.rows)
    for step in steps[:1]:
        yield Symptom(
            severity="error" if step.tensors > MAX_STUCK_SHARE * trainable else "warning",
            where=step.weight,
            message=f"{step.weight} is zero and so is its input: {step.tensors} trainable tensors have a gradient of "
            f"exactly zero and keep it{in_op(step.site)}",
            action="Start only one of the two layers at zero, and draw the other one at random.",
            source=step.site.source,
            evidence={"tensors": float(step.tensors), "layers": float(len(steps))},
        )
