"""Measure whether `leadline fix` makes failing networks train, on every failed case of benchmarks/verdicts.

    python -m benchmarks.repair --half calibration     shows every failure: fixes are developed on this half
    python -m benchmarks.repair --half held-out        shows figures only: nothing is tuned on this half
    python -m benchmarks.repair --baseline             uses AUTOTRAINER's order of repairs instead

The script can be stopped and resumed at any time. The order is random with a fixed seed, so a part is a fair sample
of the whole. All results of one file (benchmarks/results/repair_*.json) come from one version of the package. A
case counts as repaired if the recipe, applied to the newly built problem and trained for its budget on its own
batches, reaches the target that healthy networks reach (`verdicts/truth.py`). It counts as made worse if it ends
with clearly less progress than the untreated run, or diverges where that did not.
"""

from __future__ import annotations

import argparse
import hashlib
import math
import random
import time
from collections import Counter
from dataclasses import replace
from functools import cache, partial
from itertools import islice
from statistics import median
from typing import Any

import torch

from benchmarks.result_files import ROOT, fill_file, load, run_missing, table
from benchmarks.verdicts.case_builder import build, loss, problem_batches
from benchmarks.verdicts.cases import LabeledProblem, load_labels
from benchmarks.verdicts.data import task
from benchmarks.verdicts.problem import FAMILIES, Problem
from benchmarks.verdicts.truth import MARGIN, TARGET, WINDOW, Run, label
from leadline.case import Case
from leadline.fixes import all_fixes
from leadline.fixes._engine.edits import EditSession, apply_edits
from leadline.fixes._engine.repair import repair
from leadline.records import Edit

FILE = "repair"
BUDGET = 60.0  # seconds of one core for one search
BATCHES = 120  # fresh ones for the trials of a search
SEED = 8  # of the order
NEARLY = 0.7  # of the budget: what is kept back for the last trials takes most of the rest
Z = 1.96  # of 95 % of a normal distribution
WORSE = 0.1  # progress lost that counts as made worse: two thirds of the truth's own margin


def mend(case: LabeledProblem) -> dict[str, Any]:
    """Repair one failed case, and return how its recipe trains."""
    problem = case.problem
    began = time.process_time()
    made = repair(_with_batches(problem), BUDGET, fixes=all_fixes(), clock=time.process_time)
    spent = time.process_time() - began
    kept = [outcome for outcome in made.outcomes if outcome.kept]
    run, seconds = train_edited(problem, made.recipe.edits)
    return judged(case, run) | {
        "version": version(),
        "search_steps": made.report.steps,
        "before": made.verdict_before,
        "after": made.verdict_after,
        "fixes": [outcome.fix for outcome in kept],
        "titles": [outcome.title for outcome in kept],
        "reach": [outcome.reach for outcome in kept],
        "search_seconds": round(spent, 2),
        "training_seconds": round(seconds, 2),
    }


def judged(case: LabeledProblem, run: Run) -> dict[str, Any]:
    """Return how the treated problem trained, compared with the untreated one."""
    data, steps = task(case.problem.data), case.problem.steps
    found, progress = label(run, data, steps), run.first(steps).progress(data)
    lost = math.isfinite(progress) and progress < (case.progress or 0.0) - WORSE
    return {
        "cause": case.problem.cause,
        "family": case.problem.family,
        "untreated": case.label,
        "label": found,
        "progress": round(progress, 3) if math.isfinite(progress) else None,
        "worse": lost or (found == "diverged" and case.label != "diverged"),
        "steps": len(run.losses),
        "budget": steps,
    }


def train_edited(problem: Problem, edits: tuple[Edit, ...]) -> tuple[Run, float]:
    """Build and edit the problem, and train it until it reaches the target or its budget ends."""
    case = build(problem)
    apply_edits(EditSession(model=case.model, optimizer=case.optimizer), edits)
    return train(problem, case)


def train(problem: Problem, case: Case) -> tuple[Run, float]:
    """Return the losses of a training on the problem's own batches, and the seconds it took."""
    assert case.optimizer is not None
    data, losses, began = task(problem.data), [], time.process_time()
    torch.manual_seed(0)
    for inputs, targets in islice(problem_batches(problem), problem.steps):
        now = loss(case.model(inputs), targets)
        losses.append(now.item())
        if not math.isfinite(losses[-1]):
            break
        if Run(losses=tuple(losses[-WINDOW:])).progress(data) >= TARGET + MARGIN:
            break
        case.optimizer.zero_grad()
        now.backward()
        case.optimizer.step()
    return Run(losses=tuple(losses)), time.process_time() - began


def _with_batches(problem: Problem) -> Case:
    stream = problem_batches(problem)
    next(stream)
    return replace(build(problem), batches=list(islice(stream, BATCHES)))


