"""Measures how the change of the function by one optimizer step grows with depth, per residual scheme.

`python -m benchmarks.update_exponents` measures and writes results/update_exponents.json and the table in
docs/reference/nn.md.
"""

from __future__ import annotations

import argparse
import json
import math
import statistics
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, Literal

import torch
from torch import Tensor, nn

from leadline.nn import SCHEMES, Encoder, Options, Residual, param_groups

RESULTS = Path(__file__).parent / "results" / "update_exponents.json"
PAGE = Path(__file__).parent.parent / "docs" / "reference" / "nn.md"
MARKERS = ("<!-- update-exponents -->", "<!-- /update-exponents -->")

# Calibrated by this script: below 8 blocks the small-N corrections change the slope by more than 0.1.
DEPTHS = (8, 16, 32, 64)
SEEDS = 5
WIDTH, HEADS, HIDDEN, TIME, BATCH = 32, 2, 64, 16, 4
# Calibrated by this script: in float64, half this step length changes no slope by 0.001.
STEP_LENGTH = 1e-5
# Cited: two-sided 95 % quantiles of Student's t, by degrees of freedom.
STUDENT_QUANTILES = {4: 2.776, 9: 2.262}
DERIVED = {  # exponents that the theory derives: (SGD, Adam)
    "deepnorm": (0.0, 0.5),
    "residual-sqrt": (0.0, 0.5),
    "residual-linear": (-1.0, 0.0),
    "keel": (-1.0, 0.0),
    "deepnorm-adam": (-1.0, 0.0),
    "fixup": (0.0, 0.5),
}
# The schemes whose branches are added with a weight. The depth atlas (benchmarks/depth_atlas.py) has all schemes.
MEASURED = tuple(name for name, row in SCHEMES.items() if row.is_weighted_sum)
STEPS: dict[str, Callable[[Tensor], Tensor]] = {"sgd": lambda g: g, "adam": torch.sign}


Moved = Literal["matrices", "all", "groups"]
MOVED: tuple[Moved, ...] = ("matrices", "all", "groups")


def change_of_function(scheme: str, depth: int, seed: int, rule: str, *, moved: Moved = "matrices") -> float:
    r"""$\|F(\theta + \eta u) - F(\theta)\|_{rms} / \eta$ as $\eta \to 0$, for one step direction $u$ of $L =
    \langle R, F\rangle$.

    $u = -g$ for SGD and $-\mathrm{sign}(g)$ for Adam (its first step). $R$ is a fixed random read-out, so
    that $\partial L/\partial F$ is the same at every depth. `moved`: the `matrices` of the branches and the
    scheme's learned weights (the parameters of the theorems); `all` parameters, norms and biases too, at one
    rate; or all at the rates of `param_groups`.
    """
    generator = torch.Generator().manual_seed(seed)
    options = Options(positions="none", hidden=HIDDEN)
    model = Encoder(WIDTH, HEADS, depth, scheme=scheme, options=options, generator=generator).double()
    x = torch.randn(BATCH, TIME, WIDTH, generator=generator, dtype=torch.float64)
    readout = torch.randn(x.shape, generator=generator, dtype=torch.float64)
    steps = rates(model, rule, moved)
    before = model(x, causal=True)
    gradients = torch.autograd.grad((before * readout).sum(), [parameter for parameter, _ in steps])
    update = [rate * STEPS[rule](g) for (_, rate), g in zip(steps, gradients, strict=True)]
    eta = STEP_LENGTH / math.sqrt(sum(float(u.square().sum()) for u in update))
    with torch.no_grad():
        for (parameter, _), u in zip(steps, update, strict=True):
            parameter.sub_(u, alpha=eta)
        after = model(x, causal=True)
        return float((after - before).square().mean().sqrt()) / eta


def rates(model: nn.Module, rule: str, moved: Moved) -> list[tuple[nn.Parameter, float]]:
    """Return the parameters to move and the rate of each."""
    if moved == "groups":
        groups = param_groups(model, None, rule, lr=1.0)
        return [(parameter, group["lr"]) for group in groups for parameter in group["params"]]
    return [(p, 1.0) for p in (branch_matrices(model) if moved == "matrices" else model.parameters())]


