"""The problems of the benchmark: a fixed sample from the recipes, the same on every machine."""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence

from benchmarks.verdicts import recipes, recipes_sequence
from benchmarks.verdicts.problem import Family, Problem
from benchmarks.verdicts.recipe import Fields, Recipe, draw

SEED = 20
TABLE: dict[Family, tuple[Fields, Sequence[Recipe]]] = {
    "mlp": (recipes.MLP_BASE, recipes.MLP),
    "conv": (recipes.CONV_BASE, recipes.CONV),
    "resnet": (recipes.RESNET_BASE, recipes.RESNET),
    "encoder": (recipes_sequence.ENCODER_BASE, recipes_sequence.TRANSFORMER),
    "lm": (recipes_sequence.LM_BASE, recipes_sequence.TRANSFORMER),
    "rnn": (recipes_sequence.RNN_BASE, recipes_sequence.RNN),
}
# Drawn from the next seed, so that the problems above stay what they are.
DEEP_END: dict[Family, tuple[Fields, Sequence[Recipe]]] = {
    "mlp": (recipes.MLP_BASE, recipes.DEEP_MLP),
    "encoder": (recipes_sequence.ENCODER_BASE, recipes_sequence.DEEP_TRANSFORMER),
    "lm": (recipes_sequence.LM_BASE, recipes_sequence.DEEP_TRANSFORMER),
}


def pairs(seed: int = SEED) -> Iterator[tuple[Problem, Problem | None]]:
    """Every problem as it was drawn, with its healthy twin if its recipe has one."""
    for offset, tables in enumerate((TABLE, DEEP_END)):
        rng = random.Random(seed + offset)
        for family, (base, table) in tables.items():
            for recipe in table:
                for _ in range(recipe.count):
                    yield draw(family, base, recipe, rng)


def generate(seed: int = SEED) -> list[Problem]:
    """All problems in the order in which they are labeled: that of their hashes, so that a part is a fair sample."""
    drawn = {problem.digest: problem for pair in pairs(seed) for problem in pair if problem is not None}
    return [drawn[digest] for digest in sorted(drawn)]
