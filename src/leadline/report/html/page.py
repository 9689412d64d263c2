"""Reports as one self-contained page: nothing in it is fetched, and nothing runs but its own scripts."""

from __future__ import annotations

import hashlib
import json
from base64 import b64encode
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup, escape

from leadline.drawing.numbers import count, factor, number, plural, power, share
from leadline.records import spell
from leadline.report.html.advice import reproduced_by
from leadline.report.text import clean

HERE = Path(__file__).parent
SCRIPTS = ("uplot/uPlot.iife.min.js", "charts.js", "page.js")
STYLES = ("uplot/uPlot.min.css", "page.css")
LICENCE = "uplot/LICENSE"


def fill(template: str, data: Sequence[Any], **values: Any) -> str:
    """The template with its values, the scripts, the styles, and `data` for the scripts to read.

    Names are the user's text: every value is cleaned and escaped on its way into the page, the data too.
    """
    scripts = [_licence(), *map(_read, SCRIPTS)]
    styles = [*map(_read, STYLES)]
    return (
        _environment()
        .get_template(template)
        .render(
            **values,
            policy=policy(scripts, styles),
            scripts=[Markup(each) for each in scripts],
            styles=[Markup(each) for each in styles],
            data=embedded(data),
        )
    )


def policy(scripts: Sequence[str], styles: Sequence[str]) -> str:
    """The content security policy: these scripts and styles by their hashes, and nothing from anywhere."""
    rules = [
        "default-src 'none'",
        f"script-src {' '.join(map(_hash, scripts))}",
        f"style-src {' '.join(map(_hash, styles))}",
        "base-uri 'none'",
        "form-action 'none'",
    ]
    return "; ".join(rules)


def embedded(data: Any) -> Markup:
    """`data` as JSON that can stand inside of a script element: no name in it can end that element."""
    text = json.dumps(spell(data), allow_nan=False, separators=(",", ":"))
    return Markup(text.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026"))


def lines_of(code: str) -> Markup:
    """Code, whose line breaks count; what else could move or hide text is spelled out."""
    return Markup("\n").join(escape(clean(line)) for line in code.splitlines())


def _environment() -> Environment:
    environment = Environment(
        loader=FileSystemLoader(HERE / "templates"),
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


def _read(name: str) -> str:
    return (HERE / "static" / name).read_text(encoding="utf-8").strip()


def _licence() -> str:
    """The licence of the chart library travels with every copy of it."""
    return f"/* uPlot:\n{_read(LICENCE)}\n*/"


def _hash(source: str) -> str:
    return f"'sha256-{b64encode(hashlib.sha256(source.encode()).digest()).decode()}'"
