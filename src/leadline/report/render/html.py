"""Pages as one self-contained HTML file: nothing in it is fetched, and only its own scripts run."""

from __future__ import annotations

import base64
import hashlib
import json
import zlib
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from typing import Any

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markdown_it import MarkdownIt
from markupsafe import Markup, escape
from msgspec.structs import replace

from leadline.records import Profile, spell
from leadline.records.report import Report
from leadline.report.charts.bars import draw_bars, draw_ruler
from leadline.report.charts.lines import draw_chart
from leadline.report.formula import readable
from leadline.report.page import (
    BarChart,
    Chart,
    Charts,
    Code,
    Columns,
    Commands,
    DepthAxis,
    Details,
    Element,
    FactList,
    Findings,
    Gaps,
    Group,
    Outcomes,
    Page,
    Paragraph,
    Picture,
    Profiles,
    Ruler,
    Savable,
    Section,
    Steps,
    Table,
)
from leadline.report.render import markdown
from leadline.text import clean, code_spans, count, number, plural

HERE = Path(__file__).parent
STATIC = HERE / "static"
CHART_SCRIPTS = (STATIC / "uplot" / "uPlot.iife.min.js", STATIC / "charts.js")
STYLES = (STATIC / "uplot" / "uPlot.min.css", STATIC / "page.css")
LICENSE = STATIC / "uplot" / "LICENSE"

# Heuristic: characters of a record in a page; leaves room for the charts of 1000 layers below a megabyte.
MAX_RECORD = 400_000
# Derived: significant digits of numbers in the data of a page, one more than is ever shown.
DIGITS = 4
# Heuristic: size in pixels of a small chart; two fit side by side on a page.
SMALL = (430.0, 150.0)

