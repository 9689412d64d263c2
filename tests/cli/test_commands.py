"""The other commands: help, explain, rules, report, doctor; and that they answer without torch."""

import json
import os
import subprocess
import sys
from importlib import import_module

import click
import pytest

from leadline import __version__
from leadline.checks._select import all_checks
from leadline.cli import COMMANDS, load_command, main
from leadline.collect import collect
from tests.support import reports as samples


@pytest.mark.parametrize("command", COMMANDS)
def test_every_help_page_has_an_example(run, command):
    done = run(command, "--help")
    assert done.code == 0
    assert f"leadline {command}" in done.out.partition("Examples:")[2]


def test_the_version_is_printed(run):
    assert run("--version").out == f"leadline, version {__version__}\n"


def test_every_command_that_is_defined_is_listed():
    packages = (import_module(name) for name in ("leadline.cli", "leadline.lab.commands"))
    defined = {id(each): each for package in packages for each in collect(package, click.Command)}
    groups = [each for each in defined.values() if isinstance(each, click.Group)]
    members = {id(member) for group in groups for member in group.commands.values()}
    names = {each.name for key, each in defined.items() if key not in members}
    assert {load_command(name).name for name in COMMANDS} == names


def test_help_imports_neither_torch_nor_the_renderers():
    code = "import sys; from leadline.cli import main; main(['--help']); print(*sys.modules)"
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True
    )
    assert not {"torch", "rich", "jinja2", "markdown_it", "leadline.report"} & set(done.stdout.split())


@pytest.mark.parametrize(
    "arguments",
    [["--version"], ["check", "--help"], ["fix", "--help"], ["forecast", "--help"], ["rules"], ["fixes"]],
    ids=" ".join,
)
def test_what_prints_no_report_imports_no_renderer(arguments):
    code = f"import sys; from leadline.cli import main; main({arguments}); print(*sys.modules)"
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True
    )
    heavy = {"torch", "rich.console", "rich.text", "jinja2", "markdown_it", "leadline.report.render.html"}
    assert not heavy & set(done.stdout.splitlines()[-1].split())


def test_a_page_of_text_does_not_import_what_only_html_needs(tmp_path):
    saved = tmp_path / "saved.json"
    saved.write_text(samples.broken().to_json())
    code = (
        "import sys; from leadline.report.formats import FORMATS; from leadline.report.look import Look; "
        "from leadline.records.report import Report; "
        "FORMATS['text']([Report.from_json(open(sys.argv[1]).read())], Look()); print(*sys.modules)"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, saved], capture_output=True, text=True, timeout=60, check=True
    )
    assert not {"jinja2", "markdown_it"} & set(done.stdout.split())


def test_rules_and_fixes_are_listed_in_plain_signs(run):
    listed = run("rules").out + run("fixes").out
    assert "$" not in listed
    assert "\\" not in listed


WITHOUT_TORCH = """
import sys
from leadline.cli import COMMANDS, load_command, main
from leadline.collect import collect
for command in COMMANDS:
    assert main([command, "--help"]) == 0, command
assert main(["rules"]) == 0
assert main(["explain", "gradient-decay"]) == 0
assert main(["report", sys.argv[1]]) == 0
assert main(["check", "nowhere"]) == 2
assert main(["check", "nowhere.py:make"]) == 2
assert main(["explain", "nothing-like-it"]) == 2
sys.exit("torch was imported" if "torch" in sys.modules else 0)
"""


