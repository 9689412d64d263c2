"""W601: weight decay on tensors that can shrink for free."""

from __future__ import annotations

from collections.abc import Iterator

from leadline.checks._check import Symptom, check
from leadline.checks._examples import scaled_tensor, stack_with_decay
from leadline.checks._ranges import first_names
from leadline.checks._steps import decayed_tensors
from leadline.records import Profile


@check(
    code="W601",
    name="inert-decay",
    since="0.1.0",
    sick=stack_with_decay(scaled_tensor(inert=True)),
    healthy=stack_with_decay(),
)
def inert_decay(profile: Profile) -> Iterator[Symptom]:
    r"""Weight decay that cannot regularise: the same function is there with smaller weights.

    ## What it measures
    The free rescalings of the network, from its ops: exponents $n_i$ such that multiplying each tensor by $a^{n_i}$
    changes no output. A tensor is inert if some free rescaling shrinks it and grows no tensor that is decayed; it can
    shrink towards nothing, and its penalty with it. Tensors that are free each on its own are W602's. Always info.

    ## Why it hurts
    It does not, by itself. The penalty's least value does not depend on these tensors, so decay on them prefers no
    function over another: do not count on it against overfitting. It does set their effective learning rate, and with
    norms and gains left out of decay, as is usual, most weights of a normalised network are inert: gains take up what
    weights give away.

    ## When it is wrong
    The least value is not attained: an optimiser walks towards it at a rate of $\eta\lambda$ and the eps of norms stops
    it (W603). What ops the table does not know was held fixed, so the list may be too short, never too long, and
    `leadline.symmetries(...).verify()` checks it by numbers.

    ## References
    Van Laarhoven, "L2 regularization versus batch and weight normalization", 2017; Zhang et al., "Three mechanisms of
    weight decay regularization", 2019. The joint symmetry of pre-norm networks with a final
    norm, which residual connections do not remove: this project's `docs/explanation/symmetry.md`.
    """
    names = [each.name for _, each in decayed_tensors(profile) if each.inert and not each.alone]
    if not names:
        return
    share = profile.symmetry.free_share if profile.symmetry is not None else None
    part = "" if share is None else f"; {share:.0%} of the penalty can be had without changing the function"
    yield Symptom(
        severity="info",
        where=first_names(names),
        message=f"decay on {len(names)} tensors cannot regularise: they can shrink while no decayed tensor grows{part}",
        evidence={"tensors": float(len(names)), **({} if share is None else {"free_share": share})},
    )
