"""The README is true: its example runs, and what it points to exists."""

import doctest
import re
from pathlib import Path

from tests.support import ROOT


def test_the_readme_example_prints_what_the_readme_says():
    result = doctest.testfile(str(ROOT / "README.md"), module_relative=False, raise_on_error=False)
    assert result.attempted > 0
    assert result.failed == 0


def test_every_relative_link_of_a_page_leads_to_a_file():
    pages = [*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")]
    assert [link for page in pages for link in broken_links(page)] == []


def test_a_broken_link_is_noticed(tmp_path):
    page = tmp_path / "page.md"
    page.write_text("[good](page.md#here) [bad](nowhere.md) [web](https://example.org/page)")
    assert broken_links(page) == [f"{page.name}: nowhere.md"]


# Pages of rules, fixes and figures are made when the site is built (docs/hooks.py): a link to one leads to no file.
GENERATED = re.compile(r"(.*/)?((rules|fixes)/[\w-]+|figures)\.md")


def broken_links(page: Path) -> list[str]:
    targets = re.findall(r"\]\(([^)#\s]+)(?:#[^)]*)?\)", page.read_text())
    local = [target for target in targets if "://" not in target and not GENERATED.fullmatch(target)]
    return [f"{page.name}: {target}" for target in local if not (page.parent / target).exists()]


def test_the_changelog_has_a_place_for_verdicts():
    assert "### Verdicts" in (ROOT / "CHANGELOG.md").read_text()


def test_contributing_stays_short():
    assert len((ROOT / "CONTRIBUTING.md").read_text().splitlines()) < 80


def test_the_citation_names_the_version_of_the_package():
    import leadline

    assert f"version: {leadline.__version__}\n" in (ROOT / "CITATION.cff").read_text()
