"""Comparison of two reports: findings gained and lost, and how the numbers changed."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from leadline.records import Finding, Measure
from leadline.records.report import ComparedReport, Report, ReportComparison, SharedFinding
from leadline.report.depth import gains
from leadline.report.place import stable_where
from leadline.report.verdict import sentence


def compare(first: Report, second: Report, names: tuple[str, str] = ("A", "B")) -> ReportComparison:
    """What only the second report has, what only the first has, and what both have.

    Findings are the same if their check and their place are. Those that remain are paired by their check alone, since
    the same problem has another place in another model.
    """
    pairs, gained, lost = _matched(first.findings, second.findings)
    return ReportComparison(
        leadline=second.leadline,
        first=_side(first, names[0]),
        second=_side(second, names[1]),
        gained=tuple(gained),
        lost=tuple(lost),
        kept=tuple(SharedFinding(first=a, second=b) for a, b in pairs),
        measures=_measures(first, second),
    )


def _side(report: Report, name: str) -> ComparedReport:
    return ComparedReport(
        name=name, model=report.profile.model, verdict=report.verdict, reason=sentence(report)
    )


Pairs = list[tuple[Finding, Finding]]


def _matched(
    first: Sequence[Finding], second: Sequence[Finding]
) -> tuple[Pairs, list[Finding], list[Finding]]:
    """Pairs, and the unpaired findings of the second and of the first report."""
    left, gained = list(first), list(second)
    pairs: Pairs = []
    for key in (_check_and_place, _check):
        rest = []
        for each in gained:
            twin = next((other for other in left if key(other) == key(each)), None)
            if twin is None:
                rest.append(each)
            else:
                left.remove(twin)
                pairs.append((twin, each))
        gained = rest
    return pairs, gained, left


def _check_and_place(finding: Finding) -> tuple[str, str]:
    return finding.code, stable_where(finding.where)


def _check(finding: Finding) -> tuple[str, str]:
    return finding.code, ""


def _measures(first: Report, second: Report) -> tuple[Measure, ...]:
    """The numbers by which two models differ, without those that neither has."""
    measures = [Measure(name=name, before=read(first), after=read(second)) for name, read in MEASURES.items()]
    return tuple(each for each in measures if each.before is not None or each.after is not None)


def _gain(report: Report, place: int) -> float | None:
    return gains(report.profile, 0)[place] if report.profile.streams else None


def _update_field(field: str) -> Callable[[Report], float | None]:
    return lambda report: getattr(report.profile.update, field, None)


MEASURES: dict[str, Callable[[Report], float | None]] = {
    "loss": lambda report: report.profile.loss,
    "blocks": lambda report: float(len(report.profile.blocks)),
    "parameters": lambda report: float(report.profile.parameters),
    "forward, per block": lambda report: _gain(report, 0),
    "backward, per block": lambda report: _gain(report, 1),
    "loss change predicted": _update_field("predicted_loss_change"),
    "loss change measured": _update_field("measured_loss_change"),
    "rate": _update_field("lr"),
    "safe rate": _update_field("safe_lr"),
}
