"""One problem at a time, in processes of their own."""

from __future__ import annotations

import multiprocessing
import warnings
from collections.abc import Callable, Iterable
from typing import Any

import torch

from benchmarks.atlas.problems import Problem, all_problems
from benchmarks.atlas.repair import repair
from benchmarks.atlas.truth import SEEDS, naive_facts, outcome_of
from benchmarks.atlas.verdict import ask


def train(job: tuple[str, int]) -> tuple[str, dict[str, Any]]:
    """Train one problem with one seed; with the first, also ask the naive judges."""
    name, seed = job
    problem = _by_name(name)
    try:
        found = {str(seed): outcome_of(problem, seed)}
        return name, found | (naive_facts(problem) if seed == SEEDS[0] else {})
    except (RuntimeError, ValueError) as error:
        # Such as a network that cannot run in half precision, or a flaw that leaves nothing to train: no problem.
        return name, {str(seed): None, "error": str(error)[:200]}


def check(job: tuple[str, int]) -> tuple[str, Any]:
    """Ask about one problem with so many batches."""
    name, batches = job
    return name, ask(_by_name(name), batches)


def mend(name: str) -> tuple[str, Any]:
    """Search for a repair of one problem."""
    return name, repair(_by_name(name))


_PROBLEMS: dict[str, Problem] = {}


def _by_name(name: str) -> Problem:
    if not _PROBLEMS:
        _PROBLEMS.update({each.name: each for each in all_problems()})
    return _PROBLEMS[name]


def _prepare() -> None:
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")


def in_parallel(job: Callable[[Any], Any], jobs: Iterable[Any], workers: int) -> Iterable[Any]:
    context = multiprocessing.get_context("spawn")
    with context.Pool(workers, initializer=_prepare) as pool:
        yield from pool.imap_unordered(job, jobs)
