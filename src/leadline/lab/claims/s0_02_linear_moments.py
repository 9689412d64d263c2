"""S0-2 to S0-5: what one layer does to the second moment, forward and backward."""

from __future__ import annotations

import statistics
from functools import partial

import torch
import torch.nn.functional as F
from torch import nn

from leadline.lab.claim import ClaimResults, SeededTrials, claim
from leadline.lab.estimate import equals, mean
from leadline.lab.measurements import DOUBLE, growth, layer_gains, moments_through
from leadline.lab.stacks import Activation, gaussian_weight, linear_layer, plain_stack

WIDTH, WIDE, BATCH = 256, 1024, 32
LAYERS = 20
MEANS = (0.0, 1.0, 5.0)
SPREAD = (
    r"5 %: the spread of a mean over $m$ outputs is $\sqrt{2/m}$, over eight runs a third of it (derived)"
)


@claim(code="S0-2", verdict="holds", spoiled={"gain": 1.2})
def linear_keeps_second_moment(trials: SeededTrials, *, gain: float = 1.0) -> ClaimResults:
    r"""A linear layer with $E[W] = 0$ and $\mathrm{Var}(W) = 1/n$ keeps the second moment of its input.

    ## The article
    In the section on stable propagation. It asks nothing of the mean of the input.

    ## The test
    $E[y^2]/E[x^2]$ of $y = xW$ with 256 inputs, whose mean is 0, 1 or 5 standard deviations.

    ## What is true
    As stated: $E[y_j^2] = \sum_i E[x_i^2]\,\mathrm{Var}(W_{ij})$ because the weights are independent with mean
    zero; the mean of $x$ does not enter. This is why Leadline follows second moments and not variances.
    """
    for shift in MEANS:
        runs = trials.runs(partial(one_layer, WIDTH, WIDE, gain, shift))
        found = mean([ahead for ahead, _ in runs])
        what = rf"$E[y^2]/E[x^2]$, mean of $x$ {shift:g}"
        yield equals(what, found, 1.0, within=0.05, origin=f"the article; {SPREAD}")


@claim(code="S0-3", verdict="holds", spoiled={"gain": 1.6})
def relu_needs_twice_the_variance(trials: SeededTrials, *, gain: float = 2.0) -> ClaimResults:
    r"""Behind a ReLU, $\mathrm{Var}(W) = 2/n$ keeps the second moment.

    ## The article
    "A constant-level scale is added; for relu the variance is changed to 2/n".

    ## The test
    The gain of each of twenty layers $W\,\mathrm{relu}(x)$ of width 256, for one sample, averaged over layers and
    runs.

    ## What is true
    As stated, on average over initialisations: a ReLU keeps half of the second moment of what is symmetric around
    zero. The constant belongs to the activation: GELU at the same variance keeps 0.850 a layer at unit input. And
    the *typical* network does not keep it (S0-F).
    """

    def a_layer() -> float:
        x = torch.randn(1, WIDTH, dtype=DOUBLE)
        return statistics.fmean(layer_gains(moments_through(plain_stack(LAYERS, WIDTH, gain), x))[0])

    found = mean(trials.runs(a_layer))
    yield equals(
        "gain of a layer behind a ReLU, one sample",
        found,
        1.0,
        within=0.05,
        origin=r"the article; 5 %: spread $\sqrt{5/n}$ = 14 % a layer, 160 layers in all, so 1.1 % (derived)",
    )
    gelu = mean(trials.runs(lambda: behind(F.gelu, gain)))
    yield equals(
        "gain of a layer behind a GELU, unit input",
        gelu,
        2 * 0.425221,
        within=0.05,
        by="correction",
        origin=r"$2 E[\phi(z)^2]$ by quadrature; 5 %: spread of 256 outputs over eight runs",
    )


def behind(activation: Activation, gain: float) -> float:
    x = torch.randn(BATCH, WIDTH, dtype=DOUBLE)
    return layer_gains(moments_through(plain_stack(1, WIDTH, gain, activation), x))[0][0]


