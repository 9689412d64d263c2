"""The commands of the benchmark; see the docstring of the package."""

from __future__ import annotations

import argparse
import multiprocessing
import sys
from collections.abc import Callable, Iterable
from pathlib import Path

import torch

from benchmarks.result_files import ROOT, fill_file, load, save
from benchmarks.wiring import cost, known, page, scores
from benchmarks.wiring.answers import (
    SEPARATOR,
    Answer,
    ask_all_without_rehearsal,
    ask_by_name,
    ask_without_rehearsal,
    names,
)
from benchmarks.wiring.problem import PROBLEMS

RESULTS = "wiring"
PAGE = ROOT / "docs" / "lab-notes" / "wiring.md"


def main(arguments: list[str] | None = None) -> None:
    options = _parser().parse_args(arguments)
    COMMANDS[options.command](options)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.wiring")
    parser.add_argument("command", choices=COMMANDS)
    parser.add_argument("--only", default="", metavar="TEXT", help="only names that contain this text")
    parser.add_argument(
        "--part",
        choices=(
            "calibration",
            "held-out",
            "second-set",
            "third-set",
            "fourth-set",
            "fifth-set",
            "sixth-set",
        ),
        default="calibration",
        help="default: calibration",
    )
    parser.add_argument("--again", action="store_true", help="also what has a stored answer")
    parser.add_argument("--without-rehearsal", action="store_true", help="check without trial steps")
    parser.add_argument("--packages", default=".", metavar="DIR", help="folder with one folder per version")
    parser.add_argument("--workers", type=int, default=2, help="processes (default: 2)")
    return parser


def show_list(options: argparse.Namespace) -> None:
    for problem in PROBLEMS.values():
        print(f"{problem.name} ({problem.network}, {problem.part})")
        for bug in problem.bugs:
            print(f"    {bug.name}: {' or '.join(bug.expected)}")


def run_checks(options: argparse.Namespace) -> None:
    """Check the chosen programs that have no answer yet, and print the figures of their part."""
    results = load(RESULTS)
    part = options.part.replace("-", " ")
    chosen = [
        name
        for name in names()
        if options.only in name
        and PROBLEMS[name.partition(SEPARATOR)[0]].part == part
        and (options.again or name not in results["cases"])
    ]
    ask = ask_all_without_rehearsal if options.without_rehearsal else ask_by_name
    for name, answer in _in_parallel(ask, chosen, options.workers):
        results["cases"][name] = answer
        if part in page.FRESH_PARTS:
            results.setdefault("first", {}).setdefault(name, answer)
        save(RESULTS, results)
    results["cases"] = {name: results["cases"][name] for name in names() if name in results["cases"]}
    save(RESULTS, results)
    print(scores.score(row for row in scores.rows(results["cases"]) if row.part == part))


def check_missed(options: argparse.Namespace) -> None:
    """Check again, without the rehearsal, the bugs of a part that were not named with their place, and its twins."""
    results = load(RESULTS)
    rows = [row for row in scores.rows(results["cases"]) if row.part == options.part.replace("-", " ")]
    chosen = [row.name for row in rows if row.bug is None or not row.is_located]
    for name, answer in _in_parallel(ask_without_rehearsal, chosen, options.workers):
        results["cases"][name] |= answer
        save(RESULTS, results)
        print(name, flush=True)


def _in_parallel(
    ask: Callable[[str], tuple[str, Answer]], chosen: list[str], workers: int
) -> Iterable[tuple[str, Answer]]:
    context = multiprocessing.get_context("spawn")
    with context.Pool(workers, initializer=torch.set_num_threads, initargs=(1,)) as pool:
        yield from pool.imap_unordered(ask, chosen)


def show_misses(options: argparse.Namespace) -> None:
    """Print the wrong answers of a part."""
    for row in scores.rows(load(RESULTS)["cases"]):
        if row.part == options.part.replace("-", " ") and options.only in row.name and scores.is_miss(row):
            print(scores.line_of(row))


def measure_cost(options: argparse.Namespace) -> None:
    """Measure the cost of the programs that have no figures yet."""
    results = load(RESULTS)
    stored = results.setdefault("cost", {})
    for name in cost.PROGRAMS:
        if options.again or name not in stored:
            stored[name] = cost.measure(name)
            save(RESULTS, results)
            print(name, stored[name], flush=True)


def measure_memory(options: argparse.Namespace) -> None:
    """Measure the memory of the programs again; the times stay."""
    results = load(RESULTS)
    for name, stored in results.setdefault("cost", {}).items():
        if options.only in name:
            stored |= cost.measure_memory(name)
            save(RESULTS, results)
            print(name, stored, flush=True)


def check_known(options: argparse.Namespace) -> None:
    """Check published models with known bugs, in the versions that have them and as installed."""
    results = load(RESULTS)
    stored = results.setdefault("known", {})
    for name, answer in known.run_jobs(Path(options.packages), options.only, {} if options.again else stored):
        stored[name] = answer
        save(RESULTS, results)
        print(name, answer.get("verdict", answer.get("error")), flush=True)


def render(options: argparse.Namespace) -> None:
    fill_file(PAGE, RESULTS, page.render(load(RESULTS)))


COMMANDS = {
    "list": show_list,
    "check": run_checks,
    "missed": check_missed,
    "misses": show_misses,
    "cost": measure_cost,
    "memory": measure_memory,
    "known": check_known,
    "render": render,
}


if __name__ == "__main__":
    main(sys.argv[1:])
