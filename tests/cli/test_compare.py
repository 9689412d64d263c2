"""`leadline compare`, and `--html` of the commands that have a page."""

import json

import pytest

from leadline.monitor.runfile import Writer
from leadline.records.report import ReportComparison
from leadline.records.run import RunInfo
from tests.support import reports as samples


@pytest.fixture
def saved(tmp_path):
    def save(name, *reports):
        path = tmp_path / name
        texts = [report.to_json() for report in reports]
        path.write_text(texts[0] if len(texts) == 1 else f"[{','.join(texts)}]")
        return str(path)

    return save


def mild():
    return samples.report(samples.profile([1.0], [1.0]), samples.finding(severity="warning"), verdict="poor")


@pytest.mark.parametrize(
    ("pair", "options", "code"),
    [
        ((samples.healthy, samples.sick), [], 1),
        ((samples.sick, samples.healthy), [], 0),
        ((samples.sick, samples.sick), [], 0),
        ((samples.healthy, mild), [], 1),
        ((samples.healthy, mild), ["--fail-on", "error"], 0),
        ((mild, samples.sick), [], 1),
        ((samples.sick, mild), [], 0),
        ((samples.healthy, samples.sick), ["--fail-on", "never"], 0),
    ],
)
@pytest.mark.parametrize("form", ["text", "json", "html"])
def test_the_exit_code_shows_in_every_format_whether_the_second_is_worse(
    run, saved, pair, options, code, form
):
    done = run("compare", saved("a.json", pair[0]()), saved("b.json", pair[1]()), "--format", form, *options)
    assert done.code == code


def test_an_undecided_second_report_has_its_own_exit_code(run, saved):
    undecided = samples.report(samples.profile([1.0], [1.0]), verdict="undecided")
    assert run("compare", saved("a.json", samples.healthy()), saved("b.json", undecided)).code == 3


def test_json_is_the_record_and_names_the_files(run, saved):
    done = run(
        "compare", saved("a.json", samples.sick()), saved("b.json", samples.healthy()), "--format", "json"
    )
    found = ReportComparison.from_json(done.out)
    assert found.first.name.endswith("a.json")
    assert json.loads(done.out)["schema"] == "leadline.comparison/1"


def test_html_writes_a_page_in_addition_to_the_text(run, saved, tmp_path):
    done = run(
        "compare", saved("a.json", samples.sick()), saved("b.json", samples.healthy()), "--html", "c.html"
    )
    assert done.out.startswith("DOES NOT TRAIN → TRAINS")
    assert (tmp_path / "c.html").read_text().startswith("<!doctype html>")


def test_a_file_with_several_reports_is_refused(run, saved):
    done = run("compare", saved("a.json", samples.sick(), samples.sick()), saved("b.json", samples.sick()))
    assert done.code == 2
    assert "which has 2" in done.err


def test_a_file_that_is_not_there_is_a_usage_error(run, saved):
    assert run("compare", saved("a.json", samples.sick()), "nowhere.json").code == 2


STEPS = 100  # enough to be judged


def written(path, *reports):
    with_report = Writer(path, RunInfo(model="M", optimizer="SGD", parameters=1))
    for step in range(STEPS):
        with_report.put(step, {"loss": 1.0 / (step + 1)}, {})
    for place, report in enumerate(reports, STEPS - len(reports)):
        with_report.report(place, report.to_json())
    with_report.close()
    return str(path)


def test_runs_are_compared_by_their_last_report_and_their_losses(run, tmp_path):
    first = written(tmp_path / "a.leadline", samples.sick(), samples.healthy())
    second = written(tmp_path / "b.leadline", samples.healthy(), samples.sick())
    done = run("compare", first, second, "--html", "c.html")
    assert "1 finding gained" in done.out
    assert "Loss by step" in (tmp_path / "c.html").read_text()


def test_check_and_report_write_the_page_in_addition_to_their_result(run, tmp_path, saved):
    assert run("check", "nets.py:healthy", "--html", "page.html").out.startswith("TRAINS")
    assert "nets.py:healthy" in (tmp_path / "page.html").read_text()
    assert run("report", saved("a.json", samples.sick()), "--html", "again.html", "-q").code == 0
    assert "DOES NOT TRAIN" in (tmp_path / "again.html").read_text()


def test_the_page_of_a_run_names_its_steps(run, tmp_path):
    run("check", written(tmp_path / "a.leadline", samples.healthy()), "--html", "run.html")
    page = (tmp_path / "run.html").read_text()
    assert "<dt>Training</dt><dd>run file" in page
    assert "<dt>Steps</dt><dd>100 steps (0 to 99)" in page


def test_a_page_in_a_folder_that_is_not_there_is_refused_before_the_work(run, tmp_path):
    assert run("check", "nets.py:marker", "--html", "nowhere/page.html").code == 2
    assert not (tmp_path / "factory-ran").exists()


def test_html_is_a_format_too(run):
    assert run("check", "nets.py:healthy", "--format", "html").out.startswith("<!doctype html>")
