"""From a model to a Report: trace it, read the trace, run every check, find root causes, and judge."""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Collection, Sequence
from typing import TypeVar

from msgspec.structs import replace

from leadline import __version__
from leadline.case import Case
from leadline.checks import model_checks
from leadline.checks._check import Check, refutation_clause
from leadline.checks._probability import MIN_TRAINING_PROBABILITY, read_outlook
from leadline.checks.model.non_finite import anomaly_action, describe_anomaly
from leadline.errors import InputError, add_first_advice, summarize_error
from leadline.readings.anomalies import find_anomaly_before
from leadline.readings.profile import read_profile
from leadline.readings.symmetry.reading import read_symmetry
from leadline.readings.theory import predict_with_account
from leadline.readings.update.constant import constant_loss_of
from leadline.readings.update.reading import read_update
from leadline.readings.update.rehearsal import RehearsalTimeoutError
from leadline.readings.update.rehearsal import rehearse as rehearse_steps
from leadline.readings.wiring.dependence import NO_TIME_LEFT, read_dependence
from leadline.readings.wiring.ledger import read_ledger
from leadline.readings.wiring.memory import Rebuild, read_unwritten, unwritten_without_weights
from leadline.readings.wiring.parts import read_parts
from leadline.records import (
    Coverage,
    Finding,
    Gap,
    NetworkParts,
    Outlook,
    Profile,
    Source,
    Trace,
    Verdict,
    severity_rank,
)
from leadline.records.codec import Unsaved
from leadline.records.rehearsal import MAX_REHEARSAL_STEPS
from leadline.records.report import Report
from leadline.report.verdict import is_about_wiring, sentence
from leadline.text import plural
from leadline.tracer.inputs import CALLING_CODE
from leadline.tracer.process import pause_garbage_collection
from leadline.tracer.trace import trace_case
from leadline.tracer.user_errors import is_users_error

# Heuristic: standard deviations of the log odds; beyond it the case is unlike all that the probability was fitted to.
MAX_LOG_ODDS_DEVIATION = 3.0

T = TypeVar("T")
_LOG = logging.getLogger("leadline.checks")


def check_case(  # noqa: PLR0913  (one switch for each part of a check)
    case: Case,
    *,
    rules: Sequence[Check] = (),
    update: bool | None = None,
    rehearse: bool | int = True,
    probes: bool = True,
    rebuild: Rebuild | None = None,
    is_late: Callable[[], bool] = lambda: False,
) -> Report:
    """Trace `case` once, read the trace, run every check and judge; see `leadline.check`.

    `rebuild` says how to build the case once more, to find memory that nothing initializes. No part that makes passes
    of its own begins when `is_late()` is true; it is named among the gaps.
    """
    trace = trace_case(case, explain_failure)
    profile, coverage = read_trace(trace)
    if update or (update is None and case.optimizer is not None and trace.loss is not None):
        profile, coverage = _with_update(case, profile, coverage, required=bool(update))
    if rehearse and profile.update is not None:
        most = MAX_REHEARSAL_STEPS if rehearse is True else rehearse
        missing: list[Gap] = []
        rehearsal, gaps = _read(
            "what the first steps achieve",
            lambda: rehearse_steps(case, trace, steps=most, is_late=is_late, report_gap=missing.append),
        )
        coverage = _with_gaps(coverage, (*gaps, *missing))
        if rehearsal is not None:
            profile = replace(profile, rehearsal=rehearsal, constant_loss=rehearsal.constant)
    elif case.optimizer is None:
        constant, gaps = _read("the loss of the best constant", lambda: constant_loss_of(case, trace))
        profile, coverage = replace(profile, constant_loss=constant), _with_gaps(coverage, gaps)
    if trace.loss is not None:
        profile, coverage = _with_wiring(case, trace, profile, coverage, is_late if probes else None)
    if probes and not is_late():
        profile, coverage = _with_memory(rebuild, case, trace, profile, coverage)
    return make_report(trace, profile, coverage, rules)


