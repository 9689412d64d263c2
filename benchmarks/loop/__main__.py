"""Measure which loop bugs the run checks name, and how often they are wrong about healthy programs.

    python -m benchmarks.loop                      run what has no result, and fill docs/lab-notes/loop.md
    python -m benchmarks.loop --set calibration    only the half of the planted bugs on which checks may be tuned
    python -m benchmarks.loop --again              run everything again

Each program is small and trains on one core in seconds. Half of the pairs of bug and program are held out, by a hash of
their names. The result is in benchmarks/results/loop.json; the benchmark can be interrupted and resumed.
"""

from __future__ import annotations

import argparse
import logging
import sys
import time
import warnings
from functools import partial
from typing import Any

import torch

import leadline
from benchmarks.loop.bugs import BUGS, is_held_out
from benchmarks.loop.healthy import HEALTHY
from benchmarks.loop.programs import PROGRAMS, train
from benchmarks.result_files import RESULTS, ROOT, Results, fill_file, load, run_missing, save, table
from leadline.checks import run_checks

NAME = "loop"
PAGE = ROOT / "docs" / "lab-notes" / "loop.md"
# The aim: steps between the moment a bug can be seen and the alert that names it.
MAX_DELAY = 50
LOOP_CODES = {each.code for each in run_checks() if each.code >= "T816"} | {"T810"}


def measure_bug(bug: str, program: str) -> dict[str, Any]:
    torch.manual_seed(0)
    watch = train(PROGRAMS[program](), bug, leadline.watch)
    raised = watch.alerts
    named = [each.step for each in raised if each.code in BUGS[bug].codes]
    return {
        "named": min(named) if named else None,
        "codes": sorted({f"{each.code} {each.severity}" for each in raised}),
        "visible": BUGS[bug].visible,
        "trouble": watch.trouble or str(watch._steps.ledger.trouble or ""),
    }


def measure_healthy(kind: str) -> dict[str, Any]:
    torch.manual_seed(0)
    start = time.perf_counter()
    watches = HEALTHY[kind](leadline.watch)
    raised = [each for watch in watches for each in watch.alerts if each.code in LOOP_CODES]
    others = [each for watch in watches for each in watch.alerts if each.code not in LOOP_CODES]
    return {
        "steps": sum(watch.step for watch in watches),
        "alarms": [
            f"{each.code} {each.severity} at {each.step}" for each in raised if each.severity != "info"
        ],
        "notes": sorted({each.code for each in raised if each.severity == "info"}),
        "others": sorted({f"{each.code} {each.severity}" for each in others if each.code.startswith("T")}),
        "seconds": round(time.perf_counter() - start, 1),
        "trouble": "; ".join(
            str(watch.trouble or watch._steps.ledger.trouble or "")
            for watch in watches
            if watch.trouble or watch._steps.ledger.trouble
        ),
    }


def cases(which: str) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for bug, facts in BUGS.items():
        for program in facts.programs:
            held_out = is_held_out(bug, program)
            if which == "all" or ((which == "held out") == held_out and which != "healthy"):
                found[f"bug/{bug}/{program}"] = partial(measure_bug, bug, program)
    if which in ("all", "healthy"):
        found |= {f"healthy/{kind}": partial(measure_healthy, kind) for kind in HEALTHY}
    return found


def is_named(result: dict[str, Any]) -> bool:
    return result["named"] is not None and result["named"] - result["visible"] <= MAX_DELAY


def page(results: Results) -> str:
    rows = []
    totals = {True: [0, 0], False: [0, 0]}
    for bug, facts in BUGS.items():
        counts: dict[bool, list[int]] = {True: [0, 0], False: [0, 0]}
        delays = []
        for program in facts.programs:
            result = results["cases"].get(f"bug/{bug}/{program}")
            if result is None:
                continue
            for each in (counts[is_held_out(bug, program)], totals[is_held_out(bug, program)]):
                each[0] += is_named(result)
                each[1] += 1
            if is_named(result):
                delays.append(max(0, result["named"] - result["visible"]))
        cells = [f"{counts[side][0]} of {counts[side][1]}" for side in (False, True)]
        rows.append([bug, ", ".join(facts.codes), *cells, str(max(delays)) if delays else "-"])
    rows.append(
        ["**all**", "", *(f"**{totals[side][0]} of {totals[side][1]}**" for side in (False, True)), ""]
    )
    bugs = table(["bug", "check", "calibration", "held out", "steps until named, at most"], rows)
    healthy = [
        [kind, f"{result['steps']:,}", str(len(result["alarms"])), ", ".join(result["notes"]) or "-"]
        for kind in HEALTHY
        if (result := results["cases"].get(f"healthy/{kind}"))
    ]
    steps = sum(int(row[1].replace(",", "")) for row in healthy)
    healthy.append(["**all**", f"**{steps:,}**", f"**{sum(int(row[2]) for row in healthy)}**", ""])
    return f"{bugs}\n\n{table(['healthy program', 'steps', 'alarms', 'notes'], healthy)}"


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--set", default="all", choices=["all", "calibration", "held out", "healthy"])
    parser.add_argument("--again", action="store_true")
    parser.add_argument("--only", default="")
    options = parser.parse_args()
    logging.getLogger("leadline").setLevel(logging.CRITICAL)
    warnings.simplefilter("ignore")
    chosen = {key: each for key, each in cases(options.set).items() if options.only in key}
    if options.again:
        results = load(NAME)
        results["cases"] = {key: each for key, each in results["cases"].items() if key not in chosen}
        save(NAME, results)
    results = run_missing(NAME, chosen, lambda key: print(key, file=sys.stderr, flush=True))
    for key in chosen:
        result = results["cases"][key]
        is_bad = result["alarms"] if key.startswith("healthy") else not is_named(result)
        if is_bad or result["trouble"]:
            print(key, result)
    fill_file(PAGE, "loop", page(results))
    print(RESULTS / f"{NAME}.json")


if __name__ == "__main__":
    main()
