"""swap-activation: an activation that passes gradients on."""

from __future__ import annotations

from collections.abc import Iterator

from leadline.fixes._engine.fix import Patient, Plan, fix
from leadline.fixes._engine.init_edits import fresh_edits
from leadline.fixes._engine.lookup import edit_of_activation, is_fresh, owns_op
from leadline.records import Op

DYING = ("relu",)
BETTER = {
    "sigmoid": "tanh",
    "hardsigmoid": "tanh",
    "softsign": "tanh",
    "hardtanh": "tanh",
    "logsigmoid": "elu",
}


@fix(
    name="swap-activation",
    answers=("F103", "F104", "B201", "B206", "F106"),
    reach="architecture",
    since="0.2",
)
def swap_activation(patient: Patient) -> Iterator[Plan]:
    r"""Replaces a saturating or dying activation, and draws the weights for the new one.

    ## What it does
    Sigmoids (and other squashing functions with small slopes) become tanh; ReLUs that are dead for the whole batch
    become GELU, tanh that saturates becomes GELU. Modules are replaced, shared ones everywhere; calls of functions
    are rerouted in the module whose code makes them, and only there. Gates (LSTM, GRU, squeeze-and-excitation,
    attention) are left alone: only activations between two weights of a plain stack are replaced. Weights are drawn
    at the new critical point.

    ## Why it works
    The squared slope of a sigmoid is at most 1/16 and on average 0.045: no weight variance that keeps its signal also
    keeps its gradient. tanh, ELU and GELU have critical points.

    ## What it costs
    Another function: trained weights mean nothing in it.

    ## When it does not help
    If units are dead because of a step that was too long, they will die again: lower the rate.

    ## References
    Glorot and Bengio 2010, section 3 (sigmoids at depth); Schoenholz et al. 2017, section 3.
    """
    if not is_fresh(patient):
        return
    for name, ops in _hidden_activations(patient).items():
        to = _replacement(patient, name)
        if to is None:
            continue
        places = dict.fromkeys((op.module, owns_op(patient, op)) for op in ops)
        swaps = [edit_of_activation(where, name, to, own=own) for where, own in places]
        fresh = fresh_edits(patient, activation=to)
        yield Plan(
            title=f"{len(ops)} {name} replaced by {to}, weights drawn for it",
            edits=(*swaps, *fresh),
            promise=0.7,
        )


def _hidden_activations(patient: Patient) -> dict[str, list[Op]]:
    """Activations that read a weight of the depth axis, by name."""
    facts = patient.profile.facts
    readers = {each.activation for each in facts.weights if each.activation} if facts else set()
    found: dict[str, list[Op]] = {}
    for op in patient.trace.ops:
        if op.kind == "activation" and op.phase == "forward" and op.name in readers:
            found.setdefault(op.name, []).append(op)
    return found


def _replacement(patient: Patient, name: str) -> str | None:
    if name in BETTER:
        return BETTER[name]
    if name in DYING and patient.findings(("F104",)):
        return "gelu"
    return "gelu" if name == "tanh" and patient.findings(("F103",)) else None
