"""W601: weight decay on tensors that can shrink without changing the function."""

from __future__ import annotations

from collections.abc import Iterator

from leadline.checks._check import Symptom, check
from leadline.checks._examples import scaled_tensor, stack_with_decay
from leadline.checks._ranges import first_names
from leadline.checks._steps import decayed_tensors
from leadline.records import Profile
from leadline.text import plural


@check(
    code="W601",
    name="inert-decay",
    since="0.1.0",
    sick=stack_with_decay(scaled_tensor(inert=True)),
    healthy=stack_with_decay(),
)
def inert_decay(profile: Profile) -> Iterator[Symptom]:
    r"""Weight decay cannot regularize tensors that can shrink without changing the function.

    ## What it measures
    The free rescalings of the network, from its ops: exponents $n_i$ such that multiplying each tensor by $a^{n_i}$
    changes no output. A tensor is inert if some free rescaling shrinks it and makes no decayed tensor grow. It can
    shrink toward zero, and its penalty with it. Tensors whose scale alone is free belong to W602. It is always a note.

    ## Why it hurts
    It does not hurt by itself. The smallest penalty does not depend on these tensors, so decay on them prefers no
    function over another and does not prevent overfitting. It does set their effective learning rate. If norms and
    gains are excluded from decay, as is usual, most weights of a normalized network are inert: the gains grow as the
    weights shrink.

    ## When it is wrong
    The smallest penalty is never reached: an optimizer approaches it at a rate of $\eta\lambda$ until the eps of norms
    stops it (W603). Tensors that are used by unknown ops count as fixed, so the list may be too short but never too
    long. `leadline.symmetries(...).verify()` checks it numerically.

    ## References
    Van Laarhoven, "L2 regularization versus batch and weight normalization", 2017; Zhang et al., "Three mechanisms of
    weight decay regularization", 2019. The joint symmetry of pre-norm networks with a final
    norm, which residual connections do not remove: this project's `docs/explanation/symmetry.md`.
    """
    names = [tensor.name for _, tensor in decayed_tensors(profile) if tensor.inert and not tensor.alone]
    if not names:
        return
    share = profile.symmetry.free_share if profile.symmetry is not None else None
    removable = "" if share is None else f", and {100 * share:.0f} % of the penalty can be removed this way"
    yield Symptom(
        severity="info",
        where=first_names(names),
        message=f"weight decay on {plural(len(names), 'tensor')} cannot regularize: it can shrink "
        f"them without changing the function{removable}",
        action="Regularize with dropout or data augmentation instead, and tune `weight_decay` of these tensors only as "
        "part of their learning rate.",
        evidence={"tensors": float(len(names)), **({} if share is None else {"free_share": share})},
    )
