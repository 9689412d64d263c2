"""A repair as a page for the terminal: verdict before and after, each fix with its proof, both trainings, the code."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from io import StringIO
from itertools import accumulate, pairwise
from typing import TYPE_CHECKING, Literal

from rich.console import Console
from rich.text import Text

from leadline.records import Measure, Outcome, State, Trial
from leadline.report.depth import LEVELS, mark
from leadline.report.layout import ACCENT, LABEL, QUIET, TONES, Look, joined, labelled, wrapped
from leadline.report.verdict import TITLES, sentence
from leadline.text import clean, number, plural

if TYPE_CHECKING:
    from leadline.records.repair import RepairReport

LEAST_WIDTH, MOST_WIDTH = 50, 120
STATES: dict[State, str] = {"verified": TONES["trains"], "refuted": TONES["error"], "not run": QUIET}
VERDICTS = {"trains": TONES["trains"], "poor": TONES["warning"], "fails": TONES["error"], "undecided": "bold"}
REACHES: dict[str, str] = {
    "function": "keeps the function",
    "recipe": "changes the training",
    "init": "new initial weights",
    "architecture": "changes the model",
    "advice": "advice",
}
UNSEEN = "DID NOT LEARN"  # in its trial, though the check found nothing
WHY_LINES = 3
CURVE, ENDS = 40, 28  # cells of a loss curve, and of the numbers behind it
ROOM = 18  # lines for what was tried, so that a page fits a screen
EDITS = 20  # lines of code that a page shows: a function and the loops that call it


def render(repair: RepairReport, look: Look) -> str:
    """The repair as text; with colour, as text with ANSI codes."""
    return _printed(lines(repair, look), look)


def render_curves(trial: Trial, look: Look) -> str:
    """The two trainings alone."""
    return _printed(_curves(trial, _width(look)), look)


def _printed(page: Sequence[Text], look: Look) -> str:
    text = StringIO()
    color: Literal["standard"] | None = "standard" if look.color else None
    console = Console(file=text, width=MOST_WIDTH, color_system=color, force_terminal=look.color)
    for line in page:
        console.print(line, no_wrap=True, overflow="ignore", crop=False)
    return text.getvalue()


def _width(look: Look) -> int:
    return min(max(look.width, LEAST_WIDTH), MOST_WIDTH)


def lines(repair: RepairReport, look: Look) -> list[Text]:
    """The page, line by line."""
    width = _width(look)
    head = headline(repair, width)
    if look.detail == "verdict":
        return head
    everything = look.detail == "everything"
    sections = [
        head,
        _facts(repair, width),
        _outcomes(repair.outcomes, width, everything=everything),
        _training(repair.trial, width),
        _code(repair, width, everything=everything),
        [line for note in repair.notes for line in labelled("note", clean(note), width)],
    ]
    page: list[Text] = []
    for section in filter(None, sections):
        page += [Text(), *section] if page else section
    return page


def headline(repair: RepairReport, width: int) -> list[Text]:
    """Both verdicts, and the sentence that decided the last."""
    before, after = repair.verdict_before, repair.verdict_after
    told = sentence(repair.after or repair.before)
    if repair.after is not None:
        first = (TITLES[before], VERDICTS[before]) if before != "trains" else (UNSEEN, VERDICTS["fails"])
        titles = [(f"{first[0]} ", first[1]), (f"→ {TITLES[after]}", VERDICTS[after])]
    elif before != "trains":
        titles = [("NOT REPAIRED", VERDICTS[before])]
    elif repair.learns is False:
        titles = [("UNDECIDED", VERDICTS["undecided"])]
        told = f"the check finds nothing, yet the loss did not fall in training; {told}"
    else:
        titles = [("NOTHING TO FIX", VERDICTS["trains"])]
    return wrapped(Text.assemble(*titles, f": {told}"), width, most=4)


def _facts(repair: RepairReport, width: int) -> list[Text]:
    profile = repair.before.profile
    kept = [each for each in repair.outcomes if each.kept]
    tried = [each for each in repair.outcomes if each.state != "not run"]
    spent = f"{number(repair.seconds)} s" + (
        "" if repair.budget is None else f" of {number(repair.budget)} s"
    )
    counts = joined(f"{len(tried)} tried", f"{len(kept)} kept", spent)
    reach = joined(*dict.fromkeys(REACHES[each.reach] for each in kept))
    return [
        *labelled("model", joined(clean(profile.model), clean(repair.optimizer)), width, most=2),
        *labelled("search", counts, width, most=1),
        *(labelled("repair", joined(plural(len(repair.recipe.edits), "edit"), reach), width) if kept else []),
    ]


def _outcomes(outcomes: Sequence[Outcome], width: int, *, everything: bool) -> list[Text]:
    """What was kept, then what was tried, as many as fit; what was not run in a line. Or all of it in full."""
    order = {"verified": 0, "refuted": 1, "not run": 2}
    ranked = sorted(outcomes, key=lambda each: (not each.kept, order[each.state]))
    if everything:
        return [line for each in ranked for line in _outcome(each, width, everything=True)]
    tried = [_outcome(each, width, everything=False) for each in ranked if each.state != "not run"]
    shown = max(sum(end <= ROOM for end in accumulate(map(len, tried))), min(len(tried), 1))
    page = [line for entry in tried[:shown] for line in entry]
    if shown < len(tried):
        more = f"and {len(tried) - shown} more tried: -v shows all"
        page += labelled("", Text(more, style=QUIET), width)
    return page + _idle([each for each in ranked if each.state == "not run"], width)


def _idle(outcomes: Sequence[Outcome], width: int) -> list[Text]:
    """Names of what was not run; why, where it is the same for all."""
    amounts = Counter(clean(each.fix) for each in outcomes)
    names = ", ".join(f"{name} ({amount})" if amount > 1 else name for name, amount in amounts.items())
    reasons = {each.why for each in outcomes}
    why = f": {clean(reasons.pop())}" if len(reasons) == 1 else "; -v says why" if reasons else ""
    return labelled("not run", Text(f"{names}{why}", style=QUIET), width, most=3) if outcomes else []


def _outcome(outcome: Outcome, width: int, *, everything: bool) -> list[Text]:
    state = (outcome.state.ljust(LABEL), STATES[outcome.state])
    codes = ", ".join(outcome.answers)
    name = (clean(outcome.fix), "bold")
    told = Text.assemble(state, name, (f"  {REACHES[outcome.reach]}, for {codes}", QUIET))
    page = [
        *wrapped(told, width, most=1),
        *labelled("", clean(outcome.title), width, most=None if everything else 2),
        *labelled("", Text(clean(outcome.why), style=QUIET), width, most=None if everything else WHY_LINES),
    ]
    if outcome.kept or everything:
        page += [line for each in outcome.measures for line in _measure(each, width)]
    if outcome.drift is not None and outcome.state != "refuted":
        page += labelled("", f"outputs moved by {number(outcome.drift)} in double precision", width)
    if outcome.trial is not None and everything:
        page += _curves(outcome.trial, width)
    return page


def _measure(measure: Measure, width: int) -> list[Text]:
    told = f"{measure.name:<30} {number(measure.before):>10} → {number(measure.after)}"
    return labelled("", told, width, most=1)


def _training(trial: Trial | None, width: int) -> list[Text]:
    """The last comparison; of a model that was not repaired, its own training."""
    return [] if trial is None else _curves(trial, width)


def limits(trial: Trial) -> tuple[float, float, int]:
    """The lowest loss of both trainings, the higher one of their first, and how many steps the longer one made.

    A spike is drawn as high as the page allows: it must not flatten all the rest.
    """
    known = [value for value in (*trial.untreated, *trial.treated) if math.isfinite(value)]
    firsts = [losses[0] for losses in (trial.untreated, trial.treated) if losses and math.isfinite(losses[0])]
    steps = max(len(trial.untreated), len(trial.treated))
    return min(known, default=0.0), max(firsts, default=1.0), steps


def _curves(trial: Trial, width: int) -> list[Text]:
    low, high, steps = limits(trial)
    room = min(CURVE, width - LABEL - ENDS)
    page = []
    for label, losses in (("untreated", trial.untreated), ("repaired", trial.treated)):
        if losses:
            drawn = (curve(losses, low, high, room, steps), ACCENT)
            ends = f"  loss {number(losses[0])} → {number(losses[-1])}"
            page += labelled(label, Text.assemble(drawn, ends), width, most=1)
    batches = "another batch each" if trial.fresh else "batches seen again"
    return [*page, *labelled("", Text(f"{steps} steps, {batches}; same scale", style=QUIET), width)]


def curve(losses: Sequence[float], low: float, high: float, width: int, steps: int) -> str:
    """A training as a line of characters between two losses; `steps` fill the width. Where it broke there is a mark."""
    width = max(min(width, steps), 1)
    edges = [cell * steps // width for cell in range(width + 1)]
    parts = [losses[first:last] for first, last in pairwise(edges)]
    return "".join(_cell(part, low, high) for part in parts if part).ljust(width)


def _cell(part: Sequence[float], low: float, high: float) -> str:
    broken = [value for value in part if mark(value) in ("!", "∞")]
    if broken:
        return mark(broken[0]) or "!"
    height = (sum(part) / len(part) - low) / (high - low) if high > low else 0.0
    return LEVELS[min(int(height * len(LEVELS)), len(LEVELS) - 1)]


def _code(repair: RepairReport, width: int, *, everything: bool) -> list[Text]:
    rows = clean_lines(repair.code)
    shown = rows if everything else rows[:EDITS]
    page = [
        Text.assemble((("code" if not place else "").ljust(LABEL), QUIET), row)
        for place, row in enumerate(shown)
    ]
    if len(shown) < len(rows):
        page += labelled(
            "",
            Text(f"and {plural(len(rows) - len(shown), 'more line')}: --diff shows all", style=QUIET),
            width,
        )
    return page


def clean_lines(code: str) -> list[str]:
    """Code with nothing in it that could move the cursor."""
    return [clean(row) for row in code.splitlines()]
