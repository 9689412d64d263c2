"""W603: a norm whose eps is as large as the variance of its input."""

from __future__ import annotations

import math
from collections.abc import Iterator

from leadline.checks._check import Symptom, check
from leadline.checks._examples import stack_with_decay
from leadline.checks._ranges import first_names
from leadline.records import EpsSite, Profile
from leadline.text import layer_label

# Derived: eps over variance at which the output of a norm loses 5 % of its size, as sqrt(1 / 1.1).
MIN_EPS_SHARE = 0.1
# Derived: eps equals the variance. The output is 71 % of its size and follows the scale of the input.
MIN_WARNING_SHARE = 1.0


@check(
    code="W603",
    name="eps-limited-norm",
    since="0.1.0",
    refuted_by="learning",
    explains=("U525",),
    sick=stack_with_decay(eps=[EpsSite(where="norm", eps=1e-5, against=1e-6)]),
    healthy=stack_with_decay(eps=[EpsSite(where="norm", eps=1e-5, against=1.0)]),
)
def eps_limited_norm(profile: Profile) -> Iterator[Symptom]:
    r"""The input of a norm is as small as its eps, so the norm no longer normalizes.

    ## What it measures
    For each norm before which the scale is free, eps over the variance $\sigma^2$ of its input, to which it is added.
    The output has $(1 + \varepsilon/\sigma^2)^{-1/2}$ of the size it should have. It is a note from `MIN_EPS_SHARE` =
    0.1 on and a warning from `MIN_WARNING_SHARE` = 1 on.

    ## Why it hurts
    Nothing keeps up the scale before such a norm, and decay pulls it down. Once eps dominates, the output shrinks with
    the input, gradients through the norm stop growing as $1/\sigma$, and the network computes another function than
    intended. Rescaling weights to smaller norms is limited by this, too.

    ## When it is wrong
    The variance is that of the whole tensor; single rows may be smaller. A signal that is exactly zero (a branch that
    starts closed) is not reported.

    ## References
    Ioffe and Szegedy, "Batch normalization", 2015 (the eps); the error $\varepsilon / 2 a^2 \sigma^2$
    after shrinking by $a$ follows from the formula above and is measured in `tests/readings/symmetry/test_claims.py`.
    """
    sites = () if profile.symmetry is None else profile.symmetry.eps
    affected = [
        (site.share, site)
        for site in sites
        if site.share is not None and MIN_EPS_SHARE <= site.share < math.inf
    ]
    if not affected:
        return
    share, worst = max(affected, key=lambda pair: pair[0])
    size = (1 + share) ** -0.5
    yield Symptom(
        severity="warning" if share >= MIN_WARNING_SHARE else "info",
        where=first_names([site.where for _, site in affected]),
        message=f"the eps of {layer_label(worst.where)} ({worst.eps:g}) is {share:.3g} times the variance of its "
        f"input: its output has {100 * size:.0f} % of the size it should have",
        action=f"Lower `eps` of {layer_label(worst.where)} to {_smaller_eps(worst):.0e}, or increase the weights "
        "before it.",
        evidence={"share": share, "eps": worst.eps, "norms": float(len(affected))},
    )


def _smaller_eps(site: EpsSite) -> float:
    """The largest power of ten below MIN_EPS_SHARE of the variance, at which the check no longer fires."""
    limit = MIN_EPS_SHARE * (site.against or site.eps)
    power = float(10 ** math.floor(math.log10(limit)))
    return power if power < 0.99 * limit else power / 10
