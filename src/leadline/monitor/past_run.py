"""What is known of a training that has run: of a run file, its alerts and its last check; of a log, what alarms see."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence

from msgspec.structs import replace

from leadline import __version__
from leadline.checks import run_checks
from leadline.checks._check import Check
from leadline.checks._history import MAX_STEPS, START_STEPS, History
from leadline.monitor.alerts import Desk
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
from leadline.report.verdict import sentence
from leadline.text import clean

LEAST_STEPS = (
    2 * START_STEPS
)  # derived: alarms compare the present with the first START_STEPS steps; both must be there, apart

REPLAYED = 4 * MAX_STEPS  # ours: a history holds MAX_STEPS of them, and alerts end within a few histories


def judge_run(run: Run, drop: Collection[str] = frozenset()) -> Report:
    """The last check that was stored and the alerts of the run, judged together. Rules in `drop` do not count."""
    recorded = {*run.scalar_names, *run.vector_axes}
    steps, losses = run.scalars("loss") if "loss" in run.scalar_names else ([], [])
    count, last, _ = run.extent
    course = RunSummary(
        source="run file",
        steps=count,
        first_step=run.first_step or 0,
        last_step=last or 0,
        first_loss=losses[0] if losses else None,
        last_loss=losses[-1] if losses else None,
        state=_state(run),
        alarms=len(_able(recorded)),
    )
    said, standing = run.alerts(), run.standing
    if not said:  # whoever wrote it may not have asked
        said, standing = _replayed(_last_samples(run))
    found = [*map(_finding, standing), *_over(said, standing)]
    last_check = Report.from_json(run.report(run.reports[-1])) if run.reports else None
    report = last_check or _without_pass(run.info.model, run.info.parameters, course)
    told = {finding.code for finding in report.findings}  # a watch makes alerts of what its checks find
    new = [finding for finding in found if finding.code not in told]
    return _concluded(_told(report, course, recorded), new, drop, losses=len(steps))


def judge_samples(
    samples: Sequence[Sample], source: str, model: str, drop: Collection[str] = frozenset()
) -> Report:
    """What the alarms say when they see the log as if it were written now."""
    said, standing = _replayed(samples)
    losses = [sample.scalars["loss"] for sample in samples if "loss" in sample.scalars]
    recorded = {name for sample in samples for name in sample.scalars}
    course = RunSummary(
        source=source,
        steps=len(samples),
        first_step=samples[0].step if samples else 0,
        last_step=samples[-1].step if samples else 0,
        first_loss=losses[0] if losses else None,
        last_loss=losses[-1] if losses else None,
        alarms=len(_able(recorded)),
    )
    found = [*map(_finding, standing), *_over(said, standing)]
    report = _told(_without_pass(model, 0, course), course, recorded)
    return _concluded(report, found, drop, losses=len(losses))


def _replayed(samples: Iterable[Sample]) -> tuple[list[Alert], list[Alert]]:
    """All that alarms say, and what stands at the end."""
    history, desk = History(), Desk(run_checks())
    said: list[Alert] = []
    for sample in samples:
        history.add(sample)
        said += desk.ask(history)
    return said, [*desk.standing]


def _last_samples(run: Run) -> list[Sample]:
    """The numbers of the whole model at the last steps: what stands at the end was raised there."""
    steps = run.steps[-REPLAYED:]
    numbers: dict[int, dict[str, float]] = {step: {} for step in steps}
    for name in run.scalar_names:
        for step, value in zip(*run.scalars(name, steps[0] if steps else 0), strict=True):
            numbers.setdefault(step, {})[name] = value
    return [Sample(step=step, scalars=scalars) for step, scalars in sorted(numbers.items())]


def _told(report: Report, course: RunSummary, recorded: Collection[str]) -> Report:
    """The report with how the training went, and which alarms could not be asked."""
    able = _able(recorded)
    unable = [each for each in run_checks() if each not in able]
    missing = sorted({name for each in unable for name in each.needs})
    why = f"their numbers were not recorded: {', '.join(missing)}"
    gaps = [Gap(what=f"{len(unable)} of {len(run_checks())} alarms", why=why)] if unable else []
    coverage = replace(report.coverage, gaps=(*report.coverage.gaps, *gaps))
    return replace(report, course=course, coverage=coverage)


def _concluded(report: Report, found: Sequence[Finding], drop: Collection[str], *, losses: int) -> Report:
    """The report with what the alarms found beside what it had, judged anew."""
    every = sorted((*found, *report.findings), key=lambda each: -severity_rank(each.severity))
    counted = tuple(each for each in every if each.code not in drop)
    judged = replace(
        report,
        leadline=__version__,
        findings=counted,
        ignored=(*report.ignored, *(each for each in every if each.code in drop)),
        verdict=_verdict(report, counted, losses),
        rules=(*_asked(counted), *report.rules),
        confidence=None,  # what is known of it was measured on checks before training
    )
    return replace(judged, reason=sentence(judged))


def _verdict(report: Report, findings: Iterable[Finding], losses: int) -> Verdict:
    """By the worst that was found; of too few steps nothing else is said.

    Where losses were not told, what the last check said counts.
    """
    severities = {finding.severity for finding in findings}
    recorded = report.course.steps if report.course is not None else losses
    if "error" in severities:
        return "fails"
    if recorded < LEAST_STEPS or (losses < LEAST_STEPS and report.verdict == "undecided"):
        return "undecided"
    return "poor" if "warning" in severities else "trains"


def _finding(alert: Alert) -> Finding:
    since = f"; since step {alert.since}" + (f", rank {alert.rank}" if alert.rank else "")
    return Finding(
        code=alert.code,
        name=alert.name,
        severity=alert.severity,
        where=alert.where,
        message=alert.message + since + (f"; {alert.forecast}" if alert.forecast else ""),
        evidence=alert.evidence,
    )


def _state(run: Run) -> str:
    """A loop that died inside its watch has ended by that."""
    crashes = [each for each in run.events() if each.kind == "crash" and each.step >= (run.extent[1] or 0)]
    if run.state == "ended" and crashes:
        return f"ended by {clean(str(crashes[-1].data.get('error', 'an error')))}"
    return run.state


def _over(alerts: Sequence[Alert], standing: Collection[Alert]) -> list[Finding]:
    """What was raised and stands no more: worth a note, and no reason to fail."""
    ended = {
        (alert.code, alert.rank, alert.since): alert.step for alert in alerts if alert.state == "cleared"
    }
    raised = {(alert.code, alert.rank, alert.step) for alert in alerts if alert.state == "raised"}
    found = []
    for alert in alerts:
        if alert.state == "raised" and alert not in standing:
            step = ended.get((alert.code, alert.rank, alert.since))
            if step != alert.step and (alert.code, alert.rank, step) in raised:
                continue  # it grew more severe, and is told as that
            until = "over when the run was resumed" if step is None else f"over at step {step}"
            note = _finding(alert)
            found.append(replace(note, severity="info", message=f"{note.message} ({until})"))
    return found


def _able(recorded: Collection[str]) -> list[Check]:
    return [each for each in run_checks() if any(name in recorded for name in each.needs)]


def _asked(findings: Sequence[Finding]) -> tuple[CheckRow, ...]:
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


def _without_pass(model: str, parameters: int, course: RunSummary) -> Report:
    """Nothing is known of the inside of the model."""
    gap = Gap(what="the inside of the model", why=f"no check is stored in the {course.source}")
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
