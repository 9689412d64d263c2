"""S4-2 to S4-4 and S4-10: slopes of activations, and where gradients begin to vanish or to explode."""

from __future__ import annotations

import math
import statistics

import torch
from torch import nn

from leadline.lab.claim import ClaimResults, SeededTrials, claim
from leadline.lab.estimate import equals, full_range, geometric, mean, plot
from leadline.lab.measurements import DOUBLE, growth, layer_gains, moments_through
from leadline.lab.stacks import Dense, linear_layer, plain_stack
from leadline.nn.activations import gaussian_moments
from leadline.readings.theory.criticality import critical_gain, depth_scale

# Heuristic: sizes that run in seconds, and a bias variance that moves the fixed point without dominating it.
WIDTH, BATCH = 128, 8
BIAS = 0.05


@claim(code="S4-2", verdict="holds", seeds=3, falsified_by={"stretch": 2.0})
def largest_slopes(trials: SeededTrials, *, stretch: float = 1.0) -> ClaimResults:
    r"""The slope of a sigmoid is at most 0.25, that of a tanh at most 1.

    ## The article
    The section on activations prints $\tanh x = (e^x - e^{-x})/(e^x - e^{-x})$, which is 1; the denominator is
    $e^x + e^{-x}$.

    ## The test
    Find the largest slope on a fine grid with autograd, and sample $E[\phi'(z)^2]$ for $z \sim N(0,1)$, which is what
    scales the gradient.

    ## What is true
    The claim is true. What counts is the mean square of the slope over the pre-activations, not its largest value:
    0.0448 for a sigmoid and 0.464 for a tanh at unit variance.
    """
    grid = torch.linspace(-8, 8, 100_001, dtype=DOUBLE)
    for name, function, largest in (("sigmoid", torch.sigmoid, 0.25), ("tanh", torch.tanh, 1.0)):
        at = grid.clone().requires_grad_()
        slopes = torch.autograd.grad(function(stretch * at).sum(), at)[0]
        measured = full_range([slopes.max().item()])
        yield equals(
            f"largest slope of {name}", measured, largest, within=1e-6, origin="the article; exact at 0"
        )

        def square(function: object = function) -> float:
            z = torch.randn(100_000, dtype=DOUBLE).requires_grad_()
            return torch.autograd.grad(function(z).sum(), z)[0].square().mean().item()  # type: ignore[operator]

        yield equals(
            rf"$E[\phi'(z)^2]$ of {name}",
            mean(trials.runs(square)),
            gaussian_moments(name, 1.0).slope_square,
            within=0.02,
            by="correction",
            origin="quadrature (`leadline.nn.activations`); 2 %: 100 000 draws",
        )


@claim(code="S4-3", verdict="holds", seeds=5, falsified_by={"gain": 22.0})
def deep_sigmoids_vanish(trials: SeededTrials, *, gain: float = 1.0) -> ClaimResults:
    r"""Gradients vanish exponentially in deep sigmoid networks.

    ## The article
    "The maximum of its derivative is only 0.25, so that the gradient vanishes easily in deep networks".

    ## The test
    Twelve layers $W\,\sigma(x)$ with $\mathrm{Var}(W) = 1/n$: the factor per layer of the squared gradient from
    `leadline.trace`, compared with $\chi$ of `leadline.depth_scale`.

    ## What is true
    The claim is true: the factor is about 0.057 per layer (the variance of the pre-activations settles at
    $E[\sigma^2] \approx 0.26$, which gives this $\chi$). The reason is $\chi = \sigma_w^2 E[\phi'^2] < 1$, not the
    largest slope (S4-4).
    """

    def factor() -> float:
        points = moments_through(
            plain_stack(12, WIDTH, gain, torch.sigmoid), torch.randn(BATCH, WIDTH, dtype=DOUBLE)
        )
        return math.pow(growth(points)[1], 1 / 12)

    measured = geometric(trials.runs(factor))
    yield equals(
        "factor of the squared gradient per layer",
        measured,
        depth_scale("sigmoid", 1.0).chi,
        within=0.15,
        origin=r"the article, as $\chi$ by quadrature; 15 %: width 128, and the layers before the variance converges",
    )


