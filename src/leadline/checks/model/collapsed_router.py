"""D922: a router that sends every token to the same experts."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from leadline.checks._check import Symptom, check
from leadline.checks._wiring_examples import SITE, with_parts
from leadline.records import Profile, Router

# Derived: with 8 tokens expected per expert, one that is as likely as the others gets none with a chance of e^-8.
MIN_EXPECTED_TOKENS = 8
# Heuristic: share of all choices that fell on as few experts as each token chooses; with an even load it is the share
# of the experts that a token chooses.
MAX_TOP_SHARE = 0.9
# Heuristic: where a token chooses more than half of the experts, the busiest ones get most tokens anyway.
MAX_CHOSEN_SHARE = 0.5
# Heuristic: a few routers of a new network prefer some experts by the draw of their weights, and training undoes it.
MAX_DRAWN_SHARE = 0.5


def _example(*load: int) -> Profile:
    router = Router(
        site=SITE, weight="layers.0.router.weight", experts=len(load), chosen=1, load=load, gradient="finite"
    )
    return with_parts(routers=(router,))


@check(
    code="D922",
    name="collapsed-router",
    since="0.1.0",
    sick=_example(128, 0, 0, 0),
    healthy=_example(40, 25, 31, 32),
)
def collapsed_router(profile: Profile) -> Iterator[Symptom]:
    r"""A router sends (nearly) every token of the batch to the same experts, or some experts get none.

    ## What it measures
    How many tokens choose each expert, where an op (`topk`, `argmax`) chooses the largest scores of a weight layer and
    the loss depends on the choice. It fires if no more experts are used than each token chooses, in a batch with at
    least 8 tokens per expert, or if more than `MAX_TOP_SHARE` = 90 % of all choices fall on so few experts. Experts
    without a token while others share the load are a note. The report shows load and gradient of each expert.

    ## Why it hurts
    An expert without tokens gets no gradient, stays worse than the one that is trained, and is never chosen. The
    network has the capacity of one expert and the memory of all. A router of zeros, or one whose inputs have a common
    mean that is much larger than their differences, starts collapsed.

    ## When it is wrong
    If all tokens of the batch are equal, or the batch is from one domain and the experts have specialized. A router of
    zeros whose load something balances (an auxiliary loss, or a bias per expert) spreads as soon as it learns: that is
    a note. So is a router that sends 90 % of the choices to few experts if at least half of the others do not: the draw
    of its weights does that in a network of random weights.

    ## References
    Shazeer et al., "Outrageously large neural networks", 2017, section 4; Fedus et al., "Switch Transformers", 2022,
    section 2.2.
    """
    routers = [each for each in (profile.parts.routers if profile.parts else ()) if _can_be_judged(each)]
    collapsed = [each for each in routers if each.used <= each.chosen]
    if collapsed:
        yield _collapse(collapsed, len(routers))
    dominated = [each for each in routers if each.used > each.chosen and _is_dominated(each)]
    if dominated:
        yield _dominance(dominated, len(routers))
    starved = [each for each in routers if each.chosen < each.used < each.experts and each not in dominated]
    if starved:
        worst = max(starved, key=lambda each: each.experts - each.used)
        yield Symptom(
            severity="info",
            where=worst.site.module or "the model",
            message=f"{worst.experts - worst.used} of {worst.experts} experts get none of {worst.tokens} tokens "
            f"({len(starved)} of {len(routers)} routers have such experts)",
            action="Add a load-balancing loss, or noise on the scores of the router in training.",
            source=worst.site.source,
            evidence={"experts": float(worst.experts), "used": float(worst.used)},
        )


def _can_be_judged(router: Router) -> bool:
    expected = sum(router.load) / router.experts
    return router.chosen < router.experts and expected >= MIN_EXPECTED_TOKENS


def _is_dominated(router: Router) -> bool:
    return router.chosen <= MAX_CHOSEN_SHARE * router.experts and router.top_share > MAX_TOP_SHARE


def _dominance(dominated: Sequence[Router], routers: int) -> Symptom:
    worst = max(dominated, key=lambda each: each.top_share)
    is_balanced = all(each.is_balanced or each.is_corrected for each in dominated)
    is_usual = len(dominated) > MAX_DRAWN_SHARE * routers
    return Symptom(
        severity="warning" if is_usual and not is_balanced else "info",
        where=worst.site.module or "the model",
        message=f"{len(dominated)} of {routers} routers send nearly all tokens to the same experts: "
        f"{100 * worst.top_share:.0f} % of the choices fall on {worst.chosen} of {worst.experts} experts",
        action=f"Draw `{worst.weight}` at random with a small deviation, normalize its input, and add a load-balancing "
        "loss.",
        source=worst.site.source,
        evidence={"experts": float(worst.experts), "top_share": worst.top_share},
    )


def _collapse(collapsed: Sequence[Router], routers: int) -> Symptom:
    first = collapsed[0]
    used = [str(expert) for expert, tokens in enumerate(first.load) if tokens]
    experts = f"expert {used[0]}" if len(used) == 1 else f"experts {', '.join(used)}"
    return Symptom(
        severity="info" if all(_spreads_later(each) for each in collapsed) else "warning",
        where=first.site.module or "the model",
        message=f"{len(collapsed)} of {routers} routers send all tokens to the same experts: all {first.tokens} "
        f"tokens of the batch go to {experts} of {first.experts}",
        action=f"Draw `{first.weight}` at random with a small deviation, normalize its input, and add a load-balancing "
        "loss.",
        source=first.site.source,
        evidence={"experts": float(first.experts), "used": float(first.used), "tokens": float(first.tokens)},
    )


def _spreads_later(router: Router) -> bool:
    """Whether it is undecided between all experts, learns, and something balances their load."""
    return router.is_zero and router.gradient == "finite" and (router.is_balanced or router.is_corrected)
