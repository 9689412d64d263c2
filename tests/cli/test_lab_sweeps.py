"""`leadline race` and `leadline phase`: tables, pages, JSON, and a store that is not run twice."""

import json

import pytest

from leadline.lab.commands.phase import phase
from leadline.lab.phase.plan import PhasePlan

RACE = (
    "race",
    "pre",
    "keel",
    "--depths",
    "1,2",
    "--rates",
    "1e-3,1e-2",
    "--seeds",
    "1",
    "--steps",
    "2",
    "--width",
    "4",
)
PHASE = (
    "phase",
    "residual",
    "--values",
    "0.1,0.5",
    "--depths",
    "1,2",
    "--rates",
    "0.1",
    "--steps",
    "3",
    "--width",
    "8",
)


def test_a_race_is_printed_stored_and_written_as_a_page(run, tmp_path):
    more = ("--store", str(tmp_path / "cells.jsonl"), "--html", str(tmp_path / "race.html"))
    done = run(*RACE, *more)
    assert done.code == 0
    assert "2 blocks" in done.out
    assert len((tmp_path / "cells.jsonl").read_text().splitlines()) == 8
    assert "Race of residual schemes" in (tmp_path / "race.html").read_text()
    again = run(*RACE, *more)
    assert again.out == done.out
    assert len((tmp_path / "cells.jsonl").read_text().splitlines()) == 8


def test_a_race_saved_as_json_is_shown_again_as_it_was(run, tmp_path):
    more = ("--store", str(tmp_path / "cells.jsonl"))
    shown = run(*RACE, *more).out
    assert run(*RACE, *more, "--format", "json", "-o", "race.json").code == 0
    found = json.loads((tmp_path / "race.json").read_text())
    assert {row["scheme"] for row in found["tables"][0]} == {"pre", "keel"}
    done = run("report", "race.json", "--html", "race.html")
    assert (done.code, done.out) == (0, shown)
    assert "Race of residual schemes" in (tmp_path / "race.html").read_text()


def test_a_phase_diagram_is_printed_and_written_as_a_page(run, tmp_path):
    done = run(*PHASE, "--html", str(tmp_path / "phase.html"))
    assert done.code == 0
    assert done.out.startswith("Residual scale and depth")
    assert "<svg" in (tmp_path / "phase.html").read_text()


def test_a_phase_diagram_saved_as_json_is_shown_again(run, tmp_path):
    assert run(*PHASE, "--format", "json", "-o", "phase.json").code == 0
    done = run("report", "phase.json")
    assert done.out.startswith("Residual scale and depth")
    refused = run("report", "phase.json", "--format", "md")
    assert refused.code == 2
    assert "choose one of text, json, html" in refused.err


def test_what_the_command_line_leaves_out_is_as_the_plan_has_it():
    given = {option.name: option.default for option in phase.params}
    assert PhasePlan() == PhasePlan(**{name: given[name] for name in ("seeds", "steps", "width")})


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("race", "prenorm"), "did you mean"),
        (("race", "--rates", "fast"), "list of numbers"),
        (("race", "--rates", "-1"), "above 0"),
        (("race", "--width", "5"), "use 6"),
        (("race", "--address", "auto"), "--executor ray"),
        (("phase", "gain", "--depths", "0"), "1 or more"),
        (("phase", "width"), "gain"),
    ],
)
def test_what_cannot_be_raced_is_refused(run, arguments, said):
    done = run(*arguments)
    assert done.code == 2
    assert said in done.err


@pytest.mark.parametrize(
    ("more", "said"), [((), "--store FILE"), (("--store", "cells.jsonl"), "saved in cells.jsonl")]
)
def test_an_interrupted_sweep_says_how_to_continue(run, monkeypatch, more, said):
    def stopped(*args, **kwargs):
        raise KeyboardInterrupt

    monkeypatch.setattr("leadline.lab.race.standings.race", stopped)
    done = run(*RACE, *more)
    assert done.code != 0
    assert said in done.err
