"""The fix weight-decay: less decay, and only on weights whose size matters."""

from __future__ import annotations

from collections.abc import Iterator

from leadline.fixes._engine.fix import FixContext, Plan, fix
from leadline.ops.optimizers import decay_share
from leadline.records import Edit

# Heuristic: share of a weight that decay removes per step; a twentieth of the limit of check U524.
TARGET_DECAY_PER_STEP = 1e-3

ANSWERS = ("U524", "U507", "U53", "W60")


@fix(name="weight-decay", answers=ANSWERS, reach="recipe", since="0.1.0")
def weight_decay(context: FixContext) -> Iterator[Plan]:
    r"""Lowers an excessive weight decay, and exempts norms, biases and gates from it.

    ## What it does
    Where decay alone removes more than 2 % of every weight per step (U524), it is lowered so that it removes one
    thousandth. Where it outweighs the gradient (W605), or the network does not learn (U530, U531), no decay at all is
    proposed too. Gains of norms, biases and scalar gates move to copies of their groups without decay.

    ## Why it works
    Decay should restrain weights, not outrun their gradient. On a gain or a bias it pulls the function toward zero;
    on a weight before a norm it only sets the effective learning rate of that weight.

    ## What it costs
    Less regularization. Exempt parameters may grow.

    ## When it does not help
    If you control the effective rate of scale-invariant weights by their decay, keep it there (W602 is a note).

    ## References
    Loshchilov and Hutter, arXiv 1711.05101; van Laarhoven, arXiv 1706.05350 (decay and norms);
    `docs/explanation/symmetry.md`.
    """
    optimizer = context.profile.optimizer
    if optimizer is None or not any(group.weight_decay for group in optimizer.groups):
        return
    decay = max(group.weight_decay for group in optimizer.groups)
    exempt = tuple(_exempt_names(context))
    if context.findings(("U524", "U507")):
        per_decay = max(
            decay_share(optimizer, group) / group.weight_decay
            for group in optimizer.groups
            if group.weight_decay
        )
        lowered = float(f"{min(decay, TARGET_DECAY_PER_STEP / per_decay):.2g}") if per_decay else decay
        yield _plan(f"weight decay {decay:.3g} lowered to {lowered:.3g}", lowered, (), 0.9)
        decay = lowered
    is_suspect = any(each.severity != "info" for each in context.findings(("U53", "W605")))
    if is_suspect or not context.findings(ANSWERS):
        yield _plan(f"no weight decay instead of {decay:.3g}", 0.0, (), 0.85 if is_suspect else 0.2)
    if exempt:
        yield _plan(f"no weight decay on {len(exempt)} gains, biases and gates", decay, exempt, 0.3)


def _plan(title: str, decay: float, exempt: tuple[str, ...], promise: float) -> Plan:
    edit = Edit(action="decay", options={"most": decay, "spared": exempt})
    return Plan(title=title, edits=(edit,), promise=promise)


def _exempt_names(context: FixContext) -> Iterator[str]:
    optimizer = context.profile.optimizer
    groups = optimizer.groups if optimizer else ()
    decayed = {name for group in groups if group.weight_decay for name in group.parameters}
    for each in context.trace.parameters:
        if each.name in decayed and (each.kind in ("norm", "bias", "scalar") or len(each.shape) < 2):
            yield each.name