@claim(code="S0-4", verdict="holds", spoiled={"gain": 1.2})
def backward_gain(trials: SeededTrials, *, gain: float = 1.0) -> ClaimResults:
    r"""With $\mathrm{Var}(W) = 1/n$ the second moment of the gradient is multiplied by $m/n$ on its way back.

    ## The article
    "If we want to stabilise forward propagation, the initialisation variance is $1/n$, and the second moment of
    backpropagation becomes $m/n$ times the original".

    ## The test
    $E[g_x^2]/E[g_y^2]$ of linear layers with $m/n$ = 1, 4 and 1/4, for a gradient $g_y$ that is drawn
    independently.

    ## What is true
    As stated, for gradients that do not depend on the weights: $E[g_x^2] = m\,\mathrm{Var}(W)\,E[g_y^2]$.
    """
    shapes = {1.0: (512, 512), 4.0: (256, 1024), 0.25: (1024, 256)}
    for ratio, (fan_in, fan_out) in shapes.items():
        found = mean([back for _, back in trials.runs(partial(one_layer, fan_in, fan_out, gain))])
        what = rf"$E[g_x^2]/E[g_y^2]$ for $m/n$ = {ratio:g}"
        yield equals(what, found, ratio, within=0.05, origin=f"the article; {SPREAD}")


@claim(code="S0-5", verdict="holds under conditions", spoiled={"fan_out": 256})
def xavier_is_a_compromise(trials: SeededTrials, *, fan_out: int = 1024) -> ClaimResults:
    r"""Xavier's initialisation takes the average of the two variances $1/n$ and $1/m$, which is $2/(n+m)$.

    ## The article
    Chinese: Xavier初始化则取了两者平均; English: "Xavier initialization takes the average of the two, 2/(n+m)".

    ## The test
    The variance that `nn.init.xavier_normal_` draws with for 256 inputs and 1024 outputs, against both readings of
    "average"; and the gains that it gives, forward and backward.

    ## What is true
    $2/(n+m)$ is right, "average of the two" is loose: it is the *harmonic* mean of $1/n$ and $1/m$ (one over the
    mean of the fans); the arithmetic mean is larger by $(n+m)^2/4nm$, here 1.56. It stabilises neither direction
    unless $n = m$: the forward gain is $2n/(n+m)$ and the backward gain $2m/(n+m)$.
    """
    n, m = WIDTH, fan_out

    def measure() -> tuple[float, float, float]:
        drawn = nn.init.xavier_normal_(torch.empty(m, n, dtype=DOUBLE))
        return drawn.var().item(), *growth(
            moments_through([linear_layer(drawn)], torch.randn(BATCH, n, dtype=DOUBLE))
        )

    variance, ahead, back = (mean(each) for each in zip(*trials.runs(measure), strict=True))
    size = r"2 %: the variance of $nm$ draws is known to $\sqrt{2/nm}$ (derived)"
    yield equals(
        r"$\mathrm{Var}(W)$ against $2/(n+m)$",
        variance,
        2 / (n + m),
        within=0.02,
        origin=f"the article; {size}",
    )
    yield equals(
        r"$\mathrm{Var}(W)$ against the arithmetic mean of $1/n$ and $1/m$",
        variance,
        (1 / n + 1 / m) / 2,
        within=0.02,
        origin=f"the article's word, average; {size}",
    )
    for name, found, predicted in (("forward", ahead, 2 * n / (n + m)), ("backward", back, 2 * m / (n + m))):
        yield equals(
            f"{name} gain", found, predicted, within=0.05, by="correction", origin=f"derived; {SPREAD}"
        )


def one_layer(fan_in: int, fan_out: int, gain: float, shift: float = 0.0) -> tuple[float, float]:
    """Forward and backward gain of one linear layer; the input's mean is `shift` standard deviations."""
    x = shift + torch.randn(BATCH, fan_in, dtype=DOUBLE)
    return growth(moments_through([linear_layer(gaussian_weight(fan_in, fan_out, gain))], x))
