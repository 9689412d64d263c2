"""The problems of the benchmark: a fixed sample from the recipes, the same on every machine."""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence

from benchmarks.verdicts import recipes, recipes_sequence
from benchmarks.verdicts.problem import Family, Problem
from benchmarks.verdicts.recipe import Fields, Recipe, draw

# Derived: any fixed seed; the labels are stored for this one.
SEED = 20
RECIPES: dict[Family, tuple[Fields, Sequence[Recipe]]] = {
    "mlp": (recipes.MLP_BASE, recipes.MLP),
    "conv": (recipes.CONV_BASE, recipes.CONV),
    "resnet": (recipes.RESNET_BASE, recipes.RESNET),
    "encoder": (recipes_sequence.ENCODER_BASE, recipes_sequence.TRANSFORMER),
    "lm": (recipes_sequence.LM_BASE, recipes_sequence.TRANSFORMER),
    "rnn": (recipes_sequence.RNN_BASE, recipes_sequence.RNN),
}
# Sampled with the next seed, so that adding these did not change the problems above.
DEEP_RECIPES: dict[Family, tuple[Fields, Sequence[Recipe]]] = {
    "mlp": (recipes.MLP_BASE, recipes.DEEP_MLP),
    "encoder": (recipes_sequence.ENCODER_BASE, recipes_sequence.DEEP_TRANSFORMER),
    "lm": (recipes_sequence.LM_BASE, recipes_sequence.DEEP_TRANSFORMER),
}


def sample_pairs(seed: int = SEED) -> Iterator[tuple[Problem, Problem | None]]:
    """Every problem in the order of the recipes, with its healthy twin if its recipe has one."""
    for offset, recipes_by_family in enumerate((RECIPES, DEEP_RECIPES)):
        rng = random.Random(seed + offset)
        for family, (base, family_recipes) in recipes_by_family.items():
            for recipe in family_recipes:
                for _ in range(recipe.count):
                    yield draw(family, base, recipe, rng)


def generate(seed: int = SEED) -> list[Problem]:
    """All problems in the order of their hashes, in which they are labeled: any first part is a random sample."""
    drawn = {
        problem.digest: problem for pair in sample_pairs(seed) for problem in pair if problem is not None
    }
    return [drawn[digest] for digest in sorted(drawn)]
