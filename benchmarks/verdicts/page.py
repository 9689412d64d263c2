"""The tables of docs/verdicts.md, from the stored labels and verdicts."""

from __future__ import annotations

import statistics
from collections import Counter
from collections.abc import Callable
from typing import Any

from benchmarks.store import table
from benchmarks.verdicts.baselines import NAMES
from benchmarks.verdicts.problem import FAMILIES, from_dict
from benchmarks.verdicts.score import ALARMS, FAILED, HEADER, Score, figures, row, score, settle
from benchmarks.verdicts.truth import TARGET

Cases = dict[str, dict[str, Any]]
Render = Callable[[Cases, Cases, Cases], str]

LABELS = ("reached", "stuck", "diverged", "borderline")
HARDEST = 12  # misses shown


def held_out(cases: Cases, *, borderline: bool = False) -> Cases:
    """The held-out half, without the cases too close to call unless asked for."""
    return {
        key: case
        for key, case in cases.items()
        if from_dict(case["problem"]).half == "held-out" and (borderline or case["label"] != "borderline")
    }


def alarms(verdicts: Cases, key: str, *, poor: bool = True) -> bool:
    """Does the verdict predict trouble? With `poor=False` only "fails" does."""
    return verdicts[key]["verdict"] in (ALARMS if poor else ("fails",))


def render_figures(cases: Cases, verdicts: Cases, others: Cases) -> str:
    """Leadline and the baselines on the held-out half."""
    chosen, every = held_out(cases), held_out(cases, borderline=True)
    scores: dict[str, Score] = {
        "**Leadline**": score((alarms(verdicts, key), case["label"]) for key, case in chosen.items()),
        "Leadline, `poor` counted as trains": score(
            (alarms(verdicts, key, poor=False), case["label"]) for key, case in chosen.items()
        ),
        "Leadline, with the borderline cases": score(
            (alarms(verdicts, key), settle(case, TARGET)) for key, case in every.items()
        ),
    }
    for name in NAMES:
        scores[name] = score((others[key][name], case["label"]) for key, case in chosen.items())
    return figures(scores)


def render_families(cases: Cases, verdicts: Cases, others: Cases) -> str:
    """Leadline's figures on the held-out half, a line a family."""
    rows = []
    for family in FAMILIES:
        chosen = {key: case for key, case in held_out(cases).items() if case["problem"]["family"] == family}
        found = score((alarms(verdicts, key), case["label"]) for key, case in chosen.items())
        rows.append(row(family, found))
    return table(HEADER, rows)


def render_labels(cases: Cases, verdicts: Cases, others: Cases) -> str:
    """How many problems of each family had which outcome."""
    rows = []
    for family in FAMILIES:
        counts = Counter(case["label"] for case in cases.values() if case["problem"]["family"] == family)
        rows.append([family, *(str(counts[label]) for label in LABELS), str(counts.total())])
    total = Counter(case["label"] for case in cases.values())
    rows.append(["all", *(str(total[label]) for label in LABELS), str(total.total())])
    return table(["family", *LABELS, "all"], rows)


def render_confusion(cases: Cases, verdicts: Cases, others: Cases) -> str:
    """Every verdict against every outcome on the held-out half."""
    chosen = held_out(cases, borderline=True)
    counts = Counter((verdicts[key]["verdict"], case["label"]) for key, case in chosen.items())
    said = [
        "trains",
        "poor",
        "fails",
        "undecided",
        *(["crash"] if any(v == "crash" for v, _ in counts) else []),
    ]
    return table(["verdict", *LABELS], [[v, *(str(counts[v, label]) for label in LABELS)] for v in said])


def render_causes(cases: Cases, verdicts: Cases, others: Cases) -> str:
    """What was meant to be wrong: how many of these failed, and how many of the failures were foretold."""
    rows = []
    chosen = held_out(cases)
    for cause in sorted({case["problem"]["cause"] for case in chosen.values()}):
        found = score(
            (alarms(verdicts, key), case["label"])
            for key, case in chosen.items()
            if case["problem"]["cause"] == cause
        )
        failed, healthy = found.caught + found.missed, found.false_alarms + found.passed
        rows.append(
            [
                cause,
                str(failed),
                str(found.caught) if failed else "–",
                str(healthy),
                str(found.false_alarms) if healthy else "–",
            ]
        )
    return table(["meant to be wrong", "failed", "of these caught", "reached", "false alarms"], rows)


def render_misses(cases: Cases, verdicts: Cases, others: Cases) -> str:
    """The hardest misses of the held-out half: false alarms first, then failures that baselines saw too seldom."""
    found = [
        (key, case)
        for key, case in held_out(cases).items()
        if alarms(verdicts, key) != (case["label"] in FAILED)
    ]
    found.sort(key=lambda miss: (miss[1]["label"] in FAILED, sum(others[miss[0]].values()), miss[0]))
    rows = []
    for key, case in found[:HARDEST]:
        problem, verdict = case["problem"], verdicts[key]
        recipe = f"{problem['optimizer']} at {problem['rate']:g}, {problem['data']}"
        codes = ", ".join(verdict["codes"]) or "none"
        rows.append([f"`{key}`", problem["cause"], recipe, case["label"], verdict["verdict"], codes])
    return table(["problem", "meant to be wrong", "trained with", "outcome", "verdict", "findings"], rows)


def render_cost(cases: Cases, verdicts: Cases, others: Cases) -> str:
    """What the labels cost."""
    seconds = [case["seconds"] for case in cases.values()]
    minutes, middle = sum(seconds) / 60, statistics.median(seconds)
    return f"{len(cases)} problems were trained in {minutes:.0f} minutes of one core; the median took {middle:.1f} s."


TABLES: dict[str, Render] = {
    "verdict-figures": render_figures,
    "verdict-families": render_families,
    "verdict-confusion": render_confusion,
    "verdict-causes": render_causes,
    "verdict-misses": render_misses,
    "verdict-labels": render_labels,
    "verdict-cost": render_cost,
}
