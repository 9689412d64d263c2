"""B208: only norms and biases are trained."""

from __future__ import annotations

from collections.abc import Iterator

from leadline.checks._check import Symptom, check
from leadline.checks._examples import stack_with, weight
from leadline.records import ModelFacts, Profile


@check(
    code="B208",
    name="frozen-matrices",
    since="0.1.0",
    sick=stack_with(ModelFacts(weights=tuple(weight(i, trainable=False, grad_ms=None) for i in range(4)))),
    healthy=stack_with(ModelFacts(weights=(*(weight(i, trainable=False) for i in range(3)), weight(3)))),
)
def frozen_matrices(profile: Profile) -> Iterator[Symptom]:
    r"""No weight matrix of the network is trainable, not even that of the head.

    ## What it measures
    Whether all weight layers on the depth axis have `requires_grad = False` while other parameters (norms, biases) are
    trained. A trainable matrix beside the axis, such as the factors of a LoRA, refutes it, and so does a rehearsal that
    falls below the loss of every constant output.

    It is a note if the matrices were trained before.

    ## Why it hurts
    Norms and biases alone can shift and stretch what random matrices make of the input, and little more.

    ## When it is wrong
    Fine-tuning only the norms or biases of a *trained* model is a known method that works.

    ## References
    Frankle et al., "Training BatchNorm and only BatchNorm", 2021 (how far random features carry); Ben Zaken et al.,
    "BitFit", 2022.
    """
    weights = [each for each in (profile.facts.weights if profile.facts else ()) if each.block >= 0]
    if _is_refuted(profile):
        return
    if weights and profile.backward_ran and not any(each.trainable for each in weights):
        yield Symptom(
            severity="info" if profile.is_pretrained else "warning",
            where=f"{weights[0].name} … {weights[-1].name}",
            message=f"none of the {len(weights)} weight matrices is trainable, not even that of the head: only "
            f"{profile.trainable} other parameters learn",
            action=f"Set `requires_grad = True` at least on `{weights[-1].name}`.",
            evidence={"matrices": float(len(weights)), "trainable_parameters": float(profile.trainable)},
        )


def _is_refuted(profile: Profile) -> bool:
    """Whether some matrix learns after all, or the network does."""
    rows = profile.ledger.rows if profile.ledger else ()
    if any(row.trainable and row.reached and row.kind not in ("bias", "norm", "scalar") for row in rows):
        return True
    return profile.rehearsal is not None and profile.rehearsal.shows_learning
