"""Links of a built site: each must lead to a file that is there, and to an anchor that is in it.

python -m tests.support.site_links site     print the broken ones
"""

from __future__ import annotations

import sys
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urlsplit


class _Page(HTMLParser):
    """What a page links to, and what can be linked to in it."""

    def __init__(self) -> None:
        super().__init__()
        self.links: list[str] = []
        self.anchors: set[str] = set()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        for name, value in attrs:
            if value and name in ("href", "src"):
                self.links.append(value)
            elif value and name in ("id", "name"):
                self.anchors.add(value)


def broken_links(site: Path) -> list[str]:
    """Links within the site that lead nowhere, as "page: link"."""
    pages = {path.resolve(): _read(path) for path in site.rglob("*.html")}
    return sorted(
        f"{path.relative_to(site.resolve())}: {link}"
        for path, page in pages.items()
        for link in set(page.links)
        if path.name != "404.html" and not _leads_somewhere(path, link, pages)
    )


def outside(site: Path) -> set[str]:
    """Hosts of other sites that pages load something from or lead to."""
    links = [link for path in site.rglob("*.html") for link in _read(path).links]
    return {urlsplit(link).netloc for link in links} - {""}


def _read(path: Path) -> _Page:
    page = _Page()
    page.feed(path.read_text())
    return page


def _leads_somewhere(path: Path, link: str, pages: dict[Path, _Page]) -> bool:
    parts = urlsplit(link)
    if parts.scheme or parts.netloc:
        return True
    target = (path.parent / unquote(parts.path)).resolve() if parts.path else path
    if target.is_dir():
        target /= "index.html"
    if not target.exists():
        return False
    return not parts.fragment or target not in pages or unquote(parts.fragment) in pages[target].anchors


if __name__ == "__main__":
    sys.exit("\n".join(broken_links(Path(sys.argv[1]))) or None)
