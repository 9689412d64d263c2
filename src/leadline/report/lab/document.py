"""Experiments as Markdown: the page "What the articles say, what we measured" of the docs, below its introduction."""

from __future__ import annotations

import re
from collections.abc import Iterator

from leadline.records import Check, Experiment, Lab
from leadline.report.formula import FORMULA
from leadline.report.lab.articles import ARTICLES, Article, of_article
from leadline.report.lab.figures import figure
from leadline.report.lab.words import ANSWERS, MEANINGS, PARTIES, TITLES, measured, predicted, summary


def document(lab: Lab) -> str:
    """Verdicts of all, then article by article: errata, and each claim in full."""
    return "\n\n".join([*_overview(lab), *_articles(lab)]) + "\n"


def _overview(lab: Lab) -> Iterator[str]:
    yield "\n".join(f"- **{TITLES[ruling]}**: {said}." for ruling, said in MEANINGS.items())
    yield f"{len(lab.experiments)} claims: {summary(lab.experiments)}. Run with torch {lab.torch}."
    rows = [
        f"| [{each.code}](#{_anchor(each)}) | {cell(each.claim)} | {each.verdict} |"
        for each in lab.experiments
    ]
    yield "\n".join(["| code | claim | verdict |", "| --- | --- | --- |", *rows])


def _articles(lab: Lab) -> Iterator[str]:
    for article in ARTICLES:
        found = of_article(article, lab.experiments)
        if found:
            yield from _article(article)
            for each in found:
                yield from _experiment(each)


def _article(article: Article) -> Iterator[str]:
    yield f"## {article.title}"
    yield f"*{article.source}.* {article.about}"
    yield f"### Errata of {article.prefix} {{#{article.prefix.lower()}-errata}}"
    yield "\n".join(f"{place}. {each}" for place, each in enumerate(article.errata, 1))


def _experiment(each: Experiment) -> Iterator[str]:
    yield f"### {each.code}: {each.verdict} {{#{_anchor(each)}}}"
    yield f"**{each.claim}**"
    if not each.agrees:
        yield f"**The lab disagrees with what is published ({each.published}).**"
    yield f"*In the article.* {each.article}"
    yield f"*The test.* {each.test}"
    head = ["| measured | by | predicted | found | met |", "| --- | --- | --- | --- | --- |"]
    yield "\n".join([*head, *map(_row, each.checks)])
    yield f"*What is true.* {each.truth}"
    yield from map(figure, each.plots)


def _row(check: Check) -> str:
    found = (cell(check.what), PARTIES[check.by], predicted(check), measured(check), ANSWERS[check.agrees])
    return f"| {' | '.join(found)} |"


def cell(text: str) -> str:
    """`text` for a table: bars, also those inside of formulas, do not end its cell."""
    parts, at = [], 0
    for found in FORMULA.finditer(text):
        parts += [text[at : found.start()].replace("|", "&#124;"), re.sub(r"(?<!\\)\|", r"\\vert ", found[0])]
        at = found.end()
    return "".join([*parts, text[at:].replace("|", "&#124;")])


def _anchor(each: Experiment) -> str:
    return each.code.lower()
