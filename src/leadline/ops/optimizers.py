"""How an optimizer's step depends on the scale of the gradient, which decides how a step grows with depth."""

from __future__ import annotations

from typing import Literal

Family = Literal["sgd", "adam"]

_SCALE_FREE = frozenset(
    {
        *("adam", "adamw", "nadam", "radam", "adamax", "sparseadam", "stableadamw", "adafactor", "lamb"),
        *("rmsprop", "adagrad", "adadelta", "rprop", "lion", "muon", "sign"),
    }
)
_LINEAR = frozenset({"sgd", "asgd"})


def family_of(optimizer: str) -> Family | None:
    """`sgd` if the step is linear in the gradient, `adam` if its size ignores the gradient's scale, None if unknown."""
    name = optimizer.lower()
    if name in _LINEAR:
        return "sgd"
    return "adam" if name in _SCALE_FREE else None
