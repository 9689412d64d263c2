"""Heads of attention whose logits are so large that the softmax is nearly an argmax, and the rule that caps them."""

from __future__ import annotations

import math

from leadline.records import Attention

# Cited: Kimi Team 2025 (Kimi K2), arXiv 2507.20534, section 2.1: the threshold tau of QK-clip. Dehghani et al. and
# Wortsman et al. see divergence after logits passed hundreds to thousands.
QK_CLIP_LOGIT = 100.0


def qk_clip_factor(logit: float) -> float:
    r"""What QK-clip multiplies the query and the key weights of a head by: $\sqrt{\min(1, \tau / S)}$.

    $S$ is the largest logit of the head and $\tau$ is `QK_CLIP_LOGIT`. Queries and keys share the factor, so that the
    logits shrink to $\tau$.
    """
    return math.sqrt(min(1.0, QK_CLIP_LOGIT / logit))


def qk_clip_rule(logit: float) -> str:
    """QK-clip in words, with the factor of a head that has this logit."""
    rule = f"after each step, multiply its query and key weights by sqrt({QK_CLIP_LOGIT:.0f} / largest logit)"
    if logit <= QK_CLIP_LOGIT:
        return f"{rule} as soon as a head exceeds {QK_CLIP_LOGIT:.0f} (QK-clip)"
    return f"{rule} while it exceeds {QK_CLIP_LOGIT:.0f} (QK-clip), now {qk_clip_factor(logit):.2g}"


def saturated_heads(attention: Attention, max_purity: float) -> list[int]:
    """The heads with a logit above the threshold of QK-clip that give nearly all of their weight to one key.

    The size of a logit alone proves nothing: what is added to all logits of a query, as the bias of the keys may do,
    changes no weight.
    """
    pairs = zip(attention.head_logits, attention.head_purities, strict=True)
    return [
        head for head, (logit, purity) in enumerate(pairs) if logit > QK_CLIP_LOGIT and purity > max_purity
    ]
