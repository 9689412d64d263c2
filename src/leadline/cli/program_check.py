"""The check of a program: its first step, and with `--steps` the loop around it."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from dataclasses import replace as copy_with
from functools import partial
from typing import TYPE_CHECKING, Any

from msgspec.structs import replace

from leadline.cli.program_target import FollowedProgram, follow_program
from leadline.records import Alert, Finding, Profile, Source, Verdict, severity_rank
from leadline.records.report import Report
from leadline.report.verdict import sentence
from leadline.runner.program import Program

if TYPE_CHECKING:
    from leadline.case import Case
    from leadline.runner.loop_places import LoopLines

LOOP_CODES = "T"
"""First letter of the run checks: a watch also repeats model checks, which the check itself has made."""
LINE_OF_FINDING = {"the gradients": "the step", "the data": "the loss"}
"""What a finding of the loop is about, and the call whose line it gets."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckSettings:
    """What is asked of a program."""

    steps: int = 0
    """Steps of its loop that are followed; 0: only the first is checked."""
    rehearse: bool = True
    probes: bool = True
    drop: Collection[str] = frozenset()
    """Codes of checks whose findings are ignored."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ProgramCheck:
    """The report of a program, and what a change of its source needs to know."""

    report: Report
    lines: Mapping[str, tuple[Source, ...]]
    """The lines from which its loop is driven, as in `leadline.runner.loop_places`."""
    untrained: tuple[str, ...] = ()
    """Parameters with a gradient that no optimizer holds, if their values are those of an initializer."""
    seed: int | None = None
    """Torch's seed when the program began."""


def check_program(program: Program, settings: CheckSettings, seed: int | None = None) -> ProgramCheck:
    """Check the first step of a program, and follow as many steps as the settings say."""
    followed = follow_program(program, partial(check_step, settings=settings), settings.steps, seed)
    # Imported here because it imports torch.
    from leadline.checks._diagnosis import ignore_checks

    checked = followed.result
    report = with_loop(replace(checked.report, target=program.target), followed)
    return copy_with(checked, report=ignore_checks(report, settings.drop), seed=followed.seed)


def check_step(case: Case, lines: LoopLines, settings: CheckSettings) -> ProgramCheck:
    """Check the Case of a program's step, which these lines led to."""
    # Imported here because the program may set what torch reads when it is imported.
    from leadline.checks._diagnosis import check_case

    report = check_case(case, rehearse=settings.rehearse, probes=settings.probes)
    return ProgramCheck(
        report=_with_lines(report, lines),
        lines=dict(lines),
        untrained=untrained_parameters(case, report.profile),
    )


def _with_lines(report: Report, lines: Mapping[str, tuple[Source, ...]]) -> Report:
    """The report with the places of the loss and the optimizer, and of a model without a class of the user's."""
    places = {what: lines[what][0] for what in ("the loss", "the optimizer") if what in lines}
    model = {"": lines["the model"][0]} if "the model" in lines else {}
    return replace(report, sources={**model, **report.sources, **places})


def with_loop(report: Report, followed: FollowedProgram[Any]) -> Report:
    """The report with what the loop was seen to do wrong, as findings with their line."""
    from leadline.monitor.past_run import finding_of, run_check_rows  # slow to import, and --help needs none

    if not followed.steps:
        return report
    alerts = [each for each in followed.alerts if each.code.startswith(LOOP_CODES)]
    found = [_placed(finding_of(each), each, followed.lines) for each in alerts]
    findings = sorted((*found, *report.findings), key=lambda each: -severity_rank(each.severity))
    judged = replace(
        report,
        findings=tuple(findings),
        rules=(*run_check_rows(found), *report.rules),
        verdict=_verdict(report.verdict, found),
        confidence=None if found else report.confidence,
        followed_steps=followed.steps,
    )
    return replace(judged, reason=sentence(judged))


def _placed(finding: Finding, alert: Alert, lines: Mapping[str, tuple[Source, ...]]) -> Finding:
    places = lines.get(LINE_OF_FINDING.get(alert.where, alert.where), ())
    return replace(finding, source=places[0]) if places else finding


def _verdict(verdict: Verdict, found: list[Finding]) -> Verdict:
    """The verdict of the first step, or a worse one that the loop calls for."""
    severities = {each.severity for each in found}
    if "error" in severities:
        return "fails"
    return "poor" if "warning" in severities and verdict == "trains" else verdict


def untrained_parameters(case: Case, profile: Profile) -> tuple[str, ...]:
    """The parameters with a gradient that no optimizer holds, if their matrices are as an initializer leaves them."""
    from leadline.readings.wiring.frozen import (
        MIN_ENTRIES,
        MIN_RANDOM_SHARE,
        MIN_SIDE,
        is_random,
    )  # imports torch
    from leadline.tracer.inputs import unwrap

    rows = () if profile.ledger is None else profile.ledger.rows
    missing = [
        row.name for row in rows if row.trainable and row.gradient == "finite" and row.in_optimizer == 0
    ]
    tensors = dict(unwrap(case.model).named_parameters(remove_duplicate=False))
    matrices = [tensors[name] for name in missing if name in tensors and tensors[name].dim() > 1]
    judged = [
        each for each in matrices if each.numel() >= MIN_ENTRIES and min(each.flatten(1).shape) >= MIN_SIDE
    ]
    random = [each for each in judged if is_random(each)]
    return tuple(missing) if random and len(random) >= MIN_RANDOM_SHARE * len(judged) else ()
