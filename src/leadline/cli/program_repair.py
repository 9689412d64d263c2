"""The repair of a program: a change of its own source that a finding calls for, or else a search for edits.

A change of the source is proved by running the changed program as the first was run, from the same seed, up to its
first step or for as many steps: the finding must be gone, and nothing worse than a note may be new. A note is acted on
only if the trial steps also end lower. The file itself is not written.
"""

from __future__ import annotations

import sys
from collections.abc import Collection, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from time import perf_counter
from typing import TYPE_CHECKING

from leadline import __version__
from leadline.cli.options import Progress
from leadline.cli.program_check import (
    LOOP_CODES,
    CheckSettings,
    ProgramCheck,
    check_program,
    check_step,
    with_loop,
)
from leadline.cli.program_target import follow_program
from leadline.fixes import all_fixes
from leadline.records import Finding, Outcome, Recipe, severity_rank
from leadline.records.repair import RepairReport
from leadline.records.report import Report
from leadline.report.place import place_of
from leadline.report.verdict import rooted
from leadline.runner.program import Program
from leadline.text import number, plural
from leadline.tracer.sources import is_user_file, repository_root

if TYPE_CHECKING:
    from leadline.case import Case
    from leadline.fixes._engine.program_edits import ProgramEdit
    from leadline.fixes._engine.repair import Repair
    from leadline.runner.loop_places import LoopLines

LOWER_FOR_WRONG_REASONS = ("D901",)
"""Notes about samples that see each other, which may lower the loss of a batch: it is not compared."""
PROOF = "the change was proved by running the changed program; your file is as it was"
NAME = "program-edit"
"""What outcomes call a change of the program's source, where others have the name of a fix."""


@dataclass(frozen=True, slots=True, kw_only=True)
class OpenRepair:
    """A program that was checked, with its model, and not searched for edits of that."""

    check: ProgramCheck
    case: Case


def repair_program(
    program: Program, budget: str | None, *, steps: int = 0, progress: Progress | None = None
) -> Repair:
    """Run a program up to its first step, or for some steps, and repair its source or what it trains."""
    settings = CheckSettings(steps=steps)
    path, known, start = Path(program.target).resolve(), frozenset(sys.modules), perf_counter()

    def search(case: Case, report: Report | None = None) -> Repair:
        from leadline.fixes._engine.repair import repair  # the program has imported torch

        return repair(case, budget, fixes=all_fixes(), progress=progress, files=(path,), report=report)

    def work(case: Case, lines: LoopLines) -> OpenRepair | Repair:
        checked = check_step(case, lines, settings)
        if steps or list(find_edits(path, checked)):
            return OpenRepair(check=checked, case=case)
        return search(case, checked.report)

    followed = follow_program(program, work, steps)
    if not isinstance(followed.result, OpenRepair):
        return followed.result
    checked = replace(followed.result.check, seed=followed.seed)
    if steps:
        checked = replace(checked, report=with_loop(checked.report, followed))
    outcomes, after = [], None
    for edit in find_edits(path, checked):
        forget_modules(known)
        outcome, after = prove(edit, checked, program, settings)
        outcomes.append(outcome)
        if after is not None:
            break
    is_loop = any(
        each.code.startswith(LOOP_CODES) and each.severity != "info" for each in checked.report.findings
    )
    if after is None and not is_loop:
        forget_modules(known)
        return follow_program(program, lambda case, _: search(case), 0, checked.seed).result
    if after is None:
        outcomes += advice(checked.report)
    from leadline.fixes._engine.repair import Repair  # imports torch

    case = followed.result.case
    report = RepairReport(
        leadline=__version__,
        before=checked.report,
        after=after,
        outcomes=tuple(outcomes),
        recipe=Recipe(leadline=__version__, model=checked.report.profile.model),
        notes=(PROOF,) if after is not None else (),
        seconds=perf_counter() - start,
    )
    return Repair(report=report, model=case.model, optimizer=case.optimizer)


def find_edits(path: Path, checked: ProgramCheck) -> Iterator[ProgramEdit]:
    """The changes of the program's file that its findings call for."""
    from leadline.fixes._engine.program_edits import ProgramSource, find_program_edits  # imports torch
    from leadline.fixes._engine.source_files import read_source

    file = read_source(path, repository_root().resolve())
    if file is not None:
        source = ProgramSource(
            file=file, report=checked.report, lines=checked.lines, untrained=checked.untrained
        )
        yield from find_program_edits(source)


