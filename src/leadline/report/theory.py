"""Theory beside measurement: how well they agree, where they part first, and how deep such a stack can be."""

from __future__ import annotations

import math

from rich.text import Text

from leadline.records import Agreement, DepthScale, Parting, Profile
from leadline.report.layout import joined, labelled
from leadline.report.text import clean, count, factor, number, plural

DEEPEST = 1e4  # layers; beyond, "no limit" says as much


def theory_lines(profile: Profile, width: int) -> list[Text]:
    """One line of agreement, one where theory and measurement part first, if they do; none without a prediction."""
    found = profile.theory
    if found is None or not found.ops:
        return []
    said = joined(
        f"{count(found.with_rule)}/{count(found.ops)} ops predicted",
        _off("forward", found.forward),
        _off("backward", found.backward),
        _scale(profile.depth_scale),
    )
    lines = labelled("theory", said, width, most=2)
    parting = found.forward_parting or found.backward_parting
    return lines + (labelled("", _parts(parting), width, most=2) if parting is not None else [])


def _off(direction: str, agreement: Agreement | None) -> str:
    """The median factor between prediction and measurement, as a percentage while it is less than double."""
    if agreement is None:
        return ""
    off = math.exp(agreement.median)
    return f"{direction} within {100 * (off - 1):.0f} %" if off < 2 else f"{direction} off {factor(off)}"


def _scale(scale: DepthScale | None) -> str:
    if scale is None:
        return ""
    deep = (
        f", to about {plural(round(scale.trainable_depth), 'block')}"
        if scale.trainable_depth < DEEPEST
        else ""
    )
    return f"{scale.phase}, χ {number(scale.chi)}{deep}"


def _parts(parting: Parting) -> str:
    where = f"{clean(parting.name)}{f' in {clean(parting.module)}' if parting.module else ''}"
    size = f"measured {factor(parting.factor)} of the prediction"
    return f"{parting.direction}, parts first at {where}: {size}; it assumes that {clean(parting.assumption)}"
