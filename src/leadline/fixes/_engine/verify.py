"""The proof of one fix: traced again, measured, and trained next to the untreated model.

A fix is verified if, with the user's own optimizer and learning rate,

1. a finding that it was tried for is gone on a second trace, or only a note there; one that only the rehearsal of
   `leadline.check` makes is gone if the training of 4, taken as a rehearsal, does not make it again;
2. no new finding is as severe as the worst of those, or more;
3. if it claims to keep the function, the outputs in double precision changed by at most `MAX_FUNCTION_DRIFT`;
4. a short training ends lower than that of the untreated model (see `comparison`);
5. and in it the treated model learns: its loss gets well below that of the best constant output (see `reference`).

The first three cost about six passes, the last two a few dozen steps. A finding that training itself refutes (the
network learns although it was found) becomes a note. So a fix that fails the first two only because of such findings is
in doubt, and the trial decides. For a fix that no finding called for, the first is not required, and of the second only
that no error is new.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from msgspec.structs import replace as replace_fields
from torch import Tensor
from torch.utils._pytree import tree_map_only

from leadline.case import Case
from leadline.checks import model_checks
from leadline.checks._diagnosis import check_case, collect_findings, confidence_of, judge
from leadline.checks._probability import read_outlook
from leadline.errors import InputError, LeadlineError
from leadline.fixes._engine.candidates import Candidate, refusal
from leadline.fixes._engine.comparison import compare, final_loss, judge_alone
from leadline.fixes._engine.copy import RebuildableCase, copy_case
from leadline.fixes._engine.edits import EditSession, apply_edits
from leadline.fixes._engine.fix import FixContext
from leadline.fixes._engine.reference import LearningCriterion, own_criterion
from leadline.fixes._engine.trial import Losses, OutOfTimeError, Trials
from leadline.readings.symmetry.verification import relative_change
from leadline.readings.update.probe import outputs_of
from leadline.records import Edit, Finding, Measure, Outcome, Rehearsal, Trial, severity_rank
from leadline.records.report import Report
from leadline.report.depth import gains
from leadline.report.verdict import sentence
from leadline.tracer.inputs import call_model, copy_batch
from leadline.tracer.restore import preserve_process_state

# Derived: double precision leaves 1e-12 after thousands of ops, and 1e-16 after one rounded factor.
MAX_FUNCTION_DRIFT = 1e-9

ADVICE = "advice: only the author of the model can do this"
PERFECT_REHEARSAL = Rehearsal(losses=(1.0, 0.0))
"""The rehearsal of a network that learns everything: it refutes every finding that training can refute."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Proof:
    """How far the proof of a candidate has come. The treated copy is not kept: the same edits make it again."""

    candidate: Candidate
    outcome: Outcome
    report: Report | None = None
    """Report of the treated model; None if the candidate is refuted for good."""
    doubt: str = ""
    """What the second trace objects to and training may refute."""
    lower: bool = False
    """Whether it ended lower than the model without it in its trial."""
    is_open: bool = False
    """Whether it ended lower too, but its own loss did not fall beyond noise: a longer training may decide."""
    losses: Losses = ()
    """Losses of its first trial, which has the same length for all candidates."""
    criterion: LearningCriterion | None = None
    """What counts as learning if the candidate changes the loss; None if that of the untreated model applies."""

    @property
    def open(self) -> bool:
        """Whether it may be trained, and has not been."""
        return self.report is not None and self.outcome.trial is None

    @property
    def verified(self) -> bool:
        return self.outcome.state == "verified"


def make_context(case: Case, report: Report | None = None) -> FixContext:
    """What a fix may look at. The case is traced and checked here unless its `report` is given."""
    report = report or check_case(case)
    assert report.trace is not None  # it was checked in this process
    return FixContext(case=case, trace=report.trace, report=report)


def treated_case(context: FixContext, candidate: Candidate) -> Case:
    """A copy of the case with the candidate's edits. Raises InputError if one of them cannot be made."""
    case = copy_case(context.case)
    apply_edits(EditSession(model=case.model, optimizer=case.joint_optimizer), candidate.edits)
    if isinstance(case, RebuildableCase):
        return replace(case, edits=(*case.edits, *candidate.edits))
    return case


def trace_again(context: FixContext, candidate: Candidate) -> Proof:
    """The cheap part of the proof: edit a copy, trace it again, and compare the findings."""
    if candidate.why or not candidate.edits:
        why = candidate.why or ADVICE
        return Proof(candidate=candidate, outcome=candidate.outcome(why))
    try:
        case = treated_case(context, candidate)
    except InputError as error:
        return Proof(candidate=candidate, outcome=candidate.outcome(refusal(error)))
    try:
        report = check_case(case, rehearse=False)
    except Exception as error:  # the untreated model does not raise, so the fix is the cause
        return Proof(candidate=candidate, outcome=_broken_outcome(candidate, error))
    return _compare_findings(context, candidate, report)


