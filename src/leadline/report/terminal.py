"""A report as a page for the terminal: at most 40 lines, unless everything is requested."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from io import StringIO
from itertools import accumulate
from typing import TYPE_CHECKING, Literal

from rich.console import Console
from rich.text import Text

from leadline.records import (
    Agreement,
    Coverage,
    DepthBlock,
    DepthScale,
    Finding,
    Gap,
    Margin,
    Parting,
    Profile,
    Rehearsal,
    RunSummary,
    Update,
)
from leadline.report.depth import axis_lines, block_summary, jump_lines
from leadline.report.layout import ACCENT, LABEL, QUIET, TONES, Look, joined, labelled, shorten, wrapped
from leadline.report.verdict import TITLES, rooted, sentence, steps_of
from leadline.text import clean, count, factor, number, plural, quoted, share, signed

if TYPE_CHECKING:
    from leadline.records.report import Report


GAPS_SHOWN = 2
GAP_LINES = 2
PLACES_SHOWN = 2


def coverage_lines(coverage: Coverage, width: int, *, everything: bool = False) -> list[Text]:
    """Counts of what was seen, then each gap: what, why, how many places and the first of them."""
    lines = labelled("coverage", _counts(coverage), width)
    shown, most = (coverage.gaps, None) if everything else (coverage.gaps[:GAPS_SHOWN], GAP_LINES)
    for gap in shown:
        lines += labelled("  gap", _describe(gap, everything=everything), width, most=most)
    if len(shown) < len(coverage.gaps):
        more = f"and {plural(len(coverage.gaps) - len(shown), 'further gap')}: -v shows all"
        lines += labelled("", Text(more, style=QUIET), width)
    return lines


def _counts(coverage: Coverage) -> str:
    if not coverage.ops:
        return "no pass was traced"
    values = f"{count(coverage.forward)}/{count(coverage.values)} values measured forward"
    return joined(
        f"{count(coverage.ops_known)}/{count(coverage.ops)} ops known",
        f"{values}, {count(coverage.backward)} backward",
    )


def _describe(gap: Gap, *, everything: bool) -> str:
    """What and why first: names may be long, and what is cut is cut at the end."""
    amount = f" in {plural(len(gap.where), 'place')}" if gap.where else ""
    return f"{clean(gap.what)}{amount}: {clean(gap.why)}{_places(gap.where, everything=everything)}"


def _places(where: Sequence[str], *, everything: bool) -> str:
    names = where if everything else where[:PLACES_SHOWN]
    rest = ", …" if len(names) < len(where) else ""
    return f" ({', '.join(map(clean, names))}{rest})" if names else ""


# The findings of a report, the worst first, in as many lines as there are.

MESSAGE_LINES = 4
FIRST_LINES = 6  # of the first finding: its message ends with the cause, which is what one came for


def finding_lines(findings: Sequence[Finding], width: int, *, room: int | None = None) -> list[Text]:
    """A summary line, then each root with its message and what it leads to; with `room`, as many as fit."""
    entries = [
        _entry(root, below, width, _most(room, MESSAGE_LINES if place else FIRST_LINES))
        for place, (root, below) in enumerate(rooted(findings))
    ]
    shown = len(entries) if room is None else _fitting([len(entry) for entry in entries], room - 1)
    lines = labelled("findings", _summary(findings), width)
    lines += [line for entry in entries[:shown] for line in entry]
    if shown < len(entries):
        more = f"and {plural(len(entries) - shown, 'further finding')}: -v shows all"
        lines += labelled("", Text(more, style=QUIET), width)
    return lines


def _most(room: int | None, lines: int) -> int | None:
    return None if room is None else min(lines, max(room - 3, 1))


def ignored_lines(ignored: Sequence[Finding], width: int) -> list[Text]:
    """What was found and does not count, because the user said so."""
    found = Counter(f"{finding.code} {finding.name}" for finding in ignored)
    rules = ", ".join(
        f"{clean(rule)}{f' ({amount})' if amount > 1 else ''}" for rule, amount in found.items()
    )
    return labelled("ignored", rules, width, most=2) if ignored else []


def _fitting(lengths: list[int], room: int) -> int:
    """How many entries fit, and a line that counts the rest; the first is always shown."""
    ends = list(accumulate(lengths))
    if not ends or ends[-1] <= room:
        return len(ends)
    return max(sum(end < room for end in ends), 1)


def _summary(findings: Sequence[Finding]) -> str:
    amounts = Counter(finding.severity for finding in findings)
    kinds = ((amounts["error"], "error"), (amounts["warning"], "warning"), (amounts["info"], "note"))
    return ", ".join(plural(amount, noun) for amount, noun in kinds if amount) or "none"


def _entry(finding: Finding, below: Sequence[Finding], width: int, most: int | None) -> list[Text]:
    severity = (finding.severity.ljust(LABEL - 2), TONES[finding.severity])
    rule = (clean(f"{finding.code} {finding.name}"), "bold")
    known = (" (known)", QUIET) if finding.known else ""
    title = Text.assemble("  ", severity, rule, known, "  ", clean(finding.where))
    lines = [*wrapped(title, width, most=1), *labelled("", clean(finding.message), width, most=most)]
    return lines + (_consequences(below, width, detailed=most is None) if below else [])


def _consequences(below: Sequence[Finding], width: int, *, detailed: bool) -> list[Text]:
    """What a root leads to: one line of names, or all of their messages."""
    if detailed:
        told = [f"leads to {each.code} {each.name}, {each.where}: {each.message}" for each in below]
        return [line for text in told for line in labelled("", Text(clean(text)), width)]
    names = ", ".join(f"{each.code} {each.name}" for each in below)
    return labelled("", Text(f"leads to {clean(names)}", style=QUIET), width, most=2)


# How far a network is from trouble, line by line.

TWICE = 2.0  # limits passed by more are told as a multiple, those within as a percentage


def margin_lines(margins: Sequence[Margin], width: int) -> list[Text]:
    """A line for each quantity: what was measured, its limit, and how much of the way there is used up."""
    lines: list[Text] = []
    for place, each in enumerate(margins):
        used = used_of(each)
        told = f"{clean(each.quantity)} {number(each.value)}, {limit_of(each)} ({used}, {clean(each.code)})"
        lines += labelled("" if place else "margins", told, width)
    return lines


def limit_of(margin: Margin) -> str:
    return f"{'at most' if margin.side == 'below' else 'at least'} {number(margin.limit)}"


def used_of(margin: Margin) -> str:
    """The share of the way to the limit, in words."""
    used = margin.used
    if used is None:
        return "far from it" if margin.side == "below" else "not there"
    return f"{100 * used:.0f} %" if used < TWICE else f"{number(used)} times the limit"


# Every block of the depth axis in a table, for those who ask for everything.

INDEX, NUMBER, KIND = 6, 11, 14
LEAST_NAME = 12  # cells a name keeps before theory gets its columns


def block_lines(profile: Profile, width: int) -> list[Text]:
    """One line a block in order of depth: number, name, forward and backward second moment, what kind it is."""
    room = width - INDEX - 2 * NUMBER - KIND - 2
    both = not profile.predicted and any(block.forward_ms_predicted for block in profile.blocks)
    beside = both and room - 2 * NUMBER >= LEAST_NAME
    titles = ("forward", "theory", "backward", "theory") if beside else ("forward", "backward")
    room -= 2 * NUMBER if beside else 0
    header = f"{'block':<{INDEX}}{'name':<{room}}{''.join(f'{each:>{NUMBER}}' for each in titles)}  {'kind':<{KIND}}"
    lines = [Text(header.rstrip(), style=QUIET)]
    return lines + [
        _line(place, block, room, beside=beside) for place, block in enumerate(profile.shown.blocks)
    ]


def _line(place: int, block: DepthBlock, room: int, *, beside: bool) -> Text:
    """Predictions, where there is room for them, stand right of what was measured."""
    name = Text(shorten(clean(block.name), room - 1))
    name.pad_right(room - name.cell_len)
    shown = [block.forward_ms, block.forward_ms_predicted, block.backward_ms, block.backward_ms_predicted]
    numbers = "".join(f"{number(each):>{NUMBER}}" for each in (shown if beside else shown[::2]))
    return Text.assemble((f"{place:<{INDEX}}", QUIET), name, numbers, (f"  {_kind(block)}", QUIET))


def _kind(block: DepthBlock) -> str:
    words = f"residual {block.residual.placement}" if block.residual else "plain"
    return shorten(f"{words}{' bypassed' if block.bypassed else ''}", KIND)


# Theory beside measurement: how well they agree, where they part first, and how deep such a stack can be.

DEEPEST = 1e4  # layers; beyond, "no limit" says as much


def theory_lines(profile: Profile, width: int) -> list[Text]:
    """One line of agreement, one where theory and measurement part first, if they do; none without a prediction."""
    found = profile.theory
    if found is None or not found.ops:
        return []
    said = joined(
        f"{count(found.with_rule)}/{count(found.ops)} ops predicted",
        _off("forward", found.forward),
        _off("backward", found.backward),
        _scale(profile.depth_scale),
    )
    lines = labelled("theory", said, width, most=2)
    parting = found.forward_parting or found.backward_parting
    return lines + (labelled("", _parts(parting), width, most=2) if parting is not None else [])


def _off(direction: str, agreement: Agreement | None) -> str:
    """The median factor between prediction and measurement, as a percentage while it is less than double."""
    if agreement is None:
        return ""
    off = math.exp(agreement.median)
    return f"{direction} within {100 * (off - 1):.0f} %" if off < 2 else f"{direction} off {factor(off)}"


def _scale(scale: DepthScale | None) -> str:
    if scale is None:
        return ""
    deep = (
        f", to about {plural(round(scale.trainable_depth), 'block')}"
        if scale.trainable_depth < DEEPEST
        else ""
    )
    return f"{scale.phase}, χ {number(scale.chi)}{deep}"


def _parts(parting: Parting) -> str:
    where = f"{clean(parting.name)}{f' in {clean(parting.module)}' if parting.module else ''}"
    size = f"measured {factor(parting.factor)} of the prediction"
    return f"{parting.direction}, parts first at {where}: {size}; it assumes that {clean(parting.assumption)}"


# A report as a page for the terminal: at most 40 lines, unless everything is asked for.

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


def _course(report: Report, course: RunSummary, width: int) -> list[Text]:
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
