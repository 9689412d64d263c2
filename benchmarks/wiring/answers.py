"""What Leadline says about one program, with and without probes."""

from __future__ import annotations

import warnings
from typing import Any

import leadline
from benchmarks.wiring import problems  # noqa: F401  (registers the programs)
from benchmarks.wiring.problem import PROBLEMS

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
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch itself warns about some of these bugs
        return name, {
            **_check(PROBLEMS[problem].case(bug), probes=True),
            "baseline": _check(PROBLEMS[problem].case(bug), probes=False),
        }


def _check(case: leadline.Case, *, probes: bool) -> Answer:
    try:
        report = leadline.check(case, probes=probes)
    except Exception as error:  # an exception is an answer, too: the wrong one
        return {"verdict": "error", "findings": [], "error": f"{type(error).__name__}: {error}"}
    findings = [
        {"name": each.name, "severity": each.severity, "text": f"{each.where}: {each.message}"}
        for each in report.findings
    ]
    gaps = [f"{gap.what}: {gap.why}" for gap in report.coverage.gaps]
    return {"verdict": report.verdict, "findings": findings, "gaps": gaps}
