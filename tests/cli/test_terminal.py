"""What a terminal shows in addition to the result, and the error for a file that cannot be written."""

from __future__ import annotations

import io
import sys

import click
import pytest

from leadline.cli.options import progress_bar
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


def test_no_bar_is_shown_without_a_terminal(monkeypatch: pytest.MonkeyPatch):
    terminal = look_at(monkeypatch, Terminal())
    with progress_bar(quiet=True) as show:
        assert show is None
    look_at(monkeypatch, io.StringIO())
    with progress_bar(quiet=False) as show:
        assert show is None
    with at_work(quiet=False):
        pass
    assert terminal.getvalue() == ""


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
