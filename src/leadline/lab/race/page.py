"""A race as HTML and as text."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

from leadline.lab.race.record import Race, RateTransfer, SeedInterval, Standing
from leadline.report.layout import wrapped
from leadline.report.look import Look
from leadline.report.page import Chart, Charts, Column, Fact, Page, Section, Series, Table, Title, facts
from leadline.report.render import html
from leadline.text import clean, clean_lines, number, plural

LEAGUE_HEADER = ("scheme", "held-out loss", "behind the leader", "best rate", "sensitivity")
TRANSFER_HEADER = ("scheme", "best rate by depth", "power of depth", "theory")
# Derived: positions in the headers above of the columns that a narrow terminal leaves out, in this order.
OPTIONAL_LEAGUE_COLUMNS, OPTIONAL_TRANSFER_COLUMNS = (4, 3), (1,)
LEGEND = "= not distinguishable from the leader (95 %)   † best rate at the edge of the grid   (…) no best rate known"
# Heuristic: more charts make the page slow to read.
MAX_PICTURED_SCHEMES = 8


def format_interval(interval: SeedInterval, *, sign: bool = False) -> str:
    """Return the interval as text, for example "2.41 ± 0.05"."""
    if not math.isfinite(interval.mean):
        return "diverged"
    mean = f"{interval.mean:+z.2f}" if sign else f"{interval.mean:z.2f}"
    return mean if interval.half is None else f"{mean} ± {interval.half:.2f}"


def league_rows(table: Sequence[Standing]) -> list[list[str]]:
    """Return one row per scheme, the best first. `=` marks a tie with the best, † a rate at the edge of the grid."""
    return [
        [
            f"{row.scheme}{' =' if row.level else ''}",
            format_interval(row.loss),
            format_interval(row.behind, sign=True),
            f"{row.rate:g}{' †' if row.at_edge else ''}",
            f"{row.sensitivity:z.2f}",
        ]
        for row in table
    ]


def transfer_rows(transfers: Sequence[RateTransfer]) -> list[list[str]]:
    return [
        [
            row.scheme,
            ", ".join(_optima(row)),
            "undecided" if row.power is None else format_interval(row.power, sign=True),
            "" if row.predicted is None else f"{row.predicted:+.1f}",
        ]
        for row in sorted(transfers, key=lambda each: -math.inf if each.power is None else each.power.mean)
    ]


def _optima(row: RateTransfer) -> list[str]:
    """Return the best rate per depth, in parentheses if it is at an edge of the grid or the network learned nothing."""
    known = row.known or (row.power is not None,) * len(row.depths)
    return [
        f"{depth}: {number(best)}" if sure else f"{depth}: ({number(best)})"
        for depth, best, sure in zip(row.depths, row.optima, known, strict=True)
    ]


def summary_text(race: Race) -> str:
    """Say for each depth which scheme leads and how many schemes learned anything."""
    return ". ".join(_depth_summary(table, race.base_rate) for table in race.tables) + "."


def _depth_summary(table: Sequence[Standing], base_rate: float) -> str:
    """Summarize one depth. If no scheme learned anything, the first row is not a leader."""
    leader, learned = table[0], sum(row.loss.mean < base_rate for row in table)
    if not learned:
        return (
            f"At {plural(leader.depth, 'block')} no scheme did better than a constant prediction, "
            "so the ranking means nothing"
        )
    level = sum(row.level for row in table) - 1
    comparison = "a single seed cannot separate the schemes"
    if leader.loss.half is not None:
        comparison = _level(level)
    return (
        f"At {plural(leader.depth, 'block')} {leader.scheme} leads with {format_interval(leader.loss)}, "
        f"{comparison}, and {learned} of {len(table)} did better than a constant prediction"
    )


def _level(others: int) -> str:
    count = {0: "no other scheme is", 1: "1 other scheme is"}.get(others, f"{others} other schemes are")
    return f"{count} tied with it"


def render_text(race: Race, look: Look) -> str:
    """Return the league tables as text, or only the summary if `look` asks for the verdict."""
    if look.detail == "verdict":
        return clean(summary_text(race)) + "\n"
    width = look.width
    lines = [*_lines(summary_text(race), width), ""]
    lines += [*_lines(f"{_setting(race)}; a constant prediction has loss {race.base_rate:.2f}", width), ""]
    for table in race.tables:
        rows = [list(LEAGUE_HEADER), *league_rows(table)]
        lines += [plural(table[0].depth, "block"), *_columns(rows, width, OPTIONAL_LEAGUE_COLUMNS), ""]
    if race.transfers:
        rows = [list(TRANSFER_HEADER), *transfer_rows(race.transfers)]
        lines += ["how the best rate moves with depth", *_columns(rows, width, OPTIONAL_TRANSFER_COLUMNS), ""]
    lines += _lines(LEGEND, width)
    lines += [f"failed: {each}" for each in race.failed]
    return clean_lines("\n".join(lines)) + "\n"


def _lines(text: str, width: int) -> list[str]:
    return [line.plain for line in wrapped(clean(text), width)]


def race_page(race: Race) -> Page:
    """The league table of each depth with its charts, then how the best rate moves with depth."""
    rows = (
        ("Data", race.data),
        ("Optimizer", race.optimizer),
        ("Steps", str(race.steps)),
        ("Batch", str(race.batch)),
        ("Width", str(race.width)),
        ("Seeds", str(race.seeds)),
    )
    sections = [section for table in race.tables for section in _sections(race, table)]
    if race.transfers:
        sections.append(
            Section(
                key="transfer",
                title="How the best rate moves with depth",
                lead="Theory: if branches are scaled by depth^-a, the best Adam rate scales as depth^(a-1): -1, -1/2 "
                "and 0 for a of 0, 1/2 and 1. Parentheses: the best rate is not known, because it is at an edge of the "
                "grid or the network did no better than a constant prediction. A power needs two depths with a known "
                "best rate.",
                body=(_table(TRANSFER_HEADER, transfer_rows(race.transfers)),),
            )
        )
    return Page(
        subject="race",
        titles=(Title(words="Race of residual schemes", tone="info"),),
        sentence=summary_text(race),
        facts=facts(*(Fact(label=label, value=value) for label, value in rows)),
        sections=tuple(sections),
    )


def _table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> Table:
    columns = (Column(title=header[0]), *(Column(title=title, kind="number") for title in header[1:]))
    return Table(columns=columns, rows=tuple(tuple(row) for row in rows))


def _sections(race: Race, table: Sequence[Standing]) -> list[Section]:
    depth = table[0].depth
    blocks = plural(depth, "block")
    charts = tuple(each for row in table[:MAX_PICTURED_SCHEMES] for each in _charts(row, race.steps))
    return [
        Section(
            key=f"league-{depth}",
            title=blocks,
            lead=f"Held-out loss in nats at the best rate, with 95 % intervals over {race.seeds} seeds; a constant "
            f"prediction has {race.base_rate:.2f}. = not distinguishable from the leader; † the best rate is at the "
            "edge of the grid. Sensitivity: how much the loss exceeds that of the best rate, averaged over all rates.",
            body=(_table(LEAGUE_HEADER, league_rows(table)),),
        ),
        Section(
            key=f"losses-{depth}",
            title=f"{blocks}: loss by learning rate and during training",
            lead="Left: validation loss at each rate; a red triangle marks a network that diverged. Right: training "
            f"loss at the best rate over {race.steps} steps. The first {MAX_PICTURED_SCHEMES} schemes are shown.",
            body=(Charts(items=charts),),
        ),
    ]


def _charts(row: Standing, steps: int) -> list[Chart]:
    losses = [loss if math.isfinite(loss) else math.inf for _, loss in row.by_rate]
    return [
        Chart(
            title=row.scheme,
            unit="loss by rate",
            series=(Series(values=losses),),
            kind="linear",
            names=tuple(f"{rate:g}" for rate, _ in row.by_rate),
        ),
        Chart(
            title=row.scheme,
            unit=f"loss over training at rate {row.rate:g}",
            series=(Series(values=row.curve),),
            kind="linear",
            names=tuple(last_steps(steps, len(row.curve))),
        ),
    ]


def last_steps(steps: int, points: int) -> list[str]:
    """Return for each point of a curve, a mean over several steps, the number of its last step, counted from 1."""
    size = math.ceil(steps / max(points, 1))
    return [str(min(size * (at + 1), steps)) for at in range(points)]


def _setting(race: Race) -> str:
    budget = f"{plural(race.steps, 'step')} of {race.batch}, width {race.width}, {plural(race.seeds, 'seed')}"
    return f"{race.data}, {race.optimizer}, {budget}"


def _columns(rows: Sequence[Sequence[str]], width: int, optional: Sequence[int]) -> list[str]:
    """Align the rows in columns. Columns in `optional` are left out, one by one, until a row fits `width`."""
    sizes = [max(len(row[at]) for row in rows) for at in range(len(rows[0]))]
    columns = list(range(len(sizes)))
    for each in optional:
        if sum(2 + sizes[at] for at in columns) <= width:
            break
        columns.remove(each)
    return ["".join(f"  {row[at]:<{sizes[at]}}" for at in columns).rstrip() for row in rows]


def render_html(race: Race) -> str:
    """One self-contained HTML file."""
    return html.render([race_page(race)], html.STATIC_KIT)


RACE_FORMATS: dict[str, Callable[[Race, Look], str]] = {
    "text": render_text,
    "json": lambda race, look: race.to_json() + "\n",
    "html": lambda race, look: render_html(race),
}
