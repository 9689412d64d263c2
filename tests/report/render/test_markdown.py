"""md: a table that stays a table, and names that stay names."""

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st
from markdown_it import MarkdownIt

from leadline.report.pages import page_of
from leadline.report.render.markdown import code, prose, render
from leadline.text import clean
from tests.support import reports as samples

PARSER = MarkdownIt("commonmark").enable(["table", "strikethrough"])
LETTERS = st.text(st.sampled_from("ab`|\\*_[]()<>&#~@!-:/ \n"), max_size=30)


def rendered(report) -> str:
    return PARSER.render(render(page_of(report)))


@pytest.mark.parametrize("name", samples.HOSTILE_NAMES, ids=range(len(samples.HOSTILE_NAMES)))
def test_no_name_makes_a_tag_or_a_further_cell(name):
    page = rendered(samples.hostile(name)).replace("<!-- -->", "")
    assert set(re.findall(r"</?(\w+)|<(!--)", page)) <= {
        (tag, "")
        for tag in (
            "h2",
            "p",
            "code",
            "table",
            "thead",
            "tbody",
            "tr",
            "th",
            "td",
            "ul",
            "li",
            "details",
            "summary",
        )
    }
    assert {row.count("<td>") for row in page.split("<tr>") if "<td>" in row} <= {4, 5}


@given(LETTERS)
def test_any_words_are_shown_as_they_are(words):
    shown = PARSER.parse(f"x{prose(words)}x")
    assert "".join(
        child.content for child in shown[1].children if child.type not in ("html_inline", "softbreak")
    ) == clean(f"x{words}x")


@given(LETTERS)
def test_any_code_in_a_table_is_shown_as_it_is(words):
    table = f"| a |\n| --- |\n| x{code(words)}x |"
    (cell,) = re.findall(r"<td>x<code>(.*?)</code>x</td>", PARSER.render(table), re.DOTALL)
    shown = cell.replace("&lt;", "<").replace("&gt;", ">").replace("&quot;", '"').replace("&amp;", "&")
    assert shown.strip() == clean(words).strip()


def test_nobody_is_called_by_a_name():
    assert "@<!-- -->everyone" in prose("@everyone")


def test_a_healthy_report_says_how_much_was_looked_for():
    assert "Findings: none." in render(page_of(samples.healthy()))
    assert "1 error" not in render(page_of(samples.healthy()))


def test_marks_of_the_sparklines_are_explained_if_there_are_any():
    assert "∞ infinite" in render(page_of(samples.reviewed()))
    assert "infinite" not in render(page_of(samples.sick()))
