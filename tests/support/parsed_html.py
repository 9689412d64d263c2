"""A page as a parser reads it: its words, its elements, and what it could run or fetch."""

from __future__ import annotations

from dataclasses import dataclass, field
from html.parser import HTMLParser

from leadline.report.pages import page_of
from leadline.report.render import html

SILENT = ("script", "style", "title")
BREAKS = ("p", "li", "h1", "h2", "h3", "h4", "h5", "tr", "dt", "dd", "figcaption", "summary", "pre", "div")


@dataclass
class Page(HTMLParser):
    """`words`: what is shown, a line a paragraph; `tags`: every element with its attributes; `data`: embedded JSON."""

    words: str = ""
    tags: list[tuple[str, dict[str, str | None]]] = field(default_factory=list)
    scripts: list[str] = field(default_factory=list)
    data: str = ""
    inside: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        super().__init__(convert_charrefs=True)

    def handle_starttag(self, tag, attrs):
        self.tags.append((tag, dict(attrs)))
        if tag in SILENT:
            self.inside.append(tag)
        if tag == "script":
            self.scripts.append("")
        if tag in BREAKS:
            self.words += "\n"

    def handle_endtag(self, tag):
        if self.inside and self.inside[-1] == tag:
            self.inside.pop()

    def handle_data(self, text):
        if not self.inside:
            self.words += text.replace("\n", " ") if text.strip() else " "
        elif self.inside[-1] == "script":
            self.scripts[-1] += text


def html_of(*records: object) -> str:
    """Records as articles of one HTML file."""
    return html.render([page_of(each) for each in records])


def read(text: str) -> Page:
    page = Page()
    page.feed(text)
    page.close()
    lines = (" ".join(line.split()) for line in page.words.splitlines())
    page.words = "".join(f"{line}\n" for line in lines if line)
    page.data = page.scripts[0] if page.scripts else ""
    return page
