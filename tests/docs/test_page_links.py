"""Every relative link of a page leads somewhere when the page is read in the repository, and the checker can fail.

`test_docs.py` builds the site and checks the same links there.
"""

import pytest

from tests.support import ROOT
from tests.support.page_links import anchors, broken_links, links

PAGES = [*sorted(ROOT.glob("*.md")), *sorted((ROOT / "docs").rglob("*.md"))]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.relative_to(ROOT).as_posix())
def test_every_relative_link_of_a_page_leads_to_a_file_and_a_heading(page):
    assert broken_links(page) == []


@pytest.fixture
def page(tmp_path):
    (tmp_path / "other.md").write_text('# Here `x`: a title\n\n## Twice\n\n## Twice\n\n<a id="mark"></a>\n')
    return tmp_path / "page.md"


@pytest.mark.parametrize(
    "link",
    [
        "other.md",
        "other.md#here-x-a-title",
        "other.md#twice-1",
        "other.md#mark",
        "#top",
        "https://example.org/#x",
    ],
)
def test_a_link_that_leads_somewhere_is_fine(page, link):
    page.write_text(f"# Top\n\n[good]({link})")
    assert broken_links(page) == []


@pytest.mark.parametrize("link", ["nowhere.md", "nowhere.png", "other.md#there", "other.md#twice-2", "#gone"])
@pytest.mark.parametrize("form", ["[x]({})", "![x]({})", "[x][y]\n\n[y]: {}", '<img src="{}">'])
def test_a_link_to_nothing_is_found_in_every_form(page, form, link):
    page.write_text("# Top\n\n" + form.format(link))
    assert broken_links(page) == [f"page.md: {link}"]


def test_what_stands_in_code_is_no_link():
    assert list(links("`[x](a.md)` [x](b.md)\n\n```\n[x](c.md)\n```\n")) == ["b.md"]


def test_an_anchor_that_only_the_site_knows_is_none_in_the_repository(page):
    page.write_text("## Title {#other}\n")
    assert "other" not in anchors(page)
