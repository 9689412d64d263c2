"""The three phase diagrams: what varies along the horizontal axis, and which networks are trained."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from types import MappingProxyType
from typing import Any

from leadline.errors import InputError

# Heuristic: factors of about 1.7 from a network that trains with anything to one that trains with little.
DEFAULT_DEPTHS = (4, 7, 12, 20, 35, 60, 100, 150)


@dataclass(frozen=True, slots=True, kw_only=True)
class Kind:
    """A kind of diagram: its horizontal axis, the fixed settings, and the default values and rates."""

    title: str
    axis: str
    log: bool
    values: tuple[float, ...]
    activation: str
    gain: float
    bias: float
    rates: tuple[float, ...]
    """Each position shows the best of these rates."""
    stated: float
    """The multiple of theory's reach up to which theory says that networks train."""


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
            gain=0.0,  # not used: the gain varies
            bias=0.05,  # Cited: Schoenholz et al. 2017, figure 5
            rates=(0.003, 0.02),
            stated=6.0,  # Cited: Schoenholz et al. 2017, section 5
        ),
        "rate": Kind(
            title="Rate and depth",
            axis="rate",
            log=True,
            values=geometric_grid(0.003, 3.0, 13),
            activation="tanh",
            gain=1.761,  # Derived: critical for tanh with this bias, leadline.critical_gain("tanh", 0.05)
            bias=0.05,
            rates=(),  # not used: the rate varies
            stated=1.0,  # theory predicts only the power of depth, not the factor
        ),
        "residual": Kind(
            title="Residual scale and depth",
            axis="scale of a branch",
            log=True,
            values=geometric_grid(0.05, 1.6, 9),
            activation="relu",
            gain=2.0,  # He: a branch of scale 1 adds as much as the stream contains
            bias=0.0,
            rates=(0.003, 0.03),
            stated=6.0,  # the same multiple as for the gain
        ),
    }
)


@dataclass(frozen=True, slots=True, kw_only=True)
class PhasePlan:
    """The size of a diagram and the length of training. None means the default of the kind."""

    values: tuple[float, ...] | None = None
    depths: tuple[int, ...] = DEFAULT_DEPTHS
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
                fix="use larger numbers, or leave these arguments out",
            )
        if self.values is not None and (not self.values or min(self.values) <= 0):
            raise InputError(
                expected="values above 0",
                got=f"values={self.values}",
                fix="give positive values, for example 0.8,1.6,2.4",
            )


def find_kind(name: str) -> Kind:
    if name not in KINDS:
        raise InputError(
            expected="a kind of diagram: " + ", ".join(KINDS), got=f"{name!r}", fix="choose one of these"
        )
    return KINDS[name]


def column_cells(name: str, plan: PhasePlan) -> list[dict[str, Any]]:
    """Return the cells of the sweep. A cell is a column of the diagram: one value, all depths."""
    kind = find_kind(name)
    common = asdict(plan) | {"kind": name, "depths": list(plan.depths)}
    common["rates"] = list(plan.rates or kind.rates)
    return [
        {**common, "values": None, "value": value, "rates": [value] if name == "rate" else common["rates"]}
        for value in plan.values or kind.values
    ]