def train_treated(
    proof: Proof, context: FixContext, trials: Trials, control: Losses, criterion: LearningCriterion
) -> Proof:
    """The expensive part of the proof: train the treated copy as the untreated one was trained."""
    case = treated_case(context, proof.candidate)
    try:
        losses = trials.run(case, f"training with {proof.candidate.fix}")
    except (LeadlineError, OutOfTimeError):
        raise
    except Exception as error:  # the untreated model does not raise, so the fix is the cause
        return Proof(candidate=proof.candidate, outcome=_broken_outcome(proof.candidate, error))
    trial = Trial(untreated=control, treated=losses, fresh=trials.fresh)
    own = None
    if proof.candidate.changes_loss:
        own = own_criterion(make_context(treated_case(context, proof.candidate), proof.report), trials)
    return conclude(replace(proof, losses=losses, criterion=own), context, trial, criterion)


def conclude(proof: Proof, context: FixContext, trial: Trial, criterion: LearningCriterion) -> Proof:
    """The proof with what a trial says about the fix, and about the findings of the second trace."""
    candidate, report = proof.candidate, proof.report
    assert report is not None  # only what passed the second trace is trained
    own = proof.criterion
    criterion = criterion if own is None else own
    comparison = compare(trial) if own is None else judge_alone(trial.treated, own.constant)
    report = with_rehearsal(report, _trial_rehearsal(trial, context, criterion))
    objection = _objection(candidate, _findings_before(context), report.findings)
    if comparison.lower and not objection and not criterion.has_learned(trial.treated):
        objection = f"{comparison.why}, but {criterion.describe(trial.treated)}: it has not learned"
    outcome = replace_fields(
        _outcome(context, candidate, report, trial),
        state="verified" if comparison.lower and not objection else "refuted",
        why=(objection or comparison.why) if comparison.lower else comparison.why,
        drift=proof.outcome.drift,
        seconds=proof.outcome.seconds,
    )
    return replace(proof, outcome=outcome, report=report, lower=comparison.lower, is_open=comparison.is_open)


def _compare_findings(context: FixContext, candidate: Candidate, report: Report) -> Proof:
    """The proof after the second trace: no objection, doubts that training may refute, or refuted for good.

    What only a rehearsal finds is not measured yet: the trial decides whether it is gone.
    """
    before = _findings_before(context)
    unmeasured = {finding.code for finding in _rehearsal_findings(context.report)}
    objection = _objection(candidate, before, report.findings, unmeasured)
    refuted = objection and _objection(candidate, before, with_rehearsal(report, PERFECT_REHEARSAL).findings)
    outcome = _outcome(context, candidate, report, None)
    if candidate.reach == "function" and not objection:
        drift = function_drift(context.case, candidate.edits)
        outcome = replace_fields(outcome, drift=drift)
        if not drift <= MAX_FUNCTION_DRIFT:
            change = f"the outputs changed by {drift:.2g} in double precision"
            refuted = objection = f"it claims to keep the function, but {change}"
    if objection:
        outcome = replace_fields(outcome, state="refuted", why=objection)
    return Proof(
        candidate=candidate,
        outcome=outcome,
        report=None if refuted else report,
        doubt="" if refuted else objection,
    )


def _findings_before(context: FixContext) -> tuple[Finding, ...]:
    """The findings of the untreated model: those that need no training, and those that only its rehearsal makes.

    The second trace measures the former and the trial the latter, so that each is compared with its like.
    """
    return (*with_rehearsal(context.report, None).findings, *_rehearsal_findings(context.report))


def _rehearsal_findings(report: Report) -> list[Finding]:
    """Findings that are not there, or less severe, without the rehearsal."""
    serious = [finding for finding in report.findings if finding.severity != "info"]
    return _new_findings(with_rehearsal(report, None).findings, serious)


def _outcome(context: FixContext, candidate: Candidate, report: Report, trial: Trial | None) -> Outcome:
    before, after = _findings_before(context), report.findings
    left = {finding.code for finding in after if finding.severity != "info"}
    if trial is None:  # what only a rehearsal finds is neither gone nor left
        left |= {finding.code for finding in _rehearsal_findings(context.report)}
    return replace_fields(
        candidate.outcome("it passed the second trace"),
        verdict=report.verdict,
        gone=tuple(sorted({finding.code for finding in before if finding.severity != "info"} - left)),
        came=tuple(sorted({finding.code for finding in _new_findings(before, after)})),
        measures=read_measures(context.report, report, trial),
        trial=trial,
    )


def _new_findings(before: Sequence[Finding], after: Sequence[Finding]) -> list[Finding]:
    """Findings that were not there before, or were less severe."""
    worst: dict[str, int] = {}
    for finding in before:
        worst[finding.code] = max(worst.get(finding.code, -1), severity_rank(finding.severity))
    return [finding for finding in after if severity_rank(finding.severity) > worst.get(finding.code, -1)]


