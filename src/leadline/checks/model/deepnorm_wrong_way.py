"""I305: DeepNorm with its factors in the wrong place."""

from __future__ import annotations

from collections.abc import Iterator
from statistics import median

from leadline.checks._check import Symptom, check
from leadline.checks._examples import each_block, geometric, residual
from leadline.checks._laws import MIN_DELIBERATE_SCALE
from leadline.records import DepthBlock, Profile, Weight

# Calibrated by benchmarks/verdicts: mean square of branch over skip; below, such networks learned.
MAX_BRANCH_RATIO = 20.0
# Heuristic: multiple of the branch variance that belongs to alpha; initializations scatter by a factor of two.
MAX_VARIANCE_RATIO = 4.0
# Heuristic: relative distance from DeepNorm's own alpha; other schemes have other exponents.
MAX_ALPHA_DISTANCE = 0.1


@check(
    code="I305",
    name="deepnorm-wrong-way",
    since="0.1.0",
    refuted_by="learning",
    explains=(
        "F106",
        "R402",
        "R405",
        "B201",
        "B202",
        "U501",
        "U502",
        "U509",
        "U503",
        "U504",
        "U505",
        "U523",
        "U525",
    ),
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
    $\beta^2 = 1/(2\alpha^2)$. In post-norm blocks the check fires in three cases: most branches are multiplied by more
    than `MIN_DELIBERATE_SCALE` = 1.2 and skips are not; skips are scaled but the last weights of branches have more
    than `MAX_VARIANCE_RATIO` = 4 times the variance that belongs to that $\alpha$; queries are scaled down more than
    values.

    ## Why it hurts
    On the branch, $\alpha$ makes each block forget its input instead of keeping it: the stream is replaced block by
    block, and tokens collapse. Without $\beta$ the bound on the change of the function no longer holds. On queries and
    keys $\beta$ only flattens the attention.

    ## When it is wrong
    Some schemes scale branches up before a norm on purpose.

    ## References
    Wang et al., "DeepNet: scaling transformers to 1,000 layers", 2022, section 3 and figure 2; microsoft/torchscale.
    """
    blocks = [block for block in profile.blocks if block.residual and block.residual.placement == "post"]
    if len(blocks) < 2:
        return
    skip, branch = _median(blocks, "skip_scale"), _median(blocks, "branch_scale")
    if branch > MIN_DELIBERATE_SCALE and skip < MIN_DELIBERATE_SCALE:
        yield _alpha_on_branch(profile, blocks, branch)
    elif skip > MIN_DELIBERATE_SCALE:
        yield from _wrong_beta(profile, blocks, skip)


def _alpha_on_branch(profile: Profile, blocks: list[DepthBlock], alpha: float) -> Symptom:
    ratios = [r.branch_ms / r.skip_ms for b in blocks if (r := b.residual) and r.branch_ms and r.skip_ms]
    ratio = median(ratios) if ratios else 0.0
    return Symptom(
        severity="warning" if ratio > MAX_BRANCH_RATIO else "info",
        where=f"{blocks[0].name} … {blocks[-1].name}",
        message=f"{len(blocks)} post-norm branches are multiplied by {alpha:.3g} and their skips are not: a branch has "
        f"{ratio:.3g} times the mean square of its skip",
        action=f"Multiply the skip by DeepNorm's alpha, not the branch: `norm({alpha:.3g} * x + branch(x))`.",
        evidence={"branch_scale": alpha, "branch_over_skip": ratio},
        layers=_span(profile),
    )


def _wrong_beta(profile: Profile, blocks: list[DepthBlock], alpha: float) -> Iterator[Symptom]:
    weights = [each for each in (profile.facts.weights if profile.facts else ()) if each.residual]
    last = [each.variance for each in weights if each.last]
    wanted = 1 / (2 * alpha**2)
    if last and median(last) > MAX_VARIANCE_RATIO * max(wanted, 1e-9) and _is_deepnorm(alpha, len(blocks)):
        factor = (wanted / median(last)) ** 0.5
        yield Symptom(
            severity="info",
            where=f"{blocks[0].name} … {blocks[-1].name}",
            message=f"the last weights of branches have a gain of {median(last):.3g} instead of DeepNorm's beta^2 = "
            f"{wanted:.3g}: skips are scaled by alpha = {alpha:.3g}, but beta is missing",
            action=f"Multiply the initial weights of the feed-forward part, the values and the attention output by "
            f"{factor:.2g}.",
            evidence={"alpha": alpha, "gain": median(last), "beta_squared": wanted},
            layers=_span(profile),
        )
    query, value = _by_role(weights, "query"), _by_role(weights, "value")
    if query and value and median(query) * MAX_VARIANCE_RATIO < median(value):
        yield Symptom(
            severity="info",
            where=f"{blocks[0].name} … {blocks[-1].name}",
            message=f"query weights have a gain of {median(query):.3g} and value weights {median(value):.3g}: "
            "DeepNorm's beta is on the wrong matrices",
            action="Apply DeepNorm's beta to the value and output weights, not to the query and key weights.",
            evidence={"query_gain": median(query), "value_gain": median(value)},
            layers=_span(profile),
        )


def _is_deepnorm(alpha: float, sublayers: int) -> bool:
    """Whether the scale is DeepNorm's, (2N)^(1/4) with N layers of two sub-layers; other schemes have other betas."""
    return bool(abs(alpha / sublayers**0.25 - 1) < MAX_ALPHA_DISTANCE)


def _median(blocks: list[DepthBlock], name: str) -> float:
    scales = [scale for b in blocks if b.residual and (scale := getattr(b.residual, name)) is not None]
    return float(median(scales)) if scales else 1.0


def _by_role(weights: list[Weight], role: str) -> list[float]:
    return [each.variance for each in weights if each.role == role]


def _span(profile: Profile) -> tuple[int, int]:
    post = [i for i, b in enumerate(profile.blocks) if b.residual and b.residual.placement == "post"]
    return post[0], post[-1]
