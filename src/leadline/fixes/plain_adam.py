"""The fix plain-adam: the optimizer that works for most networks, with the options that most use."""

from __future__ import annotations

from collections.abc import Iterator

from leadline.fixes._engine.fix import FixContext, Plan, fix
from leadline.fixes._engine.lookup import ADAM_RATES, learned_rates, unusual_options
from leadline.records import Edit, Optimizer


@fix(name="plain-adam", answers=("U50", "U52", "U53"), reach="recipe", since="0.2.0")
def plain_adam(context: FixContext) -> Iterator[Plan]:
    r"""Replaces the optimizer by Adam with its usual options and no weight decay.

    ## What it does
    The optimizer becomes `torch.optim.Adam` for the same parameters: $\beta = (0.9, 0.999)$, $\epsilon = 10^{-8}$, no
    weight decay. The rate is the one at which the check `behind-reference` (U530) saw the network learn, or 0.001 and
    0.01. The optimizer object stays the same one, so that a loop which holds it goes on.

    ## Why it works
    The length of an Adam step does not depend on the size of the gradient. One of two rates therefore suits networks
    whose gradients differ by many powers of ten, for which gradient descent needs a rate of its own.

    ## What it costs
    Two numbers per parameter. What was gained by a carefully chosen optimizer, momentum or weight decay.

    ## When it does not help
    If the cause is not in the optimizer. It is not proposed for several optimizers that step together, nor for an
    optimizer that has made steps: its state would be lost.

    ## References
    Kingma & Ba 2015, algorithm 1.
    """
    optimizer = context.profile.optimizer
    if optimizer is None or optimizer.steps or len(context.case.optimizers) != 1 or _is_plain(optimizer):
        return
    rates = dict.fromkeys((*learned_rates(context), *ADAM_RATES))
    for place, rate in enumerate(rates):
        title = f"Adam at a rate of {rate:g} instead of {optimizer.name}"
        edit = Edit(action="adam", options={"lr": rate})
        yield Plan(title=title, edits=(edit,), promise=0.8 - place / 10)


def _is_plain(optimizer: Optimizer) -> bool:
    """Whether it is an Adam with usual options already: then only its rate is in question."""
    is_adam = optimizer.name.lower() in ("adam", "adamw")
    return is_adam and not any(group.weight_decay or unusual_options(group) for group in optimizer.groups)
