"""U525: a step that goes uphill, or nowhere."""

from __future__ import annotations

from collections.abc import Iterator

from leadline.records import Profile
from leadline.rules.pace import paced
from leadline.rules.rule import Symptom, rule


@rule(
    code="U525",
    name="idle-step",
    since="0.1",
    sick=paced(promised=-0.5),
    healthy=paced(promised=0.5),
)
def idle_step(profile: Profile) -> Iterator[Symptom]:
    r"""The optimiser's step does not even promise to lower the loss.

    ## What it measures
    The linear prediction $\langle g, \Delta\theta \rangle$ of what one real step does to the loss, and the gradient's
    length. An error if the gradient is zero everywhere, a warning if the step goes uphill by more than rounding, and a
    note if the rate is zero (a warm-up begins so).

    ## Why it hurts
    A loss whose gradient is zero does not depend on what the network does. A step uphill comes of a sign that is
    turned round (`maximize=True`, a negative loss) or of weight decay that outweighs the gradient.

    ## When it is wrong
    With momentum from earlier steps a single step may lead uphill and the run as a whole down.

    ## References
    Derived: a small step $\Delta\theta$ changes the loss by $\langle g, \Delta\theta \rangle$.
    """
    update = profile.update
    if update is None or (not profile.trainable and profile.parameters):
        return
    evidence = {"predicted_loss_change": update.predicted_loss_change, "grad_square": update.grad_square}
    if update.grad_square == 0:
        message = (
            "the gradient of the loss is zero for every parameter: the loss does not depend on the network"
        )
        yield Symptom(severity="error", where="the loss", message=message, evidence=evidence)
    elif not update.lr and update.lr is not None:
        message = "the rate is zero: nothing moves, unless a schedule raises it"
        yield Symptom(severity="info", where="the optimiser", message=message, evidence=evidence)
    elif update.predicted_loss_change > update.loss_resolution:
        message = (
            f"one step of {update.optimizer} leads uphill: it promises to raise the loss by "
            f"{update.predicted_loss_change:.3g}"
        )
        yield Symptom(severity="warning", where="the optimiser", message=message, evidence=evidence)
