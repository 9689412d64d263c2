"""`leadline race`: residual schemes trained on the same data with the same budget, and ranked."""

from __future__ import annotations

from functools import partial

import click

from leadline.cli.forecast import Depths
from leadline.cli.options import examples
from leadline.lab.commands.sweep_options import Numbers, SweepOptions, show_sweep, sweep_options


@click.command(
    epilog=examples(
        "leadline race pre post deepnorm keel --depths 12,48 --store race.jsonl --html race.html",
        "leadline race keel keel+groups --depths 48",
        "leadline race --data images --seeds 5 --workers 8",
        "leadline race --executor ray --address auto --depths 200",
    )
)
@click.argument("schemes", nargs=-1)
@click.option("--depths", type=Depths(), default="12", show_default=True, help="Blocks, with commas.")
@click.option("--rates", type=Numbers(), help="Learning rates; left out: five half decades around 0.003.")
@click.option(
    "--seeds", type=click.IntRange(min=1), default=3, show_default=True, help="Networks at each rate."
)
@click.option("--data", type=click.Choice(["text", "sequences", "images"]), default="text", show_default=True)
@click.option("--optimizer", type=click.Choice(["adam", "sgd"]), default="adam", show_default=True)
@click.option("--steps", type=click.IntRange(min=1), default=100, show_default=True, help="The same for all.")
@click.option("--batch", type=click.IntRange(min=1), default=8, show_default=True)
@click.option("--width", type=click.IntRange(min=2), default=32, show_default=True, help="Of the stream.")
@sweep_options
def race(
    schemes: tuple[str, ...],
    depths: tuple[int, ...],
    rates: tuple[float, ...] | None,
    seeds: int,
    data: str,
    optimizer: str,
    steps: int,
    batch: int,
    width: int,
    choices: SweepOptions,
) -> int:
    """Train residual schemes on real data with one budget and rank them.

    SCHEMES: names from leadline.nn.SCHEMES, +groups behind one for the rates of leadline.nn.param_groups; none: all of
    them. The rate of each is chosen on a validation part, the loss is that of a held-out part. An interrupted race with
    a --store goes on where it stopped. Text needs nothing; digits (sequences, images) need the extra `lab`.
    """
    from leadline.lab.race.grid import DEFAULT_RATES, Budget, Grid
    from leadline.lab.race.page import RACE_FORMATS
    from leadline.lab.race.standings import race as run

    budget = Budget(steps=steps, batch=batch, width=width)
    grid = Grid(
        schemes=schemes,
        depths=depths,
        rates=rates or DEFAULT_RATES,
        seeds=seeds,
        data=data,
        optimizer=optimizer,
        budget=budget,
    )
    return show_sweep(choices, "networks", partial(run, grid), RACE_FORMATS)
