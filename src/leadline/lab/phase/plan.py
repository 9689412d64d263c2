"""The three diagrams: what varies across, and which network stands at a place."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from types import MappingProxyType
from typing import Any

from leadline.errors import InputError

DEPTHS = (4, 7, 12, 20, 35, 60, 100, 150)


@dataclass(frozen=True, slots=True, kw_only=True)
class Kind:
    """A diagram: its axis across, what is held fixed, and the values and rates it has if none are asked for."""

    title: str
    axis: str
    log: bool
    values: tuple[float, ...]
    activation: str
    gain: float
    bias: float
    rates: tuple[float, ...]
    """A place is as good as the best of these."""
    stated: float
    """The multiple of theory's reach up to which networks are said to train."""


def linear_grid(low: float, high: float, count: int) -> tuple[float, ...]:
    return tuple(round(low + (high - low) * at / (count - 1), 6) for at in range(count))


def geometric_grid(low: float, high: float, count: int) -> tuple[float, ...]:
    return tuple(float(f"{low * (high / low) ** (at / (count - 1)):.4g}") for at in range(count))


KINDS: Mapping[str, Kind] = MappingProxyType(
    {
        "gain": Kind(
            title="Gain and depth",
            axis="gain σ_w²",
            log=False,
            values=linear_grid(0.8, 4.0, 9),
            activation="tanh",
            gain=0.0,  # varies
            bias=0.05,  # as in Schoenholz et al. 2017, figure 5
            rates=(0.003, 0.02),
            stated=6.0,  # cited: Schoenholz et al. 2017, section 5
        ),
        "rate": Kind(
            title="Rate and depth",
            axis="rate",
            log=True,
            values=geometric_grid(0.003, 3.0, 13),
            activation="tanh",
            gain=1.761,  # critical for tanh with this bias: leadline.critical_gain("tanh", 0.05)
            bias=0.05,
            rates=(),  # varies
            stated=1.0,  # only the power of depth is predicted, not the factor before it
        ),
        "residual": Kind(
            title="Residual scale and depth",
            axis="scale of a branch",
            log=True,
            values=geometric_grid(0.05, 1.6, 9),
            activation="relu",
            gain=2.0,  # He: a branch of scale 1 adds as much as the stream has
            bias=0.0,
            rates=(0.003, 0.03),
            stated=6.0,  # as for the gain
        ),
    }
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """How large a diagram is, and how long each network is trained. What is None is as the kind has it."""

    values: tuple[float, ...] | None = None
    depths: tuple[int, ...] = DEPTHS
    rates: tuple[float, ...] | None = None
    seeds: int = 1
    width: int = 64
    steps: int = 300
    batch: int = 64
    samples: int = 1024

    def __post_init__(self) -> None:
        if not self.depths or min(self.depths) < 1 or min(self.seeds, self.width, self.steps) < 1:
            raise InputError(
                expected="depths, seeds, width and steps of 1 or more",
                got=f"depths={self.depths}, seeds={self.seeds}, width={self.width}, steps={self.steps}",
                fix="leave out what you do not mean to choose",
            )
        if self.values is not None and (not self.values or min(self.values) <= 0):
            raise InputError(
                expected="values above 0", got=f"values={self.values}", fix="0.8,1.6,2.4 is right"
            )


def find_kind(name: str) -> Kind:
    if name not in KINDS:
        raise InputError(
            expected="a diagram of " + ", ".join(KINDS), got=f"{name!r}", fix="take one of these"
        )
    return KINDS[name]


def column_cells(name: str, plan: Plan) -> list[dict[str, Any]]:
    """A cell is a column: one value, all depths."""
    kind = find_kind(name)
    common = asdict(plan) | {"kind": name, "depths": list(plan.depths)}
    common["rates"] = list(plan.rates or kind.rates)
    return [
        {**common, "values": None, "value": value, "rates": [value] if name == "rate" else common["rates"]}
        for value in plan.values or kind.values
    ]
