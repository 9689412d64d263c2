"""`leadline check`: what it prints where, and which exit code tells what."""

import json
import os
import sys
from pathlib import Path

import pytest

from leadline.cli.check import exit_code
from leadline.records.report import Report
from leadline.report.formats import FORMATS
from tests.support import reports as samples

SHAPE = samples.profile([1.0], [1.0])


@pytest.mark.parametrize(
    ("severities", "verdict", "codes"),
    [
        ([], "trains", {"error": 0, "warning": 0, "info": 0, "never": 0}),
        (["info"], "trains", {"error": 0, "warning": 0, "info": 1, "never": 0}),
        (["info", "warning"], "poor", {"error": 0, "warning": 1, "info": 1, "never": 0}),
        (["error"], "fails", {"error": 1, "warning": 1, "info": 1, "never": 0}),
        ([], "undecided", {"error": 3, "warning": 3, "info": 3, "never": 3}),
        (["warning"], "undecided", {"error": 3, "warning": 1, "info": 1, "never": 3}),
    ],
)
def test_the_exit_code_follows_the_findings_and_the_verdict(severities, verdict, codes):
    report = samples.report(SHAPE, *(samples.finding(severity=each) for each in severities), verdict=verdict)
    assert {bar: exit_code(report, bar) for bar in codes} == codes


@pytest.mark.parametrize("form", FORMATS)
@pytest.mark.parametrize(
    ("target", "options", "code"),
    [
        ("healthy", [], 0),
        ("poisoned", [], 1),
        ("poisoned", ["--fail-on", "never"], 0),
        ("weightless", [], 3),
    ],
)
def test_the_format_never_changes_the_exit_code(run, target, options, code, form):
    assert run("check", f"nets.py:{target}", "--format", form, *options).code == code


def test_json_on_stdout_is_the_report_and_nothing_else(run):
    done = run("check", "nets.py:talker", "--format", "json")
    report = Report.from_json(done.out)
    assert report.verdict == "trains"
    assert json.loads(done.out)["profile"]["blocks"]
    assert "made\n" in done.err
    assert "forward sees" in done.err


def test_without_a_terminal_there_is_no_color_and_no_spinner(run):
    done = run("check", "nets.py:healthy")
    assert done.out.startswith("TRAINS: ")
    assert "\x1b" not in done.out
    assert done.err == ""


def test_quiet_prints_the_verdict_and_its_sentence_only(run):
    assert len(run("check", "nets.py:poisoned", "-q").out.splitlines()) <= 4


def test_verbose_prints_every_block(run):
    assert "block " in run("check", "nets.py:healthy", "-v").out


def test_the_result_can_go_to_a_file(run):
    done = run("check", "nets.py:poisoned", "--format", "json", "--output", "report.json")
    assert (done.code, done.out) == (1, "")
    assert Report.from_json(Path("report.json").read_text()).findings


def test_a_file_that_cannot_be_written_is_refused_before_the_model_is_made(run):
    done = run("check", "nets.py:marker", "--output", "no/such/folder/report.json")
    assert done.code == 2
    assert "no/such/folder" in done.err
    assert not Path("factory-ran").exists()


def test_a_saved_report_shows_the_same_page(run):
    page = run("check", "nets.py:poisoned").out
    run("check", "nets.py:poisoned", "--format", "json", "--output", "saved.json")
    assert run("report", "saved.json").out == page


def test_the_seed_makes_the_model(run):
    first, again, other = (
        run("check", "nets.py:healthy", "--format", "json", "--seed", seed).out for seed in ("1", "1", "2")
    )
    assert first == again
    assert first != other


def test_the_type_reaches_model_and_batch(run):
    assert "forward sees torch.float64" in run("check", "nets.py:talker", "--dtype", "float64").err


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["nets.py"], "expected a program with a training step"),
        (["nest.py:healthy"], "did you mean nets.py?"),
        (["nets.py:helthy"], "did you mean healthy?"),
        (["nets.py:healthy", "--dtype", "int8"], "'int8'"),
        (["nets.py:healthy", "--device", "warp"], "'warp'"),
        (["nets.py:healthy", "--format", "pdf"], "'pdf'"),
        (["nets.py:healthy", "--seed", "-1"], "-1"),
        (["nets.py:healthy", "-q", "-v"], "exclude each other"),
        ([], "Missing argument"),
    ],
)
def test_wrong_usage_gets_one_clear_error_and_exit_code_2(run, arguments, words):
    done = run("check", *arguments)
    assert (done.code, done.out) == (2, "")
    assert words in done.err
    assert "Traceback" not in done.err


@pytest.mark.parametrize(
    ("target", "words"),
    [
        ("faulty", 'raise ZeroDivisionError("in the user\'s forward")'),
        ("truncated", 'raise EOFError("the user\'s checkpoint is empty")'),
        ("misshapen", "cannot be multiplied"),
    ],
)
def test_an_exception_in_the_users_code_is_shown_as_the_users(run, target, words):
    done = run("check", f"nets.py:{target}")
    assert (done.code, done.out) == (2, "")
    assert words in done.err
    assert "bug in leadline" not in done.err
    assert "cli.py" not in done.err


def test_a_syntax_error_is_shown_where_it_is(run, tmp_path):
    (tmp_path / "broken.py").write_text("def make(:\n")
    done = run("check", "broken.py:make")
    assert done.code == 2
    assert 'broken.py", line 1' in done.err
    assert "bug in leadline" not in done.err


def test_an_interrupt_ends_with_130(run):
    assert run("check", "nets.py:interrupted").code == 130


def test_a_reader_that_has_gone_away_does_not_change_the_exit_code(run, monkeypatch):
    reader, writer = os.pipe()
    os.close(reader)
    with open(writer, "w") as nobody:
        monkeypatch.setattr(sys, "stdout", nobody)
        assert run("check", "nets.py:poisoned").code == 1


def test_the_rehearsal_can_be_left_out(run):
    reports = {
        flags: json.loads(run("check", "leadline.lab.demo:residual_mlp", "--format", "json", *flags).out)
        for flags in ((), ("--no-rehearsal",))
    }
    assert reports[()]["profile"]["rehearsal"]["losses"]
    assert reports["--no-rehearsal",]["profile"]["rehearsal"] is None
