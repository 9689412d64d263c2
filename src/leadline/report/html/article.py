"""One report as an article of the HTML page."""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from markdown_it import MarkdownIt
from markupsafe import Markup

from leadline.records import CheckRow, Finding, Forecast, Profile, Rehearsal, RunSummary, Source, Symmetry
from leadline.records.repair import RepairReport
from leadline.records.report import Report
from leadline.report.charts.lines import Line, line_chart
from leadline.report.depth import block_summary
from leadline.report.formats.md import md
from leadline.report.formula import readable
from leadline.report.html.advice import Advice, advice_of, commands_of
from leadline.report.html.carried import Carried, carried, rounded
from leadline.report.html.causes import (
    Split,
    depths_drawn,
    drawn,
    ranges_drawn,
    rates_drawn,
    splits_of,
    step_facts,
    steps_drawn,
)
from leadline.report.html.forecasted import Law, law_of
from leadline.report.html.overlay import overlaid
from leadline.report.html.panel import Axis, Panel, axis_of
from leadline.report.html.panels import panels_of
from leadline.report.html.repairs import Mended, mended
from leadline.report.layout import Look
from leadline.report.place import place_of
from leadline.report.verdict import TITLES, rooted, sentence, steps_of
from leadline.text import clean, count, number, plural, share


def prose(source: str) -> Markup:
    """`source` with its formulas in plain signs. Headings go two levels down, below those of the page."""
    made: str = MarkdownIt("commonmark", {"html": False}).disable(["image"]).render(readable(source))
    for level in (4, 3, 2, 1):
        made = made.replace(f"<h{level}>", f"<h{level + 2}>").replace(f"</h{level}>", f"</h{level + 2}>")
    return Markup(made)


# The symmetry group of a network in words and a few numbers.

SHOWN = 8  # kinds of rescaling that are listed; the rest is counted
_NUMBER = re.compile(r"\d+")


@dataclass(frozen=True, slots=True, kw_only=True)
class Group:
    """What is said of the group: a sentence, facts, and the kinds of its rescalings, each with how many there are."""

    sentence: str
    facts: list[tuple[str, str]]
    kinds: list[tuple[str, int]]
    more: int
    """Kinds that are not listed."""


def group_of(symmetry: Symmetry | None) -> Group | None:
    """None where nothing is known of it."""
    if symmetry is None:
        return None
    kinds = _kinds(each.says for each in symmetry.generators)
    return Group(
        sentence=_sentence(symmetry),
        facts=_symmetry_facts(symmetry),
        kinds=kinds[:SHOWN],
        more=max(len(kinds) - SHOWN, 0),
    )


def _sentence(symmetry: Symmetry) -> str:
    if not symmetry.dimension:
        return "No parameter can be rescaled without changing what the network computes."
    free = symmetry.free_share
    saved = "" if free is None else f" Along them {share(free)} of the weight penalty could be saved."
    return f"{plural(symmetry.dimension, 'independent rescaling')} leave the network's function alone.{saved}"


def _symmetry_facts(symmetry: Symmetry) -> list[tuple[str, str]]:
    worst = max((each.share for each in symmetry.eps if each.share is not None), default=None)
    rows = [
        ("weight decay inert on", plural(len(symmetry.inert), "tensor") if symmetry.inert else ""),
        (
            "invariant to their own scale",
            plural(len(symmetry.invariant), "tensor") if symmetry.invariant else "",
        ),
        ("penalty", number(symmetry.penalty) if symmetry.penalty is not None else ""),
        ("least penalty of the same function", number(symmetry.least) if symmetry.least is not None else ""),
        ("largest eps / variance at a norm", number(worst) if worst is not None else ""),
        ("ops held fixed, for want of a rule", plural(len(symmetry.held), "op") if symmetry.held else ""),
    ]
    return [(name, value) for name, value in rows if value]


def _kinds(said: Iterable[str]) -> list[tuple[str, int]]:
    """Rescalings that differ in the numbers of their layers only, taken together; the first stands for all."""
    texts = [clean(each) for each in said]
    amounts = Counter(_NUMBER.sub("N", each) for each in texts)
    firsts: dict[str, str] = {}
    for each in texts:
        firsts.setdefault(_NUMBER.sub("N", each), each)
    return [(firsts[kind], amount) for kind, amount in amounts.most_common()]


# One report as an article of a page: every number in words, every picture drawn, ready for the template.

