"""Reports as one self-contained page: nothing in it is fetched, and nothing runs but its own scripts."""

from __future__ import annotations

import hashlib
import json
from base64 import b64encode
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup, escape

from leadline.records import spell
from leadline.report.html.advice import reproduced_by
from leadline.text import clean, count, factor, number, plural, power, share

HERE = Path(__file__).parent
STATIC = HERE / "static"
CHARTS = (STATIC / "uplot" / "uPlot.iife.min.js", STATIC / "charts.js")
STYLES = (STATIC / "uplot" / "uPlot.min.css", STATIC / "page.css")
LICENCE = STATIC / "uplot" / "LICENSE"


@dataclass(frozen=True, slots=True, kw_only=True)
class Kit:
    """What a page is made of, beside its template."""

    scripts: tuple[Path, ...] = (*CHARTS, STATIC / "page.js")
    styles: tuple[Path, ...] = STYLES
    templates: tuple[Path, ...] = (HERE / "templates",)
    rules: tuple[str, ...] = ()
    """What its security policy allows beyond its own scripts and styles."""


REPORT = Kit()


def fill(template: str, data: Sequence[Any], *, kit: Kit = REPORT, **values: Any) -> str:
    """The template with its values, the scripts, the styles, and `data` for the scripts to read.

    Names are the user's text: every value is cleaned and escaped on its way into the page, the data too.
    """
    scripts = [_licence(), *map(_read, kit.scripts)]
    styles = [*map(_read, kit.styles)]
    return (
        _environment(kit)
        .get_template(template)
        .render(
            **values,
            policy=policy(scripts, styles, kit.rules),
            scripts=[Markup(each) for each in scripts],
            styles=[Markup(each) for each in styles],
            data=embedded(data),
        )
    )


def policy(scripts: Sequence[str], styles: Sequence[str], more: Sequence[str] = ()) -> str:
    """The content security policy: these scripts and styles by their hashes, and nothing else but `more`."""
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
    """`data` as JSON that can stand inside of a script element: no name in it can end that element."""
    text = json.dumps(spell(data), allow_nan=False, separators=(",", ":"))
    return Markup(text.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026"))


def lines_of(code: str) -> Markup:
    """Code, whose line breaks count; what else could move or hide text is spelled out."""
    return Markup("\n").join(escape(clean(line)) for line in code.splitlines())


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
    environment.filters.update(
        number=number, factor=factor, power=power, share=share, count=count, code=lines_of
    )
    environment.globals.update(plural=plural, reproduced_by=reproduced_by)
    return environment


def _harmless(value: Any) -> Any:
    """Every value that a template writes passes here before it is escaped."""
    return clean(value) if isinstance(value, str) and not isinstance(value, Markup) else value


def _read(path: Path) -> str:
    return path.read_text(encoding="utf-8").strip()


def _licence() -> str:
    """The licence of the chart library travels with every copy of it."""
    return f"/* uPlot:\n{_read(LICENCE)}\n*/"


def _hash(source: str) -> str:
    return f"'sha256-{b64encode(hashlib.sha256(source.encode()).digest()).decode()}'"
