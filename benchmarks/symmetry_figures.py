"""Measures how far the function moves when weights shrink; draws the figures of docs/explanation/symmetry.md.

`python -m benchmarks.symmetry_figures` measures what is missing in results/symmetry_figures.json, in double precision,
and draws docs/images/*.svg from it.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from benchmarks.result_files import ROOT, Results, run_missing

FOLDER = ROOT / "docs" / "images"
WIDTH, SAMPLES, BLOCKS = 32, 16, 3
DECADES, STEPS = 8, 4  # factors a from 1 down to 1e-8, four to a decade
# Derived: below the rounding error of double precision; the lowest value of the figures.
MIN_CHANGE = 1e-17

LEFT, RIGHT, TOP, BOTTOM = 60, 590, 20, 290  # plot area of a drawing, in pixels
FIGURES = {  # file: curves by key of the results, each with its label, its color and the decade the label stands at
    "eps": {
        "norm eps=1e-05": ("eps = 1e-5", "#b5402a", 1.0),
        "norm eps=1e-12": ("eps = 1e-12", "#3a5fa8", 3.0),
        "norm eps=0": ("eps = 0", "#1b7f5c", 3.0),
    },
    "stream": {
        "one branch": ("one branch alone", "#b5402a", 3.0),
        "all writers": ("all that writes to the stream, together", "#1b7f5c", 3.0),
    },
}


class PreNorm(nn.Module):
    """An embedding, pre-norm blocks, a final norm and a head, without eps."""

    def __init__(self) -> None:
        super().__init__()
        self.embed, self.head = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, 3)
        self.up = nn.ModuleList(nn.Linear(WIDTH, WIDTH) for _ in range(BLOCKS))
        self.down = nn.ModuleList(nn.Linear(WIDTH, WIDTH) for _ in range(BLOCKS))

    def forward(self, x: Tensor) -> Tensor:
        x = self.embed(x)
        for up, down in zip(self.up, self.down, strict=True):
            x = x + down(F.gelu(up(_norm(x))))
        return self.head(_norm(x))


def _norm(x: Tensor, eps: float = 0.0) -> Tensor:
    return F.layer_norm(x, (WIDTH,), eps=eps)


def change_after_norm(eps: float) -> list[list[float]]:
    """Return the change of LN(relu(x a W)) against a."""
    torch.manual_seed(0)
    x = torch.randn(SAMPLES, WIDTH, dtype=torch.float64)
    weight = torch.randn(WIDTH, WIDTH, dtype=torch.float64) / WIDTH**0.5
    return _against_factor(lambda a: _norm(torch.relu(x @ (a * weight)), eps))


def change_in_stream(*writers: str) -> list[list[float]]:
    """Return the change of a pre-norm network's output against the factor of the parameters with these prefixes."""
    torch.manual_seed(0)
    net, x = PreNorm().double(), torch.randn(SAMPLES, WIDTH, dtype=torch.float64)

    def shrunk(a: float) -> Tensor:
        named = {name: each * (a if name.startswith(writers) else 1) for name, each in net.named_parameters()}
        return torch.func.functional_call(net, named, (x,))

    return _against_factor(shrunk)


def _against_factor(function: Callable[[float], Tensor]) -> list[list[float]]:
    """Return pairs of a factor and the relative change of the output, ||f(a) - f(1)|| / ||f(1)||."""
    with torch.no_grad():
        before = function(1.0)
        factors = [10 ** (-step / STEPS) for step in range(1, DECADES * STEPS + 1)]
        return [[a, ((function(a) - before).norm() / before.norm()).item()] for a in factors]


def draw(results: Results, figure: str) -> str:
    """Return the figure as SVG: relative change of the output against the factor, both on log axes."""
    parts = [
        '<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 640 340" font-family="sans-serif">',
        "<style>text { font-size: 12px }</style>",
        '<rect width="640" height="340" fill="white"/>',
        f'<text x="{LEFT}" y="332">factor a by which the weights are multiplied</text>',
        f'<text x="{LEFT + 6}" y="{TOP - 6}">relative change of the output</text>',
    ]
    for decade in range(0, -17, -4):
        y = _y(10.0**decade)
        parts.append(f'<text x="14" y="{y + 4:.1f}">1e{decade}</text>')
        parts.append(f'<path d="M{LEFT} {y:.1f} H{RIGHT}" stroke="#ddd"/>')
    parts += [
        f'<text x="{_x(10.0**decade) - 10:.1f}" y="{BOTTOM + 18}">1e{decade}</text>'
        for decade in range(0, -DECADES - 1, -2)
    ]
    for key, (label, color, at) in FIGURES[figure].items():
        parts += _curve(results["cases"][key], label, color, at)
    return "\n".join([*parts, "</svg>"]) + "\n"


def _curve(pairs: list[list[float]], label: str, color: str, at: float) -> list[str]:
    points = " ".join(f"{_x(a):.1f},{_y(change):.1f}" for a, change in pairs)
    anchor = pairs[round(at * STEPS) - 1]  # below and to the right, where no curve runs
    x, y = _x(anchor[0]) + 8, _y(anchor[1]) + 18
    return [
        f'<polyline fill="none" stroke="{color}" stroke-width="2" points="{points}"/>',
        f'<text x="{x:.1f}" y="{y:.1f}" fill="{color}">{label}</text>',
    ]


def _x(a: float) -> float:
    return LEFT + (RIGHT - LEFT) * -math.log10(a) / DECADES


def _y(change: float) -> float:
    return TOP + (BOTTOM - TOP) * math.log10(max(change, MIN_CHANGE)) / math.log10(MIN_CHANGE)


def main() -> None:
    cases = {f"norm eps={eps:g}": partial(change_after_norm, eps) for eps in (0.0, 1e-12, 1e-5)}
    cases["all writers"] = partial(change_in_stream, "embed", "down")
    cases["one branch"] = partial(change_in_stream, "down.1")
    results = run_missing("symmetry_figures", cases, print)
    FOLDER.mkdir(exist_ok=True)
    for figure in FIGURES:
        (FOLDER / f"{figure}.svg").write_text(draw(results, figure))


if __name__ == "__main__":
    main()