def _read(what: str, read: Callable[[], T]) -> tuple[T | None, tuple[Gap, ...]]:
    """One part of the profile. Where Leadline itself fails on a program that runs: None, and a gap that says so."""
    try:
        return read(), ()
    except RehearsalTimeoutError:
        return None, (Gap(what=what, why=NO_TIME_LEFT),)
    except InputError as error:
        return None, (Gap(what=what, why=f"it needs {error.expected}; got {error.got}"),)
    except Exception as error:
        if is_users_error(error, CALLING_CODE):
            raise
        _LOG.warning("reading %s failed; please report it", what, exc_info=True)
        return None, (Gap(what=what, why=f"{FAILED_READING}: {summarize_error(error)}"),)


FAILED_READING = "Leadline failed to read it"


def _with_gaps(coverage: Coverage, gaps: tuple[Gap, ...]) -> Coverage:
    return replace(coverage, gaps=(*coverage.gaps, *gaps)) if gaps else coverage


def explain_failure(error: Exception, trace: Trace, values: Sequence[int]) -> None:
    """Add the first NaN or infinity before an error of the user's code to the error, if there is one.

    `trace` is the pass up to the error, and `values` are those that the code read last.
    """
    anomaly = find_anomaly_before(trace, values)
    if anomaly is None:
        return
    op = trace.values[anomaly.value].op
    later = len(trace.ops) - 1 - op if op is not None else len(trace.ops)
    how = f"this error came {plural(later, 'op')} later" if later else "this error came right after it"
    add_first_advice(error, f"{describe_anomaly(anomaly)}; {how}", anomaly_action(anomaly))


def _with_wiring(
    case: Case,
    trace: Trace,
    profile: Profile,
    coverage: Coverage,
    is_late: Callable[[], bool] | None,
) -> tuple[Profile, Coverage]:
    """The profile with the ledger and what the probes measured before it is late; None: no probes."""
    with pause_garbage_collection(cycles=False):
        ledger, gaps = _read("who learns", lambda: read_ledger(trace, profile.blocks, profile.update))
        parts, more = _read("parts of the network", lambda: read_parts(trace, case))
        profile = replace(profile, ledger=ledger, parts=parts)
    coverage = _with_gaps(coverage, (*gaps, *more))
    if is_late is None:
        return profile, coverage
    if is_late():
        return profile, _with_gaps(coverage, (Gap(what="what the outputs depend on", why=NO_TIME_LEFT),))
    dependence, question, gaps = read_dependence(case, trace, is_late)
    profile = replace(profile, dependence=dependence, question=question)
    return profile, _with_gaps(coverage, gaps)


def _with_memory(
    rebuild: Rebuild | None, case: Case, trace: Trace, profile: Profile, coverage: Coverage
) -> tuple[Profile, Coverage]:
    """The profile with the tensors that the build leaves uninitialized, or a gap in the coverage."""
    unwritten, gap = read_unwritten(rebuild, case, trace)
    if gap is not None:
        return profile, replace(coverage, gaps=(*coverage.gaps, gap))
    return replace(profile, parts=replace(profile.parts or NetworkParts(), unwritten=unwritten)), coverage


def read_trace(trace: Trace) -> tuple[Profile, Coverage]:
    """Everything that can be read from a trace alone, including the predictions of theory."""
    with pause_garbage_collection(cycles=False):
        prediction, gaps = _read("what theory predicts", lambda: predict_with_account(trace))
        predicted_trace, theory = (trace, None) if prediction is None else prediction
        profile, coverage = read_profile(predicted_trace)
        symmetry, more = _read("free rescalings", lambda: read_symmetry(predicted_trace))
        profile = replace(profile, symmetry=symmetry, theory=theory)
    coverage = _with_gaps(coverage, (*gaps, *more))
    if profile.predicted and (unwritten := unwritten_without_weights(trace)):
        profile = replace(profile, parts=NetworkParts(unwritten=unwritten))
    return profile, coverage


