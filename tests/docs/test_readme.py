"""The README is true: its example runs, and what it points to exists."""

import doctest
import re
from pathlib import Path

from benchmarks import figures
from benchmarks.result_files import fill
from tests.support import ROOT

README = ROOT / "README.md"


def test_the_readme_example_prints_what_the_readme_says():
    result = doctest.testfile(str(README), module_relative=False, raise_on_error=False)
    assert result.attempted > 0
    assert result.failed == 0


def test_the_accuracy_table_is_what_the_stored_results_render_to():
    text = README.read_text()
    assert fill(text, "accuracy", figures.accuracy()) == text


def test_the_figures_in_the_text_are_those_of_the_stored_results():
    answers = {question: answer for question, answer, _, _ in figures.figures()}
    repairs = answers["How many failing networks are repaired? (held out)"]
    repaired, failed, worse = map(int, re.findall(r"\d+", repairs))
    text = " ".join(README.read_text().split())
    assert (
        f"Of {failed} networks that failed, `leadline fix` repaired {repaired} ({repaired / failed:.0%}"
        in text.replace(" %", "%")
    )
    assert worse == 1
    assert "made one worse" in text
    depth = {
        scheme: answers[f"What does a language model of 1000 blocks reach? (`{scheme}`)"]
        for scheme in ("post", "residual-linear")
    }
    for answer in depth.values():
        assert all(number in text for number in re.findall(r"\d+\.\d+", answer)), answer


def test_the_readme_stays_short():
    assert len(README.read_text().splitlines()) <= 130


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
