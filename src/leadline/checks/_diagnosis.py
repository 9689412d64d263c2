"""From a model to a Report: trace it, read the trace, ask every rule, and judge."""

from __future__ import annotations

from collections.abc import Collection, Sequence

from msgspec.structs import replace

from leadline import __version__
from leadline.case import Case
from leadline.checks import model_checks
from leadline.checks._check import Check
from leadline.checks._explain import explained
from leadline.errors import InputError
from leadline.readings.profile import read
from leadline.readings.symmetry.reading import read_symmetry
from leadline.readings.theory import predict_with_account
from leadline.readings.update.reading import read_update
from leadline.readings.update.rehearsal import rehearse as rehearsed
from leadline.records import Coverage, Finding, Gap, Optimizer, Profile, Trace, Verdict, badness
from leadline.records.report import Report
from leadline.report.verdict import sentence
from leadline.tracer.trace import trace_case

CONFIDENCE: dict[
    Verdict, float
] = {  # share of such verdicts that came true; calibrated by benchmarks/confidence.py
    "trains": 0.97,
    "poor": 0.98,
    "fails": 0.94,
}


def check_case(
    case: Case, *, rules: Sequence[Check] = (), update: bool | None = None, rehearse: bool = True
) -> Report:
    """Trace `case` once, read the trace, run every check and judge; see `leadline.check`."""
    seen = trace_case(case)
    profile, coverage = study(seen)
    if update or (update is None and case.optimizer is not None and seen.loss is not None):
        profile, coverage = _with_update(case, profile, coverage, insist=bool(update))
    if rehearse and profile.update is not None:
        head = None if profile.facts is None else profile.facts.head
        profile = replace(profile, rehearsal=rehearsed(case, head))
    return conclude(seen, profile, coverage, rules)


def study(seen: Trace) -> tuple[Profile, Coverage]:
    """All that can be read off a trace alone, theory's predictions included."""
    told, theory = predict_with_account(seen)
    profile, coverage = read(told)
    return replace(profile, symmetry=read_symmetry(seen), theory=theory), coverage


def conclude(seen: Trace, profile: Profile, coverage: Coverage, rules: Sequence[Check] = ()) -> Report:
    """Ask every rule and judge. Of a model without weights, what was predicted is judged."""
    asked = (*model_checks(), *rules)
    findings = ask(asked, profile.shown)
    if profile.predicted:
        findings = tuple(replace(each, message=f"{each.message} (predicted)") for each in findings)
    report = Report(
        leadline=__version__,
        verdict=judge(profile, coverage, findings),
        findings=findings,
        profile=profile,
        coverage=coverage,
        rules=tuple(each.asked(findings) for each in asked),
        margins=tuple(margin for each in asked for margin in each.read_margins(profile.shown)),
        sources={module.path: module.source for module in seen.modules if module.source is not None},
    )
    return _with_reason(report)


def _with_reason(report: Report) -> Report:
    """The report with the sentence that decided, and how far it can be trusted.

    Confidence was measured on networks whose optimiser was known; without a step of one it is not given.
    """
    known = CONFIDENCE.get(report.verdict) if report.profile.update is not None else None
    return replace(report, reason=sentence(report), confidence=known)


def _with_update(
    case: Case, profile: Profile, coverage: Coverage, *, insist: bool
) -> tuple[Profile, Coverage]:
    """The profile with one step of the optimiser; where that cannot be had, and nobody insists, what is missing."""
    try:
        return replace(profile, update=read_update(case, profile, ranges=True)), coverage
    except InputError as error:
        if insist or _is_foreign(profile.optimizer):
            raise
        gap = Gap(what="one step of the optimiser", why=f"it needs {error.expected}; got {error.got}")
        return profile, replace(coverage, gaps=(*coverage.gaps, gap))


def _is_foreign(optimizer: Optimizer | None) -> bool:
    """It holds no parameter of this model."""
    return optimizer is not None and all(
        name == "?" for group in optimizer.groups for name in group.parameters
    )


def without(report: Report, codes: Collection[str]) -> Report:
    """The report as it would be without the rules of these codes: what they found is kept apart and not judged."""
    counted = tuple(finding for finding in report.findings if finding.code not in codes)
    ignored = tuple(finding for finding in report.findings if finding.code in codes)
    if not ignored:
        return report
    judged = replace(
        report,
        findings=counted,
        ignored=(*report.ignored, *ignored),
        verdict=judge(report.profile, report.coverage, counted),
    )
    return _with_reason(judged)


def ask(rules: Sequence[Check], profile: Profile) -> tuple[Finding, ...]:
    """What all rules find, worst first, and which finding explains which.

    Numbers that are no numbers come before whatever they make other rules say.
    """
    found = [finding for check in rules for finding in check(profile)]
    found.sort(key=lambda each: (-badness(each.severity), not each.code.startswith("N"), each.code))
    return explained(found, rules)


def judge(profile: Profile, coverage: Coverage, findings: Sequence[Finding]) -> Verdict:
    """An error means it fails, a warning that it trains poorly; without a measured depth axis nothing can be said.

    Where nothing was measured, theory must reach all of the axis: what it could not follow may be what matters.
    """
    if any(finding.severity == "error" for finding in findings):
        return "fails"
    known = [b.forward_ms is not None and b.backward_ms is not None for b in profile.shown.blocks]
    if not all(known) if profile.predicted else not (any(known) and coverage.backward):
        return "undecided"
    return "poor" if any(finding.severity == "warning" for finding in findings) else "trains"
