"""F107: attention that gives nearly all of its weight to one key."""

from __future__ import annotations

import math
from collections.abc import Iterator

from leadline.checks._attention import QK_CLIP_LOGIT, qk_clip_rule, saturated_heads
from leadline.checks._check import Symptom, check
from leadline.checks._examples import stack_with
from leadline.checks._steps import optimizer_family
from leadline.records import Attention, ModelFacts, Profile

# Heuristic: among fewer keys, one may well get most of the weight.
MIN_KEYS = 8
# Derived: mean of the sum of squared weights. Two keys with weights 0.9 and 0.1 have 0.82.
MAX_PURITY = 0.8
NORMALIZE = "normalize queries and keys with `leadline.nn.qk_norm.qk_norm_(attention, head_width)`"


def _example(logit_var: float, purity: float) -> Profile:
    attention = Attention(block=0, module="attn", keys=64, purity=purity, uniform=1 / 64, logit_var=logit_var)
    return stack_with(ModelFacts(attentions=(attention, attention)))


@check(
    code="F107",
    name="attention-collapse",
    since="0.1.0",
    refuted_by="learning",
    explains=("B204", "U525"),
    sick=_example(60.0, 0.9),
    healthy=_example(1.0, 0.04),
)
def attention_collapse(profile: Profile) -> Iterator[Symptom]:
    r"""Attention gives nearly all of its weight to one key because its logits are too large.

    ## What it measures
    The variance $s^2$ over the keys of a query's logits, and the purity $E \sum p^2$ of its weights $p$ ($1/n$ if all
    $n$ keys have the same weight, 1 if one key has all of it). Fires if $s^2 > 2 \ln n$, or if the purity exceeds
    `MAX_PURITY` = 0.8, in most attentions with at least `MIN_KEYS` = 8 keys. It is a warning with SGD and a note
    otherwise, because Adam and similar optimizers shrink queries and keys anyway.

    Where that is not so, it also looks at each head: heads whose largest logit exceeds `QK_CLIP_LOGIT` = 100 and whose
    own purity exceeds 0.8 are named. That is a warning, and a note if the weights were trained before.

    ## Why it hurts
    Beyond $s^2 = 2 \ln n$ the largest of $n$ Gaussian logits carries a finite share of the sum: the softmax is in its
    frozen phase, nearly an argmax, and its derivative $p(1-p)$ is nearly zero. Queries and keys get no gradient that
    could make them smaller.

    ## When it is wrong
    A trained model has sharp heads for good reasons. At initialization no key is special yet.

    ## References
    Zhai et al., "Stabilizing transformer training by preventing attention entropy collapse", 2023; Derrida, "Random
    energy model", 1981 (the freezing at $s = \sqrt{2 \ln n}$); Wortsman et al., "Small-scale proxies for large-scale
    transformer training instabilities", 2023, section 3.1; Kimi Team, "Kimi K2", 2025, section 2.1 (QK-clip).
    """
    attentions = [a for a in (profile.facts.attentions if profile.facts else ()) if a.keys >= MIN_KEYS]
    frozen = [each for each in attentions if _is_frozen(each)]
    if not frozen or len(frozen) <= len(attentions) / 2:
        yield from _hot_heads(profile, attentions)
        return
    worst = max(frozen, key=lambda each: each.purity)
    blocks = [each.block for each in frozen if each.block >= 0]
    yield Symptom(
        severity="warning" if optimizer_family(profile) == "sgd" else "info",
        where=f"{frozen[0].module} … {frozen[-1].module}",
        message=f"{len(frozen)} of {len(attentions)} attentions look at a single key: {_measured(worst)}",
        action=_action(worst),
        evidence={"purity": worst.purity, "keys": float(worst.keys), "frozen": float(len(frozen))}
        | ({} if worst.logit_var is None else {"logit_var": worst.logit_var}),
        layers=(min(blocks), max(blocks)) if blocks else None,
    )


def _hot_heads(profile: Profile, attentions: list[Attention]) -> Iterator[Symptom]:
    """Single heads whose logits are above the threshold of QK-clip."""
    hot = [(each, head) for each in attentions for head in saturated_heads(each, MAX_PURITY)]
    if not hot:
        return
    attention, head = max(hot, key=lambda pair: pair[0].head_logits[pair[1]])
    logit, total = attention.head_logits[head], sum(len(each.head_logits) for each in attentions)
    blocks = [each.block for each, _ in hot if each.block >= 0]
    yield Symptom(
        severity="info" if profile.is_pretrained or profile.has_learned else "warning",
        where=attention.module or "the model",
        message=f"{len(hot)} of {total} heads look at a single key with logits above {QK_CLIP_LOGIT:.0f}: the largest "
        f"is {logit:.3g}, in head {head} of {attention.module or 'the model'}",
        action=f"Cap each head: {qk_clip_rule(logit)}; or {NORMALIZE}.",
        evidence={"logit": logit, "heads": float(len(hot))},
        layers=(min(blocks), max(blocks)) if blocks else None,
    )


def _is_frozen(attention: Attention) -> bool:
    if attention.purity > MAX_PURITY:
        return True
    return attention.logit_var is not None and attention.logit_var > _max_logit_variance(attention)


def _max_logit_variance(attention: Attention) -> float:
    return 2 * math.log(attention.keys)


def _measured(attention: Attention) -> str:
    """What shows the collapse: the variance of the logits if it is above its limit, else the purity."""
    if attention.logit_var is not None and attention.logit_var > _max_logit_variance(attention):
        ratio = attention.logit_var / _max_logit_variance(attention)
        return f"the variance of their logits is {ratio:.3g} times the limit above which attention collapses"
    return f"the sum of their squared weights is {attention.purity:.2g}, where 1 means one key has all the weight"


def _action(attention: Attention) -> str:
    if attention.logit_var is None or not attention.logit_var > 1:
        return f"{NORMALIZE[0].upper()}{NORMALIZE[1:]}."
    return f"Multiply the logits by {attention.logit_var**-0.5:.2g}, or {NORMALIZE}."
