"""T833: experts that get no token for many steps."""

from __future__ import annotations

from collections.abc import Iterator

from leadline.checks._check import Symptom, check
from leadline.checks._experts import MIN_LOAD_RECORDINGS, RouterLoads, load_history, router_loads
from leadline.checks._history import History
from leadline.checks._ranges import first_names

# Derived: with so many tokens expected under an even load, one of a thousand experts gets none with a chance of 4e-8.
MIN_EXPECTED_TOKENS = 24


@check(
    code="T833",
    name="starved-experts",
    since="0.2.0",
    needs=("expert_tokens",),
    sick=load_history([0.0, 90.0, 80.0, 86.0]),
    healthy=load_history([10.0, 100.0, 60.0, 86.0]),
    every=8,
    calm=256,
)
def starved_experts(history: History) -> Iterator[Symptom]:
    r"""Experts of a mixture get no token for many steps.

    ## What it measures
    On sampled steps, how many tokens of the batch choose each expert (`expert_tokens`). Fires where an expert got none
    in the last `MIN_LOAD_RECORDINGS` = 8 samples that are at least 16 steps apart, although an even load would have
    given it at least `MIN_EXPECTED_TOKENS` = 24 in them.

    ## Why it hurts
    An expert without tokens has no gradient: it does not learn, so the router has no reason to choose it again. Its
    memory is paid for and its capacity is lost.

    ## When it is wrong
    Experts may specialize in data that did not come for a while. Models that were pruned or merged from others may keep
    unused experts on purpose.

    ## References
    Shazeer et al., "Outrageously large neural networks", 2017, section 4; Wang et al., "Auxiliary-loss-free load
    balancing", 2024.
    """
    starved = [(each, idle) for each in router_loads(history) if (idle := _idle_experts(each))]
    if not starved:
        return
    worst, idle = max(starved, key=lambda pair: len(pair[1]))
    experts = len(worst.loads[-1])
    yield Symptom(
        severity="warning",
        where=first_names([each.weight for each, _ in starved]),
        since=_since(worst, idle),
        message=f"{len(idle)} of {experts} experts of {worst.weight} got no token in the last "
        f"{MIN_LOAD_RECORDINGS} samples",
        action="Add a load-balancing loss, raise its factor, or add a bias per expert that is raised while the expert "
        "has too few tokens.",
        evidence={"starved": float(len(idle)), "experts": float(experts), "routers": float(len(starved))},
    )


def _idle_experts(router: RouterLoads) -> list[int]:
    """The experts without a token in the last recordings; none if too few tokens were routed to tell."""
    last = router.loads[-MIN_LOAD_RECORDINGS:]
    experts = len(last[-1])
    if sum(map(sum, last)) / experts < MIN_EXPECTED_TOKENS:
        return []
    return [expert for expert in range(experts) if all(load[expert] == 0 for load in last)]


def _since(router: RouterLoads, idle: list[int]) -> int:
    """The first of the recordings from which on all of these experts had no token."""
    since = router.steps[-1]
    for step, load in zip(reversed(router.steps), reversed(router.loads), strict=True):
        if any(load[expert] > 0 for expert in idle):
            return since
        since = step
    return since
