"""What a terminal shows in addition to the result, and the error for a file that cannot be written."""

from __future__ import annotations

import io
import sys

import click
import pytest

from leadline.cli.options import ProgressLines, progress_bar
from leadline.cli.output import at_work, emit, explain_crash


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def look_at(monkeypatch: pytest.MonkeyPatch, stderr: io.StringIO) -> io.StringIO:
    """From here on stderr is this (a fixture would be too early: pytest puts its own in its place)."""
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setattr(sys, "stderr", stderr)
    return stderr


def test_a_bar_shows_how_far_it_is_and_names_cannot_move_the_cursor(monkeypatch: pytest.MonkeyPatch):
    terminal = look_at(monkeypatch, Terminal())
    with progress_bar(quiet=False, first="claims") as show:
        show(1, 4, "layers\x1b[2J[bold]")
        show(2, 0, "of unknown length")
    assert "of unknown length" in terminal.getvalue()
    assert "claims" in terminal.getvalue()
    assert "\x1b[2J" not in terminal.getvalue()


def test_nothing_is_shown_if_it_shall_be_quiet_or_is_done_at_once(monkeypatch: pytest.MonkeyPatch):
    terminal = look_at(monkeypatch, Terminal())
    with progress_bar(quiet=True) as show:
        assert show is None
    log = look_at(monkeypatch, io.StringIO())
    with progress_bar(quiet=False) as show:
        show(1, 2, "layers")
    with at_work(quiet=False):
        pass
    assert terminal.getvalue() == log.getvalue() == ""


def test_without_a_terminal_long_work_writes_a_plain_line_every_few_seconds():
    log, seconds = io.StringIO(), iter(range(30))
    show = ProgressLines(log, clock=lambda: float(next(seconds)))
    for done in range(20):
        show(done, 20, "training\x1b[2J")
    lines = log.getvalue().splitlines()
    assert lines[0] == "training\\x1b[2J 1/20 (2 s, about 38 s left)"
    assert len(lines) == 4


def test_a_terminal_shows_that_work_is_going_on(monkeypatch: pytest.MonkeyPatch):
    terminal = look_at(monkeypatch, Terminal())
    with at_work(quiet=False):
        pass
    assert terminal.getvalue() != ""


def test_a_result_that_cannot_be_written_is_an_error_with_the_path(tmp_path):
    with pytest.raises(click.FileError) as caught:
        emit("text", tmp_path / "missing" / "report.html")
    assert "report.html" in caught.value.ui_filename


def test_an_internal_error_is_reported_as_a_bug_of_leadline():
    assert "this is a bug in leadline" in explain_crash(ValueError("raised by nobody else"))
