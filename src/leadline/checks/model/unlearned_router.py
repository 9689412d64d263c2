"""D923: a router whose weights get no gradient."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from leadline.checks._check import Symptom, check
from leadline.checks._ranges import first_names
from leadline.checks._wiring_examples import SITE, with_parts
from leadline.records import Profile, Router
from leadline.records.wiring import GradientState


@dataclass(frozen=True, slots=True)
class _Example:
    gradient: GradientState

    def profile(self) -> Profile:
        router = Router(
            site=SITE,
            weight="layers.0.router.weight",
            experts=4,
            chosen=1,
            load=(40, 25, 31, 32),
            gradient=self.gradient,
        )
        return with_parts(routers=(router,))


@check(
    code="D923",
    name="unlearned-router",
    since="0.1.0",
    explains=("B203", "D919", "D914"),
    sick=_Example("none").profile(),
    healthy=_Example("finite").profile(),
)
def unlearned_router(profile: Profile) -> Iterator[Symptom]:
    r"""The scores choose experts, but no gradient reaches the weights that make them.

    ## What it measures
    The gradient of the weight layer whose largest scores choose experts. It fires if it is trainable and its gradient
    does not exist or is exactly zero, while the experts do get one. If they get none either, the whole branch is
    multiplied by zero, as a gate that opens in training does.

    ## Why it hurts
    A choice has no derivative. A router learns because the result of an expert is multiplied by its score. If only the
    index is used, or if the scores of the single chosen expert are normalized to 1, the router stays random forever.

    ## When it is wrong
    Routers that are random on purpose (hashing) should be frozen with `requires_grad_(False)`; then nothing is said.
    Routers that are trained by another loss, such as a policy gradient, in another step.

    ## References
    Fedus et al., "Switch Transformers", 2022, section 2.1; Zoph et al., "ST-MoE", 2022, section 2.
    """
    routers = profile.parts.routers if profile.parts else ()
    still = [each for each in routers if each.trainable and _gets_nothing(each)]
    if not profile.backward_ran or not still:
        return
    first = still[0]
    what = "no gradient" if first.gradient == "none" else "a gradient of exactly zero"
    yield Symptom(
        severity="warning",
        where=first.weight,
        message=f"{len(still)} of {len(routers)} routers do not learn: {first_names([each.weight for each in still])} "
        f"get {what}, although their scores choose {first.chosen} of {first.experts} experts",
        action="Multiply the output of each expert by its score before it is normalized over the chosen ones"
        f"{'' if first.site.source is None else f' (chosen in {first.site.source})'}.",
        source=first.site.source,
        evidence={"routers": float(len(still)), "experts": float(first.experts)},
    )


def _gets_nothing(router: Router) -> bool:
    """Whether the router gets no gradient although its experts, as far as they are known, do."""
    is_gated = bool(router.expert_gradients) and not any(router.expert_gradients)
    return router.gradient in ("none", "zero") and not is_gated
