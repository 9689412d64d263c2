"""The problems of the benchmark: a fixed sample from the recipes, the same on every machine."""

from __future__ import annotations

import random
from collections.abc import Sequence

from benchmarks.verdicts import recipes, recipes_sequence
from benchmarks.verdicts.draw import Fields, Recipe, draw
from benchmarks.verdicts.problem import Family, Problem

SEED = 20
TABLE: dict[Family, tuple[Fields, Sequence[Recipe]]] = {
    "mlp": (recipes.MLP_BASE, recipes.MLP),
    "conv": (recipes.CONV_BASE, recipes.CONV),
    "resnet": (recipes.RESNET_BASE, recipes.RESNET),
    "encoder": (recipes_sequence.ENCODER_BASE, recipes_sequence.TRANSFORMER),
    "lm": (recipes_sequence.LM_BASE, recipes_sequence.TRANSFORMER),
    "rnn": (recipes_sequence.RNN_BASE, recipes_sequence.RNN),
}


def generate(seed: int = SEED) -> list[Problem]:
    """All problems in the order in which they are labelled: shuffled, so that a part of them is a fair sample."""
    rng = random.Random(seed)
    found: dict[str, Problem] = {}
    for family, (base, table) in TABLE.items():
        for recipe in table:
            for _ in range(recipe.count):
                found |= {problem.digest: problem for problem in draw(family, base, recipe, rng)}
    return sorted(found.values(), key=lambda problem: problem.digest)
