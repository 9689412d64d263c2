"""How an optimizer's step depends on the scale of the gradient, which decides how a step grows with depth."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Literal

Family = Literal["sgd", "adam"]

_SCALE_FREE = frozenset(
    {
        *("adam", "adamw", "nadam", "radam", "adamax", "sparseadam", "stableadamw", "adafactor", "lamb"),
        *("rmsprop", "adagrad", "adadelta", "rprop", "lion", "muon", "sign"),
    }
)
_LINEAR = frozenset({"sgd", "asgd"})


_SEPARATOR = " + "


def joint_name(names: Iterable[str]) -> str:
    """The name of several optimizers that step together: "Muon + AdamW"; two of one kind share a name."""
    return _SEPARATOR.join(dict.fromkeys(names))


def family_of(optimizer: str) -> Family | None:
    """`sgd` if the step is linear in the gradient, `adam` if its size ignores the gradient's scale, None if unknown.

    Optimizers that step together (see `joint_name`) have a family if all of them have the same one.
    """
    families = {_family_of_one(each.lower()) for each in optimizer.split(_SEPARATOR)}
    return families.pop() if len(families) == 1 else None


def _family_of_one(name: str) -> Family | None:
    if name in _LINEAR:
        return "sgd"
    return "adam" if name in _SCALE_FREE else None
