"""The pytest plugin: a fixture, a marker and an option. It imports no torch, and does nothing unless it is asked."""

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
    "leadline(allow=(), fail_on='warning'): what the fixture assert_trainable lets pass in this test, in addition to "
    "[tool.leadline]"
)


def pytest_addoption(parser: pytest.Parser) -> None:
    group = parser.getgroup("leadline")
    text = "Save the report of each model that fails assert_trainable as JSON in this folder."
    group.addoption("--leadline-reports", metavar="DIR", type=Path, help=text)


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", MARKER)


@pytest.fixture(name="assert_trainable")
def trainable(request: pytest.FixtureRequest) -> Callable[..., Report]:
    """`leadline.testing.assert_trainable` with what [tool.leadline] and the test's markers let pass.

    `allow` or `fail_on` in the call take the place of both.
    """
    from leadline.checks._select import unselected_codes

    project = _project(request.config)
    marks = [mark.kwargs for mark in request.node.iter_markers("leadline")]  # the nearest first
    allow = [each for mark in marks for each in mark.get("allow", ())]
    bar = next((mark["fail_on"] for mark in marks if "fail_on" in mark), project.fail_on)
    return partial(
        assert_trainable, allow=(*unselected_codes(project.select, project.ignore), *allow), fail_on=bar
    )


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item, call: pytest.CallInfo[None]
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Add to the failure what its page has no room for: the numbers behind each finding, and where it was saved."""
    made = yield
    error = call.excinfo.value if call.excinfo else None
    if isinstance(error, UntrainableError):
        made.sections.append(("leadline", _section(item, error.report)))
    return made


def _project(config: pytest.Config) -> Config:
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
        lines.append(f"leadline report {_saved(folder, item.nodeid, report)}")
    return "\n".join(lines)


def _saved(folder: Path, test: str, report: Report) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"{re.sub(r'[^A-Za-z0-9._-]+', '-', test)}.json"
    path.write_text(report.to_json() + "\n", encoding="utf-8")
    return path
