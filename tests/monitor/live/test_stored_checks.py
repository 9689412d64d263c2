"""The checks that a run stored: depth profiles next to theory and the first check, and a static report."""

from __future__ import annotations

import json

import pytest
from msgspec.structs import replace

from leadline.errors import SchemaError
from leadline.monitor.live.stored_checks import depth_profiles, nearest_check, static_report
from leadline.monitor.runfile import Run
from tests.support import reports as samples
from tests.support.live_server import begin
from tests.support.parsed_html import html_of

LATER = replace(samples.sick(), reason="It became no better.")


@pytest.fixture
def checked(tmp_path):
    """A run with checks at steps 0 and 6."""
    path = tmp_path / "checked.leadline"
    with begin(path) as writer:
        writer.report(0, samples.sick().to_json())
        writer.report(6, LATER.to_json())
    return path


@pytest.mark.parametrize(("step", "stored"), [(0, 0), (5, 0), (6, 6), (99, 6)])
def test_the_check_of_a_step_is_the_last_one_up_to_it(checked, step, stored):
    with Run(checked) as run:
        assert nearest_check(run, step) == stored


def test_the_exported_report_is_the_stored_one(checked, serve):
    served = serve(checked)
    status, headers, text = served.ask("/runs/0/report?step=7")
    assert status == 200
    assert headers["content-disposition"] == 'attachment; filename="leadline-step-6.html"'
    assert text == html_of(LATER)
    assert served.ask("/runs/0/report?step=3")[2] == html_of(samples.sick())


def test_a_run_without_a_check_is_exported_as_a_whole(run):
    with Run(run) as opened:
        name, text = static_report(opened, 5)
    assert name == "leadline-run.html"
    assert "Net" in text


def test_profiles_include_the_curve_of_the_first_check(checked, serve):
    found = json.loads(serve(checked).ask("/runs/0/check?step=9")[2])
    assert (found["step"], found["first"]) == (6, 0)
    assert len(found["names"]) == len(samples.sick().profile.blocks)
    labels = {series["label"] for panel in found["panels"] for series in panel["series"]}
    assert "step 0" in labels
    for panel in found["panels"]:
        for series in panel["series"]:
            assert len(series["values"]) == len(found["names"])


def test_the_first_check_is_shown_without_itself(checked):
    with Run(checked) as run:
        labels = [each["label"] for panel in depth_profiles(run, 0)["panels"] for each in panel["series"]]
    assert "step 0" not in labels


def test_a_run_without_checks_has_no_profiles(run):
    with Run(run) as opened:
        assert depth_profiles(opened, 3) == {"step": None, "panels": []}


def test_an_unreadable_check_is_reported_and_the_server_continues(tmp_path, serve):
    path = tmp_path / "newer.leadline"
    with begin(path) as writer:
        writer.report(0, '{"schema": "leadline.report/99"}')
    with Run(path) as run, pytest.raises(SchemaError):
        depth_profiles(run, 0)
    served = serve(path)
    assert served.ask("/runs/0/check?step=0")[0] == 409
    assert served.ask("/")[0] == 200
