"""Measures how one step of SGD, Adam, Muon and Lion grows with depth, for every residual scheme.

`python -m benchmarks.depth_atlas` continues where it stopped and writes results/depth_atlas.json,
docs/images/depth-atlas.svg and docs/lab-notes/depth-atlas.md. `--page` only writes the picture and the page.
"""

from __future__ import annotations

import argparse
import math
import statistics
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from benchmarks.result_files import load, save
from benchmarks.timing import machine
from benchmarks.update_exponents import (
    BATCH,
    HEADS,
    HIDDEN,
    SEEDS,
    STEP_LENGTH,
    STUDENT_QUANTILES,
    TIME,
    WIDTH,
    branch_matrices,
    slope,
)
from leadline.nn import SCHEMES, Encoder, Options

ROOT = Path(__file__).parent.parent
PAGE = ROOT / "docs" / "lab-notes" / "depth-atlas.md"
PICTURE = ROOT / "docs" / "images" / "depth-atlas.svg"
NAME = "depth_atlas"
DEPTHS = (8, 16, 32)
BETA1, BETA2 = 0.9, 0.999
LION = (0.9, 0.99)
SGD_MOMENTUM, MUON_MOMENTUM = 0.9, 0.95
TITLES = {"sgd": "SGD", "adam": "Adam", "muon": "Muon", "lion": "Lion"}
COLORS = {"sgd": "#4477aa", "adam": "#cc6633", "muon": "#228833", "lion": "#aa3377"}
# Heuristic: slopes within this of zero are called flat, as elsewhere in the project.
FLAT = 0.1

Rule = Callable[[Tensor, Tensor], Tensor]


def _sgd(first: Tensor, second: Tensor) -> Tensor:
    return SGD_MOMENTUM * first + second


def _adam(first: Tensor, second: Tensor) -> Tensor:
    mean = (BETA1 * (1 - BETA1) * first + (1 - BETA1) * second) / (1 - BETA1**2)
    square = (BETA2 * (1 - BETA2) * first.square() + (1 - BETA2) * second.square()) / (1 - BETA2**2)
    return torch.where(square > 0, mean / square.sqrt().clamp(min=1e-300), 0.0)


def _lion(first: Tensor, second: Tensor) -> Tensor:
    return (LION[0] * (1 - LION[1]) * first + (1 - LION[0]) * second).sign()


def _muon(first: Tensor, second: Tensor) -> Tensor:
    """Orthogonalized Nesterov momentum for a matrix; Adam's step for the learned vectors of a scheme."""
    if first.ndim < 2:
        return _adam(first, second)
    buffer = MUON_MOMENTUM * first + second
    left, values, right = torch.linalg.svd(second + MUON_MOMENTUM * buffer, full_matrices=False)
    kept = (values > 1e-9 * values.max()).to(values.dtype) if values.max() > 0 else torch.zeros_like(values)
    scale = 0.2 * math.sqrt(max(first.shape))
    return scale * (left * kept) @ right


RULES: dict[str, Rule] = {"sgd": _sgd, "adam": _adam, "muon": _muon, "lion": _lion}


def changes(scheme: str, depth: int, seed: int) -> dict[str, float]:
    r"""$\|F(\theta + \eta u) - F(\theta)\|_{rms}/\eta$ as $\eta \to 0$ for the second step $u$ of each optimizer.

    Two gradients of $\langle R_i, F(x_i)\rangle$ with fresh inputs and read-outs feed the optimizers' memories. The
    matrices of the branches and the scheme's learned weights move, as in `update_exponents`.
    """
    generator = torch.Generator().manual_seed(seed)
    options = Options(positions="none", hidden=HIDDEN)
    model = Encoder(WIDTH, HEADS, depth, scheme=scheme, options=options, generator=generator).double()
    moved = branch_matrices(model)
    gradients = []
    for _ in range(2):
        x = torch.randn(BATCH, TIME, WIDTH, generator=generator, dtype=torch.float64)
        readout = torch.randn(x.shape, generator=generator, dtype=torch.float64)
        before = model(x, causal=True)
        found = torch.autograd.grad((before * readout).sum(), moved, allow_unused=True)
        gradients.append([torch.zeros_like(p) if g is None else g for p, g in zip(moved, found, strict=True)])
    pairs = list(zip(*gradients, strict=True))
    return {name: _change(model, x, before.detach(), moved, pairs, rule) for name, rule in RULES.items()}


