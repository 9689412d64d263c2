"""The page in a browser: it opens from a file without a network, shows everything, and runs nothing but its own."""

from __future__ import annotations

import json

import pytest

from leadline.records.report import Report
from leadline.text import clean
from tests.support import browser_reports as reports
from tests.support import reports as samples
from tests.support.browser_reports import NAMES, page
from tests.support.parsed_html import html_of

SIDEWAYS = "document.documentElement.scrollWidth - document.documentElement.clientWidth"
MEGABYTE = 1_000_000  # of the project's requirements, as is the number of layers
CANVASES = "[...document.querySelectorAll('.plot')].map(plot => plot.querySelectorAll('canvas').length)"


@pytest.mark.parametrize("name", NAMES)
def test_a_page_opens_from_a_file_without_a_request_or_an_error(show, name):
    opened = show(page(name))
    assert [url for url in opened.requests if not url.startswith("file://")] == []
    assert len(opened.requests) == 1
    assert opened.messages == []
    assert opened.locator("html").get_attribute("data-ready") == "yes"


def test_every_chart_of_a_page_is_drawn(show):
    for name in NAMES:
        drawn = show(page(name)).evaluate(CANVASES)
        assert drawn == [1] * len(drawn), name


def test_a_page_that_asks_for_something_or_complains_is_noticed(show):
    opened = show('<img src="https://example.org/x.png"><script>console.error("no")</script>')
    assert any("example.org" in url for url in opened.requests)
    assert any("no" in message for message in opened.messages)


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("width", [360, 768, 1600])
def test_no_page_scrolls_sideways(show, name, width):
    assert show(page(name), width=width).evaluate(SIDEWAYS) <= 0


def test_a_page_that_is_too_wide_is_noticed(show):
    assert show("<p style='width:900px'>wide</p>", width=360).evaluate(SIDEWAYS) > 0


@pytest.mark.parametrize(
    "name", [*samples.HOSTILE_NAMES, '"><img src=x onerror=alert(1)>', "</script><script>alert(1)</script>"]
)
def test_no_name_runs_anything_and_each_is_shown_as_it_is(show, name):
    opened = show(html_of(samples.hostile(name)))
    assert opened.dialogs == []
    assert opened.messages == []
    assert (
        opened.evaluate("document.querySelectorAll('article img, article script, article style').length") == 0
    )
    assert opened.evaluate("JSON.parse(document.getElementById('data').textContent)[0].names[0]") == clean(
        name
    )


def test_the_policy_keeps_a_foreign_script_from_running(show):
    opened = show(page("sick"))
    opened.evaluate(
        "() => { const s = document.createElement('script'); s.textContent = 'window.pwned = 1';"
        " document.body.append(s); }"
    )
    assert opened.evaluate("window.pwned") is None
    assert any("Content Security Policy" in message for message in opened.messages)


def test_a_thousand_layers_fit_in_a_megabyte_and_are_painted(show):
    text = html_of(reports.deep(84))
    assert len(reports.deep(84).profile.blocks) >= 1000
    assert len(text.encode()) < MEGABYTE
    opened = show(text)
    assert opened.messages == []
    opened.wait_for_function("performance.getEntriesByType('paint').length > 1")
    paints = opened.evaluate("performance.getEntriesByType('paint').map(entry => entry.name)")
    assert "first-contentful-paint" in paints
    drawn = opened.evaluate(CANVASES)
    assert len(drawn) >= 6
    assert set(drawn) == {1}


def test_the_saved_json_is_the_report(show):
    report = reports.real()
    opened = show(html_of(report), accept_downloads=True)
    with opened.expect_download() as caught:
        opened.get_by_role("button", name="Save as JSON").click()
    text = caught.value.path().read_text()
    assert Report.from_json(text) == report
    assert json.loads(text) == json.loads(report.to_json())


def test_the_saved_markdown_is_that_of_the_command_line(show):
    opened = show(html_of(samples.sick()), accept_downloads=True)
    with opened.expect_download() as caught:
        opened.get_by_role("button", name="Save as Markdown").click()
    assert caught.value.path().read_text().startswith("## DOES NOT TRAIN: the gradient keeps 0.154")


def test_a_record_too_large_to_carry_is_carried_short_and_says_so(show):
    opened = show(html_of(reports.deep(160)), accept_downloads=True)
    assert opened.get_by_text("is shortened").count() == 1
    with opened.expect_download() as caught:
        opened.get_by_role("button", name="Save as JSON").click()
    again = Report.from_json(caught.value.path().read_text())
    assert len(reports.deep(160).profile.blocks) == 1920
    assert (again.verdict, len(again.profile.blocks)) == (reports.real().verdict, 1920)


def test_without_scripts_the_profiles_are_there_as_pictures(show):
    opened = show(page("real"), java_script_enabled=False)
    assert opened.locator(".plot svg").count() == opened.locator(".plot").count() > 5
    assert opened.locator(".plot svg .ll-main").first.is_visible()


def test_the_whole_text_of_a_rule_is_on_the_page(show):
    opened = show(page("reviewed"))
    opened.get_by_text("What B201 measures").click()
    assert opened.get_by_text("The ratio χ").is_visible() or opened.get_by_text("χ").first.is_visible()
