"""The fix usual-options: momentum, betas and eps as they are usually set."""

from __future__ import annotations

from collections.abc import Iterator

from leadline.fixes._engine.fix import FixContext, Plan, fix
from leadline.fixes._engine.lookup import unusual_options
from leadline.records import Edit


@fix(name="usual-options", answers=("U5",), reach="recipe", since="0.2.0")
def usual_options(context: FixContext) -> Iterator[Plan]:
    r"""Sets momentum, betas and eps of the optimizer to their usual values where they are far from them.

    ## What it does
    Momentum (or $\beta_1$) above 0.97 becomes 0.9, $\beta_2$ below 0.9 becomes 0.999, and eps above $10^{-6}$ becomes
    $10^{-8}$, in every group.

    ## Why it works
    Momentum $\mu$ averages $1/(1-\mu)$ gradients and makes steps as many times longer. At 0.999 the first thousand
    steps only wind it up, and then overshoot. An eps larger than the gradients makes Adam a gradient descent with a
    tiny rate: its steps are the gradient times $\eta/\epsilon$.

    ## What it costs
    Nothing, unless the value was chosen with care: very large batches use a larger $\beta_1$, and half precision a
    larger eps.

    ## When it does not help
    If the rate, the decay or the network itself is the cause.

    ## References
    Kingma & Ba 2015, algorithm 1; Sutskever et al., "On the importance of initialization and momentum", 2013.
    """
    optimizer = context.profile.optimizer
    changes: dict[str, float] = {}
    for group in optimizer.groups if optimizer is not None else ():
        changes |= unusual_options(group)
    if changes:
        named = ", ".join(f"{name} {value:g}" for name, value in changes.items())
        yield Plan(
            title=f"usual options: {named}",
            edits=(Edit(action="options", options=dict(changes)),),
            promise=0.95,
        )