def test_help_rules_explain_and_report_do_not_import_torch(tmp_path):
    saved = tmp_path / "saved.json"
    saved.write_text(samples.broken().to_json())
    done = subprocess.run(
        [sys.executable, "-c", WITHOUT_TORCH, saved], capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("rule", all_checks(), ids=lambda rule: rule.code)
def test_a_rule_is_explained_by_code_and_by_name(run, rule):
    by_code, by_name = run("explain", rule.code.lower()), run("explain", rule.name.upper())
    assert by_code.code == 0
    assert by_code.out == by_name.out
    assert rule.name in by_code.out
    assert "When it is wrong" in by_code.out
    assert max(map(len, by_code.out.splitlines())) <= 80


@pytest.mark.parametrize("typo", ["B2O1", "gradient-decai", "gradent decay"])
def test_an_unknown_check_is_answered_with_the_nearest_name(run, typo):
    done = run("explain", typo)
    assert (done.code, done.out) == (2, "")
    assert "did you mean B201 (gradient-decay)?" in done.err


def test_a_completely_unknown_check_is_answered_with_where_to_look(run):
    assert "`leadline rules` lists them" in run("explain", "zzzzzzzzzz").err


def test_rules_lists_every_rule_within_the_width(run):
    lines = run("rules").out.splitlines()
    assert [line.split()[:2] for line in lines if line[0] != " "] == [
        [each.code, each.name] for each in all_checks()
    ]
    assert max(map(len, lines)) <= 80


def test_rules_are_also_there_for_machines(run):
    rows = json.loads(run("rules", "--format", "json").out)
    assert [(row["code"], row["summary"]) for row in rows] == [
        (each.code, each.summary) for each in all_checks()
    ]


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "not JSON"),
        ("{}", "leadline.report/1"),
        ('{"schema": "leadline.report/9"}', "Upgrade"),
        ("\0\xff", "not JSON"),
    ],
)
def test_a_file_that_is_no_report_gets_one_clear_error(run, tmp_path, text, words):
    (tmp_path / "saved.json").write_bytes(text.encode("latin-1"))
    done = run("report", "saved.json")
    assert (done.code, done.out) == (2, "")
    assert words in done.err


def test_a_saved_report_that_is_not_there_is_a_usage_error(run):
    done = run("report", "nowhere.json")
    assert done.code == 2
    assert "nowhere.json" in done.err


def test_doctor_names_versions_and_devices(run):
    words = {line.split()[0] for line in run("doctor").out.splitlines()}
    assert words >= {"leadline", "python", "torch", "devices", "threads"}


@pytest.mark.parametrize(
    ("environment", "option", "coloured"),
    [
        ({}, [], True),
        ({}, ["--no-color"], False),
        ({"NO_COLOR": "1"}, [], False),
        ({"NO_COLOR": ""}, [], True),
        ({"TERM": "dumb"}, [], False),
    ],
)
def test_color_is_used_only_on_terminals_that_want_it(
    run, tmp_path, monkeypatch, environment, option, coloured
):
    for name, value in {"TERM": "xterm", "NO_COLOR": "", **environment}.items():
        monkeypatch.setenv(name, value)
    (tmp_path / "saved.json").write_text(samples.sick().to_json())
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True, raising=False)
    assert ("\x1b[" in run("report", "saved.json", *option).out) == coloured


def test_a_reader_that_goes_away_ends_the_program_quietly(tmp_path):
    saved = tmp_path / "saved.json"
    saved.write_text(samples.report(samples.profile([1.0] * 3000, [1.0] * 3000), verdict="trains").to_json())
    with subprocess.Popen(
        [sys.executable, "-m", "leadline", "report", saved, "-v"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    ) as process:
        assert process.stdout.readline().startswith(b"TRAINS")
        process.stdout.close()
        assert process.stderr.read() == b""
        assert process.wait(timeout=60) == 0


def test_a_terminal_that_cannot_draw_gets_the_words(tmp_path):
    saved = tmp_path / "saved.json"
    saved.write_text(samples.sick().to_json())
    done = subprocess.run(
        [sys.executable, "-X", "utf8=0", "-m", "leadline", "report", saved],
        env={**os.environ, "PYTHONIOENCODING": "ascii"},
        capture_output=True,
        timeout=60,
        check=False,
    )
    assert (done.returncode, done.stderr) == (0, b"")
    assert b"gradient-decay" in done.stdout


def test_an_unknown_command_is_a_usage_error(run):
    assert run("chekc").code == 2
    assert main(["chekc"]) == 2
