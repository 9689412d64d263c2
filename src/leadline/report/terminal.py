"""A report as a page for the terminal: at most 40 lines, unless everything is asked for."""

from __future__ import annotations

from io import StringIO
from typing import TYPE_CHECKING, Literal

from rich.console import Console
from rich.text import Text

from leadline.records import Course, Profile, Rehearsal, Update
from leadline.report.coverage import coverage_lines
from leadline.report.depth import axis_lines, block_summary, jump_lines
from leadline.report.findings import finding_lines, ignored_lines
from leadline.report.layout import ACCENT, QUIET, TONES, joined, labelled, wrapped
from leadline.report.look import Look
from leadline.report.margins import margin_lines
from leadline.report.table import block_lines
from leadline.report.text import clean, count, number, plural, quoted, share, signed
from leadline.report.theory import theory_lines
from leadline.report.verdict import TITLES, rooted, sentence, steps_of

if TYPE_CHECKING:
    from leadline.report.report import Report

MOST_LINES = 40
LEAST_WIDTH, MOST_WIDTH = 50, 120
HEADLINE_LINES = 3
VERDICT_TONES = {"trains": TONES["trains"], "poor": TONES["warning"], "fails": TONES["error"]}


def render(report: Report, look: Look) -> str:
    """The report as text; with colour, as text with ANSI codes."""
    page = StringIO()
    color: Literal["standard"] | None = "standard" if look.color else None
    console = Console(file=page, width=MOST_WIDTH, color_system=color, force_terminal=look.color)
    for line in lines(report, look):
        console.print(line, no_wrap=True, overflow="ignore", crop=False)
    return page.getvalue()


def lines(report: Report, look: Look) -> list[Text]:
    """The page, line by line. Names appear as they are: nothing in them is taken for markup."""
    width = min(max(look.width, LEAST_WIDTH), MOST_WIDTH)
    if look.detail == "verdict":
        return _headline(report, width)
    everything = look.detail == "everything"
    above = [
        _headline(report, width),
        _facts(report.profile, width) if report.course is None else _course(report, report.course, width),
        axis_lines(report.profile, width, all_streams=everything),
        jump_lines(report.profile.jumps, width),
        theory_lines(report.profile, width),
    ]
    below = [
        ignored_lines(report.ignored, width),
        coverage_lines(report.coverage, width, everything=everything),
        _next(report, width),
    ]
    if everything:
        above.append(block_lines(report.profile, width))
        below.insert(0, margin_lines(report.margins, width))
    taken = len(_paragraphs([*above, *below])) + 1
    room = None if everything else MOST_LINES - taken
    findings = finding_lines(report.findings, width, room=room)
    return _paragraphs([*above, findings, *below])


def _paragraphs(sections: list[list[Text]]) -> list[Text]:
    """All sections that have lines, with an empty line between them."""
    page: list[Text] = []
    for section in filter(None, sections):
        page += [Text(), *section] if page else section
    return page


def _headline(report: Report, width: int) -> list[Text]:
    title = (TITLES[report.verdict], VERDICT_TONES.get(report.verdict, "bold"))
    sure = "" if report.confidence is None else f" (confidence {100 * report.confidence:.0f} %)"
    return wrapped(Text.assemble(title, ": ", sentence(report), (sure, QUIET)), width, most=HEADLINE_LINES)


def _course(report: Report, course: Course, width: int) -> list[Text]:
    """Which steps a report of a run is about; then the facts of its last check, if there is one."""
    steps = f"{steps_of(course)} ({course.first_step} to {course.last_step})"
    run = labelled("run", joined(course.source, course.state, steps), width, most=1)
    return run + (_facts(report.profile, width) if report.coverage.ops else [])


def _facts(profile: Profile, width: int) -> list[Text]:
    frozen = profile.parameters - profile.trainable
    parameters = f"{plural(profile.parameters, 'parameter')}{f' ({count(frozen)} frozen)' if frozen else ''}"
    mode = "training mode" if profile.training else "evaluation mode"
    optimizer = "" if profile.optimizer is None else clean(profile.optimizer.name)
    return [
        *labelled("model", joined(clean(profile.model), parameters, mode), width, most=2),
        *labelled("depth", block_summary(profile.blocks), width, most=2),
        *labelled("loss", joined(number(profile.loss), optimizer), width, most=1),
        *_symmetry(profile, width),
        *_update(profile.update, width),
        *_rehearsal(profile.rehearsal, width),
    ]


def _symmetry(profile: Profile, width: int) -> list[Text]:
    """One line on what can be rescaled for free; nothing where nothing can."""
    found = profile.symmetry
    if found is None or not found.dimension:
        return []
    inert = f"decay inert on {plural(len(found.inert), 'tensor')}" if found.inert else ""
    saved = "" if found.free_share is None else f"{share(found.free_share)} of the penalty could be saved"
    return labelled(
        "symmetry", joined(plural(found.dimension, "free rescaling"), inert, saved), width, most=2
    )


def _update(update: Update | None, width: int) -> list[Text]:
    """What one step promises and gives, and where on the depth axis it happens; nothing where it was not measured."""
    if update is None:
        return []
    promised, measured = update.predicted_loss_change, update.measured_loss_change
    kept = "" if update.ratio is None else f"{share(update.ratio)} of the promise"
    least = "≥ " if update.safe_lr_is_bound else ""
    safe = "" if update.safe_lr is None else f"rate {number(update.lr)}, safe {least}{number(update.safe_lr)}"
    shares = [share(each.share) for each in update.ranges if each.share is not None]
    where = f"by quarter of depth: {', '.join(shares)}" if shares else ""
    line = joined(f"loss {signed(promised)} promised, {signed(measured)} measured", kept, safe)
    return [
        *labelled("one step", line, width, most=2),
        *(labelled("", where, width, most=1) if where else []),
    ]


def _rehearsal(seen: Rehearsal | None, width: int) -> list[Text]:
    """What a few steps on the batch did to its loss; nothing where none were made."""
    if seen is None:
        return []
    least = "" if seen.constant is None else f"a constant output has {number(seen.constant)}"
    told = f"{plural(seen.steps, 'step')} on this batch: loss {number(seen.losses[0])} to {number(seen.losses[-1])}"
    return labelled("rehearsal", joined(told, least), width, most=2)


def _next(report: Report, width: int) -> list[Text]:
    """The command that explains the first root, and the one that looks for a fix."""
    codes = [clean(root.code) for root, _ in rooted(report.findings)]
    if codes:
        rows = [(f"leadline explain {codes[0]}", "why, and when it is wrong")]
        if report.target and report.course is None and not report.profile.predicted:
            rows.append((f"leadline fix {quoted(report.target)}", "a fix, proved"))
    elif report.verdict == "undecided":
        rows = [("leadline check TARGET -v", "all that was not seen")]
    else:
        rows = [("leadline rules", "what was looked for")]
    told = [Text.assemble((command, f"bold {ACCENT}"), f"   {why}") for command, why in rows]
    return [
        line
        for place, each in enumerate(told)
        for line in labelled("" if place else "next", each, width, most=1)
    ]