def by_family(cases: dict[str, dict[str, Any]]) -> str:
    """Return the cases repaired and made worse by family, and the cost of the search."""
    rows = []
    for family in (*FAMILIES, "all"):
        found = [each for each in cases.values() if family in (each["family"], "all")]
        if not found:
            continue
        fixed = sum(each["label"] == "reached" for each in found)
        low, high = wilson(fixed, len(found))
        rows.append(
            [family, str(len(found)), str(fixed), f"{fixed / len(found):.0%}", f"{low:.0%} to {high:.0%}"]
        )
        rows[-1] += [str(sum(each["worse"] for each in found)), *_costs(found)]
    header = ["family", "failed", "repaired", "share", "95 % interval", "made worse"]
    return table([*header, "median search", "in steps", "in trainings"], rows)


def _costs(found: list[dict[str, Any]]) -> list[str]:
    """Return the seconds of a search, its training steps, and these as a share of a full training."""
    seconds = median(each["search_seconds"] for each in found)
    steps = [each["search_steps"] for each in found if "search_steps" in each]
    shares = [each["search_steps"] / each["budget"] for each in found if "search_steps" in each]
    return [f"{seconds:.0f} s", *([f"{median(steps):.0f}", f"{median(shares):.1f}"] if steps else ["", ""])]


def wilson(hits: int, of: int) -> tuple[float, float]:
    """Return the 95 % interval of a share (Wilson 1927)."""
    share, square = hits / of, Z * Z
    middle = (share + square / (2 * of)) / (1 + square / of)
    half = Z / (1 + square / of) * math.sqrt(share * (1 - share) / of + square / (4 * of * of))
    return middle - half, middle + half


def render(results: dict[str, Any]) -> str:
    """Return the table of the docs, with the number of cases."""
    return by_family(results["cases"])


def render_held_out(results: dict[str, Any]) -> str:
    """Return the table, and counts of how the cases that were not repaired ended; single cases stay unseen."""
    missed = [each for each in results["cases"].values() if each["label"] != "reached"]
    unseen = sum(each["before"] == "trains" for each in missed)
    short = sum(bool(each["fixes"]) for each in missed)
    spent = sum(each["search_seconds"] > NEARLY * BUDGET for each in missed)
    run, of = len(results["cases"]), len(chosen("held-out"))
    return render(results) + (
        f"\n\nRun: {run} of {of}. Not repaired: {len(missed)}, of which {unseen} were not seen by the check, {short} "
        f"were recommended a repair that fell short of the target and {len(missed) - short} none; in {spent} the "
        f"search's time was nearly spent."
    )


def write_page() -> None:
    """Fill the tables of the page from the stored results."""
    for mark, name, made in (
        ("repair_held_out", f"{FILE}_held_out", render_held_out),
        ("repair_baseline", f"{FILE}_baseline", render),
    ):
        fill_file(ROOT / "docs" / "lab-notes" / "repair.md", mark, made(load(name)))


def chosen(half: str) -> dict[str, LabeledProblem]:
    """Return the failed cases of a half in a random order."""
    found = [
        (key, case)
        for key, case in sorted(load_labels().items())
        if case.failed and case.problem.half == half
    ]
    random.Random(SEED).shuffle(found)
    return dict(found)


@cache
def version() -> str:
    """Return a hash of the package's code, which identifies the version of a result."""
    files = sorted((ROOT / "src" / "leadline").rglob("*.py"))
    return hashlib.sha256(b"".join(file.read_bytes() for file in files)).hexdigest()[:12]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--half", choices=("calibration", "held-out"), default="calibration")
    parser.add_argument("--baseline", action="store_true")
    parser.add_argument("--most", type=int, default=10**9)
    options = parser.parse_args()
    torch.set_num_threads(1)
    from benchmarks.repair_baseline import repair_like_autotrainer

    name = f"{FILE}_{'baseline' if options.baseline else options.half}".replace("-", "_")
    solve = repair_like_autotrainer if options.baseline else mend
    done = load(name)["cases"]
    if not options.baseline and any(each.get("version") != version() for each in done.values()):
        parser.error(f"{name}.json is of another version of the package: delete it to begin anew")
    todo = {key: case for key, case in chosen(options.half).items() if key not in done}
    tasks = {key: partial(solve, case) for key, case in islice(todo.items(), options.most)}
    cases = run_missing(name, tasks, lambda key: print(key, flush=True))["cases"]
    print(by_family(cases))
    write_page()
    if options.half == "calibration":
        for key, each in cases.items():
            if each["label"] != "reached":
                print(key, each)
    print(Counter(fix for each in cases.values() for fix in each["fixes"]))


if __name__ == "__main__":
    main()
