"""B207: a recurrence that multiplies the gradient at every time step."""

from __future__ import annotations

import math
from collections.abc import Iterator

from leadline.checks._check import Symptom, check
from leadline.checks._examples import stack_with
from leadline.readings.limits import MAX_EFOLDS_ADAM, MAX_EFOLDS_SGD
from leadline.records import Facts, Profile, Recurrence


def _example(variance: float) -> Profile:
    seen = Recurrence(block=0, module="rnn", op="rnn_tanh", steps=64, variance=variance, slope_ms=0.8)
    return stack_with(Facts(recurrences=(seen,)))


@check(
    code="B207",
    name="recurrent-gradient-off",
    since="0.1.0",
    refuted_by="learning",
    sick=_example(0.3),
    healthy=_example(1.2),
)
def recurrent_gradient_off(profile: Profile) -> Iterator[Symptom]:
    r"""Through time, the gradient of a recurrent layer shrinks or grows geometrically.

    ## What it measures
    For a simple recurrence that runs in one call, $\chi = \sigma_w^2\, E[\phi'^2]$ a step: $\sigma_w^2 = n\,E[W^2]$ of
    the state-to-state matrix, and the slope at the states that were measured. Fires if $T |\ln \chi|$ exceeds
    `MAX_EFOLDS_SGD` = 7 over the $T$ steps of the batch; a warning if it grows beyond `MAX_EFOLDS_ADAM` = 14, a
    note otherwise.

    ## Why it hurts
    The same matrix acts at every step: what is far in the past has $e^{T \ln \chi}$ of the influence of what is near,
    or drowns it.

    ## When it is wrong
    If the answer only depends on the last few steps, decay costs nothing. Growth is a bound at small states: a tanh
    that saturates limits it, which the measured slope includes on average. Gated cells (LSTM, GRU) are not judged.

    ## References
    Pascanu et al., "On the difficulty of training recurrent neural networks", 2013, section 2.
    """
    for seen in profile.facts.recurrences if profile.facts else ():
        if not seen.slope_ms:
            continue
        chi = seen.variance * seen.slope_ms
        change = seen.steps * math.log(chi)
        if abs(change) <= MAX_EFOLDS_SGD:
            continue
        verb = "shrinks" if change < 0 else "grows"
        yield Symptom(
            severity="warning" if change > MAX_EFOLDS_ADAM else "info",
            where=seen.module or seen.op,
            message=f"through {seen.steps} time steps the squared gradient {verb} by {chi:.3g} a step "
            f"(weights {seen.variance:.3g}, slope {seen.slope_ms:.3g}): {change:+.1f} e-folds",
            evidence={"chi": chi, "steps": float(seen.steps), "e_folds": change},
            layers=(seen.block, seen.block) if seen.block >= 0 else None,
        )
