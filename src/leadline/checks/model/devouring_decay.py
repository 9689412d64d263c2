"""U524: weight decay that shrinks weights faster than they can learn."""

from __future__ import annotations

from collections.abc import Iterator

from leadline.checks._check import Symptom, check
from leadline.checks._examples import stack_with_step_size
from leadline.checks._steps import decay_per_step
from leadline.records import Profile

MOST = 0.02  # of a weight a step; calibrated by benchmarks/verdicts; usual recipes have 1e-6 to 1e-3


@check(
    code="U524",
    name="devouring-decay",
    since="0.1.0",
    sick=stack_with_step_size(decay=0.1),
    healthy=stack_with_step_size(decay=1e-4),
)
def devouring_decay(profile: Profile) -> Iterator[Symptom]:
    r"""Weight decay takes more than a fiftieth of every weight at every step.

    ## What it measures
    The largest product of rate and weight decay over the optimiser's groups, divided by $1 - \mu$ for momentum $\mu$.
    Fires above `MOST` = 0.02.

    ## Why it hurts
    Decay alone leaves $(1 - \eta\lambda)^t$ of a weight after $t$ steps. What learning puts in must replace that all
    the time; at a fiftieth a step weights settle where the signal dies out with depth.

    ## When it is wrong
    Weights in front of a norm may be of any size: for them decay only sets the effective rate.

    ## References
    Loshchilov and Hutter, "Decoupled weight decay regularization", 2019.
    """
    decay = decay_per_step(profile)
    if decay > MOST and profile.optimizer is not None:
        yield Symptom(
            severity="warning",
            where="the optimiser",
            message=f"weight decay takes {100 * decay:.3g} % of every weight at every step of {profile.optimizer.name}",
            evidence={"decay_a_step": decay},
        )
