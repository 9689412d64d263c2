"""`leadline race`: train residual schemes on the same data with the same budget and rank them."""

from __future__ import annotations

from functools import partial

import click

from leadline.cli.forecast import WholeNumbers
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
@click.option(
    "--depths",
    type=WholeNumbers(),
    default="12",
    show_default=True,
    help="Numbers of blocks, separated by commas.",
)
@click.option(
    "--rates",
    type=Numbers(),
    help="Learning rates, separated by commas. [default: five rates around 0.003, half a decade apart]",
)
@click.option("--seeds", type=click.IntRange(min=1), default=3, show_default=True, help="Networks per rate.")
@click.option(
    "--data",
    type=click.Choice(["text", "sequences", "images"]),
    default="text",
    show_default=True,
    help="The task to train on.",
)
@click.option(
    "--optimizer",
    type=click.Choice(["adam", "sgd"]),
    default="adam",
    show_default=True,
    help="The optimizer.",
)
@click.option(
    "--steps", type=click.IntRange(min=1), default=100, show_default=True, help="Training steps per network."
)
@click.option("--batch", type=click.IntRange(min=1), default=8, show_default=True, help="Samples per step.")
@click.option(
    "--width", type=click.IntRange(min=2), default=32, show_default=True, help="Width of the residual stream."
)
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
    options: SweepOptions,
) -> int:
    """Train residual schemes on real data with the same budget and rank them.

    SCHEMES are names from leadline.nn.SCHEMES; append +groups to use the learning rates of leadline.nn.param_groups.
    Without a name, all schemes take part. Each scheme's learning rate is chosen on validation data, and its loss is
    measured on held-out data. With --store, an interrupted race continues where it stopped. The digits (sequences and
    images) need the extra `lab`.
    """
    # Imported here so that the command starts without torch.
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
    return show_sweep(options, "networks", partial(run, grid), RACE_FORMATS)
