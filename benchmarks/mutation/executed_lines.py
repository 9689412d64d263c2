"""Which fast test executes which line of the source.

    python -m benchmarks.mutation.executed_lines [TESTS ...]

Each folder of tests is run once under coverage; a file of tests that has changed can be recorded again alone. The
records stay in `.mutation/`, outside the repository.
"""

from __future__ import annotations

import functools
import json
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest

from benchmarks.result_files import ROOT

SOURCE = ROOT / "src" / "leadline"
CACHE = ROOT / ".mutation"
FAST = "not long and not slow and not browser"
FOLDERS = ("tests/checks", "tests/readings", "tests/tracer", "tests/fixes", "tests/monitor")
# Heuristic: seconds after which no further cases of a parametrized test are recorded.
MAX_FUNCTION_SECONDS = 3.0
# Heuristic: seconds after which a test is left out of the record, since it would be left out of a mutant's tests too.
MAX_TEST_SECONDS = 60


def function_of(nodeid: str) -> str:
    """Return the test function of a test, whose cases are alike in what they execute."""
    return nodeid.partition("[")[0]


class LineRecorder:
    """A pytest plugin that records the lines of the source that each test function executes, and the time of a case."""

    def __init__(self, recorder: Any) -> None:
        self.recorder = recorder
        self.seconds: dict[str, float] = {}
        self.spent: dict[str, float] = {}
        self.failed: set[str] = set()

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtest_protocol(self, item: pytest.Item) -> bool | None:
        name = function_of(item.nodeid)
        self.recorder.switch_context(name)
        is_known = self.spent.get(name, 0.0) > MAX_FUNCTION_SECONDS
        return True if is_known else None  # True: the case needs no run

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        name = function_of(report.nodeid)
        if report.failed:
            self.failed.add(name)
        elif report.when == "call":
            self.seconds[name] = max(self.seconds.get(name, 0.0), report.duration)
            self.spent[name] = self.spent.get(name, 0.0) + report.duration


def record(tests: str) -> None:
    """Run the fast tests of a folder or file and store what they execute."""
    import coverage

    CACHE.mkdir(exist_ok=True)
    seconds = CACHE / f"{tests.removesuffix('.py').replace('/', '.')}.json"
    lines = seconds.with_suffix(".lines")
    lines.unlink(missing_ok=True)
    recorder = coverage.Coverage(data_file=str(lines), source=[str(SOURCE)], config_file=False)
    recorder.start()
    plugin = LineRecorder(recorder)
    quietly = ["-q", "-p", "no:cacheprovider", "--timeout", str(MAX_TEST_SECONDS)]
    try:
        pytest.main([*quietly, "-m", FAST, str(ROOT / tests)], plugins=[plugin])
    except (
        pytest.PytestUnraisableExceptionWarning
    ) as warning:  # from a callback at the end; the tests have run
        print(warning)
    recorder.stop()
    recorder.save()
    passing = {name: spent for name, spent in plugin.seconds.items() if name not in plugin.failed}
    seconds.write_text(json.dumps(passing, indent=1))


def tests_executing(places: Iterable[tuple[Path, int]]) -> dict[str, float]:
    """Return the test functions that execute one of these lines of the source, each with the seconds of a case."""
    wanted: dict[Path, set[int]] = {}
    for path, line in places:
        wanted.setdefault(path, set()).add(line)
    found: dict[str, float] = {}
    for record_file in sorted(CACHE.glob("*.json")):
        seconds = _seconds(record_file)
        for path, lines in wanted.items():
            by_line = _tests_by_line(record_file, path)
            names = {function_of(nodeid) for line in lines for nodeid in by_line.get(line, ())}
            found |= {name: seconds[name] for name in names if name in seconds}
    return found


@functools.cache
def _seconds(record_file: Path) -> dict[str, float]:
    loaded: dict[str, float] = json.loads(record_file.read_text())
    return loaded


@functools.cache
def _tests_by_line(record_file: Path, path: Path) -> dict[int, list[str]]:
    import coverage

    data = coverage.CoverageData(str(record_file.with_suffix(".lines")))
    data.read()
    return data.contexts_by_lineno(str(path))


if __name__ == "__main__":
    for each in sys.argv[1:] or FOLDERS:
        record(each)
