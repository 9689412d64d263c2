"""Where a finding is: in the repository, and in words that stay the same when its numbers drift."""

from __future__ import annotations

import re

from leadline.records import CheckRow, Finding, Source
from leadline.records.report import Report

RANGE = " … "
_END_OF_PATH = re.compile(r" … |…|#\d+$")
_NUMBER = re.compile(r"\d+")


def place_of(report: Report, finding: Finding) -> Source | None:
    """Where the class of the first module that the finding names is written, or of the nearest one around it.

    Layers of PyTorch have no place in the user's repository: then it is the module that holds them that is shown, and
    in the end the model itself. None if not even that is written there.
    """
    path = _END_OF_PATH.split(finding.where, maxsplit=1)[0]
    while path and path not in report.sources:
        path = path.rpartition(".")[0]
    return report.sources.get(path)


def lasting(where: str) -> str:
    """`where` without what small drift changes: at which layer a range of them begins and ends."""
    return _NUMBER.sub("N", where) if RANGE in where else where


# The rules that a report speaks of.


def rules_of(report: Report) -> list[CheckRow]:
    """Those that were asked, then any other that has a finding: a report made by hand need not list its rules."""
    rules = {rule.code: rule for rule in report.rules}
    for finding in (*report.findings, *report.ignored):
        rules.setdefault(finding.code, CheckRow(code=finding.code, name=finding.name, summary=finding.name))
    return [*rules.values()]
