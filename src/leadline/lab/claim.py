"""Claims as experiments: a claim is a function that yields predictions, and its docstring is its page."""

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
    """Repetitions of an experiment, each with its own seed."""

    seeds: int
    first: int = 0

    def runs(self, measure: Callable[[], T]) -> list[T]:
        """Return `measure()` for every seed. The global random state is restored afterwards."""
        results = []
        with torch.random.fork_rng(devices=[]):
            for seed in range(self.first, self.first + self.seeds):
                torch.manual_seed(seed)
                results.append(measure())
        return results


@dataclass(frozen=True, slots=True, kw_only=True)
class Claim:
    """One claim of an article. Claims are collected from the folder `claims`."""

    code: str
    verdict: Ruling
    """The published verdict. `run` computes it again from measurements."""
    seeds: int
    """How many runs the confidence intervals need."""
    slow: bool
    """Whether it takes more than about half a second, because it trains or builds many networks."""
    falsified_by: Mapping[str, Any] = field(repr=False)
    """Arguments that break the experiment on purpose, so that the verdict must change."""
    measure: Callable[..., ClaimResults] = field(repr=False)

    def run(self, seeds: int | None = None, **arguments: Any) -> Experiment:
        """Run the experiment and derive the verdict from its measurements alone."""
        started = time.process_time()
        trials = SeededTrials(seeds=seeds or self.seeds)
        results = list(self.measure(trials, **arguments))
        checks = tuple(each for each in results if isinstance(each, PredictionCheck))
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
            plots=tuple(each for each in results if isinstance(each, Plot)),
            seeds=trials.seeds,
            seconds=time.process_time() - started,
        )

    @property
    def doc(self) -> str:
        """The claim's page as Markdown: one sentence, then sections with fixed headings."""
        return inspect.cleandoc(self.measure.__doc__ or "")

    @property
    def summary(self) -> str:
        return self.doc.split("\n\n", 1)[0].replace("\n", " ")

    def section(self, heading: str) -> str:
        """Return the text under that heading, or "" if there is none."""
        match = re.search(rf"^## {heading}\n(.*?)(?=^## |\Z)", self.doc, re.DOTALL | re.MULTILINE)
        return match[1].strip() if match else ""


def claim(
    *, code: str, verdict: Ruling, falsified_by: Mapping[str, Any], seeds: int = 8, slow: bool = False
) -> Callable[[Callable[..., ClaimResults]], Claim]:
    """Turn the decorated function into a Claim. Nothing is registered: claims are collected from their folder."""

    def decorate(measure: Callable[..., ClaimResults]) -> Claim:
        return Claim(
            code=code, verdict=verdict, seeds=seeds, slow=slow, falsified_by=falsified_by, measure=measure
        )

    return decorate


# All claims, and running several of them.

Progress = Callable[[int, int, str], object]


@cache
def all_claims() -> tuple[Claim, ...]:
    """Return every claim, in the order of the articles."""
    ordered = sorted(collect(claims, Claim), key=lambda each: code_order(each.code))
    codes = [each.code for each in ordered]
    if len(set(codes)) < len(codes):
        raise ValueError(f"two claims have the code {next(each for each in codes if codes.count(each) > 1)}")
    return tuple(ordered)


def run_claims(
    selected: Sequence[Claim], leadline: str, seeds: int | None = None, progress: Progress | None = None
) -> Lab:
    """Run the selected claims, each with its own number of seeds unless `seeds` is given."""
    experiments = []
    for done, each in enumerate(selected):
        if progress is not None:
            progress(done, len(selected), each.code)
        experiments.append(each.run(seeds))
    return Lab(leadline=leadline, torch=str(torch.__version__), experiments=tuple(experiments))
