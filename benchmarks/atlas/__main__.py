"""The commands of the benchmark; see the docstring of the package."""

from __future__ import annotations

import argparse
import sys
import zlib
from collections.abc import Callable
from typing import Any

from benchmarks.atlas import fit, scores
from benchmarks.atlas.jobs import check, in_parallel, mend, train
from benchmarks.atlas.page import ONE_BATCH_RENDERERS, RENDERERS, render_repairs
from benchmarks.atlas.problems import Problem, all_problems
from benchmarks.atlas.truth import SEEDS
from benchmarks.figures import accuracy
from benchmarks.result_files import ROOT, fill_file, load, save
from leadline.runner.program import DEFAULT_BATCHES

TRUTH, ANSWERS, ONE_BATCH_ANSWERS, REPAIRS = "atlas_truth", "atlas", "atlas_one_batch", "atlas_repair"
PAGE = ROOT / "docs" / "lab-notes" / "atlas.md"
SAVE_INTERVAL = 5
"""Problems between two writes of the results."""


def main(arguments: list[str] | None = None) -> None:
    options = _parser().parse_args(arguments)
    COMMANDS[options.command](options)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.atlas")
    parser.add_argument("command", choices=COMMANDS)
    parser.add_argument(
        "--only", default="", metavar="TEXT", help="only problems whose name contains this text"
    )
    parser.add_argument("--half", choices=("calibration", "held out"), help="only families of this half")
    parser.add_argument(
        "--most", type=int, default=None, metavar="N", help="only N problems, as if by chance"
    )
    parser.add_argument("--again", action="store_true", help="also problems that have a result")
    parser.add_argument(
        "--outdated",
        action="store_true",
        help="`check`: only answers that the present probability contradicts",
    )
    parser.add_argument("--healthy", action="store_true", help="give `fix` healthy networks, not failed ones")
    parser.add_argument("--one-batch", action="store_true", help="give `check` no further batches")
    parser.add_argument("--workers", type=int, default=1, help="processes (default: 1)")
    return parser


def run_truth(options: argparse.Namespace) -> None:
    """Train every chosen problem with its first seed, then with the others."""
    cases = load(TRUTH)["cases"]
    jobs = [
        (each.name, seed)
        for seed in SEEDS
        for each in _chosen(options)
        if options.again or str(seed) not in cases.get(each.name, {})
    ]
    _fill(TRUTH, train, jobs, options)


def run_checks(options: argparse.Namespace) -> None:
    """Ask about the chosen problems that were trained, with the batches that a program is checked with, or with one."""
    results, batches = (ONE_BATCH_ANSWERS, 1) if options.one_batch else (ANSWERS, DEFAULT_BATCHES)
    if options.again:
        _forget(results, {each.name for each in _named(options)})
    if options.outdated:
        rows = scores.rows(load(TRUTH), load(results))
        _forget(results, {row.name for row in rows if row.is_outdated and options.half in (None, row.half)})
    cases, trained = load(results)["cases"], load(TRUTH)["cases"]
    names = [each.name for each in _chosen(options) if each.name in trained and each.name not in cases]
    _fill(results, check, [(name, batches) for name in names], options)


def _forget(name: str, problems: set[str]) -> None:
    """Remove the answers to these problems, so that they are asked again."""
    results = load(name)
    results["cases"] = {key: each for key, each in results["cases"].items() if key not in problems}
    save(name, results)


def run_repairs(options: argparse.Namespace) -> None:
    """Search for repairs of further problems that failed, or of healthy networks; or repeat the searches made.

    Until a search is repeated, its old result is outdated: it does not count, and the next run makes it first.
    """
    results = load(REPAIRS)
    cases, named = results["cases"], [each.name for each in _named(options)]
    if options.again:
        for name in cases.keys() & set(named):
            cases[name]["outdated"] = True
        save(REPAIRS, results)
    outdated = sorted((name for name in named if cases.get(name, {}).get("outdated")), key=_hash)
    rows = {row.name: row for row in scores.rows(load(TRUTH), load(ANSWERS))}
    new = [] if options.again else [rows[name] for name in named if name in rows and name not in cases]
    chosen = [row for row in new if (row.is_healthy if options.healthy else row.fails)]
    names = sorted((row.name for row in chosen), key=_hash)[: options.most]
    _fill(REPAIRS, mend, [*outdated, *names], options)


