"""`leadline runs`, `leadline export`, and `leadline check` of a training that has run."""

from __future__ import annotations

import json
import math
import os
import subprocess
import sys

import msgspec
import pytest

import leadline
from leadline.monitor.runfile import Writer
from leadline.records.report import Report
from leadline.records.run import Alert, Event, RunInfo
from leadline.report.formats import FORMATS
from tests.support import reports as samples

INFO = RunInfo(model="GPT", optimizer="AdamW", parameters=124)
SPIKE = Alert(
    code="T801", name="spike", severity="error", message="the update jumped", where="h.3", since=90, step=95
)


def falling(step: int) -> float:
    return 2.5 * math.exp(-step / 40) + 0.5 + 0.02 * math.sin(7.0 * step * step)


def train(path, *, steps=200, loss=falling, alerts=(), report="", resume_at=None):
    with Writer(path, INFO) as writer:
        for step in range(steps):
            writer.put(step, {"loss": loss(step)})
        for alert in alerts:
            writer.alert(alert)
        if report:
            writer.report(steps - 1, report)
    if resume_at is not None:
        with Writer(path, INFO) as writer:
            for step in range(resume_at, steps):
                writer.put(step, {"loss": loss(step)})


def test_runs_lists_what_is_below_a_folder(run, tmp_path):
    train(tmp_path / "a.leadline")
    train(tmp_path / "deep" / "b.leadline", alerts=[SPIKE])
    train(tmp_path / ".hidden" / "c.leadline")
    done = run("runs")
    assert done.code == 0
    lines = done.out.splitlines()
    assert lines[0].split() == ["run", "model", "steps", "loss", "alerts", "last", "step", "state"]
    assert lines[1].split()[:3] == ["a.leadline", "GPT", "200"]
    assert "deep/b.leadline" in lines[2]
    assert "T801" in lines[2]
    assert len(lines) == 3


def test_runs_as_json_keeps_everything(run, tmp_path):
    train(tmp_path / "a.leadline", loss=lambda step: math.nan)
    with Writer(tmp_path / "b.leadline", INFO):
        done = run("runs", "a.leadline", "b.leadline", "--format", "json")
    ended, live = json.loads(done.out, parse_constant=pytest.fail)
    assert (ended["loss"], ended["steps"], ended["last_step"], ended["state"]) == ("NaN", 200, 199, "ended")
    assert (live["loss"], live["steps"], live["updated"], live["state"]) == (None, 0, None, "writing")


def test_a_file_that_cannot_be_read_does_not_hide_the_others(run, tmp_path):
    train(tmp_path / "a.leadline")
    (tmp_path / "bad.leadline").write_text("this is no database at all" * 50)
    done = run("runs")
    assert done.code == 2
    assert "a.leadline" in done.out
    assert "bad.leadline is not a run file" in done.err


def test_without_runs_the_command_tells_how_to_write_one(run):
    done = run("runs")
    assert (done.code, done.out) == (0, "")
    assert "leadline.watch" in done.err


def test_a_run_that_was_killed_is_broken_off(run, tmp_path):
    code = (
        "import os\nfrom leadline.records.run import RunInfo\nfrom leadline.monitor.runfile import Writer\n"
    )
    code += "w = Writer('a.leadline', RunInfo(model='GPT')); w.put(0, {'loss': 1.0}); w.flush(); os._exit(1)"
    subprocess.run([sys.executable, "-c", code], check=False, cwd=tmp_path, env=with_source())
    assert "broken off" in run("runs").out


def with_source() -> dict[str, str]:
    source = os.path.dirname(os.path.dirname(leadline.__file__))
    return {**os.environ, "PYTHONPATH": source}


