"""T834: a router that comes to send nearly all tokens to a few experts."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from statistics import median

from leadline.checks._check import Symptom, check
from leadline.checks._experts import RouterLoads, load_history, router_loads
from leadline.checks._history import History
from leadline.checks._ranges import first_names

# Heuristic: recordings whose median stands for each end of the history, so that one odd batch is outvoted.
END_RECORDINGS = 3
# Heuristic: experts in use, as a share of all; a little more than one of four, or two of eight.
MAX_USED_SHARE = 0.3
# Heuristic: experts in use at the end over those at the beginning.
MAX_KEPT_SHARE = 0.5
# Derived: with fewer experts, half of them are not few.
MIN_EXPERTS = 4


@check(
    code="T834",
    name="routing-collapse",
    since="0.2.0",
    needs=("expert_tokens",),
    explains=("T833",),
    sick=load_history([1.0, 253.0, 1.0, 1.0]),
    healthy=load_history([20.0, 120.0, 56.0, 60.0]),
    every=8,
    calm=256,
)
def routing_collapse(history: History) -> Iterator[Symptom]:
    r"""A router comes to send nearly all tokens to a few of its experts.

    ## What it measures
    On sampled steps, the number of experts in use, $1 / \sum_e p_e^2$ with $p_e$ the share of all choices that fall on
    expert $e$: the number of experts if the load is even, 1 if one of them gets everything. Fires where it fell to at
    most `MAX_KEPT_SHARE` = half of what it was, and to at most `MAX_USED_SHARE` = 30 % of all experts.

    ## Why it hurts
    The expert that is chosen most is trained most and is chosen more. The others stop learning, and the network is left
    with the capacity of a few experts and the memory of all.

    ## When it is wrong
    A batch from one domain may use few experts of a model that has specialized.

    ## References
    Shazeer et al., "Outrageously large neural networks", 2017, section 4; Fedus et al., "Switch Transformers", 2022,
    section 2.2.
    """
    collapsed = [(each, *ends) for each in router_loads(history) if (ends := _collapse(each))]
    if not collapsed:
        return
    worst, first, last = min(collapsed, key=lambda row: row[2])
    experts = len(worst.loads[-1])
    yield Symptom(
        severity="warning",
        where=first_names([each.weight for each, _, _ in collapsed]),
        since=worst.steps[0],
        message=f"{worst.weight} used {first:.2g} of its {experts} experts and now uses {last:.2g}",
        action="Add a load-balancing loss or raise its factor, lower the learning rate of the router, or normalize its "
        "input.",
        evidence={"used": last, "used_before": first, "experts": float(experts)},
    )


def _collapse(router: RouterLoads) -> tuple[float, float] | None:
    """The experts in use at the beginning and at the end, if they became few."""
    used = [_experts_in_use(load) for load in router.loads]
    first, last = median(used[:END_RECORDINGS]), median(used[-END_RECORDINGS:])
    experts = len(router.loads[-1])
    is_small = last <= MAX_USED_SHARE * experts and last <= MAX_KEPT_SHARE * first
    return (first, last) if experts >= MIN_EXPERTS and is_small else None


def _experts_in_use(load: Sequence[float]) -> float:
    squares = sum(each**2 for each in load)
    return sum(load) ** 2 / squares if squares else 0.0
