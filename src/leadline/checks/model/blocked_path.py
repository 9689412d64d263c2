"""B203: trainable weights on the way to the loss that get no gradient."""

from __future__ import annotations

from collections.abc import Iterator

from leadline.checks._check import Symptom, check
from leadline.checks._examples import stack_with, weight
from leadline.records import Facts, Profile

MOST = 0.5  # of the trainable weight layers; ours: with more than half cut off, most of the network is a fixed function


@check(
    code="B203",
    name="blocked-path",
    since="0.1.0",
    explains=("B206",),
    sick=stack_with(Facts(weights=(weight(0, grad_ms=None), weight(1, grad_ms=None), weight(2)))),
    healthy=stack_with(Facts(weights=(weight(0), weight(1, grad_ms=0.0), weight(2)))),
)
def blocked_path(profile: Profile) -> Iterator[Symptom]:
    r"""Trainable weights lie on the way from input to loss, and the graph is cut behind them.

    ## What it measures
    Weight layers that take part in computing the loss, whose matrix is trainable, and for which autograd has no
    gradient at all (not a gradient of zero). Fires if there are any; an error if they are more than `MOST` = half.

    ## Why it hurts
    A `detach()`, a `no_grad` block, a trip through NumPy or an argmax cuts the graph. What lies before the cut never
    learns, though the optimiser holds it and weight decay shrinks it.

    ## When it is wrong
    A target network or a feature extractor that is meant not to learn: set `requires_grad = False` on its parameters
    and this is silent. Branches that start at zero (ReZero, LoRA) have gradients of zero, which do not fire.

    ## References
    PyTorch documentation, "Autograd mechanics", section on locally disabling gradients.
    """
    if profile.facts is None or not profile.backward_ran:
        return
    trained = [each for each in profile.facts.weights if each.trainable and each.block >= 0]
    cut = [each for each in trained if each.grad_ms is None and not each.grad_unseen]
    if not cut:
        return
    yield Symptom(
        severity="error" if len(cut) > MOST * len(trained) else "warning",
        where=cut[0].name if len(cut) == 1 else f"{cut[0].name} … {cut[-1].name}",
        message=f"{len(cut)} of {len(trained)} trainable weight layers get no gradient although the loss is computed "
        "from them: the graph is cut behind them (detach, no_grad, argmax, NumPy)",
        evidence={"cut": float(len(cut)), "trainable": float(len(trained))},
        layers=(min(each.block for each in cut), max(each.block for each in cut)),
    )
