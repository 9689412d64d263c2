"""D924: routers without anything that balances their load."""

from __future__ import annotations

from collections.abc import Iterator

from leadline.checks._check import Symptom, check
from leadline.checks._wiring_examples import SITE, with_parts
from leadline.records import Profile, Router


def _example(*, is_balanced: bool) -> Profile:
    router = Router(
        site=SITE,
        weight="layers.0.router.weight",
        experts=4,
        chosen=1,
        load=(40, 25, 31, 32),
        gradient="finite",
        is_balanced=is_balanced,
    )
    return with_parts(routers=(router,))


@check(
    code="D924",
    name="unbalanced-router",
    since="0.1.0",
    sick=_example(is_balanced=False),
    healthy=_example(is_balanced=True),
)
def unbalanced_router(profile: Profile) -> Iterator[Symptom]:
    r"""Nothing in the loss, and no bias, balances how many tokens the experts get.

    ## What it measures
    Whether the loss depends on a number per expert that is a sum over tokens, of scores or of choices, or whether a
    bias per expert is added to the scores before the choice. It is a note.

    ## Why it hurts
    The expert that is chosen most is trained most and is chosen more. Without a counterweight a few experts end up with
    all tokens; see D922.

    ## When it is wrong
    If the program balances the load outside of the loss: by capacity, by optimal assignment, or by a bias that it
    updates itself. Many libraries compute the auxiliary loss only if it is asked for.

    ## References
    Fedus et al., "Switch Transformers", 2022, equation 4; Wang et al., "Auxiliary-loss-free load balancing", 2024.
    """
    routers = profile.parts.routers if profile.parts else ()
    alone = [each for each in routers if not each.is_balanced and not each.is_corrected and each.trainable]
    if not alone:
        return
    first = alone[0]
    yield Symptom(
        severity="info",
        where=first.weight,
        message=f"nothing balances the load of {len(alone)} of {len(routers)} routers: the loss depends on their "
        "scores only through the chosen experts",
        action="Add the auxiliary loss `experts * (share_of_tokens * mean_score).sum()` with a small factor, "
        "for example 0.01.",
        source=first.site.source,
        evidence={"routers": float(len(alone))},
    )
