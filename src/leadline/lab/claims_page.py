"""The results of the claims as text, Markdown and HTML."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from io import StringIO
from pathlib import Path
from typing import Literal

from markdown_it import MarkdownIt
from markupsafe import Markup
from rich import box
from rich.console import Console, Group
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from leadline.lab.articles import ARTICLES, SourceArticle, experiments_of
from leadline.records import Experiment, Lab, Party, Plot, PredictionCheck, Ruling
from leadline.report.charts.lines import line_chart
from leadline.report.charts.svg import CHART_TONES, element, words
from leadline.report.formula import FORMULA, in_signs, plain
from leadline.report.layout import QUIET, TONES
from leadline.report.look import Look
from leadline.report.page import Fact, ScaleKind, Series, facts
from leadline.report.render.html import REPORT_KIT, STATIC, Kit, fill
from leadline.text import number

TITLES: dict[Ruling, str] = {
    "holds": "HOLDS",
    "holds under conditions": "HOLDS UNDER CONDITIONS",
    "false as stated": "FALSE AS STATED",
    "undecided": "UNDECIDED",
    "unexplained": "UNEXPLAINED",
}
MEANINGS: dict[Ruling, str] = {
    "holds": "every prediction that follows from the article's words was confirmed",
    "holds under conditions": "some predictions were confirmed; the others need conditions that the article leaves out",
    "false as stated": "no prediction was confirmed",
    "undecided": "a measurement is too imprecise for its prediction: run the claim with more seeds",
    "unexplained": "the published explanation was measured to be false",
}
COUNT_LABELS: dict[Ruling, str] = {
    "holds": "hold as stated",
    "holds under conditions": "hold under conditions",
    "false as stated": "false as stated",
    "undecided": "undecided",
    "unexplained": "unexplained",
}
PARTIES: dict[Party, str] = {"article": "article", "correction": "Leadline"}
ANSWERS = {True: "yes", False: "no", None: "open"}
DISAGREES = "the lab disagrees with what is published"


def format_prediction(check: PredictionCheck) -> str:
    """Return the prediction as a value with its tolerance, or as a bound."""
    if check.predicted is not None and check.high is not None:
        return f"{number(check.predicted)} ± {number(check.high - check.predicted)}"
    return f"≤ {number(check.high)}" if check.high is not None else f"≥ {number(check.low)}"


def format_measurement(check: PredictionCheck) -> str:
    """Return the measurement with its interval, or without one if every run gave the same value."""
    if check.measured_low == check.measured_high:
        return number(check.measured)
    return f"{number(check.measured)} ({number(check.measured_low)} to {number(check.measured_high)})"


def verdict_counts(experiments: Sequence[Experiment]) -> str:
    """Return how many experiments got each verdict, in words."""
    counts = Counter(each.verdict for each in experiments)
    return ", ".join(f"{counts[ruling]} {label}" for ruling, label in COUNT_LABELS.items() if counts[ruling])


# Text for the terminal.

# Heuristic: longer lines are hard to read.
MAX_TEXT_WIDTH = 118
STYLES: dict[Ruling, str] = {
    "holds": TONES["trains"],
    "holds under conditions": TONES["warning"],
    "false as stated": TONES["error"],
    "undecided": "bold",
    "unexplained": TONES["error"],
}


def render_text(lab: Lab, look: Look) -> str:
    """Return each experiment as text: claim, predictions and measurements, verdict, truth; then the totals."""
    page = StringIO()
    color: Literal["standard"] | None = "standard" if look.color else None
    console = Console(
        file=page,
        width=min(look.width, MAX_TEXT_WIDTH),
        color_system=color,
        force_terminal=look.color,
        highlight=False,
    )
    for each in lab.experiments:
        console.print(_headline(each) if look.detail == "verdict" else _claim_lines(each, look))
    if len(lab.experiments) > 1:
        console.print(f"{len(lab.experiments)} claims: {verdict_counts(lab.experiments)}")
    return "".join(f"{line.rstrip()}\n" for line in page.getvalue().splitlines())


def _headline(each: Experiment) -> Text:
    headline = Text.assemble(
        (f"{each.code}  ", "bold"), (TITLES[each.verdict], STYLES[each.verdict]), f": {in_signs(each.claim)}"
    )
    if not each.agrees:
        headline.append(f"  {DISAGREES}: {each.published}", TONES["error"])
    return headline


def _claim_lines(each: Experiment, look: Look) -> Group:
    everything = look.detail == "everything"
    parts = [_headline(each), Text()]
    if everything:
        parts += [Text(f"The article  {in_signs(_joined(each.article))}"), Text()]
        parts += [Text(f"The test  {in_signs(_joined(each.test))}"), Text()]
    truth = [Text.assemble(("What is true  ", QUIET), in_signs(_joined(each.truth))), Text()]
    cost = Text(f"{each.seeds} seeds, {each.seconds:.1f} s of processor time", QUIET)
    return Group(*parts, _table(each.checks, origins=everything), *truth, cost, Text())


def _table(checks: Sequence[PredictionCheck], *, origins: bool) -> Padding:
    table = Table(box=box.SIMPLE_HEAD, padding=(0, 1, 0, 0), show_edge=False)
    for name in (
        "quantity",
        "by",
        "predicted",
        "measured (95 %)",
        "agrees",
        *(("origin",) if origins else ()),
    ):
        table.add_column(name, overflow="fold", header_style=QUIET, ratio=None)
    for check in checks:
        row = [
            in_signs(check.what),
            PARTIES[check.by],
            format_prediction(check),
            format_measurement(check),
            ANSWERS[check.agrees],
        ]
        table.add_row(*map(Text, row + ([in_signs(check.origin)] if origins else [])))
    return Padding(table, (0, 0, 1, 0))


def _joined(text: str) -> str:
    return " ".join(text.split())


# Plots: the chart and its legend. Colors are attributes, so the plot looks right on any page.

# Heuristic: pixels; fits the column of a page.
PLOT_SIZE = (460.0, 170.0)
MEASURED_TONES = ("main", "second", "fourth", "third")
THEORY_TONES = ("theory", "fifth", "sixth")


def draw_plot(plot: Plot) -> str:
    """Return the plot as HTML with inline SVG."""
    kind: ScaleKind = "log" if plot.log else "linear"
    lines = chart_lines(plot)
    caption = f"{plot.title}, over {plot.across}"
    chart = line_chart(lines, label=caption, kind=kind, size=PLOT_SIZE, names=plot.names)
    keys = " · ".join([words(caption), *map(_key, lines)])
    return element("figure", element("figcaption", keys, class_="note"), chart, class_="wide")


def chart_lines(plot: Plot) -> list[Series]:
    """Return the lines of a plot, each with its own tone; predictions are dashed."""
    tones = {False: iter(MEASURED_TONES * 3), True: iter(THEORY_TONES * 3)}
    return [
        Series(values=each.values, label=each.label, tone=next(tones[each.theory]), sparse=True)
        for each in plot.lines
    ]


def _key(line: Series) -> str:
    tone = CHART_TONES[line.tone]
    dash = {"stroke_dasharray": tone.dash} if tone.dash else {}
    stroke = element(
        "path", d="M0 4H22", stroke=tone.color, stroke_width=tone.width, class_=f"ll-{line.tone}", **dash
    )
    sample = element("svg", stroke, viewBox="0 0 22 8", width=22, height=8, aria_hidden="true")
    return element("span", sample, words(f" {line.label}"), class_="key")


# Markdown with its formulas as MathML, which browsers draw by themselves; as plain text if latex2mathml is missing.

_PLACEHOLDER = re.compile(r"QFORMULA(\d+)Q")


def markdown_to_html(source: str, *, inline: bool = False) -> Markup:
    """Return Markdown as HTML. `inline` leaves out the paragraph tags. HTML in the source is escaped."""
    formulas: list[str] = []

    def replace_formula(match: re.Match[str]) -> str:
        formulas.append(match[1] or match[2])
        return f"QFORMULA{len(formulas) - 1}Q"  # letters only, so that Markdown does not change it

    reader = MarkdownIt("commonmark", {"html": False}).disable(["image"])
    text = FORMULA.sub(replace_formula, source)
    html: str = reader.renderInline(text) if inline else reader.render(text)
    convert = _converter()
    return Markup(_PLACEHOLDER.sub(lambda match: convert(formulas[int(match[1])]), html))


def _converter() -> Callable[[str], str]:
    try:  # an optional dependency
        from latex2mathml.converter import convert
    except ImportError:
        return lambda latex: str(Markup("<code>{}</code>").format(plain(latex)))

    def mathml(latex: str) -> str:
        return str(convert(latex))

    return mathml


# One self-contained HTML file with inline plots and typeset formulas.

HERE = Path(__file__).parent
KIT = Kit(
    scripts=(),
    styles=(STATIC / "page.css",),
    templates=(HERE / "templates", *REPORT_KIT.templates),
)
BADGES = {"holds": "holds", "holds under conditions": "warning", "false as stated": "error"}


@dataclass(frozen=True, slots=True, kw_only=True)
class ExperimentView:
    """An experiment with its texts as HTML, for the template."""

    experiment: Experiment
    title: str
    badge: str
    claim: Markup
    article: Markup
    test: Markup
    truth: Markup
    rows: list[tuple[Markup, str, str, str, str, Markup]]
    figures: list[Markup]


def render_html(lab: Lab) -> str:
    """Return the page: the experiments of each article with its errata."""
    parts = [(article, experiments_of(article, lab.experiments)) for article in ARTICLES]
    sections = [
        (article, _errata(article), [_view(each) for each in mine]) for article, mine in parts if mine
    ]
    return fill(
        "claims.html",
        [],
        kit=KIT,
        title="What the articles say, what we measured",
        lab=lab,
        summary=verdict_counts(lab.experiments),
        meanings=facts(*(Fact(label=TITLES[ruling], value=meaning) for ruling, meaning in MEANINGS.items())),
        disagrees=DISAGREES,
        sections=sections,
    )


def _view(each: Experiment) -> ExperimentView:
    return ExperimentView(
        experiment=each,
        title=TITLES[each.verdict],
        badge=BADGES.get(each.verdict, "error"),
        claim=markdown_to_html(each.claim, inline=True),
        article=markdown_to_html(each.article),
        test=markdown_to_html(each.test),
        truth=markdown_to_html(each.truth),
        rows=[
            (
                markdown_to_html(check.what, inline=True),
                PARTIES[check.by],
                format_prediction(check),
                format_measurement(check),
                ANSWERS[check.agrees],
                markdown_to_html(check.origin, inline=True),
            )
            for check in each.checks
        ],
        figures=[Markup(draw_plot(plot)) for plot in each.plots],
    )


def _errata(article: SourceArticle) -> list[Markup]:
    return [markdown_to_html(each, inline=True) for each in article.errata]


# Markdown: the page "What the articles say, what we measured" of the docs, below its introduction.


def render_markdown(lab: Lab) -> str:
    """Return the overview of all verdicts, then for each article its errata and its claims in full."""
    return "\n\n".join([*_overview(lab), *_articles(lab)]) + "\n"


def _overview(lab: Lab) -> Iterator[str]:
    yield "\n".join(f"- **{TITLES[ruling]}**: {meaning}." for ruling, meaning in MEANINGS.items())
    yield f"{len(lab.experiments)} claims: {verdict_counts(lab.experiments)}. Run with torch {lab.torch}."
    rows = [
        f"| [{each.code}](#{_anchor(each)}) | {table_cell(each.claim)} | {each.verdict} |"
        for each in lab.experiments
    ]
    yield "\n".join(["| code | claim | verdict |", "| --- | --- | --- |", *rows])


def _articles(lab: Lab) -> Iterator[str]:
    for article in ARTICLES:
        mine = experiments_of(article, lab.experiments)
        if mine:
            yield from _article(article)
            for each in mine:
                yield from _experiment(each)


def _article(article: SourceArticle) -> Iterator[str]:
    yield f"## {article.title}"
    yield f"*{article.source}.* {article.about}"
    yield f"### Errata of {article.prefix} {{#{article.prefix.lower()}-errata}}"
    yield "\n".join(f"{number}. {each}" for number, each in enumerate(article.errata, 1))


def _experiment(each: Experiment) -> Iterator[str]:
    yield f"### {each.code}: {each.verdict} {{#{_anchor(each)}}}"
    yield f"**{each.claim}**"
    if not each.agrees:
        yield f"**The lab disagrees with what is published ({each.published}).**"
    yield f"*In the article.* {each.article}"
    yield f"*The test.* {each.test}"
    head = ["| quantity | by | predicted | measured | agrees |", "| --- | --- | --- | --- | --- |"]
    yield "\n".join([*head, *map(_row, each.checks)])
    yield f"*What is true.* {each.truth}"
    yield from map(draw_plot, each.plots)


def _row(check: PredictionCheck) -> str:
    cells = (
        table_cell(check.what),
        PARTIES[check.by],
        format_prediction(check),
        format_measurement(check),
        ANSWERS[check.agrees],
    )
    return f"| {' | '.join(cells)} |"


def table_cell(text: str) -> str:
    """Return `text` with its vertical bars escaped, also inside formulas, so that it fits one table cell."""
    parts, at = [], 0
    for match in FORMULA.finditer(text):
        parts += [text[at : match.start()].replace("|", "&#124;"), re.sub(r"(?<!\\)\|", r"\\vert ", match[0])]
        at = match.end()
    return "".join([*parts, text[at:].replace("|", "&#124;")])


def _anchor(each: Experiment) -> str:
    return each.code.lower()


# The output formats.

LAB_FORMATS: dict[str, Callable[[Lab, Look], str]] = {
    "text": render_text,
    "json": lambda lab, look: lab.to_json() + "\n",
    "html": lambda lab, look: render_html(lab),
    "md": lambda lab, look: render_markdown(lab),
}
