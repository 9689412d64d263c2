"""Compare two reports: what was gained, what was lost, and how the numbers changed."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from leadline.records import Finding, Measure
from leadline.records.report import ComparedReport, Report, ReportComparison, SharedFinding
from leadline.report.depth import gains
from leadline.report.place import lasting
from leadline.report.verdict import sentence


def compare(first: Report, second: Report, names: tuple[str, str] = ("A", "B")) -> ReportComparison:
    """What the second report has and the first has not, and the other way round.

    Findings are the same if their rule and their place are; those that are left over are paired by their rule alone,
    since the same sickness in another model has another place.
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
    """Pairs, and what of the second and of the first is left over."""
    left, gained = list(first), list(second)
    pairs: Pairs = []
    for key in (_place, _rule):
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


def _place(finding: Finding) -> tuple[str, str]:
    return finding.code, lasting(finding.where)


def _rule(finding: Finding) -> tuple[str, str]:
    return finding.code, ""


def _measures(first: Report, second: Report) -> tuple[Measure, ...]:
    """The numbers that tell two models apart; those that neither has are left out."""
    found = [Measure(name=name, before=read(first), after=read(second)) for name, read in MEASURES.items()]
    return tuple(each for each in found if each.before is not None or each.after is not None)


def _gain(report: Report, place: int) -> float | None:
    return gains(report.profile, 0)[place] if report.profile.streams else None


def _of_update(field: str) -> Callable[[Report], float | None]:
    return lambda report: getattr(report.profile.update, field, None)


MEASURES: dict[str, Callable[[Report], float | None]] = {
    "loss": lambda report: report.profile.loss,
    "blocks": lambda report: float(len(report.profile.blocks)),
    "parameters": lambda report: float(report.profile.parameters),
    "forward, a block": lambda report: _gain(report, 0),
    "backward, a block": lambda report: _gain(report, 1),
    "loss change promised": _of_update("predicted_loss_change"),
    "loss change measured": _of_update("measured_loss_change"),
    "rate": _of_update("lr"),
    "safe rate": _of_update("safe_lr"),
}
