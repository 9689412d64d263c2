"""The pytest plugin: the fixture `assert_trainable`, the marker `leadline` and an option.

It imports Leadline's modules inside the functions that need them, because pytest loads the plugin in every project.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Generator
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from leadline.testing import UntrainableError, assert_trainable

if TYPE_CHECKING:
    from leadline.config import Config
    from leadline.records.report import Report

MARKER = (
    "leadline(allow=(), fail_on='warning'): checks that the fixture assert_trainable allows in this test, in addition "
    "to [tool.leadline]"
)


def pytest_addoption(parser: pytest.Parser) -> None:
    group = parser.getgroup("leadline")
    text = "Save the report of each model that fails assert_trainable as a JSON file in this folder."
    group.addoption("--leadline-reports", metavar="DIR", type=Path, help=text)


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", MARKER)


@pytest.fixture(name="assert_trainable")
def trainable(request: pytest.FixtureRequest) -> Callable[..., Report]:
    """Return `leadline.testing.assert_trainable` with the settings of [tool.leadline] and the test's markers.

    Arguments `allow` and `fail_on` of the call override both.
    """
    from leadline.checks._select import unselected_codes

    settings = _project_config(request.config)
    marks = [mark.kwargs for mark in request.node.iter_markers("leadline")]  # the nearest marker first
    allow = [each for mark in marks for each in mark.get("allow", ())]
    bar = next((mark["fail_on"] for mark in marks if "fail_on" in mark), settings.fail_on)
    return partial(
        assert_trainable, allow=(*unselected_codes(settings.select, settings.ignore), *allow), fail_on=bar
    )


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item, call: pytest.CallInfo[None]
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Add to the failure the numbers of each finding, and the command that shows the saved report."""
    test_report = yield
    error = call.excinfo.value if call.excinfo else None
    if isinstance(error, UntrainableError):
        test_report.sections.append(("leadline", _section(item, error.report)))
    return test_report


def _project_config(config: pytest.Config) -> Config:
    from leadline.config import Config, find_config, read_config

    path = find_config(config.rootpath)
    return Config() if path is None else read_config(path)


def _section(item: pytest.Item, report: Report) -> str:
    from leadline.text import clean, number

    lines = []
    for finding in report.findings:
        numbers = ", ".join(f"{clean(key)} {number(value)}" for key, value in finding.evidence.items())
        lines.append(f"{finding.code} {finding.name}: {numbers}")
    folder = item.config.getoption("--leadline-reports")
    if folder is not None:
        lines.append(f"leadline report {_save_report(folder, item.nodeid, report)}")
    return "\n".join(lines)


def _save_report(folder: Path, test: str, report: Report) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"{re.sub(r'[^A-Za-z0-9._-]+', '-', test)}.json"
    path.write_text(report.to_json() + "\n", encoding="utf-8")
    return path
