"""Columns of a diagram: networks of all depths, rates and seeds in one fleet, and how many digits each tells right."""

from __future__ import annotations

from collections.abc import Iterator

import torch

from leadline.lab.data import standardised_digits
from leadline.lab.fleet import Net, Task, train_fleet
from leadline.lab.phases.plan import find_kind
from leadline.sweeps import Bundle, Job
from leadline.sweeps.cells import Settings

VERSION = "phase/1"  # of what a cell means: change it when the same settings would give another result
AT_ONCE = 2  # columns in one fleet: enough to fill its chunks, few enough to be stored often


def phase_job() -> Job:
    return Job(work=run_columns, version=VERSION, kin=_kin, most=AT_ONCE)


def run_columns(bundle: Bundle) -> list[list[float]]:
    """For each column, the accuracy at each depth: of the best rate, mean over seeds."""
    nets = [list(nets_of(cell)) for cell in bundle]
    found = train_fleet([net for column in nets for net in column], _task(bundle[0])).accuracy
    results = []
    for cell, part in zip(bundle, torch.split(found, [len(column) for column in nets]), strict=True):
        table = part.view(len(cell["depths"]), len(cell["rates"]), cell["seeds"])
        results.append(table.mean(2).amax(1).tolist())
    return results


def nets_of(cell: Settings) -> Iterator[Net]:
    """By depth, then rate, then seed."""
    kind, name, value = find_kind(cell["kind"]), cell["kind"], cell["value"]
    for depth in cell["depths"]:
        for rate in cell["rates"]:
            for seed in range(cell["seeds"]):
                yield Net(
                    depth=depth,
                    gain=value if name == "gain" else kind.gain,
                    bias=kind.bias,
                    rate=rate,
                    skip=1.0 if name == "residual" else 0.0,
                    scale=value if name == "residual" else 1.0,
                    activation=kind.activation,
                    seed=seed,
                )


def _task(cell: Settings) -> Task:
    inputs, targets = standardised_digits()
    samples = min(cell["samples"], len(inputs))
    generator = torch.Generator().manual_seed(0)
    return Task(
        inputs=inputs[:samples],
        targets=targets[:samples],
        batches=torch.randint(samples, (cell["steps"], cell["batch"]), generator=generator),
        width=cell["width"],
    )


def _kin(cell: Settings) -> str:
    """All columns that share the task: they differ in value, and with it perhaps in rate."""
    return str(sorted((name, value) for name, value in cell.items() if name not in ("value", "rates")))
