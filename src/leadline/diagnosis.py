"""From a model to a Report: trace it, read the trace, ask every rule, and judge."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Any

import torch
from msgspec.structs import replace
from torch import nn

from leadline import __version__
from leadline.case import Case, Inputs, Loss, given
from leadline.errors import InputError
from leadline.readings import read
from leadline.records import Coverage, Finding, Gap, Optimizer, Profile, Trace, Verdict
from leadline.report import Report
from leadline.report.verdict import sentence
from leadline.rules import Rule, all_rules
from leadline.rules.explaining import explained
from leadline.rules.margins import margins
from leadline.symmetry.reading import read_symmetry
from leadline.theory import predict_with_account
from leadline.tracing import trace_case
from leadline.updating import read_update
from leadline.updating.rehearsal import rehearse as rehearsed

_RANK = {"error": 0, "warning": 1, "info": 2}
CONFIDENCE: dict[
    Verdict, float
] = {  # share of such verdicts that came true; calibrated by benchmarks/confidence.py
    "trains": 0.97,
    "poor": 0.98,
    "fails": 0.94,
}


def check(  # noqa: PLR0913  (the five fields of a Case, and three choices)
    model: nn.Module | Case,
    inputs: Inputs | None = None,
    targets: Any = None,
    loss: Loss | None = None,
    optimizer: torch.optim.Optimizer | None = None,
    *,
    rules: Sequence[Rule] = (),
    update: bool | None = None,
    rehearse: bool = True,
) -> Report:
    """Trace the model once and report what is wrong with it. The model is left exactly as found.

    Arguments are those of `leadline.Case`, or a Case alone; `rules` are asked in addition to the built-in ones. If an
    optimiser is passed, it makes one step, which is measured and undone (see `leadline.update`; some three more
    passes), and then rehearses: eight to sixteen steps on the batch, undone too. `rehearse=False` leaves the rehearsal
    out, `update=False` both, and `update=True` insists on the step.

    >>> import leadline, torch
    >>> report = leadline.check(torch.nn.Linear(4, 1), torch.randn(8, 4), loss=lambda y: y.square().mean())
    >>> report.verdict
    'trains'
    """
    case = given(model, inputs, targets, loss, optimizer)
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


def conclude(seen: Trace, profile: Profile, coverage: Coverage, rules: Sequence[Rule] = ()) -> Report:
    """Ask every rule and judge. Of a model without weights, what was predicted is judged."""
    asked = (*all_rules(), *rules)
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
        margins=margins(profile.shown),
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


def ask(rules: Sequence[Rule], profile: Profile) -> tuple[Finding, ...]:
    """What all rules find, worst first, and which finding explains which.

    Numbers that are no numbers come before whatever they make other rules say.
    """
    found = [finding for rule in rules for finding in rule(profile)]
    found.sort(key=lambda each: (_RANK[each.severity], not each.code.startswith("N"), each.code))
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
