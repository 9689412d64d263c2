"""Experiments as a page for the browser, one file that needs nothing else: figures inline, formulas typeset."""

from __future__ import annotations

from dataclasses import dataclass

from markupsafe import Markup

from leadline.records import Experiment, Lab
from leadline.report.html.page import STATIC, Kit, fill
from leadline.report.html.typeset import typeset
from leadline.report.lab.articles import ARTICLES, Article, of_article
from leadline.report.lab.figures import figure
from leadline.report.lab.words import (
    ANSWERS,
    DISAGREES,
    MEANINGS,
    PARTIES,
    TITLES,
    measured,
    predicted,
    summary,
)

KIT = Kit(scripts=(), styles=(STATIC / "page.css",))
BADGES = {"holds": "holds", "holds under conditions": "warning", "false as stated": "error"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Shown:
    """An experiment, ready for the template."""

    experiment: Experiment
    title: str
    badge: str
    claim: Markup
    article: Markup
    test: Markup
    truth: Markup
    rows: list[tuple[Markup, str, str, str, str, Markup]]
    figures: list[Markup]


def render_page(lab: Lab) -> str:
    """The whole page: by article, with its errata."""
    parts = [(article, of_article(article, lab.experiments)) for article in ARTICLES]
    sections = [
        (article, _errata(article), [_shown(each) for each in found]) for article, found in parts if found
    ]
    return fill(
        "lab.html",
        [],
        kit=KIT,
        title="What the articles say, what we measured",
        lab=lab,
        summary=summary(lab.experiments),
        meanings=[(TITLES[ruling], said) for ruling, said in MEANINGS.items()],
        disagrees=DISAGREES,
        sections=sections,
    )


def _shown(each: Experiment) -> Shown:
    return Shown(
        experiment=each,
        title=TITLES[each.verdict],
        badge=BADGES.get(each.verdict, "error"),
        claim=typeset(each.claim, inline=True),
        article=typeset(each.article),
        test=typeset(each.test),
        truth=typeset(each.truth),
        rows=[
            (
                typeset(check.what, inline=True),
                PARTIES[check.by],
                predicted(check),
                measured(check),
                ANSWERS[check.agrees],
                typeset(check.origin, inline=True),
            )
            for check in each.checks
        ],
        figures=[Markup(figure(plot)) for plot in each.plots],
    )


def _errata(article: Article) -> list[Markup]:
    return [typeset(each, inline=True) for each in article.errata]
