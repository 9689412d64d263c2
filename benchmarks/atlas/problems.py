"""Which flaws each family gets, in an order that any prefix of which is a fair sample."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass

import torch

import benchmarks.atlas.families  # noqa: F401  # registers the families
from benchmarks.atlas.flaws import FLAWS, Flaw
from benchmarks.atlas.problem import FAMILIES, Family, Half, Knobs, Setup

MAX_FLAWS = 32
"""Flaws of one family; those with the lowest hashes."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Problem:
    family: Family
    flaw: Flaw

    @property
    def name(self) -> str:
        return f"{self.family.name} | {self.flaw.name}"

    @property
    def half(self) -> Half:
        return self.family.half

    @property
    def order(self) -> str:
        return hashlib.sha256(self.name.encode()).hexdigest()

    def setup(self, seed: int) -> Setup:
        torch.manual_seed(seed)
        setup = self.family.build(self.flaw.knobs)
        self.flaw.change(setup)
        return setup


def fits(family: Family, flaw: Flaw) -> bool:
    if not flaw.needs <= family.knobs:
        return False
    setup = _healthy(family)
    return setup.kind in flaw.kinds and setup.recipe.name in flaw.optimizers


_SETUPS: dict[str, Setup] = {}


def _healthy(family: Family) -> Setup:
    if family.name not in _SETUPS:
        with torch.random.fork_rng():
            torch.manual_seed(0)
            _SETUPS[family.name] = family.build(Knobs())
    return _SETUPS[family.name]


def all_problems() -> list[Problem]:
    """The healthy network and the chosen flaws of each family, in the order of their hashes."""
    found = []
    for each in FAMILIES.values():
        candidates = [
            Problem(family=each, flaw=flaw)
            for flaw in FLAWS.values()
            if flaw.name != "healthy" and fits(each, flaw)
        ]
        chosen = sorted(candidates, key=lambda problem: problem.order)[:MAX_FLAWS]
        found += [Problem(family=each, flaw=FLAWS["healthy"]), *chosen]
    return sorted(found, key=lambda problem: (problem.flaw.name != "healthy", problem.order))
