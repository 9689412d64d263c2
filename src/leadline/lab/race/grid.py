"""The cells of a race: every scheme at every depth, rate and seed, with one budget."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from leadline.errors import InputError
from leadline.lab.race.tasks import HEADS, all_variants, find_task, find_variant
from leadline.lab.race.training import OPTIMIZERS
from leadline.lab.sweeps import Job
from leadline.lab.sweeps.cells import Settings

VERSION = "race/1"  # of what a cell means: change it when the same settings would give another result
DEFAULT_RATES = (3e-4, 1e-3, 3e-3, 1e-2, 3e-2)  # half decades around Adam's default
MAX_BUNDLE_NETWORKS = (
    16  # networks in one bundle: at 12 blocks of width 32 more are not faster (benchmarks/race.py)
)
MIN_DEEP_BLOCKS = (
    100  # blocks from which on each seed is a bundle of its own, so that no bundle takes many minutes
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Budget:
    """What every network gets, and of what size it is."""

    steps: int = 100
    batch: int = 8
    width: int = 32
    time: int = 16


@dataclass(frozen=True, slots=True, kw_only=True)
class Grid:
    """Who races where."""

    schemes: tuple[str, ...] = ()
    """Of leadline.nn.SCHEMES; `+groups` behind a name: with the rates of `leadline.nn.param_groups`. None: all."""
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
        if (
            not self.depths
            or not self.rates
            or min(self.depths) < 1
            or min(self.rates) <= 0
            or self.seeds < 1
        ):
            raise InputError(
                expected="at least one depth (1 or more blocks), one rate (above 0) and one seed",
                got=f"depths={self.depths}, rates={self.rates}, seeds={self.seeds}",
                fix="leave out what you do not mean to choose",
            )
        if self.budget.width % HEADS:
            raise InputError(
                expected=f"a width that {HEADS} heads divide",
                got=f"width={self.budget.width}",
                fix=f"{self.budget.width + HEADS - self.budget.width % HEADS} is one",
            )
        if self.optimizer not in OPTIMIZERS:
            raise InputError(
                expected="optimizer: one of " + ", ".join(OPTIMIZERS),
                got=f"optimizer={self.optimizer!r}",
                fix="take one of these",
            )

    @property
    def names(self) -> tuple[str, ...]:
        return self.schemes or all_variants()


def race_cells(grid: Grid) -> list[dict[str, Any]]:
    """Shallow ones first: an interrupted race has whole tables."""
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
    """Cells that differ in rate and seed only can be trained side by side."""
    apart: Sequence[str] = ("rate",) if cell["depth"] >= MIN_DEEP_BLOCKS else ("rate", "seed")
    return tuple(sorted((name, value) for name, value in cell.items() if name not in apart))


def race_job() -> Job:
    from leadline.lab.race.training import train_bundle

    return Job(work=train_bundle, version=VERSION, kin=bundle_key, most=MAX_BUNDLE_NETWORKS)
