"""F107: attention that looks at a single key."""

from __future__ import annotations

import math
from collections.abc import Iterator

from leadline.checks._check import Symptom, check
from leadline.checks._examples import stack_with
from leadline.checks._steps import optimizer_family
from leadline.records import Attention, Facts, Profile

FEWEST_KEYS = 8  # ours: with fewer, one key may well get most
ONE_KEY = 0.8  # mean purity; derived: two keys with nine tenths and one tenth have 0.82


def _example(logit_var: float, purity: float) -> Profile:
    seen = Attention(block=0, module="attn", keys=64, purity=purity, uniform=1 / 64, logit_var=logit_var)
    return stack_with(Facts(attentions=(seen, seen)))


@check(
    code="F107",
    name="attention-collapse",
    since="0.1.0",
    refuted_by="learning",
    explains=("B204",),
    sick=_example(60.0, 0.9),
    healthy=_example(1.0, 0.04),
)
def attention_collapse(profile: Profile) -> Iterator[Symptom]:
    r"""Attention gives nearly all of its weight to one key: its logits are too large.

    ## What it measures
    The variance $s^2$ over the keys of a query's logits, and the purity $E \sum p^2$ of its weights $p$ ($1/n$ if all
    $n$ keys count the same, 1 if one takes everything). Fires if $s^2 > 2 \ln n$, or the purity exceeds `ONE_KEY` =
    0.8, in most attentions with at least `FEWEST_KEYS` = 8 keys. A warning with SGD; a note otherwise, since Adam and
    its kin shrink queries and keys all the same.

    ## Why it hurts
    Beyond $s^2 = 2 \ln n$ the largest of $n$ Gaussian logits carries a finite share of the sum: the softmax is in its
    frozen phase, nearly an argmax, and its derivative $p(1-p)$ is nearly zero. Queries and keys get no gradient with
    which to become smaller.

    ## When it is wrong
    A trained model has sharp heads, and rightly. At initialisation nothing tells the keys apart yet.

    ## References
    Zhai et al., "Stabilizing transformer training by preventing attention entropy collapse", 2023; Derrida, "Random
    energy model", 1981 (the freezing at $s = \sqrt{2 \ln n}$); Wortsman et al., "Small-scale proxies for large-scale
    transformer training instabilities", 2023, section 3.1.
    """
    seen = [each for each in (profile.facts.attentions if profile.facts else ()) if each.keys >= FEWEST_KEYS]
    frozen = [each for each in seen if _is_frozen(each)]
    if not frozen or len(frozen) <= len(seen) / 2:
        return
    worst = max(frozen, key=lambda each: each.purity)
    blocks = [each.block for each in frozen if each.block >= 0]
    var = f", with logits of variance {worst.logit_var:.3g}" if worst.logit_var is not None else ""
    yield Symptom(
        severity="warning" if optimizer_family(profile) == "sgd" else "info",
        where=f"{frozen[0].module} … {frozen[-1].module}",
        message=f"{len(frozen)} of {len(seen)} attentions look at a single key: sum p^2 = {worst.purity:.2g} over "
        f"{worst.keys} keys{var}; frozen beyond 2 ln n = {2 * math.log(worst.keys):.3g}",
        evidence={"purity": worst.purity, "keys": float(worst.keys), "frozen": float(len(frozen))}
        | ({} if worst.logit_var is None else {"logit_var": worst.logit_var}),
        layers=(min(blocks), max(blocks)) if blocks else None,
    )


def _is_frozen(seen: Attention) -> bool:
    if seen.purity > ONE_KEY:
        return True
    return seen.logit_var is not None and seen.logit_var > 2 * math.log(seen.keys)
