"""The planted bugs: in which programs each can be planted, which checks name it, and from which step it can be seen."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass

from benchmarks.loop.programs import EVALUATE_EVERY, PROGRAMS

ALL = tuple(PROGRAMS)
CLASSIFIERS = ("image", "mixed precision", "trainer")


@dataclass(frozen=True)
class Bug:
    """One mistake of a training loop."""

    codes: tuple[str, ...]
    programs: tuple[str, ...] = ALL
    visible: int = 0
    """The first step at which it can be seen."""


# A GradScaler refuses to step without gradients.
UNSCALED = ("text", "image", "autoencoder", "regression", "trainer")
NUMERIC = ("image", "autoencoder", "regression", "mixed precision", "trainer")
BUGS: dict[str, Bug] = {
    "no zero_grad": Bug(("T816",)),
    "zero_grad before step": Bug(("T817",), UNSCALED),
    "step before backward": Bug(("T817",)),
    "no backward": Bug(("T818",), visible=41),
    "step without zero, twice": Bug(("T818",)),
    "clip after step": Bug(("T819",)),
    "clip before unscale": Bug(("T819",)),
    "schedule per batch": Bug(("T820",), visible=31),
    "cosine per batch": Bug(("T820",), visible=10),
    "rate of zero": Bug(("T820",), visible=60),
    "schedule never stepped": Bug(("T821",), visible=80),
    "eval mode": Bug(("T822",)),
    "eval mode after evaluation": Bug(("T822",), visible=EVALUATE_EVERY),
    "train mode in evaluation": Bug(("T823",), visible=2 * EVALUATE_EVERY),
    "same batch": Bug(("T810",)),
    "sorted data": Bug(("T824",), CLASSIFIERS, visible=40),
    "weights restored": Bug(("T825",)),
    "new optimizer each step": Bug(("T826",)),
    "state cleared each step": Bug(("T826",)),
    "state lost on resume": Bug(("T826",)),
    "part replaced after the optimizer": Bug(("T827",)),
    "undivided parts": Bug(("T828",), ("text", "image", "regression", "mixed precision", "trainer")),
    "one optimizer never steps": Bug(("T829",), visible=64),
    "evaluation of training data": Bug(("T830",), NUMERIC, visible=2 * EVALUATE_EVERY),
    "copies from workers": Bug(("T832",)),
}


def is_held_out(bug: str, program: str) -> bool:
    """Whether this pair is in the half that was not looked at while checks were tuned; by a hash of its name."""
    return hashlib.sha256(f"loop/{bug}/{program}".encode()).digest()[0] % 2 == 1