@torch.no_grad()
def _change(
    model: nn.Module,
    x: Tensor,
    before: Tensor,
    moved: list[nn.Parameter],
    pairs: list[tuple[Tensor, Tensor]],
    rule: Rule,
) -> float:
    start = [p.clone() for p in moved]
    update = [rule(first, second) for first, second in pairs]
    eta = STEP_LENGTH / math.sqrt(sum(float(u.square().sum()) for u in update))
    for parameter, u in zip(moved, update, strict=True):
        parameter.sub_(u, alpha=eta)
    after = model(x, causal=True)
    for parameter, old in zip(moved, start, strict=True):
        parameter.copy_(old)
    return float((after - before).square().mean().sqrt()) / eta


def measure(results: dict[str, Any]) -> None:
    """Measure what is missing, one scheme and seed at a time; each is saved at once."""
    for seed in range(SEEDS):
        for scheme in SCHEMES:
            key = f"{scheme} {seed}"
            if key in results["cases"]:
                continue
            values = [changes(scheme, depth, seed) for depth in DEPTHS]
            results["cases"][key] = {
                rule: {
                    "changes": [each[rule] for each in values],
                    "slope": round(slope(DEPTHS, [each[rule] for each in values]), 4),
                }
                for rule in RULES
            }
            save(NAME, results)
            print(key, {rule: results["cases"][key][rule]["slope"] for rule in RULES}, flush=True)


def exponents(results: dict[str, Any]) -> dict[str, dict[str, tuple[float, float]]]:
    """Mean slope and half width of its 95 % interval, by scheme and optimizer; schemes with all seeds only."""
    rows: dict[str, dict[str, tuple[float, float]]] = {}
    for scheme in SCHEMES:
        cases = [results["cases"].get(f"{scheme} {seed}") for seed in range(SEEDS)]
        if None in cases:
            continue
        rows[scheme] = {rule: _interval([case[rule]["slope"] for case in cases]) for rule in RULES}  # type: ignore[index]
    return rows


def _interval(slopes: list[float]) -> tuple[float, float]:
    half = STUDENT_QUANTILES[len(slopes) - 1] * statistics.stdev(slopes) / math.sqrt(len(slopes))
    return statistics.fmean(slopes), half


INTRODUCTION = """# The depth atlas

How much more does one optimizer step change the function of a network that is twice as deep? The answer is a power of
the depth. This page has that power for every residual scheme of `leadline.nn` and four optimizers. Zero means that one
learning rate serves all depths; one means that a network with ten times as many blocks needs a tenth of the rate.

![Exponents of all schemes for SGD, Adam, Muon and Lion, with intervals](../images/depth-atlas.svg)

Setting: encoders of width {width}, {heads} heads, {depths} blocks, in float64; the second step of each optimizer (its
memory then holds two gradients, so that Adam and Lion differ); the matrices of the branches and the scheme's learned
weights move, at one rate. Mean of {seeds} seeds ± half the 95 % interval of the slope of log change against log depth.
Made by `python -m benchmarks.depth_atlas`, from `benchmarks/results/depth_atlas.json`.

"""


def page(results: dict[str, Any]) -> str:
    rows = exponents(results)
    depths = ", ".join(map(str, DEPTHS[:-1])) + f" and {DEPTHS[-1]}"
    lines = [
        "| scheme | " + " | ".join(TITLES.values()) + " |",
        "|---" * (len(RULES) + 1) + "|",
        *(
            f"| `{name}` | " + " | ".join(_cell(row[rule]) for rule in RULES) + " |"
            for name, row in rows.items()
        ),
    ]
    introduction = INTRODUCTION.format(width=WIDTH, heads=HEADS, depths=depths, seeds=SEEDS)
    return introduction + "\n".join(lines) + "\n\n" + _observations(rows)


def _cell(interval: tuple[float, float]) -> str:
    return f"{interval[0]:+.2f} ± {interval[1]:.2f}"


