"""`leadline phase`: which networks learn, over depth and gain, rate or residual scale."""

from __future__ import annotations

from dataclasses import replace
from functools import partial

import click

from leadline.cli.forecast import Depths
from leadline.cli.numbers import Numbers
from leadline.cli.options import examples
from leadline.cli.sweeping import Choices, show_sweep, sweep_options


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
@sweep_options
def phase(
    kind: str,
    values: tuple[float, ...] | None,
    depths: tuple[int, ...] | None,
    rates: tuple[float, ...] | None,
    seeds: int | None,
    steps: int | None,
    width: int | None,
    choices: Choices,
) -> int:
    """Train thousands of small networks on digits and draw which of them learn.

    KIND: gain (tanh networks over weight variance and depth, with the curve of 6 depth scales), rate, or residual
    (scale of the branches). Networks are trained together, a stack of parameters a layer. Needs the extra `lab`.
    """
    from leadline.lab.phases import Plan
    from leadline.lab.phases import phase as measure
    from leadline.report.phases.showing import PHASE_FORMATS

    asked = {
        "values": values,
        "depths": depths,
        "rates": rates,
        "seeds": seeds,
        "steps": steps,
        "width": width,
    }
    plan = replace(Plan(), **{name: value for name, value in asked.items() if value is not None})  # type: ignore[arg-type]
    return show_sweep(choices, "columns", partial(measure, kind, plan), PHASE_FORMATS)
