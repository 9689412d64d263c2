"""Recipes: what a kind of problem fixes and what it draws, and how a problem is drawn from one."""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from benchmarks.verdicts.problem import Family, Problem

Sampler = Callable[[random.Random], Any]
Fields = Mapping[str, Any]
"""Fields of a Problem: each a value, or a function that draws one. `rate_factor` is the rate over the healthy one."""

# Heuristic: a rate at which a healthy network of the family learns in the budget, by optimizer; `reference.py` confirms
# those of Adam.
HEALTHY_RATES: dict[str, dict[str, float]] = {
    "image": {"sgd": 0.1, "momentum": 0.03, "adam": 3e-3, "adamw": 3e-3},
    "text": {"sgd": 0.5, "momentum": 0.1, "adam": 1e-2, "adamw": 1e-2},
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Recipe:
    """`count` problems with the same `cause`, each with a healthy twin that differs only in the fields of `twin`.

    Without a `twin` only the problem itself is made.
    """

    cause: str
    count: int
    sick: Fields
    twin: Fields | None = None


def one_of(*choices: Any) -> Sampler:
    """Draws each of these with the same probability."""
    return lambda rng: choices[int(rng.random() * len(choices))]


def log_uniform_int(low: int, high: int) -> Sampler:
    """Draws an integer whose logarithm is uniform."""
    return lambda rng: round(_log_uniform(rng, low, high))


def log_uniform(low: float, high: float) -> Sampler:
    """Draws a number with two significant digits whose logarithm is uniform."""
    return lambda rng: float(f"{_log_uniform(rng, low, high):.2g}")


def _log_uniform(rng: random.Random, low: float, high: float) -> float:
    return math.exp(math.log(low) + rng.random() * (math.log(high) - math.log(low)))


def draw(family: Family, base: Fields, recipe: Recipe, rng: random.Random) -> tuple[Problem, Problem | None]:
    """One problem of the recipe, and its twin if it has one."""
    sick = sample_fields({**base, **recipe.sick}, rng)
    problem = make_problem(family, recipe.cause, sick)
    if recipe.twin is None:
        return problem, None
    return problem, make_problem(family, "none", {**sick, **sample_fields(recipe.twin, rng)})


def sample_fields(fields: Fields, rng: random.Random) -> dict[str, Any]:
    """Every field with a value; random ones are drawn in the order of the fields."""
    return {name: value(rng) if callable(value) else value for name, value in fields.items()}


def make_problem(family: Family, cause: str, fields: dict[str, Any]) -> Problem:
    """The problem; its rate is `rate_factor` times the healthy rate."""
    rest = {name: value for name, value in fields.items() if name != "rate_factor"}
    healthy_rate = HEALTHY_RATES["text" if rest["data"] == "text" else "image"][rest["optimizer"]]
    rate = float(f"{fields['rate_factor'] * healthy_rate:.2g}")
    return Problem(family=family, cause=cause, rate=rate, **rest)
