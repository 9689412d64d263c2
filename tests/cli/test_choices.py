"""--select, --ignore, --fail-on and [tool.leadline]: what counts, and who has the last word."""

import json
from pathlib import Path

import pytest

from leadline.report.formats import FORMATS

SICK = "nets.py:poisoned"  # N701 and nothing else


def configure(*lines: str) -> None:
    Path("pyproject.toml").write_text("\n".join(["[tool.leadline]", *lines]))


@pytest.mark.parametrize(
    ("options", "code"),
    [
        ([], 1),
        (["--select", "N"], 1),
        (["--select", "F,B"], 0),
        (["--select", "F", "--select", "N701"], 1),
        (["--ignore", "non-finite"], 0),
        (["--ignore", "N", "--select", "N701"], 1),
        (["--ignore", "F,B"], 1),
        (["--fail-on", "never"], 0),
    ],
)
@pytest.mark.parametrize("form", ["text", "json", "sarif"])
def test_what_does_not_count_does_not_fail_in_any_format(run, options, code, form):
    assert run("check", SICK, *options, "--format", form).code == code


def test_what_is_ignored_is_out_of_the_verdict_and_named_on_the_page(run):
    done = run("check", SICK, "--ignore", "N701")
    assert done.out.startswith("TRAINS: ")
    assert "ignored    N701 non-finite" in done.out
    data = json.loads(run("check", SICK, "--ignore", "N701", "--format", "json").out)
    assert (data["verdict"], data["findings"]) == ("trains", [])
    assert {each["code"] for each in data["ignored"]} == {"N701"}


def test_ignoring_everything_does_not_decide_what_was_undecided(run):
    assert run("check", "nets.py:weightless", "--ignore", "F,B,N").code == 3


@pytest.mark.parametrize(
    ("option", "words"),
    [
        (["--select", "N7O1"], "did you mean N701"),
        (["--ignore", "non-finit"], "did you mean N701 (non-finite)?"),
        (["--fail-on", "fatal"], "fatal"),
        (["--config", "nowhere.toml"], "nowhere.toml"),
        (["--config", "nets.py"], "TOML"),
        (["--baseline", "nowhere.json"], "--write-baseline nowhere.json"),
        (["--baseline", "nets.py"], "not JSON"),
        (["--write-baseline", "no/such/folder.json"], "no/such"),
    ],
)
def test_a_wrong_choice_is_refused_before_the_model_is_made(run, option, words):
    done = run("check", "nets.py:marker", *option)
    assert (done.code, done.out) == (2, "")
    assert words in done.err
    assert "Traceback" not in done.err
    assert not Path("factory-ran").exists()


@pytest.mark.parametrize("own", ["ignore = ['N701']", "select = ['F']", "fail-on = 'never'"])
@pytest.mark.parametrize("form", ["text", "junit"])
def test_a_target_can_have_separate_settings(run, own, form):
    configure(f"[tool.leadline.targets.'{SICK}']", own)
    assert run("check", "--format", form).code == 0
    assert run("check", SICK, "--select", "N", "--ignore", "F", "--fail-on", "warning").code == 1


def test_settings_of_one_target_say_nothing_about_another(run):
    configure("[tool.leadline.targets.'other.py:make']", "ignore = ['N701']")
    assert run("check", SICK).code == 1


def test_the_project_settings_name_the_targets_and_options(run):
    configure(f'targets = ["{SICK}"]', 'ignore = ["N"]', 'format = "jsonl"')
    assert run("check").code == 0
    assert run("check").out == ""


def test_an_option_overrides_the_project_settings(run):
    configure(
        'targets = ["nets.py:nothing"]', 'ignore = ["N"]', 'fail-on = "never"', 'format = "json"', "seed = 3"
    )
    assert run("check", SICK).out.startswith("{")
    assert run("check", SICK, "--ignore", "F", "--format", "text").out.startswith("DOES NOT TRAIN")
    assert run("check", SICK, "--ignore", "F").code == 0
    assert run("check", SICK, "--ignore", "F", "--fail-on", "error").code == 1


def test_seed_and_type_are_the_projects_too(run):
    configure('dtype = "float64"', "seed = 1", 'format = "json"')
    assert "forward sees torch.float64" in run("check", "nets.py:talker").err
    ours = run("check", "nets.py:healthy").out
    assert run("check", "nets.py:healthy", "--seed", "1").out == ours
    assert run("check", "nets.py:healthy", "--seed", "2").out != ours


def test_another_file_can_hold_the_settings(run):
    configure('ignore = ["N"]')
    Path("strict.toml").write_text("[tool.leadline]\n")
    assert run("check", SICK).code == 0
    assert run("check", SICK, "--config", "strict.toml").code == 1


@pytest.mark.parametrize(
    ("line", "words"),
    [("fail_on = 'error'", "did you mean fail-on?"), ("ignore = ['N7O1']", "did you mean N701")],
)
def test_a_mistake_in_the_settings_is_an_error(run, line, words):
    configure(line)
    done = run("check", SICK)
    assert (done.code, done.out) == (2, "")
    assert words in done.err


def test_settings_apply_in_folders_below_the_project(run, monkeypatch):
    configure(f'targets = ["{SICK}"]', 'format = "json"')
    Path("below").mkdir()
    monkeypatch.chdir("below")
    assert json.loads(run("check").out)["target"] == "../nets.py:poisoned"


@pytest.mark.parametrize(
    ("targets", "code"),
    [
        (["healthy", "healthy"], 0),
        (["healthy", "poisoned"], 1),
        (["weightless", "healthy"], 3),
        (["weightless", "poisoned"], 1),
        (["poisoned", "faulty"], 2),
    ],
)
def test_of_several_targets_the_worst_counts(run, targets, code):
    assert run("check", *(f"nets.py:{each}" for each in targets), "-q").code == code


@pytest.mark.parametrize("form", FORMATS)
def test_the_output_distinguishes_several_targets(run, form):
    out = run("check", SICK, "nets.py:weightless", "--format", form).out
    assert SICK in out or SICK.replace(":", "%3A") in out


def test_several_saved_reports_are_shown_again(run):
    both = ("check", SICK, "nets.py:healthy")
    Path("saved.json").write_text(run(*both, "--format", "json").out)
    assert run("report", "saved.json").out == run(*both).out
    assert run("report", "saved.json", "--format", "junit").out == run(*both, "--format", "junit").out


OWN = """import torch
from torch import nn

class Own(nn.Linear):
    pass

def batch():
    return torch.full((8, 4), torch.nan), torch.randn(8, 4), nn.functional.mse_loss

def own():
    return Own(4, 4), *batch()

def plain():
    return nn.Linear(4, 4), *batch()

made = own()
"""


@pytest.mark.parametrize(("factory", "line"), [("own", 4), ("plain", 13), ("made", 4)])
def test_a_finding_points_at_the_class_or_else_at_the_factory(run, factory, line):
    Path("own.py").write_text(OWN)
    row = json.loads(run("check", f"own.py:{factory}", "--format", "jsonl").out.splitlines()[0])
    assert (row["file"], row["line"]) == ("own.py", line)


def test_a_finding_in_an_installed_target_points_at_no_file(run):
    out = run("check", "leadline.lab.demo:deep_mlp", "--no-rehearsal", "--format", "jsonl").out
    assert {json.loads(line)["file"] for line in out.splitlines()} == {None}


def test_the_schema_of_a_report_is_printed_and_fits_what_check_writes(run):
    import jsonschema

    schema = json.loads(run("report", "--schema").out)
    data = json.loads(run("check", SICK, "--format", "json").out)
    jsonschema.Draft202012Validator(schema).validate(data)