def test_export_writes_to_stdout_and_to_files(run, tmp_path):
    train(tmp_path / "a.leadline", steps=2)
    assert run("export", "a.leadline", "--to", "csv").out.splitlines()[0] == "step,time,loss"
    assert json.loads(run("export", "a.leadline", "--to", "jsonl").out.splitlines()[1])["step"] == 1
    assert run("export", "a.leadline", "-o", "b.csv").out == ""
    assert (tmp_path / "b.csv").read_text().count("\n") == 3
    done = run("export", "a.leadline", "--layers", "--to", "csv")
    assert (done.out, "no numbers of layers" in done.err) == ("step,metric,axis,index,layer,value\n", True)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["a.leadline"], "Choose a format"),
        (["a.leadline", "-o", "a.xlsx"], "Choose a format"),
        (["a.leadline", "--to", "parquet"], "give a file name"),
        (["none.leadline", "--to", "csv"], "no such file"),
        (["nets.py", "--to", "csv"], "not a run file"),
        (["a.leadline", "--to", "csv", "-o", "no/where.csv"], "no folder"),
    ],
)
def test_an_impossible_export_is_refused_with_advice(run, tmp_path, arguments, words):
    train(tmp_path / "a.leadline", steps=2)
    done = run("export", *arguments)
    assert done.code == 2
    assert words in done.err
    assert not (tmp_path / "a.xlsx").exists()


def test_a_healthy_run_trains_and_shows_its_losses(run, tmp_path):
    train(tmp_path / "a.leadline")
    done = run("check", "a.leadline")
    assert done.code == 0
    assert " ".join(done.out.split()).startswith("TRAINS: the loss fell from 2.78 to 0.517 over 200 steps")
    assert "the run file holds no check of the model" in done.out


def test_an_alert_that_stands_fails_the_check(run, tmp_path):
    train(tmp_path / "a.leadline", alerts=[SPIKE])
    done = run("check", "a.leadline")
    assert done.code == 1
    assert done.out.startswith("DOES NOT TRAIN: the update jumped")
    assert run("check", "a.leadline", "--fail-on", "never").code == 0


@pytest.mark.parametrize("how", ["cleared", "resumed"])
def test_an_alert_that_is_over_is_a_note(run, tmp_path, how):
    cleared = msgspec.structs.replace(SPIKE, state="cleared", step=150)
    alerts = [SPIKE, cleared] if how == "cleared" else [SPIKE]
    train(tmp_path / "a.leadline", alerts=alerts, resume_at=80 if how == "resumed" else None)
    done = run("check", "a.leadline", "--format", "json")
    report = Report.from_json(done.out)
    assert (done.code, report.verdict) == (0, "trains")
    assert [finding.severity for finding in report.findings] == ["info"]
    assert "over" in report.findings[0].message


def test_the_last_stored_check_is_judged_with_the_alerts(run, tmp_path):
    stored = samples.sick()
    train(tmp_path / "a.leadline", report=stored.to_json(), alerts=[SPIKE])
    report = Report.from_json(run("check", "a.leadline", "--format", "json").out)
    codes = [finding.code for finding in report.findings]
    assert "T801" in codes
    assert {finding.code for finding in stored.findings} <= set(codes)
    assert report.profile == stored.profile
    assert report.course is not None
    assert report.course.last_step == 199


def test_an_alert_that_repeats_a_finding_of_the_last_check_appears_once(run, tmp_path):
    stored = samples.sick()
    first = stored.findings[0]
    alert = msgspec.structs.replace(SPIKE, code=first.code, name=first.name)
    train(tmp_path / "a.leadline", report=stored.to_json(), alerts=[alert])
    report = Report.from_json(run("check", "a.leadline", "--format", "json").out)
    assert [finding.code for finding in report.findings].count(first.code) == 1


def test_without_a_loss_the_last_check_decides(run, tmp_path):
    for stored, code, words in ((samples.healthy(), 0, "TRAINS"), (samples.sick(), 1, "DOES NOT TRAIN")):
        path = tmp_path / f"{code}.leadline"
        with Writer(path, INFO) as writer:
            for step in range(100):
                writer.put(step, {"lr": 0.1})
            writer.report(0, stored.to_json())
        done = run("check", path.name)
        assert (done.code, done.out.partition(":")[0]) == (code, words)


@pytest.mark.parametrize("entry", ["T801", "T", "t80", "spike"])
def test_an_alarm_can_be_ignored_by_code_or_name(run, tmp_path, entry):
    train(tmp_path / "a.leadline", alerts=[msgspec.structs.replace(SPIKE, name="spike")])
    assert run("check", "a.leadline").code == 1
    done = run("check", "a.leadline", "--ignore", entry)
    assert done.code == 0
    assert "ignored" in done.out
    assert run("check", "a.leadline", "--select", "B").code == 0
    assert run("check", "a.leadline", "--ignore", "T9").code == 2