@claim(code="S4-4", verdict="false as stated", seeds=5, falsified_by={"size": 0.05})
def weight_size_is_not_the_threshold(trials: SeededTrials, *, size: float = 0.1) -> ClaimResults:
    r"""If all weights (times slopes) are below 1 the gradient vanishes, if they are above 1 it explodes.

    ## The article
    "If these factors are all smaller than 1 … the gradient vanishes; if larger than 1 … explodes", a factor being
    $f'(z)\,w$.

    ## The test
    Linear layers of width 400 in which *every* weight is $+0.1$ or $-0.1$; and tanh layers at the gain that
    `leadline.critical_gain` gives, all slopes below 1.

    ## What is true
    The threshold is $\chi = \sigma_w^2 E[\phi'^2]$ against 1, with $\sigma_w^2 = n\,\mathrm{Var}(W)$: here
    $400 \cdot 0.01 = 4$, so squared gradients grow fourfold per layer although every weight is 0.1. And a
    saturating activation is not doomed: at the edge of chaos ($\sigma_b^2 = 0.05$, $\sigma_w^2 = 1.76$) tanh
    networks lose no constant factor per layer.
    """
    wide, layers = 400, 6

    def signs() -> float:
        stack = [
            linear_layer(size * (2.0 * torch.randint(2, (wide, wide)) - 1).to(DOUBLE)) for _ in range(layers)
        ]
        return math.pow(growth(moments_through(stack, torch.randn(BATCH, wide, dtype=DOUBLE)))[1], 1 / layers)

    measured = geometric(trials.runs(signs))
    yield equals(
        "factor of the squared gradient per layer, all weights 0.1 in size", measured, 0.01, within=0.9,
        origin="the article: below 1, as the square of the weight",
    )  # fmt: skip
    yield equals(
        "the same",
        measured,
        wide * 0.01,
        within=0.05,
        by="correction",
        origin=r"derived, $n\,\mathrm{Var}(W)$; 5 %: width 400",
    )
    tanh = geometric(trials.runs(tanh_factor))
    yield equals(
        "factor per layer, tanh at the edge of chaos",
        tanh,
        1.0,
        within=0.05,
        by="correction",
        origin=r"$\chi = 1$ by quadrature; 5 %: 30 layers of width 128, without the first ten",
    )


def tanh_factor() -> float:
    """Return the factor per layer of the squared gradient after the variance has converged."""
    gain, layers = critical_gain("tanh", BIAS), 30
    stack = []
    for _ in range(layers):
        layer = nn.Linear(WIDTH, WIDTH, dtype=DOUBLE)
        nn.init.normal_(layer.weight, std=math.sqrt(gain / WIDTH))
        nn.init.normal_(layer.bias, std=math.sqrt(BIAS))
        stack += [nn.Sequential(nn.Tanh(), layer)]
    _, back = layer_gains(moments_through(stack, torch.randn(BATCH, WIDTH, dtype=DOUBLE)))
    return statistics.geometric_mean(back[10:])


@claim(code="S4-10", verdict="false as stated", seeds=5, falsified_by={"default": False})
def relu_product_is_not_one(trials: SeededTrials, *, default: bool = True) -> ClaimResults:
    r"""ReLU solves the problem: its slope is 1, so every factor of the product is 1.

    ## The article
    "Their derivative on the positive half-axis is always 1. The factors are then all 1, which solves the problem of
    exponential growth or decay".

    ## The test
    Twenty ReLU layers with PyTorch's default initialization: the factor per layer of the squared gradient, and the
    mean square slope.

    ## What is true
    The slope is 1 on *half* of the units: $E[\phi'^2] = 1/2$. And the weight is still there: `nn.Linear` draws with
    $\sigma_w^2 = 1/3$, so each layer keeps one *sixth* of the squared gradient. He's initialization, $\sigma_w^2 = 2$,
    makes it 1.
    """

    def factor() -> float:
        matrices = [nn.Linear(WIDTH, WIDTH, dtype=DOUBLE).weight.detach() for _ in range(20)]
        stack = [Dense(m if default else m * math.sqrt(6), order="first") for m in matrices]
        _, back = layer_gains(moments_through(stack, torch.randn(BATCH, WIDTH, dtype=DOUBLE)))
        return statistics.geometric_mean(back)

    measured = geometric(trials.runs(factor))
    yield equals(
        "factor of the squared gradient per layer", measured, 1.0, within=0.1, origin="the article; 10 %"
    )
    yield equals(
        "the same", measured, 1 / 6, within=0.1, by="correction",
        origin=r"derived, $\chi = \frac13 \cdot \frac12$; 10 %: width 128",
    )  # fmt: skip
    yield plot(
        "squared gradient over that at the top",
        "layers below the top",
        {"measured": {n: measured.value**n for n in (1, 5, 10, 20)}},
        {"6^-n": {n: 6.0**-n for n in (1, 5, 10, 20)}, "the article": dict.fromkeys((1, 5, 10, 20), 1.0)},
    )
