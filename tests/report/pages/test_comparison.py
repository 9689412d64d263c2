"""Two reports against each other: what is the same finding, what came, what went, and a page that fits."""

import pytest
from msgspec.structs import replace
from rich.cells import cell_len

from leadline.records.report import ReportComparison
from leadline.report.compare import compare
from leadline.report.formats import comparison_formats
from leadline.report.look import Look
from leadline.report.pages.comparison import comparison_page
from leadline.report.render import html
from tests.support import reports as samples
from tests.support.parsed_html import read


def report(*findings, verdict="fails"):
    return samples.report(samples.profile([1.0] * 9, [1.0] * 9), *findings, verdict=verdict)


def render(reports, look):
    return comparison_formats(compare(*reports), reports)["text"](look)


def codes(findings):
    return [finding.code for finding in findings]


def test_what_only_one_has_is_gained_or_lost():
    found = compare(report(samples.finding("F101")), report(samples.finding("B201")))
    assert (codes(found.gained), codes(found.lost), found.kept) == (["B201"], ["F101"], ())


def test_a_finding_whose_numbers_drifted_is_the_same():
    first = samples.finding(where="layers.58 … layers.0")
    second = samples.finding(where="layers.57 … layers.1", message="other numbers")
    found = compare(report(first), report(second))
    assert not found.gained
    assert not found.lost
    assert found.kept[0].second.message == "other numbers"


def test_findings_are_paired_by_their_place_before_their_rule():
    first = [samples.finding(where="a"), samples.finding(where="b")]
    second = [samples.finding(where="c"), samples.finding(where="a")]
    found = compare(report(*first), report(*second))
    assert [(pair.first.where, pair.second.where) for pair in found.kept] == [("a", "a"), ("b", "c")]


def test_one_finding_more_of_the_same_rule_is_gained():
    found = compare(report(samples.finding()), report(samples.finding(), samples.finding()))
    assert (len(found.kept), len(found.gained)) == (1, 1)


def test_a_finding_that_grew_more_severe_is_worse():
    found = compare(report(samples.finding(severity="warning")), report(samples.finding(severity="error")))
    assert found.kept[0].worse
    assert not compare(report(samples.finding()), report(samples.finding(severity="info"))).kept[0].worse


def test_a_comparison_survives_json():
    found = compare(samples.broken(), samples.sick())
    assert ReportComparison.from_json(found.to_json()).to_json() == found.to_json()


def test_measures_are_those_of_both():
    found = compare(samples.sick(), samples.healthy(), ("one", "two"))
    measures = {each.name: (each.before, each.after) for each in found.measures}
    assert measures["blocks"] == (60.0, 24.0)
    assert measures["backward, per block"][0] == pytest.approx(0.154)
    assert "safe rate" not in measures
    assert (found.first.name, found.second.name) == ("one", "two")


PAIRS = [
    ("sick", "healthy"),
    ("healthy", "broken"),
    ("hostile", "broken"),
    ("thousand", "sick"),
    ("broken", "hostile"),
]


@pytest.mark.parametrize("pair", PAIRS)
@pytest.mark.parametrize("width", [60, 80, 120])
def test_the_page_for_the_terminal_has_at_most_forty_lines_and_none_is_too_wide(pair, width):
    reports = tuple(getattr(samples, name)() for name in pair)
    shown = render(reports, Look(width=width)).splitlines()
    assert len(shown) <= 40
    assert max(map(cell_len, shown)) <= width
    assert "".join(shown).isprintable()


def test_verbose_names_every_finding():
    reports = samples.healthy(), samples.broken()
    text = render(reports, Look(detail="everything"))
    assert all(f"F10{place} gradient-decay" in text for place in range(9))
    assert "further findings: -v shows" in render(reports, Look())


def test_quiet_is_both_verdicts():
    reports = samples.sick(), samples.healthy()
    text = render(reports, Look(detail="verdict"))
    assert text == "DOES NOT TRAIN → TRAINS: no findings gained, 1 lost, 0 kept\n"


def test_both_signals_are_drawn_on_one_scale():
    low = samples.report(samples.profile([1e-9] * 9, [1.0] * 9))
    high = samples.report(samples.profile([1.0] * 9, [1.0] * 9))
    drawn = render((low, high), Look()).splitlines()
    first = next(line for line in drawn if line.startswith("forward"))
    assert "▁▁▁" in first
    assert "███" in drawn[drawn.index(first) + 1]


def test_the_page_shows_what_came_and_what_went():
    reports = (
        samples.sick(),
        replace(samples.healthy(), findings=(samples.finding("F101", message="it grows"),)),
    )
    losses = ([0, 1], [1.0, 0.5]), ([1, 2], [0.9, 0.4])
    page = read(html.render([comparison_page(compare(*reports), reports, losses)]))
    assert "Findings gained" in page.words
    assert page.words.index("it grows") < page.words.index("Findings lost\n") < page.words.index("8.03e-48")
    assert '"x":[0,1,2]' in page.data
