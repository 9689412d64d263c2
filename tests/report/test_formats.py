"""Laws over all formats: each says what the record says, whatever the names in it, and real parsers read it back."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from pathlib import Path
from xml.etree import ElementTree

import pytest
from markdown_it import MarkdownIt

from leadline.errors import SchemaError
from leadline.records import Finding
from leadline.records.report import Report
from leadline.report.formats import FORMATS
from leadline.report.look import Look
from leadline.report.saved import read_reports
from leadline.text import clean
from tests.support import reports as samples
from tests.support.parsed_html import read
from tests.support.workflow import commands

GOLDEN = Path(__file__).parent / "golden"
SUFFIXES = {
    "agent": "agent.txt",
    "github": "github.txt",
    "junit": "junit.xml",
    "sarif": "sarif.json",
    "html": "html.txt",
}
REPORTS = {name: getattr(samples, name)() for name in ("sick", "healthy", "broken", "reviewed", "thousand")}


def write(form: str, *reports: Report, **choices: object) -> str:
    return FORMATS[form](reports, Look(**choices))


def strict(text: str) -> object:
    return json.loads(text, parse_constant=lambda word: pytest.fail(f"bare {word} in JSON"))


def xml_messages(text: str) -> list[str]:
    return [each.text for each in ElementTree.fromstring(text.encode()).iter("failure")]


def md_cells(text: str) -> list[str]:
    """Text of the cells of the first table, row by row, as a Markdown parser sees it."""
    tokens = MarkdownIt("commonmark").enable("table").parse(text)
    first = next((place for place, token in enumerate(tokens) if token.type == "tbody_open"), len(tokens))
    return [
        "".join(
            child.content for child in tokens[place + 1].children if child.type in ("text", "code_inline")
        )
        for place, token in enumerate(tokens)
        if token.type == "td_open" and place > first
    ]


# How each format is read back: the messages of the findings that it holds.
PARSERS: dict[str, Callable[[str], str]] = {
    "text": str,
    "agent": lambda text: str([line.partition(": ")[2] for line in text.splitlines()]),
    "json": lambda text: str([each["message"] for each in strict(text)["findings"]]),
    "jsonl": lambda text: str([strict(line)["message"] for line in text.splitlines()]),
    "github": lambda text: str([each.message for each in commands(text)]),
    "sarif": lambda text: str([each["message"]["text"] for each in strict(text)["runs"][0]["results"]]),
    "junit": lambda text: str(xml_messages(text)),
    "md": lambda text: str(md_cells(text)),
    "html": lambda text: str(read(text).words.splitlines()),
}


def test_every_format_has_a_parser_in_these_laws():
    assert PARSERS.keys() == FORMATS.keys()


@pytest.mark.parametrize("form", FORMATS)
@pytest.mark.parametrize("name", REPORTS)
def test_a_format_writes_whole_lines_and_names_what_was_found(form, name):
    text = write(form, REPORTS[name])
    assert text == "" or text.endswith("\n")
    worst = [each for each in REPORTS[name].findings if each.severity == "error" and not each.known]
    assert not worst or worst[0].message.split(":")[0] in PARSERS[form](text)


@pytest.mark.parametrize("form", FORMATS)
@pytest.mark.parametrize("name", samples.HOSTILE_NAMES, ids=range(len(samples.HOSTILE_NAMES)))
def test_no_name_breaks_a_format(form, name):
    text = write(form, samples.hostile(name))
    assert text.replace("\n", "").isprintable()
    PARSERS[form](text)


@pytest.mark.parametrize(
    "form", sorted(FORMATS.keys() - {"text", "github"})
)  # a page is cut to fit; github merges a rule's
@pytest.mark.parametrize("name", samples.HOSTILE_NAMES, ids=range(len(samples.HOSTILE_NAMES)))
def test_a_hostile_message_is_read_back_as_it_was(form, name):
    message = f"says {name}!" if form in ("json", "jsonl") else clean(f"says {name}!")
    found = samples.finding(message=f"says {name}!", where="x")
    text = write(form, samples.report(samples.profile([1.0], [1.0]), found))
    assert repr(message)[1:-1] in PARSERS[form](text)


@pytest.mark.parametrize("form", FORMATS)
def test_a_report_without_anything_can_be_written(form):
    empty = samples.report(samples.profile([], [], streams=()), verdict="undecided")
    PARSERS[form](write(form, empty))


@pytest.mark.parametrize("form", sorted(FORMATS.keys() - {"text"}))
def test_only_text_depends_on_the_terminal(form):
    looks = [{}, {"width": 200, "detail": "verdict", "color": True}]
    assert len({write(form, samples.sick(), **look) for look in looks}) == 1


@pytest.mark.parametrize("form", ["json", "jsonl", "sarif"])
@pytest.mark.parametrize(
    ("value", "word"), [(math.nan, "NaN"), (math.inf, "Infinity"), (-math.inf, "-Infinity")]
)
def test_a_number_that_json_cannot_write_survives(form, value, word):
    found = samples.finding(evidence={"start": value})
    text = write(form, samples.report(samples.profile([1.0], [1.0]), found))
    for line in text.splitlines() if form == "jsonl" else [text]:
        strict(line)
    assert f'"start":{" " if form == "sarif" else ""}"{word}"' in text


# The page has its own files, in several widths; of the whole record it is the schema that tells its shape.
@pytest.mark.parametrize("form", sorted(FORMATS.keys() - {"text", "json"}))
def test_the_output_is_the_one_that_was_looked_at(form):
    """After a change that is meant: delete the file, run once, and look at what it wrote before committing it."""
    golden = GOLDEN / f"reviewed.{SUFFIXES.get(form, form)}"
    text = write(form, REPORTS["reviewed"])
    if form == "html":
        text = read(text).words  # how it looks is for the browser tests
    if not golden.exists():
        golden.write_text(text)
        pytest.fail(f"wrote {golden.name}: look at it, then run again")
    assert text == golden.read_text()


@pytest.mark.parametrize("form", FORMATS)
def test_several_reports_make_one_document(form):
    several = write(form, samples.sick(), samples.healthy(), samples.reviewed())
    if form == "json":
        assert [each["verdict"] for each in strict(several)] == ["fails", "trains", "fails"]
    elif form == "sarif":
        ids = [run["automationDetails"]["id"] for run in strict(several)["runs"]]
        assert len(ids) == 3
    elif form == "junit":
        assert len(ElementTree.fromstring(several.encode()).findall("testsuite")) == 3
    else:
        assert PARSERS[form](several)


def test_json_gives_the_same_report_back():
    text = write("json", samples.broken())
    again = Report.from_json(text)
    assert write("json", again) == text
    assert math.isnan(again.profile.blocks[2].forward_ms)
    assert again.profile.blocks[1].forward_ms is None


@pytest.mark.parametrize("amount", [1, 2])
def test_saved_reports_are_read_back_one_or_several(amount):
    saved = [samples.reviewed(), samples.sick()][:amount]
    assert write("json", *read_reports(write("json", *saved))) == write("json", *saved)


@pytest.mark.parametrize("text", ["[", "[1]", '[{"schema": "leadline.report/9"}]', "[[]]"])
def test_a_damaged_list_of_reports_is_refused(text):
    with pytest.raises(SchemaError):
        read_reports(text)


def test_json_has_every_public_key():
    data = json.loads(write("json", samples.sick()))
    assert {"schema", "verdict", "findings", "profile", "coverage"} <= data.keys()
    assert {"name", "forward_ms", "backward_ms"} <= data["profile"]["blocks"][0].keys()


def test_jsonl_has_a_line_for_each_finding_that_counts_with_its_place():
    rows = [json.loads(line) for line in write("jsonl", samples.reviewed()).splitlines()]
    assert [(row["code"], row["known"], row["file"], row["line"]) for row in rows] == [
        ("B201", False, "src/a b.py", 3),
        ("F102", True, "src/a b.py", 3),
        ("N701", False, "src/nets.py", 12),
    ]
    assert {*Finding.__struct_fields__} <= rows[0].keys()


def test_nothing_found_is_no_line_of_jsonl():
    assert write("jsonl", samples.healthy()) == ""
