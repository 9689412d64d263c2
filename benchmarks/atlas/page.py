"""The tables of docs/lab-notes/atlas.md, from the stored outcomes and answers."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable

from benchmarks.atlas.flaws import FLAWS
from benchmarks.atlas.scores import JUDGES, Row, brier, reliability, score
from benchmarks.confidence import DECIDED_VERDICTS, HALVES, by_half
from benchmarks.result_files import table

HEADER = ["", "problems", "balanced accuracy", "failures caught", "false alarms"]


def render_figures(rows: list[Row]) -> str:
    """Leadline and the naive judges on both halves."""
    parts = []
    for half in ("held out", "calibration"):
        chosen = [row for row in rows if row.half == half]
        lines = [_line(name, chosen, alarms) for name, alarms in JUDGES.items()]
        borderline = sum(row.outcome == "borderline" for row in chosen)
        families = len({row.family for row in chosen})
        undecided = sum(row.answer["verdict"] == "undecided" for row in chosen)
        head = f"**Families {half}**: {len(chosen)} problems of {families} families, {borderline} of them borderline"
        parts.append(f"{head} and not counted; {undecided} verdicts undecided.\n\n{table(HEADER, lines)}")
    return "\n\n".join(parts)


def render_families(rows: list[Row]) -> str:
    """Leadline on each family."""
    names = sorted({(row.half, row.family) for row in rows})
    lines = [
        _line(f"{name} ({half})", [row for row in rows if row.family == name], JUDGES["Leadline"])
        for half, name in names
    ]
    return table(["family", *HEADER[1:]], lines)


def render_flaws(rows: list[Row]) -> str:
    """Leadline on each kind of flaw, in the families that were held out."""
    chosen = [row for row in rows if row.half == "held out"]
    groups = sorted({FLAWS[row.flaw].group for row in chosen})
    lines = [
        _line(group, [row for row in chosen if FLAWS[row.flaw].group == group], JUDGES["Leadline"])
        for group in groups
    ]
    return table(["kind of flaw", *HEADER[1:]], lines)


def render_reliability(rows: list[Row]) -> str:
    """Stated probabilities and what came true, in the families that were held out."""
    chosen = [row for row in rows if row.half == "held out"]
    lines = [
        [f"{low:.2f} to {high:.2f}", str(count), f"{stated:.2f}", f"{true:.2f}"]
        for low, high, count, stated, true in reliability(chosen)
    ]
    header = ["stated probability that it trains", "problems", "mean of the stated", "share that trained"]
    return f"{table(header, lines)}\n\nBrier score: {brier(chosen):.3f}."


def render_confidence(rows: list[Row]) -> str:
    """The confidence in a report, and how often the verdict was right on either half."""
    measured = by_half(rows)
    lines = [
        [
            f"`{verdict}`",
            f"{measured['held out'][verdict]['confidence']:.2f}",
            *(
                f"{measured[half][verdict]['right']:.0f} of {measured[half][verdict]['cases']:.0f}"
                for half in HALVES
            ),
        ]
        for verdict in DECIDED_VERDICTS
    ]
    return table(["verdict", "stated confidence", *(f"right, families {half}" for half in HALVES)], lines)


RENDERERS: dict[str, Callable[[list[Row]], str]] = {
    "atlas-figures": render_figures,
    "atlas-flaws": render_flaws,
    "atlas-families": render_families,
    "atlas-reliability": render_reliability,
    "atlas-confidence": render_confidence,
}


def _line(name: str, rows: Iterable[Row], alarms: Callable[[Row], bool]) -> list[str]:
    got = score(rows, alarms)
    return [
        name,
        str(got.failed + got.reached),
        _percent(got.balanced),
        f"{got.caught} of {got.failed}",
        f"{got.false_alarms} of {got.reached}",
    ]


def _percent(share: float) -> str:
    return "n/a" if math.isnan(share) else f"{share:.1%}"
