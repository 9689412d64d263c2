"""S0-7 and S0-11: what the scale of residual branches does to the update, and why."""

from __future__ import annotations

from functools import partial

import torch
from torch import Tensor, nn

from leadline.lab.claim import ClaimResults, SeededTrials, claim
from leadline.lab.estimate import Estimate, above, exact, full_range, median_curve, near, plot, slope
from leadline.lab.measurements import DOUBLE, absolute_sum, gradients, square_sum
from leadline.lab.stacks import Dense, gaussian_weight, residual_stack, scaled_by_depth, with_readout

# Heuristic: three octaves show a power law; the width runs in seconds.
DEPTHS = (8, 16, 32, 64)
WIDTH = 64
# Heuristic: tolerance of a slope, for a few runs and corrections in 1/N at small depth.
ROOM = 0.15


@claim(code="S0-7", verdict="holds under conditions", seeds=16, slow=True, falsified_by={"alpha": 0.75})
def branches_of_one_over_root_depth(trials: SeededTrials, *, alpha: float = 0.5) -> ClaimResults:
    r"""Residual branches scaled by $\varepsilon = 1/\sqrt N$ make the update independent of depth.

    ## The article
    "If we want to scale the gradient to $1/\sqrt N$, we can simply let $\varepsilon = 1/\sqrt N$". The optimizer is
    SGD in the derivation and is not named in the conclusion.

    ## The test
    Use 8 to 64 blocks with branches $N^{-\alpha} W_2\,\mathrm{relu}(W_1 x)$. The change of the loss by one step,
    divided by the rate, is $\sum \lVert g_l \rVert^2$ for SGD and $\lVert g \rVert_1$ for a sign step, which is
    Adam's first step. Fit the slopes of both against depth.

    ## What is true
    For SGD the change is $N^{1-2\alpha}$, so $\alpha = 1/2$ is right. For sign steps and Adam it is $N^{1-\alpha}$,
    because their step does not shrink with the gradient; they need $\alpha = 1$ (the companion post 8978 says so),
    or a rate that falls as $N^{-1/2}$. Below $\alpha = 1/2$ the stream itself explodes.
    """
    curves = {power: trials.runs(partial(sums, power)) for power in (alpha, 1.0, 0.25)}
    origin = "derived: $N$ blocks, each gradient multiplied by $N^{-\\alpha}$, squared or not"
    half = curves[alpha]
    step_kinds = {"SGD": 0, "sign": 1}
    for name, place in step_kinds.items():
        what = rf"exponent of the change of the loss, {name} step, $\alpha = 1/2$"
        yield near(
            what,
            exponent(half, place),
            0.0,
            room=ROOM,
            origin="the article: the change does not depend on depth",
        )
    yield near(
        r"the same, sign step, $\alpha = 1/2$",
        exponent(half, 1),
        0.5,
        room=ROOM,
        by="correction",
        origin=origin,
    )
    for name, place, predicted in (("SGD", 0, -1.0), ("sign", 1, 0.0)):
        what = rf"the same, {name} step, $\alpha = 1$"
        yield near(what, exponent(curves[1.0], place), predicted, room=ROOM, by="correction", origin=origin)
    yield above(
        r"the same, SGD step, $\alpha = 1/4$",
        exponent(curves[0.25], 0),
        1.0,
        by="correction",
        origin=r"derived: the stream grows as $(1 + N^{-1/2})^N$, faster than any power",
    )
    plot_curves = {
        f"{name}, alpha {power:g}": median_curve([run[place] for run in curves[power]])
        for power in (alpha, 1.0)
        for name, place in step_kinds.items()
    }
    yield plot("change of the loss by one step, over the rate", "blocks", plot_curves)


Sums = tuple[dict[int, float], dict[int, float]]


def exponent(runs: list[Sums], place: int) -> Estimate:
    return slope([run[place] for run in runs])


def sums(alpha: float) -> Sums:
    """Return the sums of squared and of absolute gradients, by depth."""
    squares, absolutes = {}, {}
    x = torch.randn(1, WIDTH, dtype=DOUBLE)
    for depth in DEPTHS:
        net = with_readout(residual_stack(depth, WIDTH, scaled_by_depth(alpha)), WIDTH)
        measured = {name: g for name, g in gradients(net, x, torch.sum).items() if g.ndim == 2}
        squares[depth], absolutes[depth] = square_sum(measured), absolute_sum(measured)
    return squares, absolutes


@claim(code="S0-11", verdict="holds", seeds=5, falsified_by={"upstream": "moving"})
def gradient_proportional_to_scale(trials: SeededTrials, *, upstream: str = "fixed") -> ClaimResults:
    r"""The gradient of a branch's parameters is proportional to the scale $\varepsilon$ of the branch.

    ## The article
    $\partial L/\partial\theta = \varepsilon\,(\partial L/\partial y)(\partial f/\partial\theta)$ for
    $y = x + \varepsilon f(x)$.

    ## The test
    Compare the gradients of one block at $\varepsilon$ = 1 and 0.01, each divided by its $\varepsilon$, with the
    upstream gradient $\partial L/\partial y$ held fixed.

    ## What is true
    The claim is true: it is an identity as long as the upstream gradient is the same. In a deep stack $\varepsilon$
    also changes that gradient and the input of the block, by a bounded factor if $\varepsilon^2 = O(1/N)$ (S0-8).
    """

    def error() -> float:
        layer = Dense(gaussian_weight(WIDTH, WIDTH))
        x, c = torch.randn(2, 4, WIDTH, dtype=DOUBLE)
        whole, small = (scaled_gradient(layer, x, c, scale, upstream) for scale in (1.0, 0.01))
        return float(((whole - small).norm() / whole.norm()).item())

    yield exact(
        r"relative difference of $\nabla_\theta L/\varepsilon$ at $\varepsilon$ = 1 and 0.01",
        full_range(trials.runs(error)),
    )


def scaled_gradient(layer: nn.Module, x: Tensor, c: Tensor, scale: float, upstream: str) -> Tensor:
    y = x + scale * layer(x)
    loss = (y * c).sum() if upstream == "fixed" else y.square().sum()
    return torch.autograd.grad(loss, list(layer.parameters()))[0] / scale
