"""The page of a report: one function per section, which decides once what every medium shows of it."""

from __future__ import annotations

import math
import shlex
from collections.abc import Sequence
from typing import Literal

from leadline.records import Finding, Forecast, Jump, Profile, RunSummary
from leadline.records.report import Report
from leadline.report.depth import block_summary, trainable_depth
from leadline.report.names import shorten_name
from leadline.report.page import (
    Command,
    Commands,
    Details,
    Element,
    Fact,
    FactList,
    FindingItem,
    Findings,
    Page,
    Paragraph,
    Profiles,
    Section,
    Step,
    Steps,
    Title,
    facts,
)
from leadline.report.pages.chain_rule import chain_rule_section
from leadline.report.pages.coverage import coverage_section
from leadline.report.pages.limits import MAX_DEPTH_NAMED, limits_section, margins_section
from leadline.report.pages.profiles import departure, profiles_of
from leadline.report.pages.signal import block_table, signal_elements
from leadline.report.pages.step import outlook_section, rate_advice, step_section
from leadline.report.pages.symmetry import symmetry_section
from leadline.report.pages.wiring import (
    attention_section,
    experts_section,
    ledger_section,
    parts_section,
    question_section,
)
from leadline.report.place import place_of
from leadline.report.verdict import asked, by_severity, rooted, sentence, steps_of, title
from leadline.text import count, factor, growth, joined, layer_label, number, plural, quoted

# Heuristic: large changes across one block that are named in one sentence.
JUMPS_SHOWN = 3
# Heuristic: checks that the commands at the end of a page explain, one line each.
# Heuristic: twice the window of 32 steps in which run checks count what a loop does wrong.
FOLLOWED_STEPS = 64
PROGRAM_SUFFIX = ".py"
CHECKS_EXPLAINED = 3
# Findings about the step of the optimizer, whose actions name a learning rate.
UPDATE_CODES = "U"
# Heuristic: half of an 80-column terminal for the name of a block in a line of text.
BLOCK_CHARACTERS = 40
# Derived: no forecast is certain. Of the problems of the atlas with a stated probability above 0.95, 97 % trained.
MAX_STATED_PERCENT = 99


def report_page(report: Report, forecast: Forecast | None = None) -> Page:
    """The page of a report; `forecast`: how its family of models changes with depth."""
    return page_with(
        report,
        steps=steps_to_take(report),
        profiles=profiles_of(report.profile, report.findings, report.margins),
        forecast=forecast,
    )


def page_with(
    report: Report,
    *,
    steps: Sequence[Step],
    profiles: Profiles,
    more: Sequence[Section] = (),
    forecast: Forecast | None = None,
) -> Page:
    """The page of a report with these steps to take and charts; `more`: sections that follow what to do."""
    profile = report.profile
    sure = report.confidence
    return Page(
        subject=report.target or profile.model,
        titles=(Title(words=title(report), tone=report.verdict),),
        sentence=sentence(report),
        note="" if sure is None else f"(confidence {_percent(sure)})",
        asked=asked(report),
        facts=_facts(report),
        sections=(
            _what_to_do(report, steps),
            *more,
            _depth_section(profile, profiles),
            _theory_section(report),
            chain_rule_section(profile),
            step_section(profile.update, profile.rehearsal),
            outlook_section(report.outlook),
            question_section(profile),
            ledger_section(profile.ledger),
            attention_section(profile),
            experts_section(profile.parts),
            parts_section(profile.parts),
            symmetry_section(profile.symmetry),
            _findings_section(report),
            limits_section(report, forecast),
            margins_section(report.margins),
            coverage_section(report),
        ),
        version=report.leadline,
        record=report,
        reproduce=reproducing_code(report),
    )


def _facts(report: Report) -> FactList:
    profile, sure = report.profile, report.confidence
    rows = _course_facts(report.course)
    if report.course is None or report.coverage.ops:
        rows += _model_facts(profile)
    certainty = "" if sure is None else f"{_percent(sure)}, for what was asked"
    return facts(*rows, Fact(label="Confidence", value=certainty))


