"""The runs on which alarms are calibrated are what their names say, and are judged as the page says."""

from __future__ import annotations

from dataclasses import replace

import pytest

from benchmarks.alarm_runs import FAMILIES, FLAWS, healthy_plan, record, sick_plan
from benchmarks.alarms import NAMING_ALARMS, SETS, delay, plans, render
from leadline.checks import run_checks
from leadline.checks._history import ABSENT, FROZEN


def test_every_flaw_has_an_alarm_that_reports_it_and_every_alarm_except_one_has_a_flaw():
    assert set(NAMING_ALARMS) == set(FLAWS)
    told = {code for codes in NAMING_ALARMS.values() for code in codes}
    of_the_loop = {each.code for each in run_checks() if each.code >= "T816"}  # planted by benchmarks.loop
    assert {each.code for each in run_checks()} - told - of_the_loop == {
        "T806"
    }  # needs many thousands of steps to be wrong


def test_the_two_sets_share_no_run():
    keys = [{plan.key for plan in plans(name)} for name in SETS]
    assert not keys[0] & keys[1]


@pytest.mark.parametrize("family", FAMILIES)
def test_a_recorded_run_has_what_a_watch_records(family: str):
    found = record(replace(healthy_plan(5, family), steps=3, depth=2, width=16, batch=4))
    assert [sample.step for sample in found.samples] == [0, 1, 2]
    sample = found.samples[0]
    assert {"loss", "lr", "grad_norm", "update_norm", "weight_norm", "non_finite"} <= set(sample.scalars)
    assert all(len(sample.vectors[name]) == len(found.names) for name in ("grad_norm", "update_norm"))
    assert FROZEN in sample.vectors["grad_norm"]
    assert ABSENT not in sample.vectors["grad_norm"]
    assert len(found.layout.parameter_blocks) == len(found.names)


def test_a_detached_block_has_no_gradient_and_an_unlisted_one_does_not_move():
    cut = record(replace(sick_plan("cut", 0), steps=2))
    assert ABSENT in cut.samples[0].vectors["grad_norm"]
    left = record(replace(sick_plan("left out", 0), steps=2)).samples[1].vectors
    pairs = zip(left["update_norm"], left["grad_norm"], strict=True)
    assert any(moved == 0 and pulled > 0 for moved, pulled in pairs)


def test_an_alert_before_the_onset_does_not_count_as_detected():
    early = {"onset": 100, "alerts": [["T801", "error", 50, 50]]}
    late = {"onset": 100, "alerts": [["T801", "error", 50, 50], ["T801", "error", 120, 110]]}
    assert delay(early, ("T801",)) is None
    assert delay(late, ("T801",)) == 20
    assert delay(late, ("T803",)) is None


def test_a_false_alarm_shows_in_the_table():
    run = {"steps": 10_000, "onset": None, "desk_us_a_step": 50.0, "alerts": []}
    cases = {f"{name} | healthy | mlp | 1": run for name in SETS}
    quiet = render({"cases": cases})
    loud = render(
        {"cases": cases | {"held out | healthy | mlp | 1": run | {"alerts": [["T801", "error", 5, 5]]}}}
    )
    assert "**0.00** (0), below 3.00 with 95 % confidence" in quiet
    assert "**1.00** (1: T801)" in loud
