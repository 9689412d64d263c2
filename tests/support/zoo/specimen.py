"""What a specimen of the zoo is: a named recipe for a tiny model with its batch and loss."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from leadline import Case

SEED = 20260731  # any fixed number: two builds of one specimen are bit for bit the same


@dataclass(frozen=True, slots=True, kw_only=True)
class Specimen:
    """A call builds the case anew, from the same seed each time."""

    name: str
    recipe: Callable[[], Case]
    warns: tuple[str, ...] = ()
    """Warnings of PyTorch or a library that this model always causes, as pytest filters."""
    traits: frozenset[str] = frozenset()
    """Why a law may not ask this specimen: see TRAITS."""

    def __call__(self) -> Case:
        torch.manual_seed(SEED)
        return self.recipe()


TRAITS = {
    "deep": "takes a second or more a trace, so that only the main laws ask it",
    "overwrites": "its own forward overwrites what an earlier graph needs, so that two graphs cannot live at once",
    "poisoned": "its loss is NaN by design",
    "recomputes": "runs parts of its forward pass again in the backward pass, so that plain hooks fire twice",
    "transforms": "runs layers inside a function transform, where no hook can read a number",
}


def specimen(*traits: str, warns: tuple[str, ...] = ()) -> Callable[[Callable[[], Case]], Specimen]:
    """Make a Specimen of the recipe below, named after it. Nothing is registered: the zoo looks into its folder."""
    unknown = set(traits) - TRAITS.keys()
    if unknown:
        raise ValueError(f"expected traits out of {sorted(TRAITS)}, got {sorted(unknown)}")

    def make(recipe: Callable[[], Case]) -> Specimen:
        name = recipe.__name__.replace("_", "-")
        return Specimen(name=name, recipe=recipe, warns=warns, traits=frozenset(traits))

    return make


def energy(output: Tensor) -> Tensor:
    """A loss that needs no targets: the mean square."""
    return output.abs().float().square().mean() if output.is_complex() else output.float().square().mean()
