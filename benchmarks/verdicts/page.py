"""The tables of docs/lab-notes/verdicts.md, from the stored labels and verdicts."""

from __future__ import annotations

import statistics
from collections import Counter
from collections.abc import Callable

from benchmarks.result_files import table
from benchmarks.verdicts.baselines import NAMES
from benchmarks.verdicts.cases import LABELS, FiredBaselines, Labels, Verdicts
from benchmarks.verdicts.problem import FAMILIES
from benchmarks.verdicts.score import HEADER, Score, figures, row, score, settle
from benchmarks.verdicts.truth import TARGET

Render = Callable[[Labels, Verdicts, FiredBaselines], str]

# Heuristic: as many misses as fit on a page.
MAX_MISSES = 12
VERDICTS = ("trains", "poor", "fails", "undecided", "crash")


def held_out(labels: Labels) -> Labels:
    """Return the cases of the held-out half."""
    return {key: case for key, case in labels.items() if case.problem.half == "held-out"}


def clear(labels: Labels) -> Labels:
    """Return the cases that are not borderline."""
    return {key: case for key, case in labels.items() if case.label != "borderline"}


def scores(labels: Labels, verdicts: Verdicts, fired: FiredBaselines) -> dict[str, Score]:
    """Return Leadline's scores, counted in three ways, and those of every baseline."""
    chosen = clear(labels)
    found = {
        "**Leadline**": score((verdicts[key].alarm, case.label) for key, case in chosen.items()),
        "Leadline, `poor` counted as trains": score(
            (verdicts[key].verdict == "fails", case.label) for key, case in chosen.items()
        ),
        "Leadline, with the borderline cases": score(
            (verdicts[key].alarm, settle(case, TARGET)) for key, case in labels.items()
        ),
    }
    measured = {key: case for key, case in chosen.items() if key in fired}
    return found | {
        name: score((name in fired[key], case.label) for key, case in measured.items()) for name in NAMES
    }


def family_scores(labels: Labels, verdicts: Verdicts) -> dict[str, Score]:
    """Return Leadline's score per family."""
    return {
        family: score(
            (verdicts[key].alarm, case.label)
            for key, case in clear(labels).items()
            if case.problem.family == family
        )
        for family in FAMILIES
    }


def misses(labels: Labels, verdicts: Verdicts) -> list[tuple[str, str]]:
    """Return (kind, key) for every wrong verdict; the kind is "missed" or "false alarm"."""
    return [
        ("missed" if case.failed else "false alarm", key)
        for key, case in clear(labels).items()
        if verdicts[key].alarm != case.failed
    ]


def render_figures(labels: Labels, verdicts: Verdicts, fired: FiredBaselines) -> str:
    """Leadline and the baselines on the held-out half."""
    return figures(scores(held_out(labels), verdicts, fired))


def render_families(labels: Labels, verdicts: Verdicts, fired: FiredBaselines) -> str:
    """Leadline on the held-out half, one row per family."""
    return figures(family_scores(held_out(labels), verdicts))


def render_calibration(labels: Labels, verdicts: Verdicts, fired: FiredBaselines) -> str:
    """Leadline on the half that checks were calibrated on."""
    mine = clear({key: case for key, case in labels.items() if case.problem.half == "calibration"})
    found = score((verdicts[key].alarm, case.label) for key, case in mine.items())
    return table(HEADER, [row("Leadline, calibration half", found)])


def render_labels(labels: Labels, verdicts: Verdicts, fired: FiredBaselines) -> str:
    """Count outcomes per family."""

    def line(name: str, counts: Counter[str]) -> list[str]:
        return [name, *(str(counts[label]) for label in LABELS), str(counts.total())]

    rows = [
        line(family, Counter(case.label for case in labels.values() if case.problem.family == family))
        for family in FAMILIES
    ]
    return table(
        ["family", *LABELS, "all"], [*rows, line("all", Counter(case.label for case in labels.values()))]
    )


def render_confusion(labels: Labels, verdicts: Verdicts, fired: FiredBaselines) -> str:
    """Every verdict against every outcome on the held-out half."""
    counts = Counter((verdicts[key].verdict, case.label) for key, case in held_out(labels).items())
    return table(
        ["verdict", *LABELS],
        [[verdict, *(str(counts[verdict, label]) for label in LABELS)] for verdict in VERDICTS],
    )


def render_causes(labels: Labels, verdicts: Verdicts, fired: FiredBaselines) -> str:
    """Count, per intended cause, the failures and how many were predicted."""
    chosen, rows = clear(held_out(labels)), []
    for cause in sorted({case.problem.cause for case in chosen.values()}):
        mine = {key: case for key, case in chosen.items() if case.problem.cause == cause}
        found = score((verdicts[key].alarm, case.label) for key, case in mine.items())
        failed, healthy = found.caught + found.missed, found.false_alarms + found.passed
        rows.append([cause, str(failed), str(found.caught), str(healthy), str(found.false_alarms)])
    return table(["meant to be wrong", "failed", "of these caught", "reached", "of these false alarms"], rows)


def render_misses(labels: Labels, verdicts: Verdicts, fired: FiredBaselines) -> str:
    """Show the hardest misses of the held-out half: false alarms first, then failures that few baselines predict."""
    chosen = held_out(labels)
    found = sorted(misses(chosen, verdicts), key=lambda miss: (miss[0], len(fired[miss[1]]), miss[1]))
    rows = []
    for kind, key in found[:MAX_MISSES]:
        problem, said = chosen[key].problem, verdicts[key]
        recipe = f"{problem.optimizer} at {problem.rate:g}, {problem.data}"
        codes = ", ".join(said.codes) or "none"
        rows.append([f"`{key}`", kind, problem.cause, recipe, chosen[key].label, said.verdict, codes])
    return table(
        ["problem", "miss", "meant to be wrong", "trained with", "outcome", "verdict", "findings"], rows
    )


def render_cost(labels: Labels, verdicts: Verdicts, fired: FiredBaselines) -> str:
    """Say how long labeling took."""
    seconds = [case.seconds for case in labels.values()]
    minutes, middle = sum(seconds) / 60, statistics.median(seconds)
    return f"{len(labels)} problems were trained in {minutes:.0f} minutes of one core; the median took {middle:.1f} s."


TABLES: dict[str, Render] = {
    "verdict-figures": render_figures,
    "verdict-families": render_families,
    "verdict-confusion": render_confusion,
    "verdict-calibration": render_calibration,
    "verdict-causes": render_causes,
    "verdict-misses": render_misses,
    "verdict-labels": render_labels,
    "verdict-cost": render_cost,
}
