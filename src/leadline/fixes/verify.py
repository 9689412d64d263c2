"""The proof of a fix: traced again, measured, and trained beside the untreated model.

A fix is verified if, with the user's own optimiser and rate,

1. a finding that it was tried for is gone on a second trace, or is no more than a note there;
2. no finding came that is as severe as the worst of those, or more;
3. if it claims to keep the function, the outputs in double precision moved by at most `drift.KEPT`;
4. a short training ends lower than that of the untreated model (`comparison` says how that is decided);
5. and in it the treated model learns: it gets well below the best constant output (`yardstick`).

The first three cost some six passes, the last two a few dozen steps. A finding that training itself refutes (the
network learns in spite of it) becomes a note, so that whoever fails the first two by such findings alone is in doubt:
the trial decides, if it comes to that. Of a fix that no finding called for (`symptoms`), the first is not asked, and of
the second only that no error came.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from msgspec.structs import replace as changed

from leadline.case import Case
from leadline.diagnosis import check
from leadline.errors import InputError, LeadlineError
from leadline.fixes.candidates import Candidate, refusal
from leadline.fixes.comparison import compare
from leadline.fixes.copying import twin
from leadline.fixes.drift import KEPT, drift_of
from leadline.fixes.edits import Bench, make
from leadline.fixes.fix import Patient
from leadline.fixes.measures import measures
from leadline.fixes.rehearsing import LEARNS, rehearsed, trial_as_rehearsal
from leadline.fixes.trial import Losses, OutOfTimeError, Trials
from leadline.fixes.yardstick import Yardstick
from leadline.observation import trace
from leadline.records import Finding, Outcome, Rehearsal, Trial
from leadline.report import Report
from leadline.report.verdict import SEVERITIES


@dataclass(frozen=True, slots=True, kw_only=True)
class Proof:
    """How far the proof of a candidate has come. The treated copy is not kept: the same edits make it again."""

    candidate: Candidate
    outcome: Outcome
    report: Report | None = None
    """Of the treated model, unless there is no hope for it."""
    doubt: str = ""
    """What the second trace objects to and training may refute."""
    lower: bool = False
    """In its trial it ended lower than the model without it."""
    losses: Losses = ()
    """Of its first trial, which is as long as everybody's."""

    @property
    def open(self) -> bool:
        """It may be trained, and has not been."""
        return self.report is not None and self.outcome.trial is None

    @property
    def verified(self) -> bool:
        return self.outcome.state == "verified"


def diagnose(case: Case) -> Patient:
    """A case as a fix sees it: traced and checked, and left as it was."""
    return patient_of(case, check(case))


def patient_of(case: Case, report: Report) -> Patient:
    """The same for a case that has been checked already."""
    parts = (case.model, case.inputs, case.targets, case.loss, case.optimizer)
    return Patient(case=case, trace=trace(*parts), report=report)


def treated(patient: Patient, candidate: Candidate) -> Case:
    """A copy of the patient's case with the edits. Raises InputError if one cannot be made."""
    made = twin(patient.case)
    make(Bench(model=made.model, optimizer=made.optimizer), candidate.edits)
    return made


def look_again(patient: Patient, candidate: Candidate) -> Proof:
    """The cheap part: make the edits on a copy, trace it again, and compare what is found."""
    if candidate.why or not candidate.edits:
        why = candidate.why or "advice: only the author of the model can do this"
        return Proof(candidate=candidate, outcome=candidate.outcome(why))
    try:
        case = treated(patient, candidate)
    except InputError as error:
        return Proof(candidate=candidate, outcome=candidate.outcome(refusal(error)))
    try:
        report = check(case, rehearse=False)
    except Exception as error:  # the untreated model does not raise, so this is the fix's doing
        return Proof(candidate=candidate, outcome=_broken(candidate, error))
    return _compared(patient, candidate, report)


def train_beside(
    proof: Proof, patient: Patient, trials: Trials, control: Losses, yardstick: Yardstick
) -> Proof:
    """The last part: the treated copy is trained like the untreated one was."""
    case = treated(patient, proof.candidate)
    try:
        losses = trials.run(case, f"training with {proof.candidate.fix}")
    except (LeadlineError, OutOfTimeError):
        raise
    except Exception as error:  # the untreated model does not raise, so this is the fix's doing
        return Proof(candidate=proof.candidate, outcome=_broken(proof.candidate, error))
    trial = Trial(untreated=control, treated=losses, fresh=trials.fresh)
    return concluded(replace(proof, losses=losses), patient, trial, yardstick)


