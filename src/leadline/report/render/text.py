"""A page as lines for the terminal: at most 40, unless everything is requested."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from io import StringIO
from itertools import accumulate
from typing import Literal

from rich.cells import cell_len
from rich.console import Console
from rich.text import Text

from leadline.records import Gap
from leadline.report.layout import (
    ACCENT,
    LABEL,
    MAX_PAGE_LINES,
    MAX_WIDTH,
    MIN_WIDTH,
    QUIET,
    TONES,
    labeled,
    wrapped,
)
from leadline.report.look import Look
from leadline.report.names import shorten_name
from leadline.report.page import (
    Code,
    Commands,
    Details,
    Element,
    FactList,
    FindingItem,
    Findings,
    Gaps,
    Group,
    OutcomeItem,
    Outcomes,
    Page,
    Paragraph,
    Section,
    Steps,
    Table,
)
from leadline.report.render.text_table import table_lines
from leadline.text import clean, layer_label, plural

# Heuristic: lines that each part may take, unless everything is requested, so that a page fits on a screen.
HEADLINE_LINES = 3
ASKED_LINES = 2
FACT_LINES = 2
GAP_LINES = 3
# Heuristic: a finding is not cut to less than its title and three lines, nor message and action to less than one each.
MIN_FINDING_LINES = 4
MIN_SENTENCE_LINES = 2
OUTCOME_LINES = 18
REASON_LINES = 3
CODE_LINES = 20
GAPS_SHOWN = 2
# Heuristic: cells that the name of a module keeps beside a long file name.
MIN_PLACE = 24
COMMANDS_SHOWN = 2


def render(page: Page, look: Look) -> str:
    """The page as text; with color, as text with ANSI codes."""
    return print_lines(lines(page, look), look)


def render_elements(elements: Sequence[Element], look: Look) -> str:
    """Some elements on their own, without a headline."""
    section = Section(key="", title="", brief=tuple(elements))
    return print_lines(_paragraphs([section], _width(look), everything=False, room=None), look)


def print_lines(page: Iterable[Text], look: Look) -> str:
    text = StringIO()
    color: Literal["standard"] | None = "standard" if look.color else None
    console = Console(file=text, width=MAX_WIDTH, color_system=color, force_terminal=look.color)
    for line in page:
        console.print(line, no_wrap=True, overflow="ignore", crop=False)
    return text.getvalue()


def lines(page: Page, look: Look) -> list[Text]:
    """The page, line by line. Names appear as they are: nothing in them is taken for markup."""
    width = _width(look)
    headline = _headline(page, width)
    if look.detail == "verdict":
        return headline
    everything = look.detail == "everything"
    ordered = page.terminal_sections
    first = [each for each in ordered if each.is_first_in_terminal]
    facts = Section(key="facts", title="", brief=(page.facts,))
    sections = [*first, facts, *(each for each in ordered if not each.is_first_in_terminal)]
    room = None
    if everything:
        headline += _asked(page, width, most=None)
    else:
        fixed = _paragraphs(sections, width, everything=False, room=0)
        free = MAX_PAGE_LINES - len(headline) - 1 - len(fixed)  # two sections may hold findings
        headline += _asked(page, width, most=min(max(free - 2 * MIN_FINDING_LINES, 1), ASKED_LINES))
        room = max(MAX_PAGE_LINES - len(headline) - 1 - len(fixed), MIN_FINDING_LINES)
    return [*headline, Text(), *_paragraphs(sections, width, everything=everything, room=room)]


def _width(look: Look) -> int:
    return min(max(look.width, MIN_WIDTH), MAX_WIDTH)


def _headline(page: Page, width: int) -> list[Text]:
    headline = Text()
    for place, title in enumerate(page.titles):
        headline.append(" → " if place else "")
        headline.append(clean(title.words), style=TONES.get(title.tone, "bold"))
    headline.append(f": {clean(page.sentence)}" if page.sentence else "")
    headline.append(f" {page.note}" if page.note else "", style=QUIET)
    return wrapped(headline, width, most=HEADLINE_LINES)


def _asked(page: Page, width: int, *, most: int | None) -> list[Text]:
    return wrapped(Text(clean(page.asked), style=QUIET), width, most=most) if page.asked else []


def _paragraphs(sections: Sequence[Section], width: int, *, everything: bool, room: int | None) -> list[Text]:
    """All elements with an empty line between them; facts that follow facts, and captions, stand without one.

    `room`: the lines that all findings together may take; None: as many as they need.
    """
    elements = [
        each
        for section in sections
        for element in (section.verbose if everything and section.verbose else section.brief)
        for each in (element.items if isinstance(element, Details) and everything else (element,))
    ]
    several = max(sum(isinstance(each, Findings) for each in elements), 1)
    share = None if room is None else room // several
    page: list[Text] = []
    before: Element | None = None
    for each in elements:
        drawn = _draw(each, width, everything=everything, room=share)
        if drawn:
            close = isinstance(each, Paragraph) or (
                isinstance(each, FactList | Gaps) and isinstance(before, FactList)
            )
            page += drawn if not page or close else [Text(), *drawn]
            before = each
    return page


def _draw(element: Element, width: int, *, everything: bool, room: int | None) -> list[Text]:
    """The lines of one element; charts have none."""
    match element:
        case FactList():
            return _facts(element, width, everything=everything)
        case Paragraph():
            return labeled("", Text(clean(element.words), style=QUIET), width)
        case Table():
            return table_lines(element, width)
        case Group():
            return _group(element, width, everything=everything)
        case Details():
            return [
                line
                for each in element.items
                if everything
                for line in _draw(each, width, everything=True, room=None)
            ]
        case Findings():
            return _findings(element, width, room=room)
        case Outcomes():
            return _outcomes(element.items, width, everything=everything)
        case Gaps():
            return _gaps(element.items, width, everything=everything)
        case Code():
            return _code(element, width, everything=everything)
        case Commands():
            return _commands(element, width)
        case Steps():
            return [line for each in element.items for line in labeled("→", clean(each.title), width)]
    return []


def _more(words: str, width: int) -> list[Text]:
    return labeled("", Text(f"and {words}: -v shows all", style=QUIET), width)


def _facts(element: FactList, width: int, *, everything: bool) -> list[Text]:
    """One line per label; facts that share a label are joined."""
    rows: dict[str, list[str]] = {}
    for fact in element.rows:
        if fact.line:
            row = rows.setdefault(fact.line, [])
            row.append(clean(fact.words if row else fact.value))
    most = None if everything else FACT_LINES
    return [line for label, row in rows.items() for line in labeled(label, " · ".join(row), width, most=most)]


def _group(group: Group, width: int, *, everything: bool) -> list[Text]:
    shown = group.items if everything else group.items[: group.shown]
    drawn = [line for each in shown for line in _draw(each, width, everything=everything, room=None)]
    rest = len(group.items) - len(shown)
    return drawn + (_more(plural(rest, group.noun), width) if rest else [])


def _code(code: Code, width: int, *, everything: bool) -> list[Text]:
    rows = [clean(row) for row in code.text.splitlines()]
    shown = rows if everything else rows[:CODE_LINES]
    page = [
        Text.assemble(((code.label if not place else "").ljust(LABEL), QUIET), row)
        for place, row in enumerate(shown)
    ]
    if len(shown) < len(rows):
        words = f"and {plural(len(rows) - len(shown), 'more line')}: --diff shows all"
        page += labeled("", Text(words, style=QUIET), width)
    return page


def _commands(commands: Commands, width: int) -> list[Text]:
    rows = commands.rows[:COMMANDS_SHOWN]
    longest = max(cell_len(clean(each.line)) for each in rows)
    page: list[Text] = []
    for each in rows:
        line = Text.assemble((clean(each.line).ljust(longest), f"bold {ACCENT}"), f"   {each.purpose}")
        page += labeled("" if page else commands.label, line, width, most=1)
    return page


def _gaps(gaps: Sequence[Gap], width: int, *, everything: bool) -> list[Text]:
    """What and why; where only if everything is requested, because names may be long."""
    shown = gaps if everything else gaps[:GAPS_SHOWN]
    page = []
    for gap in shown:
        amount = f" in {plural(len(gap.where), 'place')}" if gap.where else ""
        places = f" ({', '.join(map(clean, gap.where))})" if everything and gap.where else ""
        words = f"{clean(gap.what)}{amount}: {clean(gap.why)}{places}"
        page += labeled("  gap", words, width, most=None if everything else GAP_LINES)
    rest_count = len(gaps) - len(shown)
    return page + (_more(plural(rest_count, "further gap"), width) if rest_count else [])


# Findings: a line of counts, then each root with its message, what to do, and what it leads to.


def _findings(findings: Findings, width: int, *, room: int | None) -> list[Text]:
    """As many findings as fit in `room` lines, and a line that names the rest; the first is always shown."""
    items = findings.items if room is not None else (*findings.items, *findings.notes)
    notes = [] if room is None else _folded_notes(findings.notes)
    head = [_counts(findings), *notes] if notes and not items else [_counts(findings)]
    page = labeled(findings.label, ": ".join(head), width)
    after = labeled("", Text(f"notes: {notes[0]}", style=QUIET), width) if notes and items else []
    entry_room = None if room is None else room - len(page) - 1
    entries = [_finding(item, width, entry_room) for item in items]
    if room is None:
        shown = len(entries)
    else:
        shown = _fitting([len(entry) for entry in entries], room - len(page)) if room else 0
    page += [line for entry in entries[:shown] for line in entry]
    if shown < len(entries) and room:
        codes = ", ".join(dict.fromkeys(clean(each.code) for each in items[shown:]))
        words = f"and {plural(len(entries) - shown, 'further finding')}: -v shows {codes}"
        page += labeled("", Text(words, style=QUIET), width, most=1)
    return [*page, *after, *_ignored(findings.ignored, width)]


def _folded_notes(notes: Sequence[FindingItem]) -> list[str]:
    """The names of all notes in one line; nothing if there are none."""
    names = dict.fromkeys(clean(f"{each.code} {each.name}") for each in notes)
    return [f"{', '.join(names)}; see -v"] if notes else []


def _fitting(lengths: list[int], room: int) -> int:
    """How many entries fit with a line that counts the rest; at least one."""
    ends = list(accumulate(lengths))
    if not ends or ends[-1] <= room:
        return len(ends)
    return max(sum(end < room for end in ends), 1)


def _counts(findings: Findings) -> str:
    """How many findings there are of each severity, with their consequences."""
    roots = (*findings.items, *findings.notes)
    every = [each for item in roots for each in (item, *item.consequences)]
    amounts = Counter(each.severity for each in every)
    kinds = ((amounts["error"], "error"), (amounts["warning"], "warning"), (amounts["info"], "note"))
    return ", ".join(plural(amount, noun) for amount, noun in kinds if amount) or findings.none


def _finding(item: FindingItem, width: int, room: int | None) -> list[Text]:
    """Title and place, message, action and consequences; in about `room` lines, of which the action gets up to half."""
    severity = (item.severity.ljust(LABEL - 2), TONES[item.severity])
    mark = (f" ({item.mark})", QUIET) if item.mark else ""
    check = (clean(f"{item.code} {item.name}"), "bold")
    title = _titled(Text.assemble("  ", severity, check, mark), item, width)
    consequences = _consequences(item.consequences, width, in_full=room is None)
    left = None if room is None else max(room - len(title) - len(consequences), MIN_SENTENCE_LINES)
    action = Text.assemble(("→ ", ACCENT), clean(item.action)) if item.action else None
    advice = [] if action is None else labeled("", action, width, most=None if left is None else left // 2)
    most = None if left is None else left - len(advice)
    return [*title, *labeled("", clean(item.message), width, most=most), *advice, *consequences]


def _titled(title: Text, item: FindingItem, width: int) -> list[Text]:
    """The title with the place right of it, or in the line below if there is not enough room."""
    source = f" ({clean(item.place)})" if item.place else ""
    where = layer_label(clean(item.where))
    if title.cell_len + cell_len(where) + cell_len(source) + 2 <= width:
        return [Text.assemble(title, "  ", where, (source, ACCENT))]
    room = max(width - LABEL - len("at ") - cell_len(source), MIN_PLACE)
    return [
        *wrapped(title, width, most=1),
        *labeled("", f"at {shorten_name(where, room)}{source}", width, most=1),
    ]


def _consequences(items: Sequence[FindingItem], width: int, *, in_full: bool) -> list[Text]:
    """What a root leads to: one line of names, or all of their messages."""
    if not items:
        return []
    if in_full:
        words = [
            f"leads to {each.code} {each.name}, {layer_label(each.where)}: {each.message}" for each in items
        ]
        return [line for each in words for line in labeled("", clean(each), width)]
    names = ", ".join(f"{each.code} {each.name}" for each in items)
    return labeled("", Text(f"leads to {clean(names)}", style=QUIET), width, most=2)


def _ignored(items: Sequence[FindingItem], width: int) -> list[Text]:
    amounts = Counter(clean(f"{each.code} {each.name}") for each in items)
    checks = ", ".join(f"{check} ({amount})" if amount > 1 else check for check, amount in amounts.items())
    return labeled("ignored", checks, width, most=2) if items else []


# Fixes: the kept one first, then what was tried, advice, and what was not run in one line.


def _outcomes(items: Sequence[OutcomeItem], width: int, *, everything: bool) -> list[Text]:
    if everything:
        return [line for each in items for line in _outcome(each, width, everything=True)]
    tried = [_outcome(each, width, everything=False) for each in items if each.state != "not run"]
    shown = max(sum(end <= OUTCOME_LINES for end in accumulate(map(len, tried))), min(len(tried), 1))
    page = [line for entry in tried[:shown] for line in entry]
    if shown < len(tried):
        page += _more(f"{len(tried) - shown} more tried", width)
    for each in items:
        if each.is_advice:
            page += labeled("to do", clean(each.title), width, most=REASON_LINES)
    return page + _not_run([each for each in items if each.state == "not run" and not each.is_advice], width)


def _not_run(items: Sequence[OutcomeItem], width: int) -> list[Text]:
    """The names, and the reason if it is the same for all."""
    if not items:
        return []
    amounts = Counter(clean(each.fix) for each in items)
    names = ", ".join(f"{name} ({amount})" if amount > 1 else name for name, amount in amounts.items())
    reasons = {each.why for each in items}
    why = f": {clean(reasons.pop())}" if len(reasons) == 1 else "; -v says why"
    return labeled("not run", Text(f"{names}{why}", style=QUIET), width, most=REASON_LINES)


def _outcome(item: OutcomeItem, width: int, *, everything: bool) -> list[Text]:
    state = (item.state.ljust(LABEL), TONES[item.state])
    aim = (f"  {item.change}, for {clean(item.answers)}", QUIET)
    title = Text.assemble(state, (clean(item.fix), "bold"), aim)
    page = [
        *wrapped(title, width, most=1),
        *labeled("", clean(item.title), width, most=None if everything else FACT_LINES),
        *labeled("", Text(clean(item.why), style=QUIET), width, most=None if everything else REASON_LINES),
    ]
    if item.kept or everything:
        page += [line for each in item.measures for line in labeled("", clean(each), width, most=1)]
    if item.losses is not None and everything:
        page += table_lines(item.losses, width)
    return page
