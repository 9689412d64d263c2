"""U524: weight decay shrinks weights faster than they can learn."""

from __future__ import annotations

from collections.abc import Iterator

from leadline.checks._check import Symptom, check
from leadline.checks._examples import stack_with_step_size
from leadline.checks._steps import decay_per_step
from leadline.ops.optimizers import decay_share
from leadline.records import Profile

# Calibrated by benchmarks/verdicts: share of a weight per step; usual recipes have 1e-6 to 1e-3.
MAX_DECAY_PER_STEP = 0.02


@check(
    code="U524",
    name="devouring-decay",
    since="0.1.0",
    explains=("U522", "U525"),
    sick=stack_with_step_size(decay=0.1),
    healthy=stack_with_step_size(decay=1e-4),
)
def devouring_decay(profile: Profile) -> Iterator[Symptom]:
    r"""Weight decay removes more than 2 % of every weight in every step.

    ## What it measures
    The largest share of a weight that decay alone removes per step, over the optimizer's groups: learning rate times
    weight decay. SGD adds decay to the gradient, so that its momentum $\mu$ sums it too, and the product is divided by
    $1 - \mu$. Decoupled decay (AdamW, Lion, Muon) is not summed. Fires above `MAX_DECAY_PER_STEP` = 0.02.

    ## Why it hurts
    Decay alone leaves $(1 - \eta\lambda)^t$ of a weight after $t$ steps, which learning must replace all the time. At
    2 % per step, weights settle at a size at which the signal vanishes with depth.

    ## When it is wrong
    Weights before a norm may have any size. For them decay only sets the effective learning rate.

    ## References
    Loshchilov and Hutter, "Decoupled weight decay regularization", 2019.
    """
    optimizer, decay = profile.optimizer, decay_per_step(profile)
    if decay > MAX_DECAY_PER_STEP and optimizer is not None:
        largest = max(optimizer.groups, key=lambda group: decay_share(optimizer, group)).weight_decay
        yield Symptom(
            severity="warning",
            where="the optimizer",
            message=f"weight decay removes {100 * decay:.3g} % of every weight in every step of "
            f"{optimizer.name}",
            action=f"Lower `weight_decay` from {largest:.3g} to at most {largest * MAX_DECAY_PER_STEP / decay:.2g}.",
            evidence={"decay_a_step": decay},
        )
