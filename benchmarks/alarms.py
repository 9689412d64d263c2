"""Measure how often run checks are wrong on healthy training runs, and how soon they notice a flaw in sick ones.

    python -m benchmarks.alarms                 train and evaluate runs without a result, fill docs/reference/alarms.md
    python -m benchmarks.alarms --keep FOLDER   also save the recorded runs there, and reuse those that exist
    python -m benchmarks.alarms --again         evaluate all runs again (after a change of a check; fast with --keep)

There are two sets of runs with different seeds. The thresholds were set on the first (`calibration`) and are tested on
the second (`held out`), whose recipes are other draws. Each run trains a small network on digits or text; a sick one
has a single flaw that starts at a known step. It takes about twenty minutes on one core, can be interrupted and
resumed, and stores its result in benchmarks/results/alarms.json.
"""

from __future__ import annotations

import argparse
import pickle
import statistics
import time
from functools import partial
from pathlib import Path
from typing import Any

import torch

from benchmarks.alarm_runs import FLAWS, Plan, Recorded, healthy_plan, record, settling_plan, sick_plan
from benchmarks.result_files import RESULTS, ROOT, Results, fill_file, run_missing, table
from leadline.checks import run_checks
from leadline.checks._history import History
from leadline.monitor.alerts import AlertTracker

SETS = {"calibration": (0, 30, 2), "held out": (1000, 30, 3)}  # first seed, healthy runs, runs per flaw
# Additional healthy runs, long enough for scale-invariant weights to reach equilibrium.
SETTLING = 2
NAMING_ALARMS = {  # the checks that name the flaw itself, not its consequences
    "spike": ("T801",),
    "bad batch": ("T801",),
    "divergence": ("T803", "T814"),
    "noise labels": ("T802",),
    "dying units": ("T804",),
    "growing branch": ("T807",),
    "growing logits": ("T808",),
    "shrinking rate": ("T805",),
    "loss scale": ("T809",),
    "same batch": ("T810",),
    "left out": ("T811",),
    "cut": ("T812",),
    "tight clip": ("T813",),
    "non-finite": ("T814",),
    "high rate": ("T815",),
    "kept gradients": ("T815",),
}


def plans(name: str) -> list[Plan]:
    first, healthy, sick = SETS[name]
    found = [healthy_plan(first + index) for index in range(healthy)]
    found += [settling_plan(first + 900 + index) for index in range(SETTLING)]
    return found + [sick_plan(flaw, first + index) for flaw in FLAWS for index in range(sick)]


def judge(plan: Plan, keep: Path | None) -> dict[str, Any]:
    """Return the alerts of one run."""
    recorded = recorded_run(plan, keep)
    history, tracker, said = History(recorded.layout), AlertTracker(run_checks()), []
    begin = time.process_time()
    for sample in recorded.samples:
        history.add(sample)
        said += tracker.update(history)
    seconds = time.process_time() - begin
    return {
        "steps": len(recorded.samples),
        "onset": plan.onset if plan.flaw else None,
        "desk_us_a_step": round(1e6 * seconds / len(recorded.samples), 1),
        "alerts": [
            [each.code, each.severity, each.step, each.since] for each in said if each.state == "raised"
        ],
    }


def recorded_run(plan: Plan, keep: Path | None) -> Recorded:
    path = keep / f"{plan.key.replace(' ', '')}.pickle" if keep else None
    if path is not None and path.exists():
        return pickle.loads(path.read_bytes())
    found = record(plan)
    if path is not None:
        path.write_bytes(pickle.dumps(found))
    return found


def render(results: Results) -> str:
    """Return the tables of docs/reference/alarms.md."""
    return "\n\n".join([render_false(results), render_sick(results)])


def render_false(results: Results) -> str:
    rows = []
    for name in SETS:
        healthy = [found for key, found in of_set(results, name) if key[1] == "healthy"]
        steps = sum(found["steps"] for found in healthy)
        alerts = [alert for found in healthy for alert in found["alerts"]]
        loud = [alert for alert in alerts if alert[1] != "info"]
        notes = len(alerts) - len(loud)
        cost = statistics.median(found["desk_us_a_step"] for found in healthy)
        rows.append(
            [
                name,
                f"{len(healthy)}",
                f"{steps:,}",
                f"**{1e4 * len(loud) / steps:.2f}** ({len(loud)}{listed(loud)}){bounded(loud, steps)}",
                f"{1e4 * notes / steps:.2f} ({notes})",
                f"{cost:.0f} µs",
            ]
        )
    head = [
        "set",
        "healthy runs",
        "steps",
        "false alarms per 10,000 steps",
        "notes per 10,000 steps",
        "cost per step",
    ]
    return table(head, rows)


def bounded(alerts: list[list[Any]], steps: int) -> str:
    """Return the 95 % upper bound 3/n of a rate with no event in n independent steps (derived: e^-3 is 5 %)."""
    return "" if alerts else f", below {3e4 / steps:.2f} with 95 % confidence"


def listed(alerts: list[list[Any]]) -> str:
    codes = sorted({alert[0] for alert in alerts})
    return f": {', '.join(codes)}" if codes else ""


def render_sick(results: Results) -> str:
    rows = []
    for flaw, codes in NAMING_ALARMS.items():
        row = [flaw, ", ".join(codes)]
        for name in SETS:
            delays = [delay(found, codes) for key, found in of_set(results, name) if key[1] == flaw]
            seen = sorted(each for each in delays if each is not None)
            late = f"{statistics.median_low(seen)} ({seen[0]} to {seen[-1]})" if seen else "-"
            row += [f"{len(seen)} of {len(delays)}", late]
        rows.append(row)
    head = [
        "flaw",
        "alarm",
        "calibration: detected",
        "steps after onset",
        "held out: detected",
        "steps after onset",
    ]
    return table(head, rows)


def delay(found: dict[str, Any], codes: tuple[str, ...]) -> int | None:
    """Return the steps from the onset to the first alert that names the flaw, or None."""
    steps = [step for code, _, step, _ in found["alerts"] if code in codes and step >= found["onset"]]
    return min(steps) - found["onset"] if steps else None


def of_set(results: Results, name: str) -> list[tuple[list[str], dict[str, Any]]]:
    keys = [key.split(" | ") for key in results["cases"]]
    return [(key, results["cases"][" | ".join(key)]) for key in keys if key[0] == name]


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--keep", type=Path, help="folder of recorded runs")
    parser.add_argument("--again", action="store_true", help="forget the results, not the recorded runs")
    asked = parser.parse_args()
    torch.set_num_threads(1)
    if asked.again:
        (RESULTS / "alarms.json").unlink(missing_ok=True)
    cases = {
        f"{name} | {plan.key}": partial(judge, plan, asked.keep) for name in SETS for plan in plans(name)
    }
    results = run_missing("alarms", cases, partial(print, flush=True))
    fill_file(ROOT / "docs" / "reference" / "alarms.md", "alarms", render(results))


if __name__ == "__main__":
    main()
