"""How an optimiser's step scales with the gradient: that decides how a step grows with depth."""

from __future__ import annotations

from typing import Literal

Family = Literal["sgd", "adam"]

_SCALE_FREE = {"adam", "adamw", "nadam", "radam", "adamax", "stableadamw", "rmsprop", "adagrad", "adadelta"}
_SCALE_FREE |= {"adafactor", "rprop", "lion", "lamb", "muon", "sparseadam", "sign"}
_LINEAR = {"sgd", "asgd"}


def family_of(optimizer: str) -> Family | None:
    """`sgd`: the step is linear in the gradient; `adam`: its size is free of the gradient's scale; None: not known."""
    name = optimizer.lower()
    return "sgd" if name in _LINEAR else "adam" if name in _SCALE_FREE else None