Rows = list[tuple[str, str]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Root:
    """A finding that nothing explains, with what it leads to, where it is written, and the page of its rule."""

    finding: Finding
    below: Sequence[Finding]
    place: Source | None
    evidence: Rows
    page: Markup


@dataclass(frozen=True, slots=True, kw_only=True)
class Article:
    """All that the template shows of one report. Words are plain text; pictures are markup."""

    report: Report
    title: str
    sentence: str
    facts: Rows
    advice: list[Advice]
    nothing: str
    """What is said where there is no advice."""
    commands: str
    mended: Mended | None
    axis: Axis
    panels: list[Panel]
    sketches: list[Markup]
    """Each panel drawn once more without scripts: shown until, and if, the charts are."""
    waterfalls: list[tuple[Split, Markup]]
    step: Rows
    rehearsal: tuple[Rehearsal, Markup] | None
    ranges: Markup
    rates: Markup
    depths: Markup
    law: Law | None
    group: Group | None
    roots: list[Root]
    ignored: Sequence[Finding]
    silent: list[CheckRow]
    """Rules that were asked and found nothing."""
    carried: Carried
    markdown: str

    @property
    def data(self) -> dict[str, Any]:
        """What the page's scripts read."""
        return {
            "names": self.axis.names,
            "blocks": numbers(self.axis),
            "panels": [spec(panel, self.axis) for panel in self.panels],
            "curves": [curve.spec for curve in self.mended.curves] if self.mended else [],
            "record": self.carried.packed,
            "markdown": self.markdown,
        }


def article(report: Report, repair: RepairReport | None = None, forecast: Forecast | None = None) -> Article:
    """`repair`: what was tried on the model of this report; its profiles are then drawn before and after.

    `forecast`: how its family of models goes with depth.
    """
    profile = report.profile
    axis, panels = _profiles(profile, repair)
    update, scale, rehearsed = profile.update, profile.depth_scale, profile.rehearsal
    found = {finding.code for finding in (*report.findings, *report.ignored)}
    return Article(
        report=report,
        title=TITLES[report.verdict],
        sentence=sentence(report),
        facts=_facts(report),
        advice=advice_of(report, repair),
        nothing="See first what could not be seen: it is listed below."
        if report.verdict == "undecided"
        else "Nothing: no rule found more than a note.",
        commands=commands_of(report),
        mended=None if repair is None else mended(repair),
        axis=axis,
        panels=panels,
        sketches=[Markup(sketch(panel)) for panel in panels],
        waterfalls=[(split, Markup(drawn(split))) for split in splits_of(profile)],
        step=[] if update is None else step_facts(update),
        rehearsal=None if rehearsed is None else (rehearsed, Markup(steps_drawn(rehearsed))),
        ranges=Markup("" if update is None else ranges_drawn(update)),
        rates=Markup("" if update is None else rates_drawn(update)),
        depths=Markup("" if scale is None else depths_drawn(profile, scale)),
        law=None if forecast is None else law_of(forecast),
        group=group_of(profile.symmetry),
        roots=[_root(report, root, below) for root, below in rooted(report.findings)],
        ignored=report.ignored,
        silent=[rule for rule in report.rules if rule.code not in found],
        carried=carried(report),
        markdown=md([report], Look()),
    )


def _profiles(profile: Profile, repair: RepairReport | None) -> tuple[Axis, list[Panel]]:
    if repair is None or repair.after is None:
        return axis_of(profile), panels_of(profile)
    return overlaid(profile, repair.after.profile, ("before", "after"))


def sketch(panel: Panel) -> str:
    """The panel as SVG."""
    lines = [
        Line(values=each.values, label=each.label, tone=each.tone, band=each.band, sparse=each.sparse)
        for each in panel.series
    ]
    return line_chart(lines, label=f"{panel.title}: {panel.unit}", kind=panel.kind)


def _facts(report: Report) -> Rows:
    profile = report.profile
    sure = report.confidence
    rows = [
        *_course(report.course),
        ("Model", clean(profile.model)),
        ("Parameters", _parameters(profile)),
        ("Depth", block_summary(profile.blocks)),
        ("Loss", number(profile.loss) if profile.loss is not None else ""),
        ("Optimiser", _optimizer(profile)),
        ("Mode", "training" if profile.training else "evaluation"),
        ("Confidence", "" if sure is None else f"{share(sure)} of such verdicts came true"),
    ]
    return [(name, value) for name, value in rows if value]


def _course(course: RunSummary | None) -> Rows:
    """Of a report of a run: which steps it is about."""
    if course is None:
        return []
    steps = f"{steps_of(course)} ({course.first_step} to {course.last_step})"
    return [
        ("Training", f"{clean(course.source)}{f', {clean(course.state)}' if course.state else ''}"),
        ("Steps", steps),
        ("Loss of the run", f"{number(course.first_loss)} to {number(course.last_loss)}"),
    ]


def _parameters(profile: Profile) -> str:
    frozen = profile.parameters - profile.trainable
    return f"{count(profile.parameters)}{f', {count(frozen)} frozen' if frozen else ''}"


def _optimizer(profile: Profile) -> str:
    if profile.optimizer is None:
        return ""
    rates = {group.lr for group in profile.optimizer.groups if group.lr is not None}
    rate = f", rate {' to '.join(map(number, sorted({min(rates), max(rates)})))}" if rates else ""
    return f"{clean(profile.optimizer.name)}{rate}"


def _root(report: Report, finding: Finding, below: Sequence[Finding]) -> Root:
    page = next((rule.page for rule in report.rules if rule.code == finding.code), "")
    evidence = [(clean(key.replace("_", " ")), _amount(value)) for key, value in finding.evidence.items()]
    return Root(
        finding=finding, below=below, place=place_of(report, finding), evidence=evidence, page=prose(page)
    )


def _amount(value: float) -> str:
    """Counts as counts, everything else with three digits."""
    return count(int(value)) if math.isfinite(value) and value == int(value) else number(value)


def numbers(axis: Axis) -> list[int | None]:
    """The number of the block at each place of the axis."""
    numbers: list[int | None] = [None] * len(axis.names)
    for block, place in enumerate(axis.places):
        numbers[place] = block
    return numbers


def spec(panel: Panel, axis: Axis) -> dict[str, Any]:
    """A panel as charts.js reads it."""
    series = [
        {
            "label": each.label,
            "tone": each.tone,
            "values": rounded(each.values),
            **({} if each.band is None else {"band": rounded(each.band)}),
            **({"sparse": True} if each.sparse else {}),
        }
        for each in panel.series
    ]
    return {"kind": panel.kind, "starts": axis.starts, "gaps": axis.gaps, "series": series}
