"""What Leadline says about one program, with and without probes."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from functools import partial
from typing import Any

from benchmarks.wiring import problems  # noqa: F401  (registers the programs)
from benchmarks.wiring.problem import PROBLEMS
from leadline import Case
from leadline.checks._diagnosis import check_case
from leadline.readings.wiring.memory import Rebuild

Answer = dict[str, Any]
"""Verdict and findings with probes, and the same without them as "baseline"."""

SEPARATOR = " / "


def names() -> list[str]:
    """Every program with every bug, "program / bug"; the healthy twin is "program / "."""
    return [
        f"{problem.name}{SEPARATOR}{name}"
        for problem in PROBLEMS.values()
        for name in ("", *(each.name for each in problem.bugs))
    ]


def ask_by_name(name: str) -> tuple[str, Answer]:
    problem, _, bug = name.partition(SEPARATOR)
    build = partial(PROBLEMS[problem].case, bug)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch itself warns about some of these bugs
        return name, {**_check(build, probes=True), "baseline": _check(build, probes=False)}


def ask_without_rehearsal(name: str) -> tuple[str, Answer]:
    """The same with probes only and without the rehearsal, of which no wiring check reads anything."""
    problem, _, bug = name.partition(SEPARATOR)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return name, _check(partial(PROBLEMS[problem].case, bug), probes=True, rehearse=False)


def ask_all_without_rehearsal(name: str) -> tuple[str, Answer]:
    """The same with and without probes, and without the rehearsal."""
    problem, _, bug = name.partition(SEPARATOR)
    build = partial(PROBLEMS[problem].case, bug)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        answer = _check(build, probes=True, rehearse=False)
        return name, {**answer, "baseline": _check(build, probes=False, rehearse=False)}


def _check(build: Callable[[], Case], *, probes: bool, rehearse: bool = True) -> Answer:
    """Check what a function builds, as `leadline check file.py:function` does."""
    try:
        report = check_case(
            build(), probes=probes, rehearse=rehearse, rebuild=Rebuild(make=build, seconds=0.0)
        )
    except Exception as error:  # an exception is an answer, too: the wrong one
        return {"verdict": "error", "findings": [], "error": f"{type(error).__name__}: {error}"}
    findings = [
        {"name": each.name, "severity": each.severity, "text": f"{each.where}: {each.message}"}
        for each in report.findings
    ]
    gaps = [f"{gap.what}: {gap.why}" for gap in report.coverage.gaps]
    return {"verdict": report.verdict, "findings": findings, "gaps": gaps}
