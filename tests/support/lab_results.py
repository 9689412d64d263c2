"""Results of the lab made by hand: one claim, and a race."""

import math

from leadline.lab.race.standings import NetworkResult, build_race
from leadline.records import Experiment, Lab, Plot, PlotLine, PredictionCheck

RATES = (1e-3, 1e-2, 1e-1)


def claim_results(text: str = r"As stated: $\sigma_w^2 < |x|$.") -> Lab:
    """The results of one claim in which `text` stands wherever words may stand."""
    check = PredictionCheck(
        what=f"$|r|$ of {text}",
        by="article",
        predicted=1.0,
        low=0.9,
        high=1.1,
        origin=text,
        measured=1.0,
        measured_low=0.99,
        measured_high=1.01,
        runs=3,
        interval="95 %",
    )
    line = PlotLine(label=text, values=(1.0, 2.0))
    found = Experiment(
        code="S0-1",
        claim=text,
        article=text,
        test=text,
        truth=text,
        published="holds",
        verdict="holds",
        checks=(check,),
        plots=(Plot(title=text, across="layers", names=("1", "2"), lines=(line,)),),
        seeds=3,
        seconds=0.1,
    )
    return Lab(leadline="0", torch="2", experiments=(found,))


def parabola(scheme, depth, *, best, floor, seeds=3, rates=RATES):
    """Return losses on a parabola in log rate with its minimum at `best`; seeds differ slightly."""
    return [
        NetworkResult(
            scheme=scheme,
            depth=depth,
            rate=rate,
            seed=seed,
            valid=floor + math.log(rate / best) ** 2 / 10 + 0.01 * seed,
            held_out=floor + math.log(rate / best) ** 2 / 10 + 0.01 * seed,
            curve=(4.0, 3.0),
        )
        for rate in rates
        for seed in range(seeds)
    ]


def fields_of(cell):
    """The fields of a record by name."""
    return {name: getattr(cell, name) for name in cell.__struct_fields__}


def synthetic_race():
    """A race whose correct ranking is known."""
    budget = {"data": "text", "optimizer": "adam", "steps": 1, "batch": 1, "width": 8, "time": 16}
    cells = [
        *parabola("pre", 4, best=1e-2, floor=1.0),
        *parabola("post", 4, best=1e-2, floor=1.5),
        *parabola("pre", 16, best=1e-3, floor=1),
    ]
    results = ("valid", "held_out", "curve")
    pairs = [
        (
            {**budget, **{name: value for name, value in fields_of(cell).items() if name not in results}},
            {name: getattr(cell, name) for name in results},
        )
        for cell in cells
    ]
    return build_race(pairs, base_rate=2.95)