def branch_matrices(model: nn.Module) -> list[nn.Parameter]:
    """Return the matrices inside branches, and the learned weights of the residuals."""
    found: list[nn.Parameter] = []
    for residual in (module for module in model.modules() if isinstance(module, Residual)):
        found += [p for p in residual.branch.parameters() if p.ndim > 1]
        found += [p for p in (residual.weight, residual.skip_weight) if p is not None]
        if residual.connection is not None:
            found += residual.connection.parameters()
    return found


def slope(depths: tuple[int, ...], values: list[float]) -> float:
    """Return the least-squares slope of log value against log depth."""
    xs, ys = [math.log(d) for d in depths], [math.log(v) for v in values]
    return statistics.linear_regression(xs, ys).slope


def measure(scheme: str, rule: str, *, moved: Moved, seeds: int, depths: tuple[int, ...]) -> dict[str, Any]:
    """Return the slope of each seed, their mean, and the half width of its 95 % interval."""
    slopes, last = [], 0.0
    for seed in range(seeds):
        values = [change_of_function(scheme, d, seed, rule, moved=moved) for d in depths]
        slopes.append(slope(depths, values))
        last = values[-1]
    half = STUDENT_QUANTILES[seeds - 1] * statistics.stdev(slopes) / math.sqrt(seeds)
    return {
        "slopes": [round(s, 4) for s in slopes],
        "mean": round(statistics.mean(slopes), 4),
        "half_width": round(half, 4),
        "change_at_deepest": last,
    }


def run(seeds: int = SEEDS, depths: tuple[int, ...] = DEPTHS) -> dict[str, Any]:
    """Measure every scheme with both step rules and the three sets of parameters."""
    started, rows = time.perf_counter(), {}
    for scheme in MEASURED:
        rows[scheme] = {
            f"{rule}_{moved}": measure(scheme, rule, moved=moved, seeds=seeds, depths=depths)
            for rule in STEPS
            for moved in MOVED
        }
        print(
            scheme,
            {key: (value["mean"], value["half_width"]) for key, value in rows[scheme].items()},
            flush=True,
        )
    setting = {
        "width": WIDTH,
        "heads": HEADS,
        "hidden": HIDDEN,
        "time": TIME,
        "batch": BATCH,
        "depths": depths,
    }
    seconds = round(time.perf_counter() - started, 1)
    return {
        "setting": setting,
        "seeds": seeds,
        "torch": torch.__version__,
        "seconds": seconds,
        "schemes": rows,
    }


def render(results: dict[str, Any]) -> str:
    """Return the table of the docs: exponents with 95 % intervals."""
    head = [f"{rule}, {moved}" for moved in ("matrices", "all", "`param_groups`") for rule in ("SGD", "Adam")]
    lines = ["| scheme | derived: SGD, Adam | " + " | ".join(head) + " |", "|---|---|" + "---|" * len(head)]
    for name, row in results["schemes"].items():
        cells = [_cell(row[f"{rule}_{moved}"]) for moved in MOVED for rule in STEPS]
        derived = "{:+.1f}, {:+.1f}".format(*DERIVED[name]) if name in DERIVED else ""
        lines.append(f"| `{name}` | {derived} | " + " | ".join(cells) + " |")
    return "\n".join(lines)


def _cell(measured: dict[str, Any]) -> str:
    return f"{measured['mean']:+.2f} ± {measured['half_width']:.2f}"


def write_between_markers(page: Path, markers: tuple[str, str], text: str) -> None:
    """Replace the text between two markers of a page."""
    head, rest = page.read_text().split(markers[0], 1)
    tail = rest.split(markers[1], 1)[1]
    page.write_text(f"{head}{markers[0]}\n{text}\n{markers[1]}{tail}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--table", action="store_true", help="only write the table from the stored results")
    if not parser.parse_args().table:
        torch.set_num_threads(1)
        RESULTS.write_text(json.dumps(run(), indent=1) + "\n")
    write_between_markers(PAGE, MARKERS, render(json.loads(RESULTS.read_text())))


if __name__ == "__main__":
    main()
