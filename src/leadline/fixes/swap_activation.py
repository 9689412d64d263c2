"""The fix swap-activation: an activation that passes gradients on."""

from __future__ import annotations

from collections.abc import Iterator

from leadline.fixes._engine.edit_builders import activation_edit
from leadline.fixes._engine.fix import FixContext, Plan, fix
from leadline.fixes._engine.init_edits import fresh_edits
from leadline.fixes._engine.lookup import feeding_op, is_fresh, is_own_module
from leadline.records import Op

REPLACEMENTS = {
    "sigmoid": "tanh",
    "hardsigmoid": "tanh",
    "softsign": "tanh",
    "hardtanh": "tanh",
    "logsigmoid": "elu",
    "exp": "gelu",
}


@fix(
    name="swap-activation",
    answers=("F103", "F104", "B201", "B206", "F106", "N70", "U53"),
    reach="architecture",
    since="0.1.0",
)
def swap_activation(context: FixContext) -> Iterator[Plan]:
    r"""Replaces a saturating or dying activation, and draws the weights for the new one.

    ## What it does
    Sigmoids (and other squashing functions with small slopes) become tanh. ReLUs that are dead for the whole batch,
    tanh that saturates and modules that compute an exponential of a weight layer's output become GELU. Modules are
    replaced, shared ones everywhere; calls of functions are rerouted in the module whose code makes them, and only
    there. Gates (LSTM, GRU, squeeze-and-excitation, attention) are left alone: only activations between two weights of
    a plain stack are replaced. Weights are drawn at the critical point of the new activation.

    ## Why it works
    The squared slope of a sigmoid is at most 1/16 and on average 0.045: no weight variance that preserves its signal
    also preserves its gradient. An exponential overflows as soon as its input reaches 89. tanh, ELU and GELU have
    critical points.

    ## What it costs
    The function changes: trained weights are useless in it.

    ## When it does not help
    If units are dead because of a step that was too long, they will die again: lower the learning rate.

    ## References
    Glorot and Bengio 2010, section 3 (sigmoids at depth); Schoenholz et al. 2017, section 3.
    """
    if not is_fresh(context):
        return
    for name, ops in _hidden_activations(context).items():
        replacement = _replacement(context, name)
        if replacement is None:
            continue
        places = dict.fromkeys((op.module, is_own_module(context, op)) for op in ops)
        swaps = [activation_edit(path, name, replacement, own_module=own) for path, own in places]
        fresh = fresh_edits(context, activation=replacement)
        yield Plan(
            title=f"{len(ops)} {name} replaced by {replacement}, weights drawn for it",
            edits=(*swaps, *fresh),
            promise=0.7,
        )


def _hidden_activations(context: FixContext) -> dict[str, list[Op]]:
    """Activations and exponentials that read a weight layer, by name."""
    facts = context.profile.facts
    names = {weight.activation for weight in facts.weights if weight.activation} if facts else set()
    ops: dict[str, list[Op]] = {}
    for op in context.trace.ops:
        is_activation = op.kind == "activation" and op.name in names
        if op.phase == "forward" and (is_activation or _is_exponential_unit(context, op)):
            ops.setdefault(op.name, []).append(op)
    return ops


def _is_exponential_unit(context: FixContext, op: Op) -> bool:
    """Whether a module of its own computes the exponential of what a weight layer returns."""
    source = feeding_op(context.trace, op) if op.name == "exp" and is_own_module(context, op) else None
    return source is not None and source.kind == "weight"


def _replacement(context: FixContext, name: str) -> str | None:
    if name in REPLACEMENTS:
        return REPLACEMENTS[name]
    is_dead = name == "relu" and context.findings(("F104",))
    is_saturated = name == "tanh" and context.findings(("F103",))
    return "gelu" if is_dead or is_saturated else None
