"""D914: parameters with a gradient that no optimizer holds."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from leadline.checks._check import Symptom, check
from leadline.checks._ranges import first_names
from leadline.checks._wiring_examples import learner, ledger_with
from leadline.records import LedgerRow, NetworkParts, Profile


@check(
    code="D914",
    name="forgotten-parameters",
    since="0.1.0",
    sick=ledger_with(learner(0), learner(1, in_optimizer=0, moved=None), optimizers=("AdamW",)),
    healthy=ledger_with(learner(0), learner(1), optimizers=("AdamW",)),
)
def forgotten_parameters(profile: Profile) -> Iterator[Symptom]:
    r"""Parameters get a gradient, but no optimizer holds them.

    ## What it measures
    For each trainable tensor that gets a gradient, how often it is among the optimizer's parameters.

    ## Why it hurts
    The gradient is computed and thrown away. The optimizer was built before a layer was added or replaced, from one
    part of the model only, or from another copy of it.

    ## When it is wrong
    Training only the last layers of a pretrained network is a method: tensors before everything that is trained, which
    feed something that is trained, are a note if they hold at least half of the matrices, or show that they were
    trained. It is a warning if no matrix of the network shows that: a head on random features is no such method. A
    first layer with the values of an initializer is none either, and neither are tensors that an optimizer misses while
    it holds frozen ones: it was built before an adapter was added. Two networks with an optimizer each (a GAN) are
    checked with both optimizers in a list.

    ## References
    PyTorch documentation, `torch.optim` (constructing an optimizer after moving or changing the model).
    """
    ledger = profile.ledger
    if ledger is None or not ledger.optimizers:
        return
    missing = [
        row for row in ledger.rows if row.trainable and row.gradient == "finite" and row.in_optimizer == 0
    ]
    if missing:
        yield _missing(missing, ledger.rows, profile.parts or NetworkParts())


def _missing(missing: Sequence[LedgerRow], rows: Sequence[LedgerRow], parts: NetworkParts) -> Symptom:
    order = {row.name: index for index, row in enumerate(rows)}
    held = [row for row in rows if row.in_optimizer and row.trainable and row.gradient == "finite"]
    is_front = bool(held) and all(row.is_front and order[row.name] < order[held[0].name] for row in missing)
    is_most = len(_matrices(missing)) >= len(_matrices(held))
    holds_frozen = any(row.in_optimizer and not row.trainable for row in rows)
    shows_training = any(row.name in parts.trained_names for row in missing)
    is_random = parts.trained == 0 and not parts.trained_names
    is_frozen_front = is_front and not holds_frozen and not is_random and (is_most or shows_training)
    share = sum(row.count for row in missing) / max(sum(row.count for row in rows if row.trainable), 1)
    return Symptom(
        severity="info" if is_frozen_front else "error" if not held else "warning",
        where=missing[0].name,
        message=f"{len(missing)} tensors ({100 * share:.0f} % of the trainable parameters) get a gradient, but no "
        f"optimizer holds them: {first_names([row.name for row in missing])}",
        action="Freeze them with `requires_grad_(False)` if they should not learn."
        if is_frozen_front
        else "Build the optimizer from `model.parameters()` after the model is complete.",
        evidence={"tensors": float(len(missing)), "share": share},
    )


def _matrices(rows: Sequence[LedgerRow]) -> list[LedgerRow]:
    return [row for row in rows if row.kind not in ("bias", "norm", "scalar")]
