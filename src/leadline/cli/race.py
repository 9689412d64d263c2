"""`leadline race`: residual schemes trained on the same data with the same budget, and ranked."""

from __future__ import annotations

from pathlib import Path

import click

from leadline.cli.forecast import Depths
from leadline.cli.numbers import Numbers
from leadline.cli.options import FINE, examples, html_option, output_option
from leadline.cli.output import emit
from leadline.cli.progress import progress_bar
from leadline.cli.sweeping import executor_options, find, open_store, store_option


@click.command(
    epilog=examples(
        "leadline race pre post deepnorm keel --depths 12,48 --store race.jsonl --html race.html",
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
@click.option("--format", "form", type=click.Choice(["text", "json"]), default="text", show_default=True)
@store_option
@executor_options
@output_option
@html_option
@click.option("-q", "--quiet", is_flag=True, help="No progress.")
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
    form: str,
    store: Path | None,
    executor: str,
    workers: int | None,
    address: str | None,
    output: Path | None,
    page: Path | None,
    quiet: bool,
) -> int:
    """Train residual schemes on real data with one budget and rank them.

    SCHEMES: names from leadline.nn.SCHEMES; none: all of them. The rate of each is chosen on a validation part, the
    loss is that of a held-out part. An interrupted race with a --store goes on where it stopped. Text needs nothing;
    digits (sequences, images) need the extra `lab`.
    """
    from leadline.lab.racing.grid import RATES, Budget, Grid
    from leadline.lab.racing.race import race as run
    from leadline.lab.racing.showing import render_text

    budget = Budget(steps=steps, batch=batch, width=width)
    grid = Grid(
        schemes=schemes,
        depths=depths,
        rates=rates or RATES,
        seeds=seeds,
        data=data,
        optimizer=optimizer,
        budget=budget,
    )
    with progress_bar(quiet=quiet) as progress:
        found = run(
            grid,
            store=open_store(store),
            executor=find(executor, workers, address),
            progress=progress and (lambda done, total, text: progress(done, total, "networks")),
        )
    if page is not None:
        found.to_html(page)
    emit(found.to_json() + "\n" if form == "json" else render_text(found), output)
    return FINE
