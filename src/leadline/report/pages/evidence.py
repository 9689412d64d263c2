"""The sections of a report with its evidence: symmetry, limits of depth and rate, margins, and what was not checked."""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Iterable, Sequence

from leadline.records import Coverage, DepthScale, Forecast, Margin, Profile, Symmetry, Theory
from leadline.report.page import (
    Column,
    Columns,
    Details,
    Element,
    Fact,
    FactList,
    Gaps,
    Mark,
    Paragraph,
    Ruler,
    Section,
    Table,
    facts,
)
from leadline.report.pages.forecast import forecast_elements, forecast_title
from leadline.report.pages.step import rate_ruler
from leadline.text import count, factor, joined, number, plural, share

# Heuristic: kinds of rescaling that fit on a screen; the rest is counted.
RESCALINGS_SHOWN = 8
# Heuristic: in blocks; beyond it, "no limit" says as much.
MAX_DEPTH_NAMED = 1e4
# Heuristic: a limit that is exceeded by more is given as a multiple; "250 %" is read less easily than "3.5 times".
MAX_PERCENTAGE = 2.0

_NUMBER = re.compile(r"\d+")


# The symmetry group: what can be rescaled without changing the network's function.


def symmetry_section(symmetry: Symmetry | None) -> Section:
    title, link = "Symmetry group", "Symmetry"
    if symmetry is None:
        return Section(key="group", title=title)
    table = _rescalings(each.says for each in symmetry.generators)
    return Section(
        key="group",
        title=title,
        link=link,
        lead=_symmetry_sentence(symmetry),
        brief=(_symmetry_line(symmetry),),
        body=(_symmetry_facts(symmetry), *((table,) if table.rows else ())),
    )


def _symmetry_sentence(symmetry: Symmetry) -> str:
    if not symmetry.dimension:
        return "No parameter can be rescaled without changing what the network computes."
    free = symmetry.free_share
    saved = "" if free is None else f" The weight penalty can be reduced by {share(free)}."
    rescalings = plural(symmetry.dimension, "independent rescaling")
    leave = "leaves" if symmetry.dimension == 1 else "leave"
    return f"{rescalings} of the parameters {leave} the network's function unchanged.{saved}"


def _symmetry_line(symmetry: Symmetry) -> FactList:
    """One line; nothing if nothing can be rescaled."""
    if not symmetry.dimension:
        return facts()
    free = symmetry.free_share
    words = joined(
        plural(symmetry.dimension, "free rescaling"),
        f"weight decay has no effect on {plural(len(symmetry.inert), 'tensor')}" if symmetry.inert else "",
        "" if free is None else f"{share(free)} of the weight penalty can be saved",
    )
    return facts(Fact(label="Symmetry", value=words, line="symmetry"))


def _symmetry_facts(symmetry: Symmetry) -> FactList:
    worst = max((each.share for each in symmetry.eps if each.share is not None), default=None)
    rows = [
        ("Weight decay has no effect on", plural(len(symmetry.inert), "tensor") if symmetry.inert else ""),
        (
            "Scale does not matter for",
            plural(len(symmetry.invariant), "tensor") if symmetry.invariant else "",
        ),
        ("Penalty", number(symmetry.penalty) if symmetry.penalty is not None else ""),
        ("Least penalty of the same function", number(symmetry.least) if symmetry.least is not None else ""),
        ("Largest eps / variance at a norm", number(worst) if worst is not None else ""),
        ("Held fixed, because no rule is known", plural(len(symmetry.held), "op") if symmetry.held else ""),
    ]
    return facts(*(Fact(label=label, value=value) for label, value in rows))


def _rescalings(sentences: Iterable[str]) -> Table:
    """Rescalings that differ only in the numbers of their layers are counted together; the first stands for all."""
    texts = list(sentences)
    amounts = Counter(_NUMBER.sub("N", each) for each in texts)
    firsts: dict[str, str] = {}
    for each in texts:
        firsts.setdefault(_NUMBER.sub("N", each), each)
    rows = [
        (f"{firsts[kind]}{' and so on' if amount > 1 else ''}", str(amount))
        for kind, amount in amounts.most_common()
    ]
    rest = len(rows) - RESCALINGS_SHOWN
    more = [("further kinds", str(rest))] if rest > 0 else []
    columns = (Column(title="multiply, against divide"), Column(title="count", kind="number"))
    return Table(columns=columns, rows=(*rows[:RESCALINGS_SHOWN], *more))


# How far depth and learning rate are from their limits.


def limits_section(profile: Profile, forecast: Forecast | None) -> Section:
    update, scale = profile.update, profile.depth_scale
    depth = None if scale is None else depth_ruler(profile, scale)
    rate = None if update is None else rate_ruler(update)
    rulers: tuple[Element, ...] = tuple(each for each in (depth, rate) if each is not None)
    body: tuple[Element, ...] = (Columns(left=rulers[:1], right=rulers[1:]),) if rulers else ()
    if forecast is not None:
        body += (Paragraph(words=forecast_title(forecast)), *forecast_elements(forecast))
    return Section(key="limits", title="Depth and rate", body=body)


def depth_ruler(profile: Profile, scale: DepthScale) -> Ruler:
    """How many blocks there are, and how many theory says such a stack can have."""
    depth = len(profile.blocks)
    marks = [Mark(label="your depth", value=depth, amount=str(depth), main=True)]
    if 0 < scale.trainable_depth < math.inf:
        limit = max(scale.trainable_depth, 1.0)
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


# How far the measured quantities are from where their checks fire.


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


# What was not checked.


def coverage_section(coverage: Coverage, theory: Theory | None) -> Section:
    gaps: tuple[Element, ...] = (Gaps(items=coverage.gaps),) if coverage.gaps else ()
    without = {} if theory is None else theory.without
    rules = ", ".join(f"{name} ({amount})" for name, amount in without.items())
    notes: tuple[Element, ...] = (
        (Paragraph(words=f"Ops without a rule of theory: {rules}."),) if rules else ()
    )
    counts = Fact(label="Coverage", value=_coverage_counts(coverage), line="coverage")
    return Section(
        key="unseen",
        title="What was not checked",
        link="Not checked",
        brief=(facts(counts), *gaps),
        body=(Paragraph(words=_coverage_sentence(coverage, theory)), *gaps, *notes),
    )


def _coverage_counts(coverage: Coverage) -> str:
    if not coverage.ops:
        return "no pass was traced"
    forward = f"{count(coverage.forward)}/{count(coverage.values)} values measured forward"
    ops = f"{count(coverage.ops_known)}/{count(coverage.ops)} ops known"
    return joined(ops, f"{forward}, {count(coverage.backward)} backward")


def _coverage_sentence(coverage: Coverage, theory: Theory | None) -> str:
    predicted = (
        "" if theory is None else f" Theory predicts {count(theory.with_rule)} of {count(theory.ops)} ops."
    )
    complete = "" if coverage.gaps else " There are no known gaps."
    return (
        f"{count(coverage.ops_known)} of {count(coverage.ops)} ops are known; {count(coverage.forward)} of "
        f"{count(coverage.values)} values were measured forward, {count(coverage.backward)} backward."
        f"{predicted}{complete}"
    )