def _objection(
    candidate: Candidate,
    before: Sequence[Finding],
    after: Sequence[Finding],
    unmeasured: Collection[str] = (),
) -> str:
    """What the second trace has against the fix; "" if nothing. It could not find the codes in `unmeasured`."""
    left = {finding.code for finding in after if finding.severity != "info"}
    gone = [each for each in before if each.code in candidate.answers and each.code not in left]
    measured = [code for code in candidate.answers if code not in unmeasured]
    if candidate.answers and not any(each.code in measured or not measured for each in gone):
        return f"the second trace still finds {', '.join(measured or candidate.answers)}"
    limit = max((severity_rank(finding.severity) for finding in gone), default=severity_rank("error"))
    worse = [each for each in _new_findings(before, after) if severity_rank(each.severity) >= limit]
    return f"{worse[0].code} {worse[0].name} appears instead: {worse[0].message}" if worse else ""


def _broken_outcome(candidate: Candidate, error: Exception) -> Outcome:
    message = str(error).splitlines()[0] if str(error) else "no reason given"
    why = f"the model raises {type(error).__name__} with it: {message}"
    return replace_fields(candidate.outcome(why), state="refuted")


# Findings that training refutes: where a network learns in spite of one, it becomes a note.
#
# `leadline.check` rehearses a few steps to find that out. Copies that will be trained anyway are checked without a
# rehearsal: all their findings count at first, and then the trial serves as the rehearsal.


def with_rehearsal(report: Report, rehearsal: Rehearsal | None) -> Report:
    """The report as it would be after this rehearsal; None: before any training."""
    profile = replace_fields(report.profile, rehearsal=rehearsal)
    outlook = read_outlook(profile)
    findings = collect_findings(model_checks(), profile.shown, outlook)
    verdict = judge(profile, report.coverage, findings, outlook)
    confidence = confidence_of(verdict, outlook, findings)
    judged = replace_fields(
        report, profile=profile, findings=findings, verdict=verdict, confidence=confidence, outlook=outlook
    )
    return replace_fields(judged, reason=sentence(judged))


def _trial_rehearsal(trial: Trial, context: FixContext, criterion: LearningCriterion) -> Rehearsal:
    """The trial as a rehearsal. One that comes near the reference need not beat a constant output too.

    Batches differ, so the last loss is replaced by the final loss over the last quarter.
    """
    losses = (*trial.treated[:-1], final_loss(trial.treated))
    before = context.report.profile.rehearsal
    if criterion.has_learned_enough(trial.treated):
        constant = None
    elif criterion.constant is None and before is not None:
        constant = before.constant
    else:
        constant = criterion.constant
    return Rehearsal(losses=losses, constant=constant)


# Numbers before and after a fix.


def function_drift(case: Case, edits: Sequence[Edit]) -> float:
    """The largest relative change of the outputs, in root mean square, that the edits cause.

    The edits are applied to a copy in double precision, so that rounding of the weights themselves does not count.
    """
    before, after = _exact_outputs(case, ()), _exact_outputs(case, edits)
    if len(before) != len(after) or any(a.shape != b.shape for a, b in zip(before, after, strict=True)):
        return float("inf")
    return relative_change(before, after)


def _exact_outputs(case: Case, edits: Sequence[Edit]) -> list[Tensor]:
    exact = copy_case(case)
    exact.model.double()
    apply_edits(EditSession(model=exact.model, optimizer=exact.joint_optimizer), edits)
    with preserve_process_state(), torch.no_grad():
        torch.manual_seed(0)
        output = call_model(exact.model, copy_batch(_double(case.inputs)))
    return [each.detach() for each in outputs_of(output)]


def _double(batch: Any) -> Any:
    return tree_map_only(Tensor, lambda each: each.double() if each.is_floating_point() else each, batch)


def read_measures(before: Report, after: Report, trial: Trial | None) -> tuple[Measure, ...]:
    """The numbers that a fix should change, if they were measured on at least one side."""
    measures = (*_signal_measures(before, after), *_step_measures(before, after), *_trial_measures(trial))
    return tuple(each for each in measures if each.before is not None or each.after is not None)


def _signal_measures(before: Report, after: Report) -> Iterator[Measure]:
    one, other = (
        gains(each.profile, 0) if each.profile.streams else (None, None) for each in (before, after)
    )
    yield Measure(name="signal, change per block", before=one[0], after=other[0])
    yield Measure(name="gradient, change per block", before=one[1], after=other[1])
    yield Measure(name="loss before training", before=before.profile.loss, after=after.profile.loss)


def _step_measures(before: Report, after: Report) -> Iterator[Measure]:
    one, other = before.profile.update, after.profile.update
    yield Measure(
        name="fall of the loss in one step",
        before=None if one is None else -one.measured_loss_change,
        after=None if other is None else -other.measured_loss_change,
    )


def _trial_measures(trial: Trial | None) -> Iterator[Measure]:
    if trial is not None:
        yield Measure(
            name=f"loss after {len(trial.treated)} steps",
            before=final_loss(trial.untreated),
            after=final_loss(trial.treated),
        )
