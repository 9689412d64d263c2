"""A Problem: everything that influences one training run, as a frozen record that survives JSON."""

from __future__ import annotations

import hashlib
import json
from dataclasses import asdict, dataclass, fields
from typing import Any, Literal

Family = Literal["mlp", "conv", "resnet", "encoder", "lm", "rnn"]
Half = Literal["calibration", "held-out"]
FAMILIES: tuple[Family, ...] = ("mlp", "conv", "resnet", "encoder", "lm", "rnn")


@dataclass(frozen=True, slots=True, kw_only=True)
class Problem:
    """One model, with its initial weights, data, optimizer and rate.

    `depth` counts hidden layers (mlp, conv), blocks (resnet, encoder, lm) or stacked layers (rnn). `init` is how the
    weights of the hidden layers are drawn, `gain` its free number: the weight variance times the fan-in.
    `scheme` is how layers are joined: "plain", a row of `leadline.nn.SCHEMES`, or one of this benchmark's own
    (`models.py`). `flaw` is an edit of the built model (`flaws.py`) and `flaw_size` its free number. `cause` is what
    the generator meant to be wrong ("none": nothing); it does not influence the run, and it is not the label.
    """

    family: Family
    cause: str
    data: str
    depth: int
    width: int
    activation: str = "relu"
    init: str = "default"
    gain: float | None = None
    norm: str = "none"
    scheme: str = "plain"
    flaw: str = "none"
    flaw_size: float = 0.0
    input_scale: float = 1.0
    optimizer: str = "adam"
    rate: float = 1e-3
    weight_decay: float = 0.0
    dtype: str = "float32"
    batch: int = 64
    steps: int = 150
    seed: int = 0

    @property
    def digest(self) -> str:
        """A hash of all fields that influence the run."""
        influential = {name: value for name, value in asdict(self).items() if name != "cause"}
        return hashlib.sha256(json.dumps(influential, sort_keys=True).encode()).hexdigest()

    @property
    def key(self) -> str:
        """A short name, unique in the benchmark."""
        return f"{self.family}-{self.scheme}-{self.depth}-{self.digest[:8]}"

    @property
    def half(self) -> Half:
        """The half it belongs to: one bit of the hash, so that nobody can choose."""
        return "calibration" if int(self.digest[8], 16) % 2 == 0 else "held-out"


def to_dict(problem: Problem) -> dict[str, Any]:
    """The problem as plain JSON values, without the fields that are at their defaults."""
    return {
        f.name: getattr(problem, f.name) for f in fields(problem) if getattr(problem, f.name) != f.default
    }


def from_dict(stored: dict[str, Any]) -> Problem:
    """The problem that `to_dict` wrote."""
    return Problem(**stored)
