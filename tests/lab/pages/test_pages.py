"""The results of the claims as HTML and Markdown: self-contained, escaped, with typeset formulas."""

from __future__ import annotations

import builtins
from html.parser import HTMLParser

import pytest

from leadline.lab.articles import ARTICLES
from leadline.lab.claims_page import draw_plot, markdown_to_html, render_html, render_markdown, table_cell
from tests.support.lab_results import claim_results

HOSTILE = "<script>alert(1)</script>"


class Tags(HTMLParser):
    def __init__(self) -> None:
        super().__init__()
        self.seen: list[tuple[str, dict[str, str | None]]] = []

    def handle_starttag(self, tag, attrs):
        self.seen.append((tag, dict(attrs)))


def tags(page: str) -> list[tuple[str, dict[str, str | None]]]:
    parser = Tags()
    parser.feed(page)
    return parser.seen


def test_the_page_loads_nothing_and_has_a_content_policy():
    found = tags(render_html(claim_results()))
    assert all(name not in attributes for _, attributes in found for name in ("src", "style", "onclick"))
    assert all((attributes.get("href") or "#").startswith("#") for _, attributes in found)
    assert any("default-src 'none'" in (attributes.get("content") or "") for _, attributes in found)


def test_formulas_are_mathml_and_plots_are_inline_svg():
    names = [tag for tag, _ in tags(render_html(claim_results()))]
    assert "math" in names
    assert "svg" in names


def test_text_of_a_record_is_escaped():
    page = render_html(claim_results(HOSTILE))
    assert HOSTILE not in page
    assert HOSTILE not in draw_plot(claim_results(HOSTILE).experiments[0].plots[0])


def test_without_latex2mathml_formulas_are_plain_text(monkeypatch: pytest.MonkeyPatch):
    real = builtins.__import__

    def without(name, *rest):
        if name.startswith("latex2mathml"):
            raise ImportError
        return real(name, *rest)

    monkeypatch.setattr(builtins, "__import__", without)
    assert (
        markdown_to_html(r"at $\chi < 1$ it *vanishes*", inline=True)
        == "at <code>χ &lt; 1</code> it <em>vanishes</em>"
    )


def test_a_vertical_bar_does_not_end_a_table_cell():
    assert table_cell(r"$|\cos|$ and |x| and $\|y\|$") == r"$\vert \cos\vert $ and &#124;x&#124; and $\|y\|$"
    rows = [line for line in render_markdown(claim_results()).splitlines() if line.startswith("| $")]
    assert all(line.count(" | ") == 4 for line in rows)


def test_the_markdown_contains_the_errata_and_each_claim():
    text = render_markdown(claim_results())
    assert "### S0-1: holds {#s0-1}" in text
    assert all(erratum in text for erratum in ARTICLES[0].errata)
