"""What training says about findings: where a network learns in spite of one, it is no more than a note.

`leadline.check` rehearses a few steps to find that out. Copies that are to be trained anyway are checked without: their
findings are taken at their word at first, and then the trial is the rehearsal.
"""

from __future__ import annotations

from msgspec.structs import replace as changed

from leadline.diagnosis import CONFIDENCE, ask, judge
from leadline.fixes.comparison import end
from leadline.records import Rehearsal
from leadline.report import Report
from leadline.report.verdict import sentence
from leadline.rules import all_rules

LEARNS = Rehearsal(losses=(1.0, 0.0))
"""What a network that learns all there is would show."""


def rehearsed(report: Report, rehearsal: Rehearsal | None) -> Report:
    """The report as it is if training goes like that; None: as it is before anything was tried."""
    profile = changed(report.profile, rehearsal=rehearsal)
    findings = ask(all_rules(), profile.shown)
    verdict = judge(profile, report.coverage, findings)
    known = CONFIDENCE.get(verdict) if profile.update is not None else None
    judged = changed(report, profile=profile, findings=findings, verdict=verdict, confidence=known)
    return changed(judged, reason=sentence(judged))


def trial_as_rehearsal(
    losses: tuple[float, ...], like: Rehearsal | None, constant: float | None = None
) -> Rehearsal:
    """A whole trial as a rehearsal. `constant` is the best constant loss over its batches, or else that of `like`.

    Batches differ, so that the last loss is that of the last quarter.
    """
    known = constant if constant is not None or like is None else like.constant
    return Rehearsal(losses=(*losses[:-1], end(losses)), constant=known)
