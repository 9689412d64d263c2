"""The commands of the benchmark; see the docstring of the package."""

from __future__ import annotations

import argparse
import multiprocessing
import sys
from collections.abc import Iterable

import torch

from benchmarks.result_files import load, save
from benchmarks.wiring import scores
from benchmarks.wiring.answers import SEPARATOR, Answer, ask_by_name, names
from benchmarks.wiring.problem import PROBLEMS

RESULTS = "wiring"


def main(arguments: list[str] | None = None) -> None:
    options = _parser().parse_args(arguments)
    COMMANDS[options.command](options)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.wiring")
    parser.add_argument("command", choices=COMMANDS)
    parser.add_argument("--only", default="", metavar="TEXT", help="only names that contain this text")
    parser.add_argument(
        "--half", choices=("calibration", "held-out"), default="calibration", help="default: calibration"
    )
    parser.add_argument("--again", action="store_true", help="also what has a stored answer")
    parser.add_argument("--workers", type=int, default=2, help="processes (default: 2)")
    return parser


def show_list(options: argparse.Namespace) -> None:
    for problem in PROBLEMS.values():
        print(f"{problem.name} ({problem.network}, {problem.half})")
        for bug in problem.bugs:
            print(f"    {bug.name}: {' or '.join(bug.expected)}")


def run_checks(options: argparse.Namespace) -> None:
    """Check the chosen programs that have no answer yet, and print the figures of their half."""
    results = load(RESULTS)
    half = options.half.replace("-", " ")
    chosen = [
        name
        for name in names()
        if options.only in name
        and PROBLEMS[name.partition(SEPARATOR)[0]].half == half
        and (options.again or name not in results["cases"])
    ]
    for name, answer in _in_parallel(chosen, options.workers):
        results["cases"][name] = answer
        save(RESULTS, results)
    known = set(names())
    results["cases"] = {
        name: results["cases"][name] for name in names() if name in results["cases"] and name in known
    }
    save(RESULTS, results)
    print(scores.score(row for row in scores.rows(results["cases"]) if row.half == half))


def _in_parallel(chosen: list[str], workers: int) -> Iterable[tuple[str, Answer]]:
    context = multiprocessing.get_context("spawn")
    with context.Pool(workers, initializer=torch.set_num_threads, initargs=(1,)) as pool:
        yield from pool.imap_unordered(ask_by_name, chosen)


def show_misses(options: argparse.Namespace) -> None:
    """Print the wrong answers of the calibration half."""
    for row in scores.rows(load(RESULTS)["cases"]):
        if row.half == "calibration" and options.only in row.name and scores.is_miss(row):
            print(scores.line_of(row))


COMMANDS = {"list": show_list, "check": run_checks, "misses": show_misses}


if __name__ == "__main__":
    main(sys.argv[1:])