def make_report(trace: Trace, profile: Profile, coverage: Coverage, rules: Sequence[Check] = ()) -> Report:
    """Run every model check, and `rules` too, on the profile, and judge. A weightless model is judged by prediction."""
    checks = (*model_checks(), *rules)
    outlook = read_outlook(profile)
    findings = collect_findings(checks, profile.shown, outlook)
    if profile.predicted:
        findings = tuple(replace(each, message=f"{each.message} (predicted)") for each in findings)
    report = Report(
        leadline=__version__,
        verdict=judge(profile, coverage, findings, outlook),
        findings=findings,
        profile=profile,
        outlook=outlook,
        coverage=coverage,
        rules=tuple(each.row(findings) for each in checks),
        margins=tuple(margin for each in checks for margin in each.read_margins(profile.shown)),
        sources=_sources(trace),
        unsaved_trace=Unsaved(trace),
    )
    return _with_reason(report)


def _sources(trace: Trace) -> dict[str, Source]:
    """By path of the module: where its class is written, or else the line of the user's code that calls it."""
    sources = {module.path: module.source for module in trace.modules if module.source is not None}
    for op in trace.ops:
        if op.source is not None and op.module:
            sources.setdefault(op.module, op.source)
    made_by = None if trace.loss_value is None else trace.values[trace.loss_value].op
    loss = None if made_by is None else trace.ops[made_by].source
    return sources if loss is None else {**sources, "the loss": loss}


def ignore_checks(report: Report, codes: Collection[str]) -> Report:
    """The report without the checks of these codes: their findings move to `ignored` and are not judged."""
    counted = tuple(finding for finding in report.findings if finding.code not in codes)
    ignored = tuple(finding for finding in report.findings if finding.code in codes)
    if not ignored:
        return report
    judged = replace(
        report,
        findings=counted,
        ignored=(*report.ignored, *ignored),
        verdict=judge(report.profile, report.coverage, counted, report.outlook),
    )
    return _with_reason(judged)


def collect_findings(
    checks: Sequence[Check], profile: Profile, outlook: Outlook | None = None
) -> tuple[Finding, ...]:
    """The findings of all checks, worst first, each linked to the finding that causes it.

    Non-finite findings sort first among those of one severity because they cause others; then come those about what
    the network is asked, because they make the others pointless. Where the first steps show that the training works,
    what would keep it from working is a note.
    """
    findings = [finding for check in checks for finding in check(profile)]
    if outlook is not None and outlook.probability >= MIN_TRAINING_PROBABILITY:
        findings = [_overruled(finding, profile) for finding in findings]
    findings.sort(
        key=lambda each: (
            -severity_rank(each.severity),
            not each.code.startswith("N"),
            not each.code.startswith("D"),
            each.code,
        )
    )
    return link_causes(findings, checks)


EVALUATION_CODES = frozenset({"U535"})
"""Checks of evaluation mode, about which a training loss that falls says nothing."""


def _overruled(finding: Finding, profile: Profile) -> Finding:
    """The finding as a note, unless it is about numbers, evaluation or the question, which no falling loss refutes."""
    rehearsal = profile.rehearsal
    if rehearsal is None or not _is_about_training(finding):
        return finding
    return replace(finding, severity="info", message=f"{finding.message}; {refutation_clause(rehearsal)}")


def _is_about_training(finding: Finding) -> bool:
    """Whether it is worse than a note because of what it does to the training, and not to the question or numbers."""
    is_about_more = is_about_wiring(finding) or finding.code in EVALUATION_CODES
    return finding.severity != "info" and not is_about_more and not finding.code.startswith("N")


def judge(
    profile: Profile, coverage: Coverage, findings: Sequence[Finding], outlook: Outlook | None = None
) -> Verdict:
    """What the first steps and the findings say together.

    Errors about the question or about numbers decide. Otherwise a rehearsal gives a probability that the training
    works, which decides, unless the case is unlike all trainings behind it. Without a rehearsal an error means "fails",
    a warning "poor", and a network without a measured depth axis is "undecided". A model without weights is decided
    only if theory predicts every block: a part it cannot follow may matter.
    """
    errors = [finding for finding in findings if finding.severity == "error"]
    if outlook is None:
        return _judge_by_findings(profile, coverage, findings)
    if any(not _is_about_training(each) for each in errors):
        return "fails"
    if math.sqrt(outlook.variance) > MAX_LOG_ODDS_DEVIATION:
        return "undecided"
    if outlook.probability >= MIN_TRAINING_PROBABILITY:
        return "trains"
    return "fails" if errors else "poor"