def _percent(sure: float) -> str:
    """Return a probability in percent; a damaged record may hold any number in its place."""
    return f"{round(min(max(0.0, 100 * sure), MAX_STATED_PERCENT))} %"


def _course_facts(course: RunSummary | None) -> list[Fact]:
    """Which steps the report of a run is about."""
    if course is None:
        return []
    losses = f"{number(course.first_loss)} to {number(course.last_loss)}"
    return [
        Fact(label="Training", value=joined(course.source, course.state), line="run"),
        Fact(
            label="Steps",
            value=f"{steps_of(course)} ({course.first_step} to {course.last_step})",
            line="run",
        ),
        Fact(label="Loss of the run", value=losses, phrase=f"loss {losses}", line="run"),
    ]


def _model_facts(profile: Profile) -> list[Fact]:
    frozen = profile.parameters - profile.trainable
    frozen_words = f" ({count(frozen)} frozen)" if frozen else ""
    mode = "training" if profile.training else "evaluation"
    loss = number(profile.loss)
    return [
        Fact(label="Model", value=profile.model, line="model", is_name=True),
        Fact(
            label="Parameters",
            value=f"{count(profile.parameters)}{frozen_words}",
            phrase=f"{plural(profile.parameters, 'parameter')}{frozen_words}",
            line="model",
        ),
        Fact(label="Depth", value=block_summary(profile.blocks), line="depth"),
        Fact(label="Loss", value=loss, phrase=f"loss {loss}", line="loss"),
        Fact(label="Optimizer", value=_optimizer(profile), line="loss"),
        Fact(label="Mode", value=mode, phrase=f"{mode} mode", line="model"),
    ]


def _optimizer(profile: Profile) -> str:
    if profile.optimizer is None:
        return ""
    rates = {group.lr for group in profile.optimizer.groups if group.lr is not None}
    rate = f", rate {' to '.join(map(number, sorted({min(rates), max(rates)})))}" if rates else ""
    return f"{profile.optimizer.name}{rate}"


# What to do.


def _what_to_do(report: Report, steps: Sequence[Step]) -> Section:
    undecided = report.verdict == "undecided"
    nothing = (
        "First look at what could not be checked: it is listed below."
        if undecided
        else "Nothing: no check found more than a note."
    )
    rows = tuple(next_commands(report))
    commands = (Commands(rows=rows),) if rows else ()
    advice: Element = Steps(items=tuple(steps)) if steps else Paragraph(words=nothing)
    return Section(
        key="do",
        title="What to do",
        brief=commands,
        body=(advice, *commands),
        is_last_in_terminal=True,
    )


def steps_to_take(report: Report) -> list[Step]:
    """The action of each root finding that is worse than a note, and a lower rate if one step needs it.

    A model that trains needs no lower rate, and a finding about the step says its own.
    """
    roots = [root for root, _ in rooted(report.findings) if root.severity != "info" and not root.known]
    steps = [_step(report, root) for root in roots]
    if report.verdict == "trains" or any(root.code.startswith(UPDATE_CODES) for root in roots):
        return steps
    return steps + rate_advice(report.profile.update)


def _step(report: Report, root: Finding) -> Step:
    """What the finding says to do; a finding without an action is left to the search for a fix."""
    check = f"{root.code} {root.name}"
    if root.action:
        return Step(title=root.action, why=_reason_to_act(report, root))
    if _can_be_fixed(report):
        return Step(title=f"Search for a fix of {check}: `leadline fix {quoted(report.target)}`")
    return Step(title=f"Read about {check}: `leadline explain {root.code}`")


def _reason_to_act(report: Report, root: Finding) -> str:
    """Which finding the action answers, and where; what was measured stands with the finding."""
    source = place_of(report, root)
    place = "" if source is None else f" ({source.file}:{source.line})"
    return f"{root.code} {root.name}, {layer_label(root.where)}{place}"


