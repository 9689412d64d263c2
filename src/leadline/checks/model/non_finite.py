"""N701: NaN or infinity in the pass."""

from __future__ import annotations

from collections.abc import Iterator

from leadline.checks._check import Symptom, check
from leadline.checks._examples import geometric, profile_of
from leadline.records import Anomaly, Profile


def _example() -> Profile:
    first = Anomaly(
        direction="forward", op="log", module="layers.1", value=7, non_finite=3, count=64, source=""
    )
    return profile_of([1.0, float("nan"), float("nan")], [float("nan")] * 3, [first])


@check(
    code="N701",
    name="non-finite",
    since="0.1.0",
    explains=("F101", "F102", "B201", "B202"),
    sick=_example(),
    healthy=geometric(blocks=3),
)
def non_finite(profile: Profile) -> Iterator[Symptom]:
    r"""Some number of the pass is NaN or infinite.

    ## What it measures
    The first op in execution order whose output holds NaN or infinity that reaches the loss, and the first op in the
    backward pass whose gradient does. If a batch input or a parameter held it already, that is named instead.

    ## Why it hurts
    One NaN in a gradient makes every parameter NaN after one step of any optimiser; a loss of NaN makes all gradients
    NaN at once. What follows is consequence: only the first op matters.

    ## When it is wrong
    $-\infty$ in attention scores is how masks are written and is not reported, unless NaN comes of it (a row in which
    everything is masked). With a gradient scaler an occasional infinite gradient is how it finds its scale; this is a
    single pass without one.

    ## References
    Micikevicius et al., "Mixed precision training", 2018, section 3.2.
    """
    for found in profile.anomalies:
        yield Symptom(
            severity="error",
            where=found.module or found.source or "the model itself",
            message=_story(found),
            evidence={"non_finite": float(found.non_finite), "count": float(found.count)},
        )


def _story(found: Anomaly) -> str:
    share = f"{found.non_finite} of {found.count} elements"
    if found.source:
        return f"{found.source} is not finite to begin with ({share})"
    place = f"{found.op} in {found.module}" if found.module else found.op
    if found.direction == "forward":
        return f"{place} is the first op whose output is not finite ({share}) though its inputs were"
    return f"the gradient is first not finite behind {place} ({share} of what it sends back)"
