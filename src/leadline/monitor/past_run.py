"""The report of a past run: whether it learned, its alerts and its last check, or the run checks applied to a log."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence

from msgspec.structs import replace

from leadline import __version__
from leadline.checks import model_checks, run_checks
from leadline.checks._check import Check
from leadline.checks._history import MAX_STEPS, History
from leadline.checks._loop import LOOP_METRICS, is_comparable
from leadline.checks.run.loss_above_start import FIRST_STEPS, gradient_growth, rise_action
from leadline.checks.run.plateau import STUCK_ACTION
from leadline.monitor.alerts import AlertTracker
from leadline.monitor.learning import MIN_STEPS, Learning, judge_learning
from leadline.monitor.runfile import Run
from leadline.records import (
    Alert,
    CheckRow,
    Coverage,
    Finding,
    Gap,
    Profile,
    RunSummary,
    Sample,
    Verdict,
    severity_rank,
)
from leadline.records.report import Report
from leadline.records.run import GAP_KEY, INSIDE_OF_MODEL
from leadline.report.verdict import sentence
from leadline.text import clean

# Heuristic: the step of the first row of a log that begins with the start of training; many log every hundredth step.
MAX_FIRST_STEP = 100
# Heuristic: a history holds MAX_STEPS steps, and alerts end within a few histories.
MAX_REPLAYED_STEPS = 4 * MAX_STEPS


def judge_run(run: Run, drop: Collection[str] = frozenset()) -> Report:
    """Return whether the run learned, its alerts and what its last check found. Checks in `drop` do not count."""
    recorded = {*run.scalar_names, *run.vector_axes}
    losses = run.scalars("loss")[1] if "loss" in run.scalar_names else []
    norms = run.scalars("grad_norm")[1] if "grad_norm" in run.scalar_names else []
    count, last, _ = run.extent
    made = 0 if last is None else last - (run.first_step or 0) + 1
    learning = judge_learning(losses, is_resumed=bool(run.first_step), made=made)
    course = RunSummary(
        source="run file",
        steps=count,
        first_step=run.first_step or 0,
        last_step=last or 0,
        first_loss=losses[0] if losses else None,
        last_loss=losses[-1] if losses else None,
        state=_state(run),
        alarms=len(_checks_for(recorded)),
        progress="" if learning.state == "short" else learning.sentence,
    )
    alerts, active = run.alerts(), run.standing
    if not alerts:  # its writer may not have run the checks
        alerts, active = _replay(_last_samples(run))
    findings = [*map(finding_of, active), *_past_findings(alerts, active)]
    last_check = Report.from_json(run.report(run.reports[-1])) if run.reports else None
    report = last_check or _without_pass(run.info.model, run.info.parameters, course, _blindness(run))
    known = {
        finding.code for finding in report.findings
    }  # a watch turns the findings of its checks into alerts
    new = [finding for finding in findings if finding.code not in known]
    new = _refuted(new, learning)
    new = _with_learning(new, learning, norms) if _has_comparable_losses(run) else new
    report = replace(report, findings=tuple(_refuted(report.findings, learning)))
    return _with_verdict(_with_course(report, course, recorded), new, drop, learning)


def judge_samples(
    samples: Sequence[Sample], source: str, model: str, drop: Collection[str] = frozenset()
) -> Report:
    """Return what the run checks find when they read the log from its beginning."""
    alerts, active = _replay(samples)
    losses = [sample.scalars["loss"] for sample in samples if "loss" in sample.scalars]
    norms = [sample.scalars["grad_norm"] for sample in samples if "grad_norm" in sample.scalars]
    recorded = {name for sample in samples for name in sample.scalars}
    learning = judge_learning(losses, is_resumed=bool(samples and samples[0].step > MAX_FIRST_STEP))
    course = RunSummary(
        source=source,
        steps=len(samples),
        first_step=samples[0].step if samples else 0,
        last_step=samples[-1].step if samples else 0,
        first_loss=losses[0] if losses else None,
        last_loss=losses[-1] if losses else None,
        alarms=len(_checks_for(recorded)),
        progress="" if learning.state == "short" else learning.sentence,
    )
    findings = _with_learning([*map(finding_of, active), *_past_findings(alerts, active)], learning, norms)
    report = _with_course(_without_pass(model, 0, course), course, recorded)
    return _with_verdict(report, findings, drop, learning)


def _refuted(findings: Iterable[Finding], learning: Learning) -> list[Finding]:
    """Return the findings as notes if they say that the network will not learn, and the run has learned."""
    if learning.state != "learned":
        return [*findings]
    refuted = {each.code for each in model_checks() if each.refuted_by}
    return [
        replace(each, severity="info", message=f"{each.message}; yet {learning.sentence}")
        if each.code in refuted and each.severity != "info"
        else each
        for each in findings
    ]


def _has_comparable_losses(run: Run) -> bool:
    """Whether losses of different times can be compared, as the loop ledger of the run shows."""
    names = [name for name in ("opponents", "moving_targets") if name in run.scalar_names]
    last = {name: run.scalars(name)[1][-1:] for name in names}
    numbers: dict[str, float] = {name: values[0] for name, values in last.items() if values}
    return is_comparable(History().extend([Sample(step=0, scalars=numbers)]))


def _with_learning(findings: list[Finding], learning: Learning, norms: Sequence[float]) -> list[Finding]:
    """Return the findings with an error if the run did not learn, in place of what its check said before."""
    growth = gradient_growth(norms[:FIRST_STEPS], norms[-FIRST_STEPS:])
    if learning.state == "rose":
        code, action = "T815", rise_action(growth)
    elif learning.state == "stuck":
        code, action = "T802", STUCK_ACTION
    else:
        return findings
    source = next(each for each in run_checks() if each.code == code)
    failure = Finding(
        code=code,
        name=source.name,
        severity="error",
        where="the loss",
        message=learning.sentence,
        action=action,
        evidence={"first": learning.first, "last": learning.last, "gradient_growth": growth},
    )
    return [failure, *(each for each in findings if each.code != code)]


def _replay(samples: Iterable[Sample]) -> tuple[list[Alert], list[Alert]]:
    """Return all alerts of the run checks, and those still active at the end."""
    history, tracker = History(), AlertTracker(run_checks())
    alerts: list[Alert] = []
    for sample in samples:
        history.add(sample)
        alerts += tracker.update(history)
    return alerts, [*tracker.active]


def _last_samples(run: Run) -> list[Sample]:
    """Return the scalars of the last steps, in which the alerts that are active at the end were raised."""
    steps = run.steps[-MAX_REPLAYED_STEPS:]
    numbers: dict[int, dict[str, float]] = {step: {} for step in steps}
    for name in run.scalar_names:
        for step, value in zip(*run.scalars(name, steps[0] if steps else 0), strict=True):
            numbers.setdefault(step, {})[name] = value
    for name in LOOP_METRICS if steps else ():  # recorded only when they change, perhaps long before
        earlier = run.scalars(name)[1] if name in run.scalar_names and name not in numbers[steps[0]] else []
        known = sum(name in each for each in numbers.values())
        if len(earlier) > known:
            numbers[steps[0]][name] = earlier[len(earlier) - known - 1]
    return [Sample(step=step, scalars=scalars) for step, scalars in sorted(numbers.items())]


def _with_course(report: Report, course: RunSummary, recorded: Collection[str]) -> Report:
    """Return the report with the course of training and the run checks that could not run."""
    possible = _checks_for(recorded)
    impossible = [each for each in run_checks() if each not in possible]
    missing = sorted({name for each in impossible for name in each.needs})
    why = f"their numbers were not recorded: {', '.join(missing)}"
    gaps = [Gap(what=f"{len(impossible)} of {len(run_checks())} run checks", why=why)] if impossible else []
    coverage = replace(report.coverage, gaps=(*report.coverage.gaps, *gaps))
    return replace(report, course=course, coverage=coverage)


def _with_verdict(
    report: Report, findings: Sequence[Finding], drop: Collection[str], learning: Learning
) -> Report:
    """Return the report with the findings of the run checks added and a new verdict."""
    every = sorted((*findings, *report.findings), key=lambda each: -severity_rank(each.severity))
    counted = tuple(each for each in every if each.code not in drop)
    judged = replace(
        report,
        leadline=__version__,
        findings=counted,
        ignored=(*report.ignored, *(each for each in every if each.code in drop)),
        verdict=_verdict(report, counted, learning),
        rules=(*run_check_rows(counted), *report.rules),
        confidence=None,  # the calibration holds for checks before training only
    )
    return replace(judged, reason=sentence(judged))


def _verdict(report: Report, findings: Iterable[Finding], learning: Learning) -> Verdict:
    """Return the verdict of the worst finding; without errors, "undecided" if the losses do not show learning.

    A run without enough losses is judged by the check stored in it, if it has enough steps.
    """
    severities = {finding.severity for finding in findings}
    recorded = report.course.steps if report.course is not None else 0
    if "error" in severities:
        return "fails"
    if recorded < MIN_STEPS or (learning.state == "short" and report.verdict == "undecided"):
        return "undecided"
    if learning.is_undecided and learning.state != "short":
        return "undecided"
    return "poor" if "warning" in severities else "trains"


def finding_of(alert: Alert) -> Finding:
    """Return what an alert says as a finding."""
    since = f"; since step {alert.since}" + (f", rank {alert.rank}" if alert.rank else "")
    return Finding(
        code=alert.code,
        name=alert.name,
        severity=alert.severity,
        where=alert.where,
        action=alert.action,
        message=alert.message + since + (f"; {alert.forecast}" if alert.forecast else ""),
        evidence=alert.evidence,
    )


def _state(run: Run) -> str:
    """Return the state of the run, with the error if the training loop crashed inside its watch."""
    crashes = [each for each in run.events() if each.kind == "crash" and each.step >= (run.extent[1] or 0)]
    if run.state == "ended" and crashes:
        return f"ended by {clean(str(crashes[-1].data.get('error', 'an error')))}"
    return run.state


def _past_findings(alerts: Sequence[Alert], active: Collection[Alert]) -> list[Finding]:
    """Return notes on alerts that were raised and are over, which are no reason to fail."""
    ended = {
        (alert.code, alert.rank, alert.since): alert.step for alert in alerts if alert.state == "cleared"
    }
    raised = {(alert.code, alert.rank, alert.step) for alert in alerts if alert.state == "raised"}
    findings = []
    for alert in alerts:
        if alert.state == "raised" and alert not in active:
            step = ended.get((alert.code, alert.rank, alert.since))
            if step != alert.step and (alert.code, alert.rank, step) in raised:
                continue  # it grew more severe and was raised again
            until = "over when the run was resumed" if step is None else f"over at step {step}"
            finding = finding_of(alert)
            findings.append(replace(finding, severity="info", message=f"{finding.message} ({until})"))
    return findings


def _checks_for(recorded: Collection[str]) -> list[Check]:
    """Return the run checks that can run on these metrics."""
    return [each for each in run_checks() if any(name in recorded for name in each.needs)]


def run_check_rows(findings: Sequence[Finding]) -> tuple[CheckRow, ...]:
    """Return all run checks; those with a finding have their page."""
    codes = {finding.code for finding in findings}
    return tuple(
        CheckRow(
            code=each.code,
            name=each.name,
            summary=each.summary,
            page=each.doc if each.code in codes else "",
        )
        for each in run_checks()
    )


def _blindness(run: Run) -> str:
    """Return why the watch could not measure the inside of the model; "" if it did not say."""
    reasons = [each.message for each in run.events() if each.data.get(GAP_KEY) == INSIDE_OF_MODEL]
    return clean(str(reasons[-1])) if reasons else ""


def _without_pass(model: str, parameters: int, course: RunSummary, why: str = "") -> Report:
    """Return a report that knows nothing about the inside of the model."""
    gap = Gap(what=INSIDE_OF_MODEL, why=why or f"the {course.source} holds no check of the model")
    return Report(
        leadline=__version__,
        verdict="undecided",
        findings=(),
        profile=Profile(
            model=model,
            loss=course.last_loss,
            training=True,
            optimizer=None,
            parameters=parameters,
            trainable=parameters,
            streams=(),
            blocks=(),
            jumps=(),
            anomalies=(),
            backward_ran=False,
        ),
        coverage=Coverage(ops=0, ops_known=0, values=0, forward=0, backward=0, gaps=(gap,)),
    )
