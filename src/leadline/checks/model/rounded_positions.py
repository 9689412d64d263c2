"""D926: positions that a narrow dtype rounds to the same number."""

from __future__ import annotations

from collections.abc import Iterator

from leadline.checks._check import Symptom, check
from leadline.checks._wiring_examples import SITE, with_parts
from leadline.records import Profile, RoundedAngle


@check(
    code="D926",
    name="rounded-positions",
    since="0.1.0",
    sick=with_parts(angles=(RoundedAngle(site=SITE, dtype="bfloat16", largest=1023.0, spacing=4.0),)),
    healthy=with_parts(),
)
def rounded_positions(profile: Profile) -> Iterator[Symptom]:
    r"""Angles of a positional encoding are rounded so coarsely that neighboring positions become equal.

    ## What it measures
    The largest argument of each sine and cosine, and the distance between neighboring numbers of its dtype there.
    Fires if that distance is one radian or more: bfloat16 from 256 on, float16 from 2048 on, float32 from $2^{24}$ on.

    ## Why it hurts
    Positional encodings take sines and cosines of position times frequency. bfloat16 holds integers up to 256 only:
    at position 1000 it counts in steps of 4, so four neighbors get the same encoding and the order of tokens is lost.
    `model.bfloat16()` also converts buffers that hold positions or frequencies.

    ## When it is wrong
    If the sine is no encoding of positions, and random phases are wanted.

    ## References
    Wang et al., "When precision meets position: BFloat16 breaks down RoPE in long-context training", 2024.
    """
    angles = profile.parts.angles if profile.parts else ()
    if not angles:
        return
    worst = max(angles, key=lambda each: each.spacing)
    yield Symptom(
        severity="warning",
        where=worst.site.module or "the model",
        message=f"{worst.site.op} reads angles up to {worst.largest:.4g} in {worst.dtype}, which is rounded to "
        f"multiples of {worst.spacing:.3g} radians there, so that neighboring positions are equal",
        action="Compute positions, frequencies and their product in float32 and cast the sine and cosine afterwards"
        f"{'' if worst.site.source is None else f' ({worst.site.source})'}.",
        source=worst.site.source,
        evidence={"largest": worst.largest, "spacing": worst.spacing},
    )
