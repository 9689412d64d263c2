"""W603: a norm whose eps is as large as the signal in front of it."""

from __future__ import annotations

import math
from collections.abc import Iterator

from leadline.checks._check import Symptom, check
from leadline.checks._examples import stack_with_decay
from leadline.checks._ranges import first_names
from leadline.records import EpsSite, Profile, Severity

FELT = 0.1  # derived: eps / variance at which a norm's output loses 5 % of its size, as sqrt(1 / 1.1)
BITES = (
    1.0  # derived: eps equals the variance: the output is down to 71 %, and follows the scale of the input
)


@check(
    code="W603",
    name="eps-limited-norm",
    since="0.1.0",
    refuted_by="learning",
    sick=stack_with_decay(eps=[EpsSite(where="norm", eps=1e-5, against=1e-6)]),
    healthy=stack_with_decay(eps=[EpsSite(where="norm", eps=1e-5, against=1.0)]),
)
def eps_limited_norm(profile: Profile) -> Iterator[Symptom]:
    r"""A norm sees a signal as small as its eps, so it no longer normalises.

    ## What it measures
    For each norm in front of which the scale is free, eps over what it is added to (the variance of its input,
    $\sigma^2$). The output's size is $(1 + \varepsilon/\sigma^2)^{-1/2}$ of what it should be. Info from `FELT` = 0.1,
    a warning from `BITES` = 1.

    ## Why it hurts
    Nothing holds the scale in front of such a norm up, and decay pulls it down. Where eps takes over, the output
    shrinks with the input, gradients through the norm stop growing as $1/\sigma$, and the network is another one than
    intended. Rescaling weights for smaller norms ends here, too.

    ## When it is wrong
    The variance is taken over the whole tensor; single rows may be smaller. A signal that is exactly zero (a branch
    that starts closed) is not reported.

    ## References
    Ioffe and Szegedy, "Batch normalization", 2015 (the eps); the error $\varepsilon / 2 a^2 \sigma^2$
    after shrinking by $a$ follows from the formula above and is measured in `tests/symmetry/test_claims.py`.
    """
    sites = () if profile.symmetry is None else profile.symmetry.eps
    small = [(each.share, each) for each in sites if each.share is not None and FELT <= each.share < math.inf]
    if not small:
        return
    share, worst = max(small, key=lambda pair: pair[0])
    severity: Severity = "warning" if share >= BITES else "info"
    yield Symptom(
        severity=severity,
        where=first_names([each.where for _, each in small]),
        message=f"the eps of {worst.where} ({worst.eps:g}) is {share:.3g} times the variance in front of it: its "
        f"output is {(1 + share) ** -0.5:.0%} of the size a norm should give",
        evidence={"share": share, "eps": worst.eps, "norms": float(len(small))},
    )
