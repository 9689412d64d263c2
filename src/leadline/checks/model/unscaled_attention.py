"""D921: attention without the factor 1/sqrt(d)."""

from __future__ import annotations

import math
from collections.abc import Iterator

from leadline.checks._check import Symptom, check
from leadline.checks._wiring_examples import SITE, with_parts
from leadline.records import AttentionProduct, Profile

# Derived: float32 rounds a root and a mean square to far less.
MAX_ROOT_ERROR = 1e-3
# Heuristic: variance of attention logits over the keys; at 4, twice the deviation of unit logits, few keys share a
# query.
MAX_LOGIT_VARIANCE = 4.0
# Heuristic: well above 1, the variance of scaled unit logits and of T5; such logits are uneven, but train.
MIN_NOTED_VARIANCE = 1.5
# Heuristic: the variance of a product of trained queries and keys differs by more than this factor from that of
# independent ones.
MAX_DEPENDENCE = 3.0
# Derived: in narrower heads the factor is at most 1.7.
MIN_WIDTH = 4


def _example(variance: float, *, has_factor: bool) -> Profile:
    product = AttentionProduct(
        site=SITE,
        width=64,
        keys=32,
        variance=variance,
        query_ms=0.5,
        key_ms=variance / 32,
        has_factor=has_factor,
    )
    return with_parts(attentions=(product,))


@check(
    code="D921",
    name="unscaled-attention",
    since="0.1.0",
    explains=("F107",),
    sick=_example(16.0, has_factor=False),
    healthy=_example(16.0, has_factor=True),
)
def unscaled_attention(profile: Profile) -> Iterator[Symptom]:
    r"""Attention logits are not divided by the root of the head's width, so attention starts hard.

    ## What it measures
    The variance of the product $q \cdot k$ that a softmax reads, over `width` $d$ features. Fires if nothing between
    the projections and the softmax is a factor or a norm, the variance is that of independent queries and keys
    (so the weights are fresh), it exceeds `MAX_LOGIT_VARIANCE` = 4 (a note from 1.5 on), and dividing by $d$ would
    bring it back below that limit. It also fires if the logits are multiplied by $\sqrt d$, to within rounding.

    ## Why it hurts
    Each of the $d$ terms adds its variance: with unit queries and keys the logits have a deviation of $\sqrt d$. The
    softmax gives most of its weight to one key, its derivative is small, and the deeper layers see little but that key.

    ## When it is wrong
    T5 draws its query weights smaller by the same factor; its measured variance is 1 and it is not reported. Neither
    are QK-norm, cosine attention with a temperature, and `scaled_dot_product_attention`. GPT-Neo and non-local
    blocks leave the factor out on purpose, and do train.

    ## References
    Vaswani et al., "Attention is all you need", 2017, section 3.2.1 and footnote 4.
    """
    attentions = profile.parts.attentions if profile.parts else ()
    is_fresh = not profile.has_learned and (profile.optimizer is None or profile.optimizer.steps == 0)
    multiplied = [each for each in attentions if _multiplies_by_root(each)]
    for first in multiplied[:1]:
        yield Symptom(
            severity="warning",
            where=first.site.module or "the model",
            message=f"{len(multiplied)} of {len(attentions)} attentions multiply their logits by {first.factor:.3g}, "
            f"the root of {first.width}, instead of dividing by it",
            action=f"Multiply the product by `{first.width} ** -0.5`{_at(first)}.",
            source=first.site.source,
            evidence={
                "factor": first.factor,
                "width": float(first.width),
                "attentions": float(len(multiplied)),
            },
        )
    unscaled = [each for each in attentions if is_fresh and _misses_factor(each)]
    if not unscaled:
        return
    worst = max(unscaled, key=lambda each: each.variance)
    width = worst.width
    yield Symptom(
        severity="warning" if worst.variance > MAX_LOGIT_VARIANCE else "info",
        where=worst.site.module or "the model",
        message=f"{len(unscaled)} of {len(attentions)} attentions do not scale their logits: the variance is "
        f"{worst.variance:.3g} instead of {worst.variance / width:.2g}, because q . k sums {width} features",
        action=f"Multiply the product by `{width} ** -0.5`{_at(worst)}, or call `F.scaled_dot_product_attention`.",
        source=worst.site.source,
        evidence={"variance": worst.variance, "width": float(width), "attentions": float(len(unscaled))},
    )


def _multiplies_by_root(product: AttentionProduct) -> bool:
    """Whether the factor is the root of the width, to within rounding, and no norm makes up for it."""
    root = math.sqrt(product.width)
    is_root = abs(product.factor - root) <= MAX_ROOT_ERROR * root
    return product.width >= MIN_WIDTH and is_root and not product.is_normalized


def _misses_factor(product: AttentionProduct) -> bool:
    if product.has_factor or product.is_normalized or product.width < MIN_WIDTH:
        return False
    is_independent = 1 / MAX_DEPENDENCE < product.independence < MAX_DEPENDENCE
    return (
        is_independent
        and product.variance > MIN_NOTED_VARIANCE
        and product.variance / product.width <= MAX_LOGIT_VARIANCE
    )


def _at(product: AttentionProduct) -> str:
    return "" if product.site.source is None else f" in {product.site.source}"