def concluded(proof: Proof, patient: Patient, trial: Trial, yardstick: Yardstick) -> Proof:
    """What a trial says about a fix, and about the findings that the second trace had."""
    candidate, report = proof.candidate, proof.report
    assert report is not None  # only what passed the second trace is trained
    found = compare(trial)
    report = rehearsed(report, _seen(trial, patient, yardstick))
    objection = _objection(candidate, _before(patient), report.findings)
    if found.lower and not objection and not yardstick.learned(trial.treated):
        objection = f"{found.why}, yet {yardstick.told(trial.treated)}: it has not learned"
    outcome = changed(
        _outcome(patient, candidate, report, trial),
        state="verified" if found.lower and not objection else "refuted",
        why=found.why if not found.lower else objection or found.why,
        drift=proof.outcome.drift,
        seconds=proof.outcome.seconds,
    )
    return replace(proof, outcome=outcome, report=report, lower=found.lower)


def _seen(trial: Trial, patient: Patient, yardstick: Yardstick) -> Rehearsal:
    """The trial as a rehearsal; one that comes near the reference need not be measured by constant outputs too."""
    if yardstick.enough(trial.treated):
        return trial_as_rehearsal(trial.treated, None)
    return trial_as_rehearsal(trial.treated, patient.report.profile.rehearsal, yardstick.constant)


def _compared(patient: Patient, candidate: Candidate, report: Report) -> Proof:
    """What the second trace says: nothing against it, doubts that training may refute, or no hope."""
    before = _before(patient)
    objection = _objection(candidate, before, report.findings)
    hopeless = objection and _objection(candidate, before, rehearsed(report, LEARNS).findings)
    outcome = _outcome(patient, candidate, report, None)
    if candidate.reach == "function" and not objection:
        drift = drift_of(patient.case, candidate.edits)
        outcome = changed(outcome, drift=drift)
        if not drift <= KEPT:
            objection = (
                f"it claims to keep the function, but the outputs moved by {drift:.2g} in double precision"
            )
            hopeless = objection
    if objection:
        outcome = changed(outcome, state="refuted", why=objection)
    return Proof(
        candidate=candidate,
        outcome=outcome,
        report=None if hopeless else report,
        doubt="" if hopeless else objection,
    )


def _before(patient: Patient) -> tuple[Finding, ...]:
    """The patient's findings as a second look sees them, before any training."""
    return rehearsed(patient.report, None).findings


def _outcome(patient: Patient, candidate: Candidate, report: Report, trial: Trial | None) -> Outcome:
    before, after = _before(patient), report.findings
    left = {each.code for each in after if each.severity != "info"}
    return changed(
        candidate.outcome("it passed the second trace"),
        verdict=report.verdict,
        gone=tuple(sorted({each.code for each in before if each.severity != "info"} - left)),
        came=tuple(sorted({each.code for each in _came(before, after)})),
        measures=measures(patient.report, report, trial),
        trial=trial,
    )


def _came(before: Sequence[Finding], after: Sequence[Finding]) -> list[Finding]:
    """Findings that were not there, or not as severe."""
    worst: dict[str, int] = {}
    for each in before:
        worst[each.code] = max(worst.get(each.code, -1), SEVERITIES.index(each.severity))
    return [each for each in after if SEVERITIES.index(each.severity) > worst.get(each.code, -1)]


def _objection(candidate: Candidate, before: Sequence[Finding], after: Sequence[Finding]) -> str:
    """What the second trace has against the fix; "" if nothing."""
    left = {each.code for each in after if each.severity != "info"}
    gone = [each for each in before if each.code in candidate.answers and each.code not in left]
    if candidate.answers and not gone:
        return f"{', '.join(candidate.answers)} still found on the second trace"
    bar = max((SEVERITIES.index(each.severity) for each in gone), default=SEVERITIES.index("error"))
    worse = [each for each in _came(before, after) if SEVERITIES.index(each.severity) >= bar]
    return f"{worse[0].code} {worse[0].name} came instead: {worse[0].message}" if worse else ""


def _broken(candidate: Candidate, error: Exception) -> Outcome:
    told = str(error).splitlines()[0] if str(error) else "no reason given"
    return changed(
        candidate.outcome(f"the model raises {type(error).__name__} with it: {told}"), state="refuted"
    )
