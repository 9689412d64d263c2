"""Which findings name the right cause of each flaw.

A finding counts if it names the mechanism by which the flaw acts, so that its advice leads to the flaw. Findings that
only say that nothing is learned (U525, U531) never count. U530 compares with a plain recipe and blames either the
optimizer or the initial weights: it counts where that part is to blame and no check could be more specific.
"""

from __future__ import annotations

from typing import Any

from benchmarks.atlas.flaws import FLAWS

BLAMES_OPTIMIZER, BLAMES_WEIGHTS = "U530 the optimizer", "U530 the initial weights"

TOO_SHORT = {"U506", "U508", "U522", BLAMES_OPTIMIZER}
TOO_LONG = {"U501", "U502", "U503", "U504", "U509", "U521", "U523", BLAMES_OPTIMIZER}
DECAY = {"U524", "W601", "W602", "W605"}
NOT_TRAINED = {"B208", "D914", "D915", "D920", "D925"}
SIGNAL = {
    "B201",
    "B202",
    "B204",
    "B205",
    "B206",
    "B207",
    "F101",
    "F102",
    "F103",
    "F104",
    "F105",
    "F106",
    "F107",
}
WEIGHTS = SIGNAL | {
    "D933",
    "F108",
    "I301",
    "I302",
    "I303",
    "I304",
    "I308",
    "I310",
    "N701",
    "R401",
    "R404",
    "R405",
    BLAMES_WEIGHTS,
}
STRUCTURE = SIGNAL | {"I301", "I302", "N701", "N703", "R401", "R402", "R403", "R405", "U501"}
SQUASHED = {"D910", "D931", "I309"}
ROUNDED = {"D926", "N701", "N702", "N703", "U506"}

BY_GROUP: dict[str, set[str]] = {
    "learning rate": TOO_SHORT | TOO_LONG,
    "optimizer": TOO_SHORT | TOO_LONG | {"U534"},
    "weight decay": DECAY,
    "optimizer holds few": NOT_TRAINED,
    "frozen": NOT_TRAINED,
    "initialization": WEIGHTS,
    "inputs": {"F109"},
    "targets": {"D913"},
    "noise": {"F110"},
    "graph": {"B203", "B206", "D914", "D917"},
    "precision": ROUNDED,
    "activation": STRUCTURE | {"D937"},
    "structure": STRUCTURE,
}
BY_FLAW: dict[str, set[str]] = {
    "bfloat16, rate x0.01": ROUNDED | TOO_SHORT,
    "inputs zero": {"D906", "F109"},
    "loss negated": {"D909", "D940", "U507"},
    "loss x1e4": TOO_LONG | {"N703"},
    "loss x1e-4": TOO_SHORT | {"N702"},
    "loss x0.1": TOO_SHORT,
    "temperature 100": TOO_SHORT,
    "temperature 0.01": TOO_LONG | {"F107", "I308"},
    "softmax before the loss": SQUASHED,
    "sigmoid before the loss": SQUASHED,
    "ReLU after the last layer": SQUASHED,
    "samples broadcast": {"D901", "D908"},
}


def is_right_cause(flaw: str, cause: dict[str, Any]) -> bool:
    """Whether the finding on top, given by its code and where it points, names the cause of this flaw."""
    right = BY_FLAW.get(flaw) or BY_GROUP[FLAWS[flaw].group]
    return cause["code"] in right or f"{cause['code']} {cause['where']}" in right
