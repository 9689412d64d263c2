"""`leadline phase`: which networks learn, over depth and gain, rate or residual scale."""

from __future__ import annotations

from dataclasses import replace
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
        "leadline phase gain --html gain.html",
        "leadline phase rate --depths 4,16,64 --steps 100",
        "leadline phase residual --store cells.jsonl --executor joblib --workers 8",
    )
)
@click.argument("kind", type=click.Choice(["gain", "rate", "residual"]))
@click.option("--values", type=Numbers(), help="What varies across, with commas; left out: a good range.")
@click.option("--depths", type=Depths(), help="Layers, with commas.")
@click.option("--rates", type=Numbers(), help="Rates of SGD; a place is as good as the best of them.")
@click.option("--seeds", type=click.IntRange(min=1), help="Networks at each place and rate.")
@click.option("--steps", type=click.IntRange(min=1), help="How long each network is trained.")
@click.option("--width", type=click.IntRange(min=1), help="Units in a layer.")
@click.option("--format", "form", type=click.Choice(["text", "json"]), default="text", show_default=True)
@store_option
@executor_options
@output_option
@html_option
@click.option("-q", "--quiet", is_flag=True, help="No progress.")
def phase(
    kind: str,
    values: tuple[float, ...] | None,
    depths: tuple[int, ...] | None,
    rates: tuple[float, ...] | None,
    seeds: int | None,
    steps: int | None,
    width: int | None,
    form: str,
    store: Path | None,
    executor: str,
    workers: int | None,
    address: str | None,
    output: Path | None,
    page: Path | None,
    quiet: bool,
) -> int:
    """Train thousands of small networks on digits and draw which of them learn.

    KIND: gain (tanh networks over weight variance and depth, with the curve of 6 depth scales), rate, or residual
    (scale of the branches). Networks are trained together, a stack of parameters a layer. Needs the extra `lab`.
    """
    from leadline.lab.phases import Plan
    from leadline.lab.phases import phase as measure
    from leadline.lab.phases.showing import render_text

    asked = {
        "values": values,
        "depths": depths,
        "rates": rates,
        "seeds": seeds,
        "steps": steps,
        "width": width,
    }
    plan = replace(Plan(), **{name: value for name, value in asked.items() if value is not None})  # type: ignore[arg-type]
    with progress_bar(quiet=quiet) as progress:
        found = measure(
            kind,
            plan,
            store=open_store(store),
            executor=find(executor, workers, address),
            progress=progress and (lambda done, total, text: progress(done, total, "columns")),
        )
    if page is not None:
        found.to_html(page)
    emit(found.to_json() + "\n" if form == "json" else render_text(found), output)
    return FINE