def test_too_few_steps_cannot_be_judged(run, tmp_path):
    train(tmp_path / "a.leadline", steps=5)
    done = run("check", "a.leadline")
    assert done.code == 3
    assert "too few to judge" in done.out


def test_a_run_without_stored_alerts_is_judged_by_its_numbers(run, tmp_path):
    train(tmp_path / "a.leadline", loss=lambda step: falling(step) if step < 150 else math.nan)
    done = run("check", "a.leadline")
    assert done.code == 1
    assert "at step 150 the loss is not finite" in done.out


@pytest.mark.parametrize("form", FORMATS)
@pytest.mark.parametrize("sick", [True, False])
def test_every_format_shows_a_run_and_none_changes_the_exit_code(run, tmp_path, form, sick):
    train(tmp_path / "a.leadline", alerts=[SPIKE] if sick else [])
    done = run("check", "a.leadline", "--format", form)
    assert done.code == sick
    assert done.out or not sick  # of nothing found, some formats write nothing


def test_a_log_is_judged_as_a_run_is(run, tmp_path):
    lines = ["step,train_loss", *(f"{step},{falling(step)}" for step in range(200))]
    (tmp_path / "log.csv").write_text("\n".join(lines))
    assert run("check", "log.csv").code == 0
    lines += [f"{step},nan" for step in range(200, 210)]
    (tmp_path / "log.csv").write_text("\n".join(lines))
    done = run("check", "log.csv")
    assert done.code == 1
    assert "at step 200 the loss is not finite" in done.out
    assert "CSV file" in done.out


def test_a_column_that_is_no_pair_or_no_metric_is_wrong_usage(run, tmp_path):
    (tmp_path / "log.csv").write_text("step,ce\n0,1\n")
    assert run("check", "log.csv", "--column", "loss=ce").code == 3
    for given in ("loss", "=ce", "loss=", "cheese=ce"):
        assert run("check", "log.csv", "--column", given).code == 2


def test_a_damaged_run_is_an_error_not_a_verdict(run, tmp_path):
    (tmp_path / "a.leadline").write_text("nothing of the kind" * 100)
    done = run("check", "a.leadline")
    assert done.code == 2
    assert "not a run file" in done.err


def test_events_are_stored_in_the_run(tmp_path, run):
    with Writer(tmp_path / "a.leadline", INFO) as writer:
        writer.event(Event(step=0, time=0.0, kind="crash", message="x"))
    assert run("check", "a.leadline").code == 3


WITHOUT_TORCH = """
import sys
from leadline.cli import main
for arguments in (["runs"], ["export", "a.leadline", "--to", "csv"], ["check", "a.leadline"], ["check", "log.csv"]):
    assert main(arguments) == 0, arguments
sys.exit("torch was imported" if "torch" in sys.modules else 0)
"""


def test_looking_at_runs_needs_no_torch(tmp_path):
    train(tmp_path / "a.leadline")
    (tmp_path / "log.csv").write_text("\n".join(["loss", *(str(falling(step)) for step in range(200))]))
    command = [sys.executable, "-c", WITHOUT_TORCH]
    done = subprocess.run(
        command, cwd=tmp_path, env=with_source(), capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stderr) == (0, "")


def test_a_run_with_gaps_is_listed_with_how_many_steps_were_recorded_of_how_many(run, tmp_path):
    with Writer(tmp_path / "a.leadline", INFO) as writer:
        for step in range(0, 1000, 100):
            writer.put(step, {"loss": 1.0})
    assert "10 of 901" in run("runs").out
    assert "10 of 901 steps" in run("check", "a.leadline").out


@pytest.mark.parametrize(
    "command",
    ["export run.leadline --to csv -o", "check run.leadline --format json -o", "check run.leadline --html"],
)
def test_no_result_is_written_over_a_run(run, tmp_path, command):
    train(tmp_path / "run.leadline")
    before = (tmp_path / "run.leadline").read_bytes()
    done = run(*command.split(), "run.leadline")
    assert (done.code, "holds a run, which would be lost" in done.err) == (2, True)
    assert (tmp_path / "run.leadline").read_bytes() == before
