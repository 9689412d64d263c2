"""The place of a finding: in the repository, and in words that stay the same when its numbers drift."""

from __future__ import annotations

import re

from leadline.records import CheckRow, Finding, Source
from leadline.records.report import Report
from leadline.text import RANGE

OUTSIDE_OF_MODEL = frozenset({"the optimizer", "the data", "the loss"})
"""What a finding can be about besides modules and the model itself."""
_END_OF_PATH = re.compile(r" … |…|#\d+$")
_NUMBER = re.compile(r"\d+")


def place_of(report: Report, finding: Finding) -> Source | None:
    """The line that the finding is about, or else the one of the first module that it names.

    A module of the user's is placed at its class, a layer of PyTorch at the line that calls it. If neither is in the
    user's repository, the module that contains it is used, and in the end the model itself; None if not even that is.
    What belongs to no module, such as the optimizer, has a place only if that is known.
    """
    if finding.source is not None:
        return finding.source
    if finding.where in OUTSIDE_OF_MODEL:
        return report.sources.get(finding.where)
    path = _END_OF_PATH.split(finding.where, maxsplit=1)[0]
    while path and path not in report.sources:
        path = path.rpartition(".")[0]
    return report.sources.get(path)


def stable_where(where: str) -> str:
    """`where` without the numbers of a range of layers, whose ends shift with small changes of the signal."""
    return _NUMBER.sub("N", where) if RANGE in where else where


def checks_of(report: Report) -> list[CheckRow]:
    """The checks that ran, then any other with a finding: a report made by hand need not list its checks."""
    checks = {check.code: check for check in report.rules}
    for finding in (*report.findings, *report.ignored):
        checks.setdefault(finding.code, CheckRow(code=finding.code, name=finding.name, summary=finding.name))
    return [*checks.values()]
