"""The commands of the benchmark; see the docstring of the package."""

from __future__ import annotations

import argparse
import multiprocessing
import sys
from collections.abc import Callable, Iterable
from typing import Any

import torch

from benchmarks.first_hour import frameworks, page, scores, second_round, unusual_losses
from benchmarks.first_hour.program import is_right
from benchmarks.first_hour.text import corpus
from benchmarks.first_hour.truth import FACTS, SEEDS, run_job
from benchmarks.first_hour.variants import VARIANTS
from benchmarks.first_hour.verdict import SEVERAL, ask_by_name
from benchmarks.result_files import ROOT, fill_file, load, save

TRUTH = "first_hour_truth"
CHECKS = "first_hour"
PROGRAMS = {
    each.name: each for module in (frameworks, unusual_losses, second_round) for each in module.PROGRAMS
}
PAGE = ROOT / "docs" / "lab-notes" / "first-hour.md"


def main(arguments: list[str] | None = None) -> None:
    options = _parser().parse_args(arguments)
    COMMANDS[options.command](options)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.first_hour")
    parser.add_argument("command", choices=COMMANDS)
    parser.add_argument("--only", default="", metavar="TEXT", help="only names that contain this text")
    parser.add_argument("--several", action="store_true", help=f"give `check` the first {SEVERAL} batches")
    parser.add_argument("--workers", type=int, default=2, help="processes (default: 2)")
    return parser


def run_truth(options: argparse.Namespace) -> None:
    """Train what has no stored outcome: one seed of every variant, what the baselines see, then the other seeds."""
    results = load(TRUTH)
    results["unigram"] = corpus().unigram_loss()
    jobs = [
        (name, part)
        for part in (str(SEEDS[0]), FACTS, *map(str, SEEDS[1:]))
        for name in _names(options)
        if not _is_done(results["cases"].get(name, {}), part)
    ]
    for (name, part), found in _in_parallel(run_job, jobs, options.workers):
        case = results["cases"].setdefault(name, {"held_out": {}})
        if part == FACTS:
            case.update(found)
        else:
            case["held_out"][part] = found
        case["held_out"] = dict(sorted(case["held_out"].items()))
        save(TRUTH, results)
        print(f"{name}, {part}", flush=True)


def _is_done(case: dict[str, Any], part: str) -> bool:
    return "one_batch" in case if part == FACTS else part in case.get("held_out", {})


def run_checks(options: argparse.Namespace) -> None:
    """Check every chosen variant again."""
    results, truth = load(CHECKS), load(TRUTH)
    jobs = [(name, SEVERAL if options.several else 1) for name in _names(options)]
    for name, found in _in_parallel(ask_by_name, jobs, options.workers):
        results["cases"][name] = answer = results["cases"].get(name, {}) | found
        save(CHECKS, results)
        if VARIANTS[name].half == "calibration":
            print(scores.line_of(name, answer, truth), flush=True)
    print(scores.summary(results, truth))


def run_programs(options: argparse.Namespace) -> None:
    """Run the chosen training programs again."""
    results = load(CHECKS)
    stored = results.setdefault("programs", {})
    for name, program in PROGRAMS.items():
        if options.only not in name:
            continue
        observation = program.observe()
        right = is_right(program.expected, observation)
        stored[name] = {
            "expected": program.expected,
            "round": program.round,
            "right": right,
            **observation,
        }
        save(CHECKS, results)
        print(
            f"{'right' if right else 'WRONG'}  {name} (must be {program.expected}): {observation}", flush=True
        )


def show_misses(options: argparse.Namespace) -> None:
    """Print the wrong or unequal verdicts of the calibration half."""
    results, truth = load(CHECKS), load(TRUTH)
    for row in scores.rows(results, truth):
        if row.half == "calibration" and not (row.right("inside") and row.right("outside") and row.equal):
            print(scores.line_of(row.name, row.answer, truth))
    print(scores.summary(results, truth))


def render(options: argparse.Namespace) -> None:
    fill_file(PAGE, CHECKS, page.render(load(CHECKS)))


def _names(options: argparse.Namespace) -> list[str]:
    return [name for name in VARIANTS if options.only in name]


def _in_parallel(job: Callable[[Any], Any], jobs: Iterable[Any], workers: int) -> Iterable[Any]:
    context = multiprocessing.get_context("spawn")
    with context.Pool(workers, initializer=torch.set_num_threads, initargs=(1,)) as pool:
        yield from pool.imap_unordered(job, jobs)


COMMANDS = {
    "truth": run_truth,
    "check": run_checks,
    "programs": run_programs,
    "misses": show_misses,
    "render": render,
}


if __name__ == "__main__":
    main(sys.argv[1:])
