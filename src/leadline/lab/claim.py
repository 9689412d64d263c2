"""A claim of an article as an experiment: the docstring of its function is its page."""

from __future__ import annotations

import inspect
import re
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from typing import Any, TypeVar

import torch

from leadline.collect import collect
from leadline.lab import claims
from leadline.lab.articles import code_order
from leadline.records import Experiment, Lab, Plot, PredictionCheck, Ruling
from leadline.records.experiment import ruling

T = TypeVar("T")
ClaimResults = Iterable[PredictionCheck | Plot]

HEADINGS = ("The article", "The test", "What is true")


@dataclass(frozen=True, slots=True, kw_only=True)
class SeededTrials:
    """How often an experiment is repeated: each run has a seed of its own."""

    seeds: int
    first: int = 0

    def runs(self, measure: Callable[[], T]) -> list[T]:
        """`measure()` once a seed. The user's own random numbers are left as they were."""
        found = []
        with torch.random.fork_rng(devices=[]):
            for seed in range(self.first, self.first + self.seeds):
                torch.manual_seed(seed)
                found.append(measure())
        return found


@dataclass(frozen=True, slots=True, kw_only=True)
class Claim:
    """One claim, found by looking into the folder of claims."""

    code: str
    verdict: Ruling
    """What was published; `run` finds out anew."""
    seeds: int
    """Runs that the intervals need."""
    slow: bool
    """It takes more than about half a second: a training, or many networks."""
    spoiled: Mapping[str, Any] = field(repr=False)
    """Arguments with which the experiment is made wrong on purpose, so that another verdict must come out."""
    measure: Callable[..., ClaimResults] = field(repr=False)

    def run(self, seeds: int | None = None, **arguments: Any) -> Experiment:
        """Measure, and judge by what was measured alone."""
        started = time.process_time()
        trials = SeededTrials(seeds=seeds or self.seeds)
        found = list(self.measure(trials, **arguments))
        checks = tuple(each for each in found if isinstance(each, PredictionCheck))
        article, test, truth = (self.section(heading) for heading in HEADINGS)
        return Experiment(
            code=self.code,
            claim=self.summary,
            article=article,
            test=test,
            truth=truth,
            published=self.verdict,
            verdict=ruling(checks),
            checks=checks,
            plots=tuple(each for each in found if isinstance(each, Plot)),
            seeds=trials.seeds,
            seconds=time.process_time() - started,
        )

    @property
    def doc(self) -> str:
        """The claim's page, as Markdown: one sentence, then sections under fixed headings."""
        return inspect.cleandoc(self.measure.__doc__ or "")

    @property
    def summary(self) -> str:
        return self.doc.split("\n\n", 1)[0].replace("\n", " ")

    def section(self, heading: str) -> str:
        """What stands below that heading; "" if it is not there."""
        found = re.search(rf"^## {heading}\n(.*?)(?=^## |\Z)", self.doc, re.DOTALL | re.MULTILINE)
        return found[1].strip() if found else ""


def claim(
    *, code: str, verdict: Ruling, spoiled: Mapping[str, Any], seeds: int = 8, slow: bool = False
) -> Callable[[Callable[..., ClaimResults]], Claim]:
    """Make a Claim of the function below. Nothing is registered: claims are found by looking into their folder."""

    def make(measure: Callable[..., ClaimResults]) -> Claim:
        return Claim(code=code, verdict=verdict, seeds=seeds, slow=slow, spoiled=spoiled, measure=measure)

    return make


# The claims by code, and running several of them.

Progress = Callable[[int, int, str], object]


@cache
def all_claims() -> tuple[Claim, ...]:
    """Every claim, in the order of the articles."""
    found = sorted(collect(claims, Claim), key=lambda each: code_order(each.code))
    codes = [each.code for each in found]
    if len(set(codes)) < len(codes):
        raise ValueError(f"two claims have the code {next(each for each in codes if codes.count(each) > 1)}")
    return tuple(found)


def run_claims(
    chosen: Sequence[Claim], leadline: str, seeds: int | None = None, progress: Progress | None = None
) -> Lab:
    """One experiment a claim, each with the seeds it asks for unless `seeds` says how many."""
    found = []
    for done, each in enumerate(chosen):
        if progress is not None:
            progress(done, len(chosen), each.code)
        found.append(each.run(seeds))
    return Lab(leadline=leadline, torch=str(torch.__version__), experiments=tuple(found))