# Elements that one macro of elements.html draws; `Article.draw` draws the others.
MACROS: dict[type, str] = {
    FactList: "facts",
    Paragraph: "paragraph",
    Code: "code",
    Commands: "commands",
    Steps: "steps",
    Table: "table",
    Findings: "findings",
    Outcomes: "outcomes",
    Gaps: "gaps",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Kit:
    """What an HTML file is made of besides its template."""

    scripts: tuple[Path, ...] = (*CHART_SCRIPTS, STATIC / "page.js")
    styles: tuple[Path, ...] = STYLES
    templates: tuple[Path, ...] = (HERE / "templates",)
    policies: tuple[str, ...] = ()
    """What its content security policy allows beyond its own scripts and styles."""


REPORT_KIT = Kit()
STATIC_KIT = Kit(scripts=())
"""For pages whose charts are all pictures."""


def render(pages: Sequence[Page], kit: Kit = REPORT_KIT) -> str:
    """Pages as articles of one file, one below the other."""
    articles = [Article(page=page, place=place, kit=kit) for place, page in enumerate(pages)]
    title = f"{pages[0].title}: {pages[0].subject}" if pages else "Leadline"
    version = next((page.version for page in pages if page.version), "")
    bodies = [(each, each.sections()) for each in articles]  # before the data, which it collects
    data = [each.data for each in articles] if kit.scripts else []
    return fill("page.html", data, kit=kit, articles=bodies, title=title, version=version)


@dataclass(slots=True, kw_only=True)
class Article:
    """One page while it is drawn: it collects the data of its interactive charts."""

    page: Page
    place: int
    kit: Kit
    profiles: Profiles | None = None
    curves: list[Chart] = field(default_factory=list)
    record: PackedRecord | None = None

    def __post_init__(self) -> None:
        if self.page.record is not None and self.kit.scripts:
            self.record = pack_record(self.page.record)

    def sections(self) -> list[tuple[Section, Markup]]:
        """Each section that a browser shows, with its body drawn."""
        return [(each, self.draw_all(each.body)) for each in self.page.sections if each.body]

    def draw_all(self, elements: Sequence[Element]) -> Markup:
        return Markup("\n").join(map(self.draw, elements))

    def draw(self, element: Element) -> Markup:
        macros: Any = _environment(self.kit).get_template("elements.html").module
        match element:
            case Profiles():
                self.profiles = element
                pictures = [Markup(draw_chart(each)) for each in element.charts]
                return Markup(macros.profiles(element, pictures, f"r{self.place}-depth"))
            case Charts():
                figures = [self._figure(each, macros) for each in element.items if not each.is_empty]
                return Markup(macros.grid(figures))
            case Chart():
                small = Markup(draw_chart(element, SMALL))
                return Markup(macros.figure(element.title, element.unit, small, ""))
            case BarChart():
                return Markup(macros.figure(element.title, "", Markup(draw_bars(element)), element.note))
            case Ruler():
                drawing = Markup(draw_ruler(element))
                return Markup(macros.figure(element.title, element.unit, drawing, element.note))
            case Picture():
                return Markup(macros.picture(element.title, element.note, Markup(element.svg)))
            case Details():
                return Markup(macros.details(element.title, self.draw_all(element.items)))
            case Group():
                return self.draw_all(element.items)
            case Columns():
                return Markup(macros.columns(self.draw_all(element.left), self.draw_all(element.right)))
        return Markup(getattr(macros, MACROS[type(element)])(element))

    def _figure(self, chart: Chart, macros: Any) -> Markup:
        place = None
        if chart.interactive:
            place = len(self.curves)
            self.curves.append(chart)
        return Markup(macros.chart(chart, Markup(draw_chart(chart)), place))

    @property
    def data(self) -> dict[str, Any]:
        """What page.js reads."""
        axis = None if self.profiles is None else self.profiles.axis
        charts = () if self.profiles is None else self.profiles.charts
        return {
            "names": [] if axis is None else [*map(clean, axis.names)],
            "blocks": [] if axis is None else axis.block_numbers,
            "panels": [chart_data(each, axis) for each in charts],
            "curves": [chart_data(each) for each in self.curves],
            "record": "" if self.record is None else self.record.packed,
            "markdown": markdown.render(self.page),
        }


def chart_data(chart: Chart, axis: DepthAxis | None = None) -> dict[str, Any]:
    """A chart as charts.js reads it; `axis`: of a chart over depth."""
    series = [
        {
            "label": each.label,
            "tone": each.tone,
            "values": rounded(list(each.values)),
            **({} if each.band is None else {"band": rounded(list(each.band))}),
            **({"sparse": True} if each.sparse else {}),
        }
        for each in chart.series
    ]
    spec = {
        "kind": chart.kind,
        "series": series,
        "limits": [
            {"label": clean(each.label), "values": rounded(list(each.values))} for each in chart.limits
        ],
        "stretches": [(clean(each.label), each.first, each.last) for each in chart.stretches],
    }
    if axis is None:
        return {**spec, "x": chart.steps, "starts": []}
    starts = [(place, clean(name)) for place, name in axis.starts]
    return {**spec, "starts": starts, "gaps": axis.gaps}


# The file: template, scripts, styles and data.


def fill(template: str, data: Sequence[Any], *, kit: Kit = REPORT_KIT, **values: Any) -> str:
    """The template with its values, the scripts, the styles, and `data` for the scripts to read.

    Names come from the user: every value is cleaned and escaped on its way into the file, the data too.
    """
    scripts = [_license(), *map(_read, kit.scripts)]
    styles = [*map(_read, kit.styles)]
    return (
        _environment(kit)
        .get_template(template)
        .render(
            **values,
            policy=policy(scripts, styles, kit.policies),
            scripts=[Markup(each) for each in scripts],
            styles=[Markup(each) for each in styles],
            data=embedded(data),
        )
    )


def policy(scripts: Sequence[str], styles: Sequence[str], more: Sequence[str] = ()) -> str:
    """The content security policy: these scripts and styles by their hashes, and `more`."""
    rules = [
        "default-src 'none'",
        f"script-src {' '.join(map(_hash, scripts))}",
        f"style-src {' '.join(map(_hash, styles))}",
        "base-uri 'none'",
        "form-action 'none'",
        *more,
    ]
    return "; ".join(rules)


def embedded(data: Any) -> Markup:
    """`data` as JSON inside a script element, which no name in it can end."""
    text = json.dumps(spell(data), allow_nan=False, separators=(",", ":"))
    return Markup(text.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026"))


@lru_cache(maxsize=8)
def _environment(kit: Kit) -> Environment:
    environment = Environment(
        loader=FileSystemLoader(kit.templates),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
        finalize=_harmless,
    )
    environment.filters.update(number=number, count=count, code=_code_lines, prose=_prose, spans=_code_spans)
    environment.globals.update(plural=plural)
    return environment


def _harmless(value: Any) -> Any:
    """Every value that a template writes passes here before it is escaped."""
    return clean(value) if isinstance(value, str) and not isinstance(value, Markup) else value


def _code_lines(code: str) -> Markup:
    """Code keeps its line breaks; every line is cleaned."""
    return Markup("\n").join(escape(clean(line)) for line in code.splitlines())


def _code_spans(words: str) -> Markup:
    """Words in which backticks mark code."""
    parts = [(escape(clean(part)), is_code) for part, is_code in code_spans(words)]
    return Markup("").join(
        Markup("<code>{}</code>").format(part) if is_code else part for part, is_code in parts
    )


def _prose(source: str) -> Markup:
    """Markdown as HTML, with its formulas in plain signs and its headings two levels down, below those of the page."""
    html: str = MarkdownIt("commonmark", {"html": False}).disable(["image"]).render(readable(source))
    for level in (4, 3, 2, 1):
        html = html.replace(f"<h{level}>", f"<h{level + 2}>").replace(f"</h{level}>", f"</h{level + 2}>")
    return Markup(html)


def _read(path: Path) -> str:
    return path.read_text(encoding="utf-8").strip()


def _license() -> str:
    """The license of the chart library travels with every copy of it."""
    return f"/* uPlot:\n{_read(LICENSE)}\n*/"


def _hash(source: str) -> str:
    return f"'sha256-{base64.b64encode(hashlib.sha256(source.encode()).digest()).decode()}'"


# The record that a page carries, for readers to save.


@dataclass(frozen=True, slots=True, kw_only=True)
class PackedRecord:
    """A record's JSON, compressed (zlib, base64)."""

    packed: str
    is_whole: bool
    """Nothing was left out."""


def pack_record(record: Savable) -> PackedRecord:
    """The whole record if it fits; a report that does not fit loses its lists by parameter, and digits."""
    whole = _pack(record.to_json())
    if len(whole) <= MAX_RECORD or not isinstance(record, Report):
        return PackedRecord(packed=whole, is_whole=True)
    short = replace(record, profile=_without_parameters(record.profile))
    text = json.dumps(rounded(json.loads(short.to_json())), separators=(",", ":"))
    return PackedRecord(packed=_pack(text), is_whole=False)


def _without_parameters(profile: Profile) -> Profile:
    """The profile without what has an entry per parameter tensor. It is still a profile."""
    optimizer, update, facts = profile.optimizer, profile.update, profile.facts
    return replace(
        profile,
        blocks=tuple(replace(block, params=(), modules=()) for block in profile.blocks),
        optimizer=None if optimizer is None else replace(optimizer, groups=()),
        update=None if update is None else replace(update, parameters=()),
        facts=None if facts is None else replace(facts, weights=(), clones=()),
        symmetry=None,
    )


def rounded(data: Any) -> Any:
    """`data`, made of builtins, with every float rounded to `DIGITS` significant digits."""
    if isinstance(data, float):
        return float(f"{data:.{DIGITS}g}")
    if isinstance(data, dict):
        return {key: rounded(each) for key, each in data.items()}
    return [rounded(each) for each in data] if isinstance(data, list | tuple) else data


def _pack(text: str) -> str:
    """JSON, compressed; page.js unpacks it."""
    return base64.b64encode(zlib.compress(text.encode("ascii"), 9)).decode("ascii")
