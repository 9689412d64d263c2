"""T808: attention logits grow until attention looks at one token only."""

from __future__ import annotations

import math
from collections.abc import Iterator

from leadline.checks._check import Symptom, check
from leadline.checks._history import History
from leadline.checks._run_examples import BLOCKS, flat, sampled
from leadline.checks._statistics import Trend, gathered

LEAST = 30.0  # largest logit; calibrated by benchmarks/alarms.py; derived: a logit 30 above the rest leaves it exp(-30)
GROWTH = 2.0  # times what it was at the beginning of the history; calibrated by the same script
LOST = 100.0  # cited: Dehghani et al. and Wortsman et al. see divergence after logits passed hundreds to thousands


@check(
    code="T808",
    name="growing-logits",
    since="0.1",
    needs=("attention_logit",),
    sick=sampled(
        400, {"attention_logit": lambda step: [3.0] * (BLOCKS - 1) + [3.0 * math.exp(step / 120)]}, every=20
    ),
    healthy=sampled(400, {"attention_logit": flat(8.0)}, every=20),
    every=8,
    calm=256,
)
def growing_logits(history: History) -> Iterator[Symptom]:
    r"""The logits of attention grow without end.

    ## What it measures
    On sampled steps, the largest logit of each block's attention in absolute value, after the division by the root of
    the head's width. Fires above `LEAST` = 30 where it also is `GROWTH` = 2 times what it was at the beginning of the
    history; an error above `LOST` = 100.

    ## Why it hurts
    Softmax of such logits is one and zeros: attention copies a single token, its gradient vanishes, and in half
    precision the logits overflow. Queries and keys that feed each other's growth are the most common way in which
    large Transformers diverge. Norms on queries and keys, a smaller rate or more decay on their weights stop it.

    ## When it is wrong
    Heads that copy (induction heads, sinks on the first token) have sharp attention on purpose and stop growing.

    ## References
    Dehghani et al., "Scaling vision transformers to 22 billion parameters", 2023, section 2; Wortsman et al.,
    "Small-scale proxies for large-scale transformer training instabilities", 2023, section 3.1; Zhai et al.,
    "Stabilizing transformer training by preventing attention entropy collapse", 2023.
    """
    place = gathered(history, "attention_logit", _grows)
    if place is None:
        return
    worst = place.worst
    yield Symptom(
        severity="error" if worst.last > LOST else "warning",
        where=place.where,
        layers=place.layers,
        since=place.since,
        message=f"attention logits grew from {worst.first:.3g} to {worst.last:.3g} since step {place.since}",
        trend=worst.pace,
        forecast=f"twice as large in about {math.log(2) / worst.pace:.0f} steps" if worst.pace > 0 else "",
        evidence={"logit": worst.last, "before": worst.first} | _entropy(history, worst.index),
    )


def _grows(trend: Trend) -> bool:
    return trend.last >= LEAST and trend.last >= GROWTH * trend.first


def _entropy(history: History, index: int) -> dict[str, float]:
    rows = history.spaced("attention_entropy").rows
    return {"entropy": rows[-1][index]} if rows and math.isfinite(rows[-1][index]) else {}