def show_misses(options: argparse.Namespace) -> None:
    """Print the wrong verdicts on the calibration families."""
    for row in scores.rows(load(TRUTH), load(ANSWERS)):
        is_wrong = row.outcome != "borderline" and row.alarm != row.fails
        if row.half == "calibration" and is_wrong and options.only in row.name:
            shares = " ".join(f"{share:.2f}" for share in row.shares)
            codes = " ".join(f"{code}:{severity}" for code, severity in row.answer["codes"].items())
            print(f"{row.name}: {row.outcome} ({shares}) | {row.answer['verdict']} {codes}")


def show_scores(options: argparse.Namespace) -> None:
    for title, answers in ((f"{DEFAULT_BATCHES} batches", ANSWERS), ("one batch", ONE_BATCH_ANSWERS)):
        print(f"== {title}\n{scores.summary(scores.rows(load(TRUTH), load(answers)))}")
    for half in ("calibration", "held out"):
        print(f"repairs, {half}: {scores.repair_score(load(TRUTH), load(REPAIRS), half)}")


def run_fit(options: argparse.Namespace) -> None:
    """Fit the probability to the calibration families, and write it into the package."""
    rows = fit.usable(row for each in (ANSWERS, ONE_BATCH_ANSWERS) for row in _calibration_rows(each))
    fit.write(fit.fit(rows))
    print(fit.summary(rows))


def _calibration_rows(answers: str) -> list[scores.Row]:
    return [row for row in scores.rows(load(TRUTH), load(answers)) if row.half == "calibration"]


def render(options: argparse.Namespace) -> None:
    truth = load(TRUTH)
    rows, one_batch = (scores.rows(truth, load(each)) for each in (ANSWERS, ONE_BATCH_ANSWERS))
    for mark, make in RENDERERS.items():
        fill_file(PAGE, mark, make(rows))
    for mark, make in ONE_BATCH_RENDERERS.items():
        fill_file(PAGE, mark, make(one_batch))
    fill_file(PAGE, "atlas-repairs", render_repairs(truth, load(REPAIRS)))
    fill_file(ROOT / "README.md", "accuracy", accuracy())


def _fill(
    name: str, job: Callable[[Any], tuple[str, Any]], jobs: list[Any], options: argparse.Namespace
) -> None:
    """Run the jobs, and save the results now and then."""
    results = load(name)
    for count, (problem, found) in enumerate(in_parallel(job, jobs, options.workers), 1):
        is_partial = name == TRUTH
        results["cases"][problem] = (results["cases"].get(problem, {}) if is_partial else {}) | found
        if count % SAVE_INTERVAL == 0 or count == len(jobs):
            save(name, results)
            print(f"{count} of {len(jobs)}", flush=True)


def _named(options: argparse.Namespace) -> list[Problem]:
    found = [each for each in all_problems() if options.only in each.name]
    return [each for each in found if options.half in (None, each.half)]


def _chosen(options: argparse.Namespace) -> list[Problem]:
    """The named problems; if there are too many, those whose names have the smallest hashes."""
    found = _named(options)
    return sorted(found, key=lambda each: _hash(each.name))[: options.most] if options.most else found


def _hash(name: str) -> int:
    return zlib.crc32(name.encode())


COMMANDS = {
    "truth": run_truth,
    "check": run_checks,
    "fit": run_fit,
    "repair": run_repairs,
    "misses": show_misses,
    "score": show_scores,
    "render": render,
}


if __name__ == "__main__":
    main(sys.argv[1:])
