"""`leadline phase`: draw which networks learn, over depth and gain, learning rate or residual scale."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import Any

import click

from leadline.cli.forecast import WholeNumbers
from leadline.cli.options import examples
from leadline.lab.commands.sweep_options import Numbers, SweepOptions, show_sweep, sweep_options

AT_LEAST_ONE = click.IntRange(min=1)


@click.command(
    epilog=examples(
        "leadline phase gain --html gain.html",
        "leadline phase rate --depths 4,16,64 --steps 100",
        "leadline phase residual --store cells.jsonl --executor joblib --workers 8",
    )
)
@click.argument("kind", type=click.Choice(["gain", "rate", "residual"]))
@click.option(
    "--values",
    type=Numbers(),
    help="Values of the horizontal axis, separated by commas. [default: a suitable range]",
)
@click.option("--depths", type=WholeNumbers(), help="Numbers of layers, separated by commas.")
@click.option("--rates", type=Numbers(), help="Learning rates of SGD; each position shows the best of them.")
@click.option(
    "--seeds", type=AT_LEAST_ONE, default=1, show_default=True, help="Networks per position and rate."
)
@click.option(
    "--steps", type=AT_LEAST_ONE, default=300, show_default=True, help="Training steps per network."
)
@click.option("--width", type=AT_LEAST_ONE, default=64, show_default=True, help="Units per layer.")
@sweep_options
def phase(
    kind: str,
    values: tuple[float, ...] | None,
    depths: tuple[int, ...] | None,
    rates: tuple[float, ...] | None,
    seeds: int,
    steps: int,
    width: int,
    options: SweepOptions,
) -> int:
    """Train thousands of small networks on digits and draw which of them learn.

    KIND is gain (tanh networks over weight variance and depth, with the curve at 6 depth scales), rate (learning rate),
    or residual (scale of the branches). Networks are trained together with stacked parameters. Needs the extra `lab`.
    """
    # Imported here so that the command starts without torch.
    from leadline.lab.phase.measure import phase as measure
    from leadline.lab.phase.page import PHASE_FORMATS
    from leadline.lab.phase.plan import PhasePlan

    given = {"values": values, "depths": depths, "rates": rates}
    changes: dict[str, Any] = {name: value for name, value in given.items() if value is not None}
    plan = replace(PhasePlan(seeds=seeds, steps=steps, width=width), **changes)
    return show_sweep(options, "columns", partial(measure, kind, plan), PHASE_FORMATS)