def _can_be_fixed(report: Report) -> bool:
    """`leadline fix` needs a target that it can load and train."""
    return bool(report.target) and report.course is None and not report.profile.predicted


def next_commands(report: Report) -> list[Command]:
    """The commands that fit the verdict: a fix and explanations if something is wrong, otherwise the details."""
    roots = [root for root, below in rooted(report.findings) if not _is_note(root, below)]
    codes = list(dict.fromkeys(root.code for root in roots))[:CHECKS_EXPLAINED]
    if not codes:
        purpose = (
            "lists everything that was not checked"
            if report.verdict == "undecided"
            else "shows every measurement and note"
        )
        details = [Command(line=f"{checking_command(report)} -v", purpose=purpose)] if report.target else []
        return [*loop_commands(report), *details]
    commands = [
        Command(line=f"leadline explain {shlex.quote(code)}", purpose="explains this finding")
        for code in codes
    ]
    if _can_be_fixed(report):
        line = f"leadline fix {quoted(report.target)}{_followed(report)}"
        fix = Command(line=line, purpose="finds a fix and proves it")
        return [fix, *commands]
    return commands


def checking_command(report: Report) -> str:
    """The command that checks the same target again."""
    flags = " --no-weights" if report.profile.predicted and not report.target.endswith(".json") else ""
    return f"leadline check {quoted(report.target)}{flags}{_followed(report)}"


def _followed(report: Report) -> str:
    return f" --steps {report.followed_steps}" if report.followed_steps else ""


def is_program(report: Report) -> bool:
    """Whether the target is a whole program, and not a factory in it."""
    return report.target.endswith(PROGRAM_SUFFIX)


def loop_commands(report: Report) -> list[Command]:
    """The command that judges the loop of a program whose first step was checked; none for other targets."""
    if not is_program(report) or report.followed_steps:
        return []
    line = f"{checking_command(report)} --steps {FOLLOWED_STEPS}"
    return [Command(line=line, purpose=f"follows its loop for {FOLLOWED_STEPS} steps")]


def reproducing_code(report: Report) -> str:
    """The command or the code that makes the HTML page again."""
    if report.target:
        return f"{checking_command(report)} --html report.html"
    if report.profile.predicted:
        return 'report = leadline.predict(build)\nreport.to_html("report.html")'
    arguments = "model, inputs, targets, loss" + (", optimizer" if report.profile.optimizer else "")
    return f'report = leadline.check({arguments})\nreport.to_html("report.html")'


# The signal over depth.


def _depth_section(profile: Profile, profiles: Profiles) -> Section:
    signal = signal_elements(profile)
    jumps = [Fact(label="Jump", value=_jump(each), line="jumps") for each in profile.jumps[:JUMPS_SHOWN]]
    blocks = (block_table(profile),) if profile.blocks else ()
    return Section(
        key="depth",
        title="Depth profiles",
        lead=f"One place per block, from the input to the loss, in order of execution. {_legend(profile, profiles)}",
        brief=(*signal, *_folded("Jumps", facts(*jumps))),
        verbose=(*signal, *blocks, facts(*jumps)),
        body=(profiles,) if profiles.charts else (),
    )


def _folded(title: str, element: FactList) -> tuple[Details, ...]:
    """Facts that a page shows on demand; nothing if there are none."""
    return (Details(title=title, items=(element,)),) if element.rows else ()


def _jump(jump: Jump) -> str:
    block = layer_label(shorten_name(jump.block, BLOCK_CHARACTERS))
    return f"{factor(jump.factor)} {jump.direction} across {block}"


def _legend(profile: Profile, profiles: Profiles) -> str:
    labels = [series.label for series in profiles.charts[0].series] if profiles.charts else []
    if "after" in labels:
        return "Before and after the repair."
    if profile.predicted:
        words = "The model has no weights: every value is predicted by theory."
    else:
        words = "Dashed: what theory predicts; shaded: its finite-width band, two standard deviations."
    is_marked = any(chart.limits or chart.stretches for chart in profiles.charts)
    return (
        f"{words} Brackets: the blocks of a finding; a limit is where its check fires."
        if is_marked
        else words
    )


