"""The checker of links finds what it is for."""

import pytest

from tests.support.site_links import broken_links, outside


@pytest.fixture
def site(tmp_path):
    (tmp_path / "sub").mkdir()
    (tmp_path / "index.html").write_text('<h1 id="top">x</h1><a href="sub/page.html#here">good</a>')
    (tmp_path / "sub" / "page.html").write_text('<p id="here">x</p><a href="../index.html#top">good</a>')
    return tmp_path


def test_links_that_lead_somewhere_are_fine(site):
    assert broken_links(site) == []


@pytest.mark.parametrize("link", ["nowhere.html", "sub/page.html#gone", "#gone", "sub/missing.png"])
def test_a_link_to_nothing_is_found(site, link):
    page = site / "index.html"
    page.write_text(page.read_text() + f'<a href="{link}">bad</a>')
    assert broken_links(site) == [f"index.html: {link}"]


def test_other_sites_are_named_and_not_asked(site):
    page = site / "index.html"
    page.write_text(page.read_text() + '<a href="https://example.org/x#y">web</a>')
    assert broken_links(site) == []
    assert outside(site) == {"example.org"}
