"""B207: a recurrence whose gradient shrinks or grows at every time step."""

from __future__ import annotations

import math
from collections.abc import Iterator

from leadline.checks._check import Symptom, check
from leadline.checks._examples import stack_with
from leadline.readings.limits import MAX_EFOLDS_ADAM, MAX_EFOLDS_SGD
from leadline.records import ModelFacts, Profile, Recurrence


def _example(variance: float) -> Profile:
    recurrence = Recurrence(block=0, module="rnn", op="rnn_tanh", steps=64, variance=variance, slope_ms=0.8)
    return stack_with(ModelFacts(recurrences=(recurrence,)))


@check(
    code="B207",
    name="recurrent-gradient-off",
    since="0.1.0",
    refuted_by="learning",
    explains=("U525",),
    sick=_example(0.3),
    healthy=_example(1.2),
)
def recurrent_gradient_off(profile: Profile) -> Iterator[Symptom]:
    r"""The gradient of a recurrent layer shrinks or grows geometrically through time.

    ## What it measures
    For a simple recurrence that runs in one call, $\chi = \sigma_w^2\, E[\phi'^2]$ per time step, with $\sigma_w^2 =
    n\,E[W^2]$ of the state-to-state matrix and the slope at the measured states. Fires if $T |\ln \chi|$ exceeds
    `MAX_EFOLDS_SGD` = 7 over the $T$ steps of the batch. It is a warning for a growth beyond `MAX_EFOLDS_ADAM` = 14 and
    a note otherwise.

    ## Why it hurts
    The same matrix acts at every step: inputs from $T$ steps ago have $e^{T \ln \chi}$ times the influence of recent
    ones.

    ## When it is wrong
    If the answer depends only on the last few steps, decay costs nothing. The growth holds for small states: a tanh
    that saturates limits it, which the measured slope includes on average. Gated cells (LSTM, GRU) are not judged.

    ## References
    Pascanu et al., "On the difficulty of training recurrent neural networks", 2013, section 2.
    """
    for recurrence in profile.facts.recurrences if profile.facts else ():
        if not recurrence.slope_ms:
            continue
        chi = recurrence.variance * recurrence.slope_ms
        change = recurrence.steps * math.log(chi)
        if abs(change) <= MAX_EFOLDS_SGD:
            continue
        verb = "shrinks" if change < 0 else "grows"
        yield Symptom(
            severity="warning" if change > MAX_EFOLDS_ADAM else "info",
            where=recurrence.module or recurrence.op,
            message=f"the squared gradient {verb} by a factor of {chi:.3g} per time step: {change:+.1f} e-folds over "
            f"{recurrence.steps} steps (weights {recurrence.variance:.3g}, slope {recurrence.slope_ms:.3g})",
            action=f"Initialize the state-to-state weight with `nn.init.orthogonal_(rnn.weight_hh_l0, "
            f"gain={recurrence.slope_ms**-0.5:.2g})`, or use `nn.LSTM` or `nn.GRU`.",
            evidence={"chi": chi, "steps": float(recurrence.steps), "e_folds": change},
            layers=(recurrence.block, recurrence.block) if recurrence.block >= 0 else None,
        )
