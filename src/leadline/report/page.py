"""The page model: what is shown of a record, before a renderer decides how it looks."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, Protocol

from leadline.records import CheckRow, Gap, Severity, Source, State

Values = Sequence[float | None]
ScaleKind = Literal["log", "linear", "share"]
"""How an axis maps its values. A share always goes from 0 to 1."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Fact:
    """A label and its value."""

    label: str
    value: str
    phrase: str = ""
    """How the fact reads without its label, in a line of several facts; "" if the value says it all."""
    line: str = ""
    """Label of the terminal line that the fact joins; "" where the terminal leaves it out."""
    is_name: bool = False
    """The value is a name from the user's code."""

    @property
    def words(self) -> str:
        return self.phrase or self.value


@dataclass(frozen=True, slots=True, kw_only=True)
class FactList:
    """Facts side by side. Facts without a value are left out by `facts`."""

    rows: tuple[Fact, ...]
    wide: bool = False
    """The values are sentences."""


def facts(*rows: Fact, wide: bool = False) -> FactList:
    """The facts that have a value."""
    return FactList(rows=tuple(row for row in rows if row.value), wide=wide)


@dataclass(frozen=True, slots=True, kw_only=True)
class Paragraph:
    """A sentence or two."""

    words: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Code:
    """Lines to copy."""

    text: str
    label: str = "code"
    language: str = "python"


