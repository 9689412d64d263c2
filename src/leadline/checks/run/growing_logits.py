"""T808: attention logits grow until attention looks at one token only."""

from __future__ import annotations

import math
from collections.abc import Iterator

from leadline.checks._attention import QK_CLIP_LOGIT, qk_clip_rule
from leadline.checks._check import Symptom, check
from leadline.checks._examples import BLOCKS, every_block, vector_history
from leadline.checks._history import History
from leadline.checks._statistics import Trend, affected_blocks

# Calibrated by benchmarks/alarms.py. Derived: a logit 30 above the others leaves them a share of exp(-30).
MIN_LOGIT = 30.0
# Calibrated by benchmarks/alarms.py: largest logit at the end of the history over that at its beginning.
MIN_GROWTH = 2.0


@check(
    code="T808",
    name="growing-logits",
    since="0.1.0",
    needs=("attention_logit",),
    sick=vector_history(
        400, {"attention_logit": lambda step: [3.0] * (BLOCKS - 1) + [3.0 * math.exp(step / 120)]}, every=20
    ),
    healthy=vector_history(400, {"attention_logit": every_block(8.0)}, every=20),
    every=8,
    calm=256,
)
def growing_logits(history: History) -> Iterator[Symptom]:
    r"""Attention logits keep growing.

    ## What it measures
    On sampled steps, the largest logit of each block's attention in absolute value, after the division by the square
    root of the head width, on the last queries of each sample. Fires from `MIN_LOGIT` = 30 where it is also
    `MIN_GROWTH` = 2 times what it was at the beginning of the history; an error above `QK_CLIP_LOGIT` = 100. The metric
    `head_logit` has the same number for each head, and the alert names the head that grew most.

    ## Why it hurts
    The softmax of such logits is one-hot: attention copies a single token, its gradient vanishes, and in half
    precision the logits overflow. Queries and keys that feed each other's growth are the most common way in which
    large Transformers diverge. Norms on queries and keys, a smaller learning rate or more weight decay on their
    weights stop it. So does QK-clip, also where a norm does not fit (latent attention): after each step, query and key
    weights of a head with the largest logit $S > 100$ are multiplied by $\sqrt{100 / S}$.

    ## When it is wrong
    Heads that copy (induction heads, sinks on the first token) have sharp attention on purpose and stop growing.

    ## References
    Dehghani et al., "Scaling vision transformers to 22 billion parameters", 2023, section 2; Wortsman et al.,
    "Small-scale proxies for large-scale transformer training instabilities", 2023, section 3.1; Zhai et al.,
    "Stabilizing transformer training by preventing attention entropy collapse", 2023; Kimi Team, "Kimi K2", 2025,
    section 2.1 (QK-clip).
    """
    blocks = affected_blocks(history, "attention_logit", _grows)
    if blocks is None:
        return
    worst = blocks.worst
    doubling = math.log(2) / worst.log_slope if worst.log_slope > 0 else None
    yield Symptom(
        severity="error" if worst.last > QK_CLIP_LOGIT else "warning",
        where=blocks.where,
        layers=blocks.layers,
        since=blocks.since,
        message=f"the largest attention logit grew from {worst.first:.3g} to {worst.last:.3g} "
        f"since step {blocks.since}{_in_head(history)}",
        action="Normalize queries and keys (QK-norm, `leadline.nn.qk_norm.qk_norm_`), or lower the learning rate of "
        f"their weights, or cap each head: {qk_clip_rule(worst.last)}.",
        trend=worst.log_slope,
        forecast="" if doubling is None else f"twice as large in about {doubling:.0f} steps",
        evidence={"logit": worst.last, "before": worst.first} | _entropy(history, worst.index),
    )


def _grows(trend: Trend) -> bool:
    return trend.last >= MIN_LOGIT and trend.last >= MIN_GROWTH * trend.first


def _in_head(history: History) -> str:
    """A clause that names the head with the largest logit; "" if heads were not recorded."""
    rows, labels = history.spaced("head_logit").rows, history.layout.heads
    if not rows or not labels:
        return ""
    hottest = max(
        range(len(labels)), key=lambda head: rows[-1][head] if math.isfinite(rows[-1][head]) else 0.0
    )
    module, _, head = labels[hottest].rpartition(" ")
    return f"; the largest is in head {head} of {module or 'the model'}"


def _entropy(history: History, index: int) -> dict[str, float]:
    rows = history.spaced("attention_entropy").rows
    return {"entropy": rows[-1][index]} if rows and math.isfinite(rows[-1][index]) else {}
