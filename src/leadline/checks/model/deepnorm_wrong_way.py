"""I305: DeepNorm with its factors in the wrong place."""

from __future__ import annotations

from collections.abc import Iterator
from statistics import median

from leadline.checks._check import Symptom, check
from leadline.checks._examples import each_block, geometric, residual
from leadline.records import DepthBlock, Profile, Weight

SCALED = 1.2  # times; derived: DeepNorm's alpha is (2N)^(1/4), 1.19 for a single layer
DWARFS = 20.0  # branch over skip mean square; calibrated by benchmarks/verdicts: below, such networks learned
TOO_LARGE = 4.0  # times the branch variance that alpha calls for; ours: initialisations scatter by two


@check(
    code="I305",
    name="deepnorm-wrong-way",
    since="0.1.0",
    refuted_by="learning",
    explains=("F106", "R402", "R405", "B201", "B202", "U501", "U502", "U509", "U503", "U504", "U505", "U523"),
    sick=each_block(
        geometric(blocks=24), residual=residual(placement="post", branch_scale=2.3, branch_ms=200.0)
    ),
    healthy=each_block(
        geometric(blocks=24), residual=residual(placement="post", skip_scale=2.3, branch_ms=1e-3)
    ),
)
def deepnorm_wrong_way(profile: Profile) -> Iterator[Symptom]:
    r"""DeepNorm's factors are wrong: alpha on the branch, beta on queries and keys, or missing.

    ## What it measures
    DeepNorm is $\mathrm{LN}(\alpha x + f(x))$ with $\alpha = (2N)^{1/4}$ on the *skip*, and the weights of the
    feed-forward part, of values and of the attention's output scaled by $\beta = (8N)^{-1/4}$, so that
    $\beta^2 = 1/(2\alpha^2)$. In post-norm blocks it fires if most branches are multiplied by more than `SCALED` = 1.2
    and skips are not; if skips are scaled but the last weights of branches have more than `TOO_LARGE` = 4 times the
    variance that goes with that $\alpha$; or if queries are scaled down more than values.

    ## Why it hurts
    On the branch, $\alpha$ makes each block forget its input instead of keeping it: the stream is replaced, block by
    block, and tokens collapse. Without $\beta$ the bound on the change of the function no longer holds. On queries and
    keys $\beta$ only flattens the attention.

    ## When it is wrong
    Schemes that scale branches up on purpose in front of a norm.

    ## References
    Wang et al., "DeepNet: scaling transformers to 1,000 layers", 2022, section 3 and figure 2; microsoft/torchscale.
    """
    blocks = [block for block in profile.blocks if block.residual and block.residual.placement == "post"]
    if len(blocks) < 2:
        return
    skip, branch = _median(blocks, "skip_scale"), _median(blocks, "branch_scale")
    if branch > SCALED and skip < SCALED:
        yield _alpha_on_branch(profile, blocks, branch)
    elif skip > SCALED:
        yield from _beta(profile, blocks, skip)


def _alpha_on_branch(profile: Profile, blocks: list[DepthBlock], alpha: float) -> Symptom:
    ratios = [r.branch_ms / r.skip_ms for b in blocks if (r := b.residual) and r.branch_ms and r.skip_ms]
    ratio = median(ratios) if ratios else 0.0
    return Symptom(
        severity="warning" if ratio > DWARFS else "info",
        where=f"{blocks[0].name} … {blocks[-1].name}",
        message=f"post-norm branches are multiplied by {alpha:.3g} and skips by nothing: DeepNorm's alpha belongs on "
        f"the skip; branches have {ratio:.3g} times the mean square of their skips",
        evidence={"branch_scale": alpha, "branch_over_skip": ratio},
        layers=_span(profile, blocks),
    )


def _beta(profile: Profile, blocks: list[DepthBlock], alpha: float) -> Iterator[Symptom]:
    weights = [each for each in (profile.facts.weights if profile.facts else ()) if each.residual]
    last = [each.variance for each in weights if each.last]
    wanted = 1 / (2 * alpha**2)
    if last and median(last) > TOO_LARGE * max(wanted, 1e-9) and _looks_like(alpha, len(blocks)):
        yield Symptom(
            severity="info",
            where=f"{blocks[0].name} … {blocks[-1].name}",
            message=f"skips are scaled by alpha = {alpha:.3g}, but the last weights of branches have a gain of "
            f"{median(last):.3g} instead of beta^2 = {wanted:.3g}: DeepNorm's beta is missing",
            evidence={"alpha": alpha, "gain": median(last), "beta_squared": wanted},
            layers=_span(profile, blocks),
        )
    query, value = _by_role(weights, "query"), _by_role(weights, "value")
    if query and value and median(query) * TOO_LARGE < median(value):
        yield Symptom(
            severity="info",
            where=f"{blocks[0].name} … {blocks[-1].name}",
            message=f"queries are scaled to a gain of {median(query):.3g} and values to {median(value):.3g}: "
            "DeepNorm's beta belongs on values and the output, not on queries and keys",
            evidence={"query_gain": median(query), "value_gain": median(value)},
            layers=_span(profile, blocks),
        )


def _looks_like(alpha: float, sublayers: int) -> bool:
    """The scale is DeepNorm's own, (2N)^(1/4) with N layers of two sub-layers; other schemes have other betas."""
    return bool(abs(alpha / sublayers**0.25 - 1) < 0.1)


def _median(blocks: list[DepthBlock], name: str) -> float:
    found = [scale for b in blocks if b.residual and (scale := getattr(b.residual, name)) is not None]
    return float(median(found)) if found else 1.0


def _by_role(weights: list[Weight], role: str) -> list[float]:
    return [each.variance for each in weights if each.role == role]


def _span(profile: Profile, blocks: list[DepthBlock]) -> tuple[int, int]:
    own = [
        i for i, block in enumerate(profile.blocks) if block.residual and block.residual.placement == "post"
    ]
    return own[0], own[-1]