def prove(
    edit: ProgramEdit, before: ProgramCheck, program: Program, settings: CheckSettings
) -> tuple[Outcome, Report | None]:
    """Run the changed program; the report of it is None if it objects to the change."""
    from leadline.fixes._engine.source_edits import apply_source_edits  # imports torch

    text = Path(program.target).read_text(encoding="utf-8")
    changed = replace(program, text=apply_source_edits(text, [edit.change]))
    start = perf_counter()
    try:
        after = check_program(changed, settings, before.seed).report
        objection = object_to(edit.finding, before.report, after)
    except Exception as error:  # the program does not raise, so the change is the cause
        after, objection = None, f"with it the program raises {type(error).__name__}: {error}"
    codes = [
        {each.code for each in report.findings} for report in (before.report, after) if report is not None
    ]
    outcome = Outcome(
        fix=NAME,
        title=edit.change.says,
        reach="recipe",
        answers=(edit.finding.code,),
        state="refuted" if objection else "verified",
        why=objection or _proof(edit.finding, before.report, after, settings.steps),
        source=() if objection else (edit.change,),
        verdict=None if after is None else after.verdict,
        gone=tuple(sorted(codes[0] - codes[-1])),
        came=tuple(sorted(codes[-1] - codes[0])),
        kept=not objection,
        seconds=perf_counter() - start,
    )
    return outcome, None if objection else after


def object_to(finding: Finding, before: Report, after: Report) -> str:
    """Why a change is not recommended, from the reports of the program without and with it; "" if it is."""
    known = {each.code for each in before.findings if each.severity != "info"}
    still = [each for each in after.findings if each.code == finding.code]
    if any(severity_rank(each.severity) >= severity_rank(finding.severity) for each in still):
        return f"{finding.code} {finding.name} is still found with it"
    new = [each for each in after.findings if each.severity != "info" and each.code not in known]
    if new:
        return f"{new[0].code} {new[0].name} is found with it: {new[0].message}"
    if finding.severity == "info" and finding.code not in LOWER_FOR_WRONG_REASONS:
        return _lack_of_gain(before, after)
    return ""


def _lack_of_gain(before: Report, after: Report) -> str:
    """Why the trial steps do not speak for the change: after as many steps the loss is not lower with it."""
    from leadline.fixes._engine.comparison import MIN_RELATIVE_GAIN  # imports torch

    losses = _last_losses(before, after)
    if losses is None:
        return "a note is no reason to act without trial steps"
    untreated, treated = losses
    if treated < (1 - MIN_RELATIVE_GAIN) * untreated:
        return ""
    return f"the trial steps do not end lower with it: loss {number(treated)}, {number(untreated)} without it"


def _last_losses(before: Report, after: Report) -> tuple[float, float] | None:
    """The losses without and with a change after the same number of trial steps; None if there were none."""
    one, other = before.profile.rehearsal, after.profile.rehearsal
    if one is None or other is None or not one.losses or not other.losses:
        return None
    last = min(len(one.losses), len(other.losses)) - 1
    return one.losses[last], other.losses[last]


def _proof(finding: Finding, before: Report, after: Report | None, steps: int) -> str:
    length = f"for {plural(steps, 'step')}" if steps else "up to its first step"
    words = f"the changed program was run {length}: {finding.code} {finding.name} is gone"
    losses = _last_losses(before, after) if after is not None and finding.severity == "info" else None
    if losses is None:
        return words
    return f"{words}, and trial steps end at a loss of {number(losses[1])}, {number(losses[0])} without it"


def advice(report: Report) -> list[Outcome]:
    """What only the author can change: the actions of the findings, with file and line."""
    roots = [root for root, _ in rooted(report.findings) if root.severity != "info" and root.action]
    return [
        Outcome(
            fix=NAME,
            title=root.action.removesuffix("."),
            reach="advice",
            answers=(root.code,),
            state="not run",
            why=f"{root.code} {root.name}{_place(report, root)}",
        )
        for root in roots
    ]


def _place(report: Report, root: Finding) -> str:
    source = place_of(report, root)
    return "" if source is None else f" in {source.file}:{source.line}"


def forget_modules(known: Collection[str]) -> None:
    """Let the next run of the program import its own modules again, as a new process would."""
    for name, module in list(sys.modules.items()):
        if name not in known and is_user_file(getattr(module, "__file__", None) or ""):
            del sys.modules[name]
