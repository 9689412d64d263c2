"""The tables of docs/lab-notes/atlas.md, from the stored outcomes and answers."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable

from benchmarks.atlas.flaws import FLAWS
from benchmarks.atlas.problem import Half
from benchmarks.atlas.scores import JUDGES, Row, brier, causes, reliability, repair_score, score
from benchmarks.result_files import Results, table
from leadline.checks._probability import fitted_model

HALVES: tuple[Half, ...] = ("held out", "calibration")
HEADER = ["", "problems", "balanced accuracy", "failures caught", "false alarms"]


def render_figures(rows: list[Row]) -> str:
    """Leadline and the naive judges on both halves."""
    parts = []
    for half in HALVES:
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


def render_causes(rows: list[Row]) -> str:
    """How often the finding on top names the right cause, by kind of flaw."""
    groups = sorted({FLAWS[row.flaw].group for row in rows if row.names_cause is not None})
    lines = []
    for group in (*groups, "all"):
        chosen = [row for row in rows if group in (FLAWS[row.flaw].group, "all")]
        cells = [causes(row for row in chosen if row.half == half) for half in HALVES]
        lines.append([group, *(f"{right} of {caught}" for right, caught in cells)])
    return table(["kind of flaw", *(f"families {half}" for half in HALVES)], lines)


def render_reliability(rows: list[Row]) -> str:
    """Stated probabilities and what came true, in the families that were held out."""
    chosen = [row for row in rows if row.half == "held out"]
    lines = [
        [f"{low:.2f} to {high:.2f}", str(count), f"{stated:.2f}", f"{true:.2f}"]
        for low, high, count, stated, true in reliability(chosen)
    ]
    header = ["stated probability that it trains", "problems", "mean of the stated", "share that trained"]
    return f"{table(header, lines)}\n\nBrier score: {brier(chosen):.3f}."


def render_repairs(truth: Results, repairs: Results) -> str:
    """What `leadline fix` did to problems that failed and to some that reach, on both halves."""
    header = [
        "families",
        "failed",
        "repairable by an edit",
        "repaired",
        "something recommended",
        "made worse",
    ]
    lines = []
    for half in HALVES:
        got = repair_score(truth, repairs, half)
        counts = (got.failed, got.repairable, got.repaired, got.changed, got.worse)
        lines.append([half, *map(str, counts), f"{got.left_alone} of {got.healthy}"])
    return table([*header, "healthy left alone"], lines)


def render_model(rows: list[Row]) -> str:
    """The quantities and their weights, as the package has them."""
    model = fitted_model()
    lines = [[name, f"{weight:+.2f}"] for name, weight in model.weights.items()]
    return table(["quantity", "log odds per unit"], [["bias", f"{model.bias:+.2f}"], *lines])


RENDERERS: dict[str, Callable[[list[Row]], str]] = {
    "atlas-figures": render_figures,
    "atlas-flaws": render_flaws,
    "atlas-causes": render_causes,
    "atlas-families": render_families,
    "atlas-reliability": render_reliability,
    "atlas-model": render_model,
}
ONE_BATCH_RENDERERS: dict[str, Callable[[list[Row]], str]] = {
    "atlas-one-batch": render_figures,
    "atlas-one-batch-reliability": render_reliability,
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
