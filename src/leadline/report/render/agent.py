"""A report or a repair for a program that reads: one `key: value` per line with stable keys, in a few hundred tokens.

The keys of a report are `target`, `verdict`, `reason` and `not_asked`, then for each cause, the worst first, `cause`,
`where`, `file`, `measured`, `evidence` and `change`, and at the end `notes`, `fix`, `next`, `explain` and `recheck`. A
note that is a method in some programs and a mistake in others (tensors that no optimizer holds, rows that are mixed) is
a `doubt`, with its own `file` and `change`, if there is no cause: `fix` then finds out which of the two it is. `next`
is there for a program without a cause whose loop was not asked. A key without a value is left out. The keys of a repair
are `target`, `result`, `verdict`, `proof`, one `change` per change, one `advice` for what only the author can change,
`note`, and `recheck`.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from leadline.records import Finding
from leadline.records.repair import Outcome, RepairReport
from leadline.records.report import Report
from leadline.report.pages.report import checking_command, is_program, loop_commands, next_commands
from leadline.report.place import place_of
from leadline.report.verdict import TITLES, asked, rooted, sentence, title
from leadline.text import clean, number, plural, quoted

# Heuristic: three causes and four numbers each are a few hundred tokens; the JSON format holds all of them.
MAX_CAUSES = 3
MAX_EVIDENCE = 4
FIX = "leadline fix"
DOUBTFUL_NOTES = {"D901": "", "D914": "the optimizer", "D927": ""}
"""Notes that are a method or a mistake, which only a changed program can tell; what to change, if not their place."""

Line = tuple[str, str]


def render(reports: Sequence[Report]) -> str:
    """One block of lines per report, with a blank line in between."""
    return "\n".join(_block(_report_lines(each)) for each in reports)


def render_repair(repair: RepairReport) -> str:
    """What came of a repair, and what to change."""
    return _block(_repair_lines(repair))


def _block(lines: Iterator[Line]) -> str:
    return "".join(f"{key}: {clean(value)}\n" for key, value in lines if value)


def _report_lines(report: Report) -> Iterator[Line]:
    yield "target", report.target
    yield "verdict", title(report)
    yield "reason", sentence(report)
    yield "not_asked", asked(report).partition(" Not asked: ")[2].removesuffix(".")
    trees = rooted(report.findings)
    causes = [root for root, below in trees if any(each.severity != "info" for each in (root, *below))]
    for root in causes[:MAX_CAUSES]:
        yield from _cause_lines(report, root)
    others = [root for root, _ in trees if root not in causes[:MAX_CAUSES]]
    yield "notes", ", ".join(dict.fromkeys(f"{each.code} {each.name}" for each in others))
    commands = [each.line for each in next_commands(report)]
    fix = next((f"{each} --diff" for each in commands if each.startswith(FIX)), "")
    doubts = [each for each in others if each.code in DOUBTFUL_NOTES and not causes and is_program(report)]
    for note in doubts:
        yield from _doubt_lines(report, note)
        fix = fix or f"{FIX} {quoted(report.target)} --diff"
    yield "fix", fix
    yield "next", next((f"{each.line} --format agent" for each in loop_commands(report) if not causes), "")
    yield "explain", next((each for each in commands if each.startswith("leadline explain")), "")
    yield "recheck", f"{checking_command(report)} --format agent" if report.target else ""


def _cause_lines(report: Report, root: Finding) -> Iterator[Line]:
    source = place_of(report, root)
    known = ", in the baseline" if root.known else ""
    evidence = list(root.evidence.items())[:MAX_EVIDENCE]
    yield "cause", f"{root.code} {root.name} ({root.severity}{known})"
    yield "where", root.where
    yield "file", "" if source is None else f"{source.file}:{source.line}"
    yield "measured", root.message
    yield "evidence", ", ".join(f"{name}={number(value)}" for name, value in evidence)
    yield "change", root.action


def _doubt_lines(report: Report, note: Finding) -> Iterator[Line]:
    source = report.sources.get(DOUBTFUL_NOTES[note.code]) if DOUBTFUL_NOTES[note.code] else None
    source = source or place_of(report, note)
    yield "doubt", f"{note.code} {note.name}: {note.message}"
    yield "file", "" if source is None else f"{source.file}:{source.line}"
    yield "change", note.action


def _repair_lines(repair: RepairReport) -> Iterator[Line]:
    target = repair.before.target
    yield "target", target
    yield "result", repair.result.upper()
    yield "verdict", f"{TITLES[repair.verdict_before]} -> {TITLES[repair.verdict_after]}"
    trial = repair.trial
    if trial is not None and trial.untreated and trial.treated:
        steps = plural(len(trial.treated), "step")
        losses = f"{number(trial.untreated[-1])} -> {number(trial.treated[-1])}"
        yield "proof", f"loss after {steps}, untreated -> repaired: {losses}"
    for each in repair.outcomes:
        if each.kept:
            yield from (("change", words) for words in _changes(each))
        elif each.reach == "advice":
            yield "advice", f"{each.title}: {each.why}" if each.why else each.title
    yield from (("note", each) for each in repair.notes)
    yield "recheck", f"{checking_command(repair.before)} --format agent" if target else ""


def _changes(outcome: Outcome) -> Iterator[str]:
    yield from (change.says for change in outcome.source)
    if outcome.other_code or not outcome.source:
        yield outcome.title
