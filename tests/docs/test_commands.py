"""Every command that a page shows is run by the test of its page, or listed with the reason why not, and parsed."""

from functools import partial

import click
import pytest

from tests.docs.test_pages import PAGES as RUN_HERE
from tests.docs.test_pages import RUN_ELSEWHERE
from tests.support import ROOT
from tests.support.page_commands import (
    PARSED_ONLY,
    block_commands,
    check_command,
    inline_commands,
    unlabeled_commands,
)

DOCS = ROOT / "docs"
PAGES = [*sorted(ROOT.glob("*.md")), *sorted(DOCS.rglob("*.md"))]
by_page = partial(pytest.mark.parametrize, ids=lambda page: page.relative_to(ROOT).as_posix())


@by_page("page", PAGES)
def test_a_command_of_a_page_is_run_or_listed_with_a_reason(page):
    left = [line for line in block_commands(page.read_text()) if line not in PARSED_ONLY]
    run = {DOCS / name for name in (*RUN_HERE, *RUN_ELSEWHERE)}
    assert left == [] or page in run


@by_page("page", PAGES)
def test_every_command_of_a_page_names_what_exists(page):
    text = page.read_text()
    for line in (*block_commands(text), *inline_commands(text)):
        check_command(line)


@by_page("page", PAGES)
def test_every_block_of_commands_is_marked_as_one(page):
    assert list(unlabeled_commands(page.read_text())) == []


def test_every_listed_command_is_still_on_a_page():
    shown = {line for page in PAGES for line in block_commands(page.read_text())}
    assert set(PARSED_ONLY) - shown == set()


@pytest.mark.parametrize(
    "line",
    [
        "leadline frobnicate",
        "leadline check x.py:f --no-such-option",
        "leadline lab sing",
        "python -m benchmarks.nothing",
        "python examples/nothing.py",
        "make nothing",
        "pip install '.[nothing]'",
        ".ci/nothing",
    ],
)
def test_a_command_that_names_nothing_is_found(line):
    with pytest.raises((AssertionError, click.ClickException)):
        check_command(line)


def test_commands_are_found_in_blocks_and_sentences_and_where_nothing_would_run_them():
    text = "Use `leadline\nrules`.\n\n```sh\nleadline fixes  # all\n```\n\n```\n$ leadline doctor\n```\n"
    assert list(inline_commands(text)) == ["leadline rules"]
    assert list(block_commands(text)) == ["leadline fixes"]
    assert list(unlabeled_commands(text)) == ["$ leadline doctor"]
