"""The proof of a fix: trace again, measure again, and train beside the untreated model."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from msgspec.structs import replace as changed
from torch import Tensor
from torch.utils._pytree import tree_map_only

from leadline.case import Case
from leadline.checks import model_checks
from leadline.checks._diagnosis import CONFIDENCE, check_case, collect_findings, judge
from leadline.errors import InputError, LeadlineError
from leadline.fixes._engine.candidates import Candidate, refusal
from leadline.fixes._engine.comparison import compare, end
from leadline.fixes._engine.copy import twin
from leadline.fixes._engine.edits import Bench, make
from leadline.fixes._engine.fix import Patient
from leadline.fixes._engine.reference import Yardstick
from leadline.fixes._engine.trial import Losses, OutOfTimeError, Trials
from leadline.readings.symmetry.verification import relative_change
from leadline.readings.theory.prediction import predict_moments
from leadline.readings.update.probe import copy_batch, outputs_of
from leadline.records import Edit, Finding, Measure, Outcome, Rehearsal, Trial, severity_rank
from leadline.records.report import Report
from leadline.report.depth import gains
from leadline.report.verdict import sentence
from leadline.tracer.inputs import call_model
from leadline.tracer.restore import preserve_process_state
from leadline.tracer.trace import trace_case

KEPT = 1e-9  # derived: double precision through thousands of ops leaves 1e-12; rounding a factor once, 1e-16


def drift_of(case: Case, edits: Sequence[Edit]) -> float:
    """The largest relative change of the outputs, in the root of the mean square, that the edits make.

    Edits are made on a copy that is in double precision already: rounding of the weights themselves is not counted.
    """
    before, after = (_outputs(case, made) for made in ((), edits))
    if len(before) != len(after) or any(a.shape != b.shape for a, b in zip(before, after, strict=True)):
        return float("inf")
    return relative_change(before, after)


def _outputs(case: Case, edits: Sequence[Edit]) -> list[Tensor]:
    exact = twin(case)
    exact.model.double()
    make(Bench(model=exact.model, optimizer=exact.optimizer), edits)
    with preserve_process_state(), torch.no_grad():
        torch.manual_seed(0)
        output = call_model(exact.model, copy_batch(_double(case.inputs)))
    return [each.detach() for each in outputs_of(output)]


def _double(batch: Any) -> Any:
    return tree_map_only(Tensor, lambda each: each.double() if each.is_floating_point() else each, batch)


# The numbers that a fix is to change, before and after.


def measures(before: Report, after: Report, trial: Trial | None) -> tuple[Measure, ...]:
    """Those that were measured on at least one side."""
    found = (*_signal(before, after), *_step(before, after), *_training(trial))
    return tuple(each for each in found if each.before is not None or each.after is not None)


def _signal(before: Report, after: Report) -> Iterator[Measure]:
    one, other = (
        gains(each.profile, 0) if each.profile.streams else (None, None) for each in (before, after)
    )
    yield Measure(name="signal, change a block", before=one[0], after=other[0])
    yield Measure(name="gradient, change a block", before=one[1], after=other[1])
    yield Measure(name="loss before training", before=before.profile.loss, after=after.profile.loss)


def _step(before: Report, after: Report) -> Iterator[Measure]:
    one, other = before.profile.update, after.profile.update
    yield Measure(
        name="fall of the loss in one step",
        before=None if one is None else -one.measured_loss_change,
        after=None if other is None else -other.measured_loss_change,
    )


def _training(trial: Trial | None) -> Iterator[Measure]:
    if trial is not None:
        steps = len(trial.treated)
        yield Measure(name=f"loss after {steps} steps", before=end(trial.untreated), after=end(trial.treated))


# What training says about findings: where a network learns in spite of one, it is no more than a note.
#
# `leadline.check` rehearses a few steps to find that out. Copies that are to be trained anyway are checked
# without: their
# findings are taken at their word at first, and then the trial is the rehearsal.

LEARNS = Rehearsal(losses=(1.0, 0.0))
"""What a network that learns all there is would show."""


def rehearsed(report: Report, rehearsal: Rehearsal | None) -> Report:
    """The report as it is if training goes like that; None: as it is before anything was tried."""
    profile = changed(report.profile, rehearsal=rehearsal)
    findings = collect_findings(model_checks(), profile.shown)
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


# The proof of a fix: traced again, measured, and trained beside the untreated model.
#
# A fix is verified if, with the user's own optimiser and rate,
#
# 1. a finding that it was tried for is gone on a second trace, or is no more than a note there;
# 2. no finding came that is as severe as the worst of those, or more;
# 3. if it claims to keep the function, the outputs in double precision moved by at most `drift.KEPT`;
# 4. a short training ends lower than that of the untreated model (`comparison` says how that is decided);
# 5. and in it the treated model learns: it gets well below the best constant output (`yardstick`).
#
# The first three cost some six passes, the last two a few dozen steps. A finding that training itself refutes (the
# network learns in spite of it) becomes a note, so that whoever fails the first two by such findings alone is in doubt:
# the trial decides, if it comes to that. Of a fix that no finding called for (`symptoms`), the first is not
# asked, and of
# the second only that no error came.


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
    return patient_of(case, check_case(case))


def patient_of(case: Case, report: Report) -> Patient:
    """The same for a case that has been checked already."""
    return Patient(case=case, trace=predict_moments(trace_case(case)), report=report)


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
        report = check_case(case, rehearse=False)
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
        worst[each.code] = max(worst.get(each.code, -1), severity_rank(each.severity))
    return [each for each in after if severity_rank(each.severity) > worst.get(each.code, -1)]


def _objection(candidate: Candidate, before: Sequence[Finding], after: Sequence[Finding]) -> str:
    """What the second trace has against the fix; "" if nothing."""
    left = {each.code for each in after if each.severity != "info"}
    gone = [each for each in before if each.code in candidate.answers and each.code not in left]
    if candidate.answers and not gone:
        return f"{', '.join(candidate.answers)} still found on the second trace"
    bar = max((severity_rank(each.severity) for each in gone), default=severity_rank("error"))
    worse = [each for each in _came(before, after) if severity_rank(each.severity) >= bar]
    return f"{worse[0].code} {worse[0].name} came instead: {worse[0].message}" if worse else ""


def _broken(candidate: Candidate, error: Exception) -> Outcome:
    told = str(error).splitlines()[0] if str(error) else "no reason given"
    return changed(
        candidate.outcome(f"the model raises {type(error).__name__} with it: {told}"), state="refuted"
    )
