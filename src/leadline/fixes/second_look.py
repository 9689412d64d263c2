"""A check that costs less, for copies that will be trained anyway; and what training says about its findings.

`leadline.check` rehearses: it makes a few steps, and where the network learns in spite of a finding, the finding is
no more than a note. Here the trial is the rehearsal. So before it, findings are taken at their word.
"""

from __future__ import annotations

from msgspec.structs import replace

from leadline.case import Case
from leadline.diagnosis import CONFIDENCE, ask, conclude, judge, study
from leadline.errors import InputError
from leadline.records import Rehearsal
from leadline.report import Report
from leadline.report.verdict import sentence
from leadline.rules import all_rules
from leadline.tracing import trace_case
from leadline.updating import read_update
from leadline.updating.rehearsal import STEPS

LEARNS = Rehearsal(losses=(1.0, 0.0))
"""What a network that learns all there is would show."""


def second_look(case: Case) -> Report:
    """What `leadline.check` finds, without the rehearsal."""
    seen = trace_case(case)
    profile, coverage = study(seen)
    try:
        if case.optimizer is not None:
            profile = replace(profile, update=read_update(case, profile))
    except InputError:  # an optimiser whose step cannot be read: the check said so, and goes on without it
        pass
    return conclude(seen, profile, coverage)


def rehearsed(report: Report, rehearsal: Rehearsal | None) -> Report:
    """The report as it is if training goes like that; None: as it is before anything was tried."""
    profile = replace(report.profile, rehearsal=rehearsal)
    findings = ask(all_rules(), profile.shown)
    verdict = judge(profile, report.coverage, findings)
    known = CONFIDENCE.get(verdict) if profile.update is not None else None
    judged = replace(report, profile=profile, findings=findings, verdict=verdict, confidence=known)
    return replace(judged, reason=sentence(judged))


def trial_as_rehearsal(losses: tuple[float, ...], like: Rehearsal | None) -> Rehearsal:
    """As many steps of a trial as a rehearsal has; `like` is one with the same targets."""
    return Rehearsal(losses=losses[: STEPS + 1], constant=None if like is None else like.constant)
