"""The rules that a report speaks of."""

from __future__ import annotations

from leadline.records import Asked
from leadline.report.report import Report


def rules_of(report: Report) -> list[Asked]:
    """Those that were asked, then any other that has a finding: a report made by hand need not list its rules."""
    rules = {rule.code: rule for rule in report.rules}
    for finding in (*report.findings, *report.ignored):
        rules.setdefault(finding.code, Asked(code=finding.code, name=finding.name, summary=finding.name))
    return [*rules.values()]
