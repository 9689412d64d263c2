"""The cells of a race: every scheme at every depth, learning rate and seed, with the same budget."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from leadline.errors import InputError
from leadline.lab.race.tasks import HEADS, all_variants, find_task, find_variant
from leadline.lab.race.training import OPTIMIZERS, train_bundle
from leadline.lab.sweeps import Job
from leadline.lab.sweeps.cells import Settings

# The meaning of a cell. Change it when the same settings would give a different result.
VERSION = "race/1"
# Heuristic: half decades around Adam's default of 1e-3.
DEFAULT_RATES = (3e-4, 1e-3, 3e-3, 1e-2, 3e-2)
# Calibrated by benchmarks/race.py: at 12 blocks of width 32, larger bundles are not faster.
MAX_BUNDLE_NETWORKS = 16
# Heuristic: from this depth on each seed is its own bundle, so that no bundle takes many minutes.
MIN_DEEP_BLOCKS = 100


@dataclass(frozen=True, slots=True, kw_only=True)
class Budget:
    """The training budget and the size of every network."""

    steps: int = 100
    batch: int = 8
    width: int = 32
    time: int = 16


@dataclass(frozen=True, slots=True, kw_only=True)
class Grid:
    """The schemes, depths, learning rates and seeds of a race."""

    schemes: tuple[str, ...] = ()
    """Names from leadline.nn.SCHEMES; `+groups` adds the rates of `leadline.nn.param_groups`. Empty: all schemes."""
    depths: tuple[int, ...] = (12,)
    rates: tuple[float, ...] = DEFAULT_RATES
    seeds: int = 3
    data: str = "text"
    optimizer: str = "adam"
    budget: Budget = Budget()

    def __post_init__(self) -> None:
        find_task(self.data)
        for scheme in self.schemes:
            find_variant(scheme)
        empty = not self.depths or not self.rates or self.seeds < 1
        if empty or min(self.depths) < 1 or min(self.rates) <= 0:
            raise InputError(
                expected="at least one depth (1 or more blocks), one rate (above 0) and one seed",
                got=f"depths={self.depths}, rates={self.rates}, seeds={self.seeds}",
                fix="correct these arguments, or leave them out",
            )
        if self.budget.width % HEADS:
            raise InputError(
                expected=f"a width that is a multiple of {HEADS}, the number of heads",
                got=f"width={self.budget.width}",
                fix=f"use {self.budget.width + HEADS - self.budget.width % HEADS}",
            )
        if self.optimizer not in OPTIMIZERS:
            raise InputError(
                expected="optimizer: one of " + ", ".join(OPTIMIZERS),
                got=f"optimizer={self.optimizer!r}",
                fix="choose one of these",
            )

    @property
    def names(self) -> tuple[str, ...]:
        return self.schemes or all_variants()


def race_cells(grid: Grid) -> list[dict[str, Any]]:
    """Return the cells, shallow depths first, so that an interrupted race has complete tables for them."""
    return [
        {
            "data": grid.data,
            "scheme": scheme,
            "depth": depth,
            "optimizer": grid.optimizer,
            "rate": rate,
            "seed": seed,
            **asdict(grid.budget),
        }
        for depth in sorted(set(grid.depths))
        for scheme in grid.names
        for seed in range(grid.seeds)
        for rate in grid.rates
    ]


def bundle_key(cell: Settings) -> Hashable:
    """Return the same key for cells that can be trained together: they differ only in rate and seed."""
    apart: Sequence[str] = ("rate",) if cell["depth"] >= MIN_DEEP_BLOCKS else ("rate", "seed")
    return tuple(sorted((name, value) for name, value in cell.items() if name not in apart))


def race_job() -> Job:
    return Job(work=train_bundle, version=VERSION, bundle_key=bundle_key, max_bundle=MAX_BUNDLE_NETWORKS)