def _observations(rows: dict[str, dict[str, tuple[float, float]]]) -> str:
    distances = {
        rule: {name: abs(row[rule][0] - row["adam"][0]) for name, row in rows.items()}
        for rule in ("muon", "lion")
    }
    middle = {rule: statistics.median(each.values()) for rule, each in distances.items()}
    farthest = {rule: max(each, key=each.__getitem__) for rule, each in distances.items()}
    flat = [
        name for name, row in rows.items() if all(abs(row[r][0]) < FLAT for r in ("adam", "muon", "lion"))
    ]
    flat_sgd = [name for name, row in rows.items() if abs(row["sgd"][0]) < FLAT]
    return f"""## What it shows

- Muon and Lion follow Adam's law: over {len(rows)} schemes the exponents differ from Adam's by {middle["muon"]:.2f}
  (Muon) and {middle["lion"]:.2f} (Lion) in the median. The largest differences are
  {distances["muon"][farthest["muon"]]:.2f} with Muon (`{farthest["muon"]}`) and
  {distances["lion"][farthest["lion"]]:.2f} with Lion (`{farthest["lion"]}`). In `layerscale` the learned scales, which
  Adam steps in all cases, and the matrices have different laws, and the start of the scales depends on depth in jumps.
- Flat (within {FLAT}) for Adam, Muon and Lion: {_names(flat)}. For SGD: {_names(flat_sgd)}.
- `attention-residuals`, `hyper-connections`, `mhc`, `mhc-lite` and `gpas` compute the function of `pre` at the start.
  Their own weights are zeros and ones there and move too, so that their exponents are near that of `pre`, not equal.

## What it does not show

This is the start of training at a small width. A flat exponent says that a rate transfers across depth, not that the
scheme learns best, and schemes with gates that open in training have another law after that.
"""


def _names(names: list[str]) -> str:
    return ", ".join(f"`{name}`" for name in names) or "none"


# The picture: one line per scheme, one point per optimizer.
ROW, LEFT, RIGHT, TOP = 16, 170, 620, 46
LOWEST, HIGHEST = -1.5, 6.5


def draw(results: dict[str, Any]) -> str:
    rows = sorted(exponents(results).items(), key=lambda item: item[1]["adam"][0])
    bottom = TOP + ROW * len(rows)
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 640 {bottom + 30}" font-family="sans-serif">',
        "<style>text { font-size: 11px; fill: #444 } .axis { stroke: #ccc } .zero { stroke: #666 }</style>",
        f'<rect width="640" height="{bottom + 30}" fill="#fff"/>',
    ]
    for index, rule in enumerate(RULES):
        parts.append(f'<circle cx="{LEFT + 90 * index}" cy="16" r="4" fill="{COLORS[rule]}"/>')
        parts.append(f'<text x="{LEFT + 90 * index + 9}" y="20">{TITLES[rule]}</text>')
    for tick in range(math.ceil(LOWEST), math.floor(HIGHEST) + 1):
        kind = "zero" if tick == 0 else "axis"
        parts.append(
            f'<line class="{kind}" x1="{_x(tick):.1f}" x2="{_x(tick):.1f}" y1="{TOP - 10}" y2="{bottom}"/>'
        )
        parts.append(f'<text x="{_x(tick):.1f}" y="{bottom + 14}" text-anchor="middle">{tick:+d}</text>')
    parts.append(f'<text x="{RIGHT}" y="{bottom + 27}" text-anchor="end">power of depth in one step</text>')
    for index, (name, row) in enumerate(rows):
        y = TOP + ROW * index + ROW / 2
        parts.append(f'<text x="{LEFT - 12}" y="{y + 4:.1f}" text-anchor="end">{name}</text>')
        for place, rule in enumerate(RULES):
            mean, half = row[rule]
            at = y + 2.4 * (place - 1.5)
            color = COLORS[rule]
            ends = f'x1="{_x(mean - half):.1f}" x2="{_x(mean + half):.1f}"'
            parts.append(f'<line {ends} y1="{at:.1f}" y2="{at:.1f}" stroke="{color}"/>')
            parts.append(f'<circle cx="{_x(mean):.1f}" cy="{at:.1f}" r="2.4" fill="{color}"/>')
    return "\n".join([*parts, "</svg>", ""])


def _x(value: float) -> float:
    kept = min(max(value, LOWEST), HIGHEST)
    return LEFT + (RIGHT - LEFT) * (kept - LOWEST) / (HIGHEST - LOWEST)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--page", action="store_true", help="only write the picture and the page")
    results = load(NAME)
    if not parser.parse_args().page:
        torch.set_num_threads(1)
        results["machine"] = machine()
        measure(results)
    PICTURE.write_text(draw(results))
    PAGE.write_text(page(results))


if __name__ == "__main__":
    main()
