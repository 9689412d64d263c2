"""Recipes: what a kind of problem fixes and what it draws, and how a problem is drawn from one."""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from benchmarks.verdicts.problem import Family, Problem

Drawn = Callable[[random.Random], Any]
Fields = Mapping[str, Any]
"""Fields of a Problem: each a value, or a function that draws one. `pace` is the rate in units of the usual one."""

# A rate at which a healthy network of the family learns in the budget, by optimizer (`reference.py` runs them).
USUAL: dict[str, dict[str, float]] = {
    "image": {"sgd": 0.1, "momentum": 0.03, "adam": 3e-3, "adamw": 3e-3},
    "text": {"sgd": 0.5, "momentum": 0.1, "adam": 1e-2, "adamw": 1e-2},
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Recipe:
    """`count` problems that share a `cause`, and with each its healthy twin: the same but for the fields in `twin`.

    Without a `twin` only the problem itself is made.
    """

    cause: str
    count: int
    sick: Fields
    twin: Fields | None = None


def one_of(*choices: Any) -> Drawn:
    """Any of these, alike."""
    return lambda rng: choices[int(rng.random() * len(choices))]


def whole(low: int, high: int) -> Drawn:
    """A whole number, its logarithm uniform."""
    return lambda rng: round(_between(rng, low, high))


def real(low: float, high: float) -> Drawn:
    """A number of two figures, its logarithm uniform."""
    return lambda rng: float(f"{_between(rng, low, high):.2g}")


def _between(rng: random.Random, low: float, high: float) -> float:
    return math.exp(math.log(low) + rng.random() * (math.log(high) - math.log(low)))


def draw(family: Family, base: Fields, recipe: Recipe, rng: random.Random) -> tuple[Problem, Problem | None]:
    """One problem of the recipe, and its twin if it has one."""
    sick = settle({**base, **recipe.sick}, rng)
    problem = make(family, recipe.cause, sick)
    if recipe.twin is None:
        return problem, None
    return problem, make(family, "none", {**sick, **settle(recipe.twin, rng)})


def settle(fields: Fields, rng: random.Random) -> dict[str, Any]:
    """Every field drawn, in their order."""
    return {name: value(rng) if callable(value) else value for name, value in fields.items()}


def make(family: Family, cause: str, fields: dict[str, Any]) -> Problem:
    """The problem, its rate worked out from its pace."""
    rest = {name: value for name, value in fields.items() if name != "pace"}
    usual = USUAL["text" if rest["data"] == "text" else "image"][rest["optimizer"]]
    rate = float(f"{fields['pace'] * usual:.2g}")
    return Problem(family=family, cause=cause, rate=rate, **rest)