def _judge_by_findings(profile: Profile, coverage: Coverage, findings: Sequence[Finding]) -> Verdict:
    if any(finding.severity == "error" for finding in findings):
        return "fails"
    known = [b.forward_ms is not None and b.backward_ms is not None for b in profile.shown.blocks]
    decided = all(known) if profile.predicted else any(known) and coverage.backward
    warnings = [each for each in findings if each.severity == "warning"]
    if not decided:
        return "poor" if any(is_about_wiring(finding) for finding in warnings) else "undecided"
    return "poor" if warnings else "trains"


def _with_reason(report: Report) -> Report:
    """The report with the sentence that decided the verdict, and its confidence."""
    confidence = confidence_of(report.verdict, report.outlook, report.findings)
    return replace(report, reason=sentence(report), confidence=confidence)


def confidence_of(verdict: Verdict, outlook: Outlook | None, findings: Sequence[Finding]) -> float | None:
    """The probability that the verdict is right; None where nothing gives one.

    It is that of the training, so it does not apply where an error about the question or about numbers decides.
    """
    decides = any(each.severity == "error" and not _is_about_training(each) for each in findings)
    if outlook is None or decides or verdict == "undecided":
        return None
    return outlook.probability if verdict == "trains" else 1 - outlook.probability


def _with_update(
    case: Case, profile: Profile, coverage: Coverage, *, required: bool
) -> tuple[Profile, Coverage]:
    """The profile with one optimizer step. Where the step is impossible and not required, a gap in the coverage."""
    if required:
        return replace(profile, update=read_update(case, profile, ranges=True)), coverage
    step, gaps = _read("one step of the optimizer", lambda: read_update(case, profile, ranges=True))
    return replace(profile, update=step), _with_gaps(coverage, gaps)


UNSPECIFIC_CODES = {
    "U530": frozenset({"U530", "U531", "U509", "U525"}),
    "U531": frozenset({"U531"}),
}
"""Checks that only say how far the first steps came, and what does not explain them; whatever else was found does."""


# Root causes: consequences are put under their cause, so that a report names one root.


def link_causes(findings: Sequence[Finding], checks: Sequence[Check]) -> tuple[Finding, ...]:
    """The findings, each with the code of the finding that explains it best; "" for a root.

    `Check.explains` lists the codes a check can explain. It does so where both findings share a block, or one of them
    concerns no particular block. Among several causes, one that is itself a root wins, then the more severe one. An
    info finding explains only other info findings.
    """
    explains = {check.code: set(check.explains) for check in checks}
    causes = [[cause for cause in findings if _explains(cause, effect, explains)] for effect in findings]
    roots = {id(effect) for effect, own in zip(findings, causes, strict=True) if not own}

    def rank(cause: Finding) -> tuple[bool, int, str]:
        return id(cause) not in roots, -severity_rank(cause.severity), cause.code

    return tuple(
        replace(effect, explained_by=min(own, key=rank).code if own else "")
        for effect, own in zip(findings, causes, strict=True)
    )


def _explains(cause: Finding, effect: Finding, explains: dict[str, set[str]]) -> bool:
    if effect.code in UNSPECIFIC_CODES:
        return cause.code not in UNSPECIFIC_CODES[effect.code] and cause.severity != "info"
    if effect.code not in explains.get(cause.code, ()):
        return False
    if cause.severity == "info" and effect.severity != "info":
        return False
    if cause.layers is None or effect.layers is None:
        return True
    return cause.layers[0] <= effect.layers[1] and effect.layers[0] <= cause.layers[1]
