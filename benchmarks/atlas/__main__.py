"""The commands of the benchmark; see the docstring of the package."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable
from typing import Any

from benchmarks.atlas import scores
from benchmarks.atlas.jobs import check, in_parallel, train
from benchmarks.atlas.page import RENDERERS
from benchmarks.atlas.problems import Problem, all_problems
from benchmarks.atlas.truth import SEEDS
from benchmarks.result_files import ROOT, fill_file, load, save

TRUTH, ANSWERS = "atlas_truth", "atlas"
PAGE = ROOT / "docs" / "lab-notes" / "atlas.md"
SAVE_INTERVAL = 20
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
    parser.add_argument("--most", type=int, default=None, metavar="N", help="only the first N problems")
    parser.add_argument("--again", action="store_true", help="also problems that have a result")
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
    cases = load(ANSWERS)["cases"]
    names = [each.name for each in _chosen(options) if options.again or each.name not in cases]
    _fill(ANSWERS, check, names, options)


def show_misses(options: argparse.Namespace) -> None:
    """Print the wrong verdicts on the calibration families."""
    for row in scores.rows(load(TRUTH), load(ANSWERS)):
        is_wrong = row.outcome != "borderline" and row.alarm != row.fails
        if row.half == "calibration" and is_wrong and options.only in row.name:
            shares = " ".join(f"{share:.2f}" for share in row.shares)
            codes = " ".join(f"{code}:{severity}" for code, severity in row.answer["codes"].items())
            print(f"{row.name}: {row.outcome} ({shares}) | {row.answer['verdict']} {codes}")


def show_scores(options: argparse.Namespace) -> None:
    print(scores.summary(scores.rows(load(TRUTH), load(ANSWERS))))


def render(options: argparse.Namespace) -> None:
    rows = scores.rows(load(TRUTH), load(ANSWERS))
    for mark, make in RENDERERS.items():
        fill_file(PAGE, mark, make(rows))


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


def _chosen(options: argparse.Namespace) -> list[Problem]:
    found = [each for each in all_problems() if options.only in each.name]
    return [each for each in found if options.half in (None, each.half)][: options.most]


COMMANDS = {
    "truth": run_truth,
    "check": run_checks,
    "misses": show_misses,
    "score": show_scores,
    "render": render,
}


if __name__ == "__main__":
    main(sys.argv[1:])
