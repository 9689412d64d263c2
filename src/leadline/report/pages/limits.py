"""The sections of a report about limits: of depth and rate, and how far each quantity is from where its check fires."""

from __future__ import annotations

import math
from collections.abc import Sequence

from leadline.records import DepthScale, Forecast, Margin, Profile
from leadline.records.report import Report
from leadline.report.depth import trainable_depth
from leadline.report.page import Column, Columns, Details, Element, Mark, Paragraph, Ruler, Section, Table
from leadline.report.pages.forecast import forecast_elements, forecast_title
from leadline.report.pages.step import rate_ruler
from leadline.text import factor, number

# Heuristic: in blocks; beyond it, "no limit" says as much.
MAX_DEPTH_NAMED = 1e4
# Heuristic: a limit that is exceeded by more is given as a multiple; "250 %" is read less easily than "3.5 times".
MAX_PERCENTAGE = 2.0


def limits_section(report: Report, forecast: Forecast | None) -> Section:
    update, scale = report.profile.update, report.profile.depth_scale
    depth = None if scale is None else depth_ruler(report.profile, scale, trainable_depth(report))
    rate = None if update is None else rate_ruler(update)
    rulers: tuple[Element, ...] = tuple(each for each in (depth, rate) if each is not None)
    body: tuple[Element, ...] = (Columns(left=rulers[:1], right=rulers[1:]),) if rulers else ()
    if forecast is not None:
        body += (Paragraph(words=forecast_title(forecast)), *forecast_elements(forecast))
    return Section(key="limits", title="Depth and rate", body=body)


def depth_ruler(profile: Profile, scale: DepthScale, trainable: float | None) -> Ruler:
    """How many blocks there are, and how many theory says such a stack can have, unless that is not known."""
    depth = len(profile.blocks)
    marks = [Mark(label="your depth", value=depth, amount=str(depth), main=True)]
    if trainable is not None and 0 < trainable < math.inf:
        limit = max(trainable, 1.0)
        marks.append(Mark(label="trainable to about", value=limit, amount=number(limit)))
    if 0 < scale.xi < math.inf:
        marks.append(Mark(label="depth scale ξ", value=scale.xi, amount=number(scale.xi)))
    endless = " No limit of depth is in sight." if scale.trainable_depth > MAX_DEPTH_NAMED else ""
    return Ruler(
        title="Depth",
        unit="blocks",
        label="Depth, and how deep such a stack can be",
        marks=tuple(each for each in marks if each.value > 0),
        note=f"By theory the squared gradient changes {factor(scale.chi)} per block (χ): {scale.phase}.{endless}",
    )


def margins_section(margins: Sequence[Margin]) -> Section:
    title = "How far from trouble"
    if not margins:
        return Section(key="margins", title=title)
    columns = (
        Column(title="quantity"),
        Column(title="measured", kind="number"),
        Column(title="limit", kind="number"),
        Column(title="used", kind="number"),
        Column(title="check"),
    )
    rows = tuple(
        (each.quantity, number(each.value), _limit_words(each), _used_words(each), each.code)
        for each in margins
    )
    details = Details(title=title, items=(Table(columns=columns, rows=rows),))
    return Section(key="margins", title=title, link="Margins", brief=(details,), body=(details,))


def _limit_words(margin: Margin) -> str:
    return f"{'at most' if margin.side == 'below' else 'at least'} {number(margin.limit)}"


def _used_words(margin: Margin) -> str:
    """The used share of the way to the limit."""
    used = margin.used
    if used is None:
        return "not near the limit" if margin.side == "below" else "below 0"
    return f"{100 * used:.0f} %" if used < MAX_PERCENTAGE else f"{number(used)} × limit"
