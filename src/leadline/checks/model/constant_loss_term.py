"""D932: a term of the loss that does not depend on anything trainable."""

from __future__ import annotations

from collections.abc import Iterator

from leadline.checks._check import Symptom, check
from leadline.checks._wiring_examples import SITE, learner, ledger_with
from leadline.records import Profile


@check(
    code="D932",
    name="constant-loss-term",
    since="0.2.0",
    sick=ledger_with(learner(), constant_terms=(SITE,)),
    healthy=ledger_with(learner()),
)
def constant_loss_term(profile: Profile) -> Iterator[Symptom]:
    r"""A term of the loss has no gradient, because nothing trainable goes into it.

    ## What it measures
    Ops that compute a loss (`mse_loss`, `kl_div`, `cross_entropy` and others), whose result the whole loss depends on,
    and whose inputs depend on no trainable tensor, while other terms do. A term that is written by hand counts if it is
    computed from trainable tensors and a `detach`, a threshold or a count keeps the gradient from all of them.

    ## Why it hurts
    The term adds a number to the loss that no step can change. A teacher that is compared with itself, a target that is
    compared with a copy of itself, or a prediction that was detached looks like this: what the term should teach is not
    learned, and the other terms hide it.

    ## When it is wrong
    A term whose part of the network is frozen in this phase of training is constant on purpose; leave it out then.

    ## References
    Hinton, Vinyals and Dean, "Distilling the knowledge in a neural network", 2015 (the terms of such a loss).
    """
    terms = profile.ledger.constant_terms if profile.ledger else ()
    for site in terms[:1]:
        place = f" ({site.source})" if site.source is not None else ""
        yield Symptom(
            severity="warning",
            where="the loss",
            message=f"{site.op}{place} is a term of the loss, but nothing trainable goes into it",
            action="Give the term the output that should learn, without `detach()`, instead of its target.",
            source=site.source,
            evidence={"terms": float(len(terms))},
        )
