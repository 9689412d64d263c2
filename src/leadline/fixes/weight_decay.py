"""weight-decay: as much decay as training bears, and only where it acts on the function."""

from __future__ import annotations

from collections.abc import Iterator

from leadline.fixes._engine.fix import Patient, Plan, fix
from leadline.records import Edit

A_STEP = 1e-3  # of a weight a step: a twentieth of what U524 calls devouring (ours)


@fix(name="weight-decay", answers=("U524", "U507", "W60"), reach="recipe", since="0.2")
def weight_decay(patient: Patient) -> Iterator[Plan]:
    r"""Lowers a devouring weight decay, and takes norms, biases and gates out of it.

    ## What it does
    Where decay alone takes more than 2 % of every weight at a step (U524), it is lowered so that it takes a thousandth.
    Gains of norms, biases and scalar gates are moved to groups that are the same but for a decay of zero. Where the
    symmetry reading found parameters whose size the function does not feel, these are moved too.

    ## Why it works
    Decay is to hold weights back, not to outrun their gradient. On a gain or a bias it pulls the function towards zero,
    and on a weight in front of a norm it only sets that weight's learning rate.

    ## What it costs
    Less regularisation. Spared parameters may grow.

    ## When it does not help
    If the decay of scale-invariant weights is how you steer their effective rate, keep it there (W602 is a note).

    ## References
    Loshchilov and Hutter, arXiv 1711.05101; van Laarhoven, arXiv 1706.05350 (decay and norms);
    `docs/explanation/symmetry.md`.
    """
    optimizer = patient.profile.optimizer
    if optimizer is None or not any(group.weight_decay for group in optimizer.groups):
        return
    most = max(group.weight_decay for group in optimizer.groups)
    spared = tuple(_spared(patient))
    if patient.findings(("U524", "U507")):
        rate = max(group.lr or 0.0 for group in optimizer.groups)
        lowered = float(f"{min(most, A_STEP / rate):.2g}") if rate else most
        yield _plan(f"weight decay {most:.3g} lowered to {lowered:.3g}", lowered, (), 0.9)
        most = lowered
    if spared:
        yield _plan(f"no weight decay on {len(spared)} gains, biases and gates", most, spared, 0.3)


def _plan(title: str, most: float, spared: tuple[str, ...], promise: float) -> Plan:
    edit = Edit(action="decay", options={"most": most, "spared": spared})
    return Plan(title=title, edits=(edit,), promise=promise)


def _spared(patient: Patient) -> Iterator[str]:
    decayed = {
        name
        for group in (patient.profile.optimizer.groups if patient.profile.optimizer else ())
        for name in group.parameters
        if group.weight_decay
    }
    for each in patient.trace.parameters:
        if each.name in decayed and (each.kind in ("norm", "bias", "scalar") or len(each.shape) < 2):
            yield each.name
