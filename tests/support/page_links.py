"""Relative links of Markdown pages, read in the repository: each must lead to a file, and to a heading in it."""

from __future__ import annotations

import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from urllib.parse import unquote, urlsplit

CODE = re.compile(r"^( *)(```+|~~~+).*?^ *\2 *$|(?<!`)(`+)(?!`).+?(?<!`)\3(?!`)", re.MULTILINE | re.DOTALL)
FENCE = re.compile(r"^( *)(```+|~~~+).*?^ *\2 *$", re.MULTILINE | re.DOTALL)
INLINE_LINK = re.compile(r"\]\(\s*<?([^)\s>]+)>?(?:\s+\"[^\"]*\")?\s*\)")
DEFINED_LINK = re.compile(r"^ *\[[^\]]+\]:\s*<?([^\s>]+)", re.MULTILINE)
HTML_LINK = re.compile(r"<[^>]*?\s(?:href|src)=\"([^\"]+)\"")
HEADING = re.compile(r"^#{1,6} +(.+?)(?: +#+)? *$", re.MULTILINE)
HTML_ANCHOR = re.compile(r"<[^>]*?\s(?:id|name)=\"([^\"]+)\"")


def broken_links(page: Path) -> list[str]:
    """Links of the page that lead nowhere, as "page: link"."""
    return [f"{page.name}: {link}" for link in links(page.read_text()) if not _leads_somewhere(page, link)]


def links(text: str) -> Iterator[str]:
    """Yield the relative links of a page, images included; what stands in code is no link."""
    prose = CODE.sub("", text)
    for pattern in (INLINE_LINK, DEFINED_LINK, HTML_LINK):
        for link in pattern.findall(prose):
            parts = urlsplit(link)
            if not parts.scheme and not parts.netloc:
                yield link


@cache
def anchors(page: Path) -> frozenset[str]:
    """What can be linked to in a page, by the rule of code hosts: a heading in lower case, joined by hyphens."""
    found: list[str] = []
    text = FENCE.sub("", page.read_text())
    for heading in HEADING.findall(text):
        plain = re.sub(r"!?\[([^\]]*)\]\([^)]*\)", r"\1", heading)
        slug = re.sub(r"[^\w\- ]", "", plain.lower()).replace(" ", "-")
        repeats = sum(re.fullmatch(rf"{re.escape(slug)}(-\d+)?", each) is not None for each in found)
        found.append(f"{slug}-{repeats}" if repeats else slug)
    return frozenset([*found, *HTML_ANCHOR.findall(CODE.sub("", text))])


def _leads_somewhere(page: Path, link: str) -> bool:
    parts = urlsplit(link)
    target = page.parent / unquote(parts.path) if parts.path else page
    if not target.exists():
        return False
    return (
        not parts.fragment or target.suffix != ".md" or unquote(parts.fragment) in anchors(target.resolve())
    )