def _theory_section(report: Report) -> Section:
    """How well theory agrees with measurement; a browser shows the same in the charts."""
    theory = report.profile.theory
    if theory is None or not theory.ops:
        return Section(key="theory", title="Theory")
    agreements = [("forward", theory.forward), ("backward", theory.backward)]
    words = joined(
        f"predicts {count(theory.with_rule)}/{count(theory.ops)} ops",
        *(_deviation(direction, each.median) for direction, each in agreements if each is not None),
        _depth_limit(report),
    )
    parting = theory.forward_parting or theory.backward_parting
    first = "" if parting is None else f"{parting.direction} {departure(parting)}"
    rows = (
        Fact(label="Theory", value=words, line="theory"),
        Fact(label="Departure", value=first, line="departure"),
    )
    return Section(key="theory", title="Theory", brief=_folded("Theory", facts(*rows)))


def _deviation(direction: str, median: float) -> str:
    """The median factor between prediction and measurement, as a percentage while it is less than double."""
    ratio = growth(median)
    return (
        f"{direction} within {100 * (ratio - 1):.0f} %"
        if ratio < 2
        else f"{direction} off by {factor(ratio)}"
    )


def _depth_limit(report: Report) -> str:
    scale, depth = report.profile.depth_scale, trainable_depth(report)
    if scale is None:
        return ""
    limit = ""
    if depth is not None and depth < MAX_DEPTH_NAMED:
        limit = f", trainable to about {plural(round(depth), 'block')}"
    return f"{scale.phase} (χ {number(scale.chi)}){limit}"


# Findings.


def _findings_section(report: Report) -> Section:
    seen = {finding.code for finding in (*report.findings, *report.ignored)}
    trees = [(finding_item(report, *tree), _is_note(*tree)) for tree in rooted(report.findings)]
    findings = Findings(
        items=tuple(item for item, is_note in trees if not is_note),
        notes=tuple(item for item, is_note in trees if is_note),
        none=f"{plural(len(report.rules), 'check')} found nothing" if report.rules else "none",
        ignored=tuple(finding_item(report, each, mark="ignored") for each in by_severity(report.ignored)),
        silent=tuple(rule for rule in report.rules if rule.code not in seen),
    )
    return Section(
        key="findings", title="Findings", brief=(findings,), body=(findings,), is_first_in_terminal=True
    )


def _is_note(root: Finding, below: Sequence[Finding]) -> bool:
    """Neither the finding nor what it leads to is worse than a note."""
    return all(each.severity == "info" for each in (root, *below))


def finding_item(
    report: Report | None,
    finding: Finding,
    below: Sequence[Finding] = (),
    mark: Literal["", "ignored"] = "",
) -> FindingItem:
    """A finding with its consequences; `report`: where its source place and the page of its check are looked up."""
    rules = () if report is None else report.rules
    return FindingItem(
        severity=finding.severity,
        code=finding.code,
        name=finding.name,
        where=finding.where,
        message=finding.message,
        action=finding.action,
        mark=mark or ("known" if finding.known else ""),
        source=None if report is None else place_of(report, finding),
        evidence=() if report is None else _evidence(finding),
        check_page=next((rule.page for rule in rules if rule.code == finding.code), ""),
        consequences=tuple(finding_item(report, each) for each in below),
    )


def _evidence(finding: Finding) -> tuple[Fact, ...]:
    pairs = finding.evidence.items()
    return tuple(Fact(label=key.replace("_", " "), value=_amount(value)) for key, value in pairs)


def _amount(value: float) -> str:
    """Whole numbers as counts, all others with three digits."""
    return count(int(value)) if math.isfinite(value) and value == int(value) else number(value)
