"""S0-6 and S0-E3: how the squared gradient of a plain network grows with depth, and whether it must."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import torch
from torch import Tensor, nn

from leadline.lab.claim import ClaimResults, SeededTrials, claim
from leadline.lab.estimate import below, exact, full_range, median_curve, near, plot, slope
from leadline.lab.measurements import DOUBLE, gradients, relative_change, square_sum
from leadline.lab.stacks import (
    gaussian_weight,
    orthogonal_stack,
    plain_stack,
    residual_stack,
    scaled_by_depth,
    with_readout,
)

# Heuristic: three octaves show a power law; the widths run in seconds.
DEPTHS = (8, 16, 32, 64)
WIDTH, NARROW = 64, 32
# Derived: relative size; small compared with one, large compared with rounding errors.
PERTURBATION = 1e-5


@claim(code="S0-6", verdict="holds under conditions", seeds=10, slow=True, falsified_by={"scale": 0.9})
def gradient_grows_with_depth(trials: SeededTrials, *, scale: float = 1.0) -> ClaimResults:
    r"""With stable gradients, the change of the loss by one step is proportional to depth: $\Delta L = O(\eta N K)$.

    ## The article
    The definition of "incremental explosion" (增量爆炸). $K$ is called "the average number of parameters per
    layer", and the gradient of every parameter is taken as $O(1)$.

    ## The test
    Fit the slope of $\sum_l \lVert g_l \rVert^2$ against $N$ in log-log, for 8 to 64 layers with a fixed readout
    vector: with orthogonal linear layers, whose gradients are exactly stable, and with Gaussian ReLU layers of width
    32 at He's gain.

    ## What is true
    The slope is 1 if gradients are stable. What is stable is the gradient *norm* of a layer's matrix, so $K$ is the
    number of matrices per layer (the companion post 8978 says so). With $O(1)$ for each *entry*, the sum would also
    grow with the square of the width. With Gaussian weights of ordinary width, the typical network grows more
    slowly because its signal shrinks (S0-F): the law needs $N \ll n$.
    """
    rotations = trials.runs(lambda: squares(lambda depth: orthogonal_net(depth, scale)))
    yield near(
        r"exponent of $\sum \lVert g_l \rVert^2$, orthogonal linear layers",
        slope(rotations),
        1.0,
        room=0.1,
        origin="the article; 0.1: the tolerance that Leadline uses for slopes over depth",
    )
    gaussian = trials.runs(
        lambda: squares(lambda depth: with_readout(plain_stack(depth, NARROW), NARROW), NARROW)
    )
    yield near(
        rf"the same, Gaussian ReLU layers at He's gain, width {NARROW}",
        slope(gaussian),
        1.0,
        room=0.1,
        origin="the article, which gives no condition on the width",
    )
    yield below(
        "the same",
        slope(gaussian),
        0.5,
        by="correction",
        origin=r"S0-F: relative to the mean, the typical network falls as $e^{-2.5 N/n}$, here to 0.007 (derived)",
    )
    plot_curves = {"orthogonal": median_curve(rotations), "Gaussian He-ReLU, median": median_curve(gaussian)}
    first = plot_curves["orthogonal"][DEPTHS[0]]
    yield plot(
        "sum of squared gradients",
        "layers",
        plot_curves,
        {"N": {depth: first * depth / DEPTHS[0] for depth in DEPTHS}},
    )


def orthogonal_net(depth: int, scale: float) -> nn.Sequential:
    net = with_readout(orthogonal_stack(depth, WIDTH), WIDTH)
    with torch.no_grad():
        for each in net[:-1].parameters():
            each.mul_(scale)
    return net


def squares(build: Callable[[int], nn.Module], width: int = WIDTH) -> dict[int, float]:
    """Return the sum of squared gradients by depth, for one sample, with the output as the loss."""
    x = torch.randn(1, width, dtype=DOUBLE)
    return {depth: square_sum(gradients(build(depth), x, torch.sum)) for depth in DEPTHS}


class Rescaled(nn.Module):
    r"""$x\,(s W')$ with a constant $s$, and $W'$ so large that the function is that of $W$."""

    def __init__(self, matrix: Tensor, scale: float) -> None:
        super().__init__()
        self.scale, self.weight = scale, nn.Parameter(matrix / scale)

    def forward(self, x: Tensor) -> Tensor:
        return self.scale * nn.functional.linear(x, self.weight)


@claim(code="S0-E3", verdict="false as stated", seeds=5, slow=True, falsified_by={"power": 0.0})
def plain_gradients_can_depend_on_depth(trials: SeededTrials, *, power: float = -0.5) -> ClaimResults:
    r"""A plain network with a stable forward pass cannot make its gradients smaller with depth.

    ## The article
    "As long as its forward propagation is stable, the backpropagation is also fixed and cannot make the gradient
    dependent on the number of layers". From this it concludes that deep plain networks are inevitably hard to
    train.

    ## The test
    Write orthogonal linear layers as $W = s W'$ with $s = N^{-1/2}$ and the parameter $W'$: the function is the same,
    the gradients are not. Then test a statement that no such rewriting can change: move every weight by a share
    $\delta$ of its norm in a random direction, and measure the relative change of the output against depth.

    ## What is true
    The rewriting makes $\sum \lVert g_l \rVert^2$ independent of depth: it is a smaller learning rate in disguise,
    so the article's sentence is false, but its point remains. Independent of the parametrization, the output moves
    by $\delta \sqrt N$ in a plain network and by $O(\delta)$ in a residual one with branches of $1/\sqrt N$. Deep
    plain networks that train do exist: see S0-12 for a small one.
    """

    def rewritten(depth: int) -> nn.Sequential:
        matrices = [nn.init.orthogonal_(torch.empty(WIDTH, WIDTH, dtype=DOUBLE)) for _ in range(depth)]
        return with_readout([Rescaled(each, depth**power) for each in matrices], WIDTH)

    curves = trials.runs(lambda: squares(rewritten))
    yield near(
        r"exponent of $\sum \lVert g_l \rVert^2$, layers written as $N^{-1/2} W'$",
        slope(curves),
        1.0,
        room=0.1,
        origin="the article: its dependence on depth must be that of a plain network (S0-6)",
    )
    yield near(
        "the same exponent",
        slope(curves),
        0.0,
        room=0.1,
        by="correction",
        origin=r"derived: each gradient is multiplied by $s$",
    )
    yield exact(
        "change of the function by the rewriting", full_range(trials.runs(rewriting_error)), by="correction"
    )
    for name, build, power_law in (
        ("plain", lambda depth: orthogonal_stack(depth, WIDTH), 0.5),
        ("residual, branches of $N^{-1/2}$", shallow_branches, 0.0),
    ):
        moved = trials.runs(partial(sensitivities, build))
        yield near(
            rf"exponent of the change of the output when every weight moves by a share $\delta$, {name}",
            slope(moved),
            power_law,
            room=0.1,
            by="correction",
            origin="derived: the contributions of the layers are independent, so their squares add",
        )


def shallow_branches(depth: int) -> list[nn.Module]:
    return residual_stack(depth, WIDTH, scaled_by_depth(0.5))


def rewriting_error() -> float:
    """Return the relative difference between a layer and its rewriting."""
    matrix, x = gaussian_weight(WIDTH, WIDTH), torch.randn(4, WIDTH, dtype=DOUBLE)
    return relative_change(nn.functional.linear(x, matrix), Rescaled(matrix, 0.125)(x))


def sensitivities(build: Callable[[int], list[nn.Module]]) -> dict[int, float]:
    return {depth: sensitivity(build(depth)) for depth in DEPTHS}


def sensitivity(layers: list[nn.Module]) -> float:
    """Return the relative change of the output, divided by the share by which every matrix was moved."""
    model, x = nn.Sequential(*layers), torch.randn(8, WIDTH, dtype=DOUBLE)
    with torch.no_grad():
        before = model(x)
        for each in model.parameters():
            if each.ndim == 2:
                noise = torch.randn_like(each)
                each.add_(PERTURBATION * each.norm() * noise / noise.norm())
        return relative_change(before, model(x)) / PERTURBATION