@dataclass(frozen=True, slots=True, kw_only=True)
class Command:
    """A command for the shell, and what it is for."""

    line: str
    purpose: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Commands:
    rows: tuple[Command, ...]
    label: str = "next"


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """One thing to do: in words, what it costs, why, and lines to paste."""

    title: str
    cost: str = ""
    why: str = ""
    code: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Steps:
    """What to do, in order of importance."""

    items: tuple[Step, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Spark:
    """Values drawn in one line of characters. "log": a signal over depth; "linear": a loss over steps."""

    values: Values
    beside: Values = ()
    """The values of another line that is drawn on the same scale."""
    kind: Literal["log", "linear"] = "log"


Cell = str | Spark


@dataclass(frozen=True, slots=True, kw_only=True)
class Column:
    """`kind`: prose is wrapped, a name keeps its layer number and its end, a number is aligned to the right."""

    title: str = ""
    kind: Literal["label", "text", "name", "number", "spark"] = "text"
    ends: tuple[str, str] = ("", "")
    """Of a spark: what its first and its last value stand for."""
    optional: bool = False
    """Left out where there is no room."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Table:
    columns: tuple[Column, ...]
    rows: tuple[tuple[Cell, ...], ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Group:
    """Elements of one kind, of which a terminal page shows the first `shown` and counts the others."""

    items: tuple[Element, ...]
    shown: int
    noun: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Details:
    """Elements that are folded away; a terminal shows them if everything is requested."""

    title: str
    items: tuple[Element, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Columns:
    """Elements in two columns, where there is room."""

    left: tuple[Element, ...]
    right: tuple[Element, ...]


# Findings, outcomes of fixes, and gaps: the items that every renderer has its own layout for.


@dataclass(frozen=True, slots=True, kw_only=True)
class FindingItem:
    severity: Severity
    code: str
    name: str
    where: str
    message: str
    """What was measured."""
    action: str = ""
    """What to do, in one imperative sentence."""
    mark: Literal["", "known", "ignored"] = ""
    source: Source | None = None
    """The line of the user's code that calls the module, or where the module is written."""
    evidence: tuple[Fact, ...] = ()
    check_page: str = ""
    """The documentation of its check, as Markdown."""
    consequences: tuple[FindingItem, ...] = ()

    @property
    def place(self) -> str:
        """File and line, as editors and terminals make it a link; "" if they are not known."""
        return "" if self.source is None else f"{self.source.file}:{self.source.line}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Findings:
    items: tuple[FindingItem, ...]
    """Root findings, the worst first."""
    notes: tuple[FindingItem, ...] = ()
    """Root findings that change no verdict and lead to nothing worse; folded into one line where room is short."""
    label: str = "findings"
    none: str = "none"
    """What is said where there is no finding."""
    ignored: tuple[FindingItem, ...] = ()
    silent: tuple[CheckRow, ...] = ()
    """Checks that ran and found nothing."""


@dataclass(frozen=True, slots=True, kw_only=True)
class OutcomeItem:
    """What came of one fix."""

    state: State
    fix: str
    title: str
    change: str
    """What the fix changes, in words."""
    answers: str
    """Codes of the findings that it was tried for."""
    why: str
    kept: bool
    is_advice: bool = False
    """It says what only the author of the program can do."""
    resolved: str = ""
    """Codes of the findings that the fix resolves."""
    introduced: str = ""
    """Codes of the findings that only the treated model has."""
    measures: tuple[str, ...] = ()
    losses: Table | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcomes:
    items: tuple[OutcomeItem, ...]
    """The kept fixes first, then verified, refuted and not run."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Gaps:
    """What was not checked, and why."""

    items: tuple[Gap, ...]


# Charts as data; `leadline.report.charts` draws them.


@dataclass(frozen=True, slots=True, kw_only=True)
class Series:
    """One line of a chart."""

    values: Values
    label: str = ""
    tone: str = "main"
    """How the line is drawn: a key of `CHART_TONES`."""
    band: Values | None = None
    """Half-width of a band around each value, in e-folds."""
    sparse: bool = False
    """The line continues across places without a value."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Limit:
    """A level that a line of the chart must not cross."""

    label: str
    values: Values
    """The level at each place; None where it does not apply."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Stretch:
    """Places of the axis that a finding is about."""

    label: str
    first: int
    last: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Chart:
    """Lines over one axis."""

    title: str
    unit: str = ""
    series: tuple[Series, ...]
    limits: tuple[Limit, ...] = ()
    stretches: tuple[Stretch, ...] = ()
    key: str = ""
    kind: ScaleKind = "log"
    notes: tuple[str, ...] = ()
    names: tuple[str, ...] = ()
    """The label below each place; its number if there are none."""
    steps: Sequence[int] | None = None
    """Where each value lies on an axis of training steps; None: one place per value."""
    interactive: bool = False
    """A browser draws it with a cursor and zoom."""
    prominent: bool = False
    """It is also drawn on the small card of a notebook."""

    @property
    def is_empty(self) -> bool:
        """No line has a finite value, so there is nothing to draw."""
        return not any(
            value is not None and math.isfinite(value) for each in self.series for value in each.values
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Charts:
    """Charts in a grid."""

    items: tuple[Chart, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class DepthAxis:
    """Depth: one place per block in order of execution, one stream after the other with a gap between them."""

    names: tuple[str, ...]
    """The block at each place; "" at a gap."""
    starts: tuple[tuple[int, str], ...]
    """Where each stream begins, and its name."""
    places: tuple[int, ...]
    """The place of each block of the profile."""

    @property
    def gaps(self) -> tuple[int, ...]:
        """Places without a block, which no line may cross."""
        taken = set(self.places)
        return tuple(place for place in range(len(self.names)) if place not in taken)

    @property
    def block_numbers(self) -> list[int | None]:
        """The number of the block at each place."""
        numbers: list[int | None] = [None] * len(self.names)
        for block, place in enumerate(self.places):
            numbers[place] = block
        return numbers

    def spread(self, values: Mapping[int, float | None]) -> tuple[float | None, ...]:
        """`values` by block, put in their places; None everywhere else."""
        row: list[float | None] = [None] * len(self.names)
        for block, value in values.items():
            if 0 <= block < len(self.places):
                row[self.places[block]] = value
        return tuple(row)


@dataclass(frozen=True, slots=True, kw_only=True)
class Profiles:
    """Charts over one depth axis, with one cursor for all of them."""

    axis: DepthAxis
    charts: tuple[Chart, ...]
    hint: str
    """What the cursor line says before the reader points at a chart."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Bar:
    """One value with its name."""

    label: str
    value: float | None
    amount: str
    """The value in words."""
    tone: Literal["part", "quiet-part", "total"] = "part"
    theory: float | None = None
    """Where theory puts the end of the bar, from its start."""
    hint: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class BarChart:
    """Bars with names and amounts."""

    label: str
    rows: tuple[Bar, ...]
    waterfall: bool = False
    """Each bar starts where the one before it ends, except the last, which is their sum."""
    title: str = ""
    note: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Mark:
    """A place on a ruler. `main`: the value that the others are compared with."""

    label: str
    value: float
    amount: str
    main: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Ruler:
    """A few positive values on one logarithmic axis."""

    title: str
    label: str
    marks: tuple[Mark, ...]
    unit: str = ""
    note: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Picture:
    """A drawing that is SVG already, from `leadline.report.charts`."""

    title: str
    svg: str
    note: str = ""


Element = (
    FactList
    | Paragraph
    | Code
    | Commands
    | Steps
    | Table
    | Group
    | Details
    | Columns
    | Findings
    | Outcomes
    | Gaps
    | Chart
    | Charts
    | Profiles
    | BarChart
    | Ruler
    | Picture
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Section:
    """A part of a page: what a terminal and Markdown show of it, and what a browser shows."""

    key: str
    title: str
    link: str = ""
    """Its name in the navigation of a page; "" if that is the title."""
    lead: str = ""
    brief: tuple[Element, ...] = ()
    """What a terminal and Markdown show."""
    verbose: tuple[Element, ...] = ()
    """What a terminal shows instead if everything is requested; empty: the same as `brief`."""
    body: tuple[Element, ...] = ()
    """What a browser shows."""
    is_first_in_terminal: bool = False
    """A terminal shows it right below the headline: what is wrong, where, and what to do."""
    is_last_in_terminal: bool = False
    """A terminal shows it at the end, where the reader's eyes are."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Title:
    """Words in capitals that open a page. `tone`: a verdict or a severity."""

    words: str
    tone: str


class Savable(Protocol):
    """A record that a page can carry."""

    @property
    def schema(self) -> str: ...

    def to_json(self) -> str: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Page:
    """All that is shown of one record. Words are plain text; a renderer cleans and escapes them."""

    subject: str
    """What the page is about: a target, a model, or the kind of record."""
    titles: tuple[Title, ...]
    sentence: str
    """Why the title says what it says."""
    note: str = ""
    """What a terminal adds to the sentence in a quiet tone."""
    asked: str = ""
    """Which questions the title answers and which were not asked; it stands right below the title."""
    facts: FactList
    sections: tuple[Section, ...]
    version: str = ""
    """Of the Leadline that made the record."""
    record: Savable | None = None
    """What the page carries for readers to save."""
    reproduce: str = ""
    """What makes this page again."""

    @property
    def title(self) -> str:
        return " → ".join(each.words for each in self.titles)

    @property
    def terminal_sections(self) -> list[Section]:
        """The sections in the order of a terminal and of Markdown; the facts follow those that come first."""
        return sorted(self.sections, key=lambda each: each.is_last_in_terminal - each.is_first_in_terminal)

    @property
    def headline(self) -> str:
        """Title and sentence, in one line of plain text."""
        return f"{self.title}: {self.sentence}" if self.sentence else self.title
