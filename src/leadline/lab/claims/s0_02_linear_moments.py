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

# Heuristic: sizes that show the effect and run in seconds.
WIDTH, WIDE, BATCH = 256, 1024, 32
LAYERS = 20
MEANS = (0.0, 1.0, 5.0)
SPREAD = (
    r"5 %: the spread of a mean over $m$ outputs is $\sqrt{2/m}$, and a third of it over eight runs (derived)"
)


@claim(code="S0-2", verdict="holds", falsified_by={"gain": 1.2})
def linear_keeps_second_moment(trials: SeededTrials, *, gain: float = 1.0) -> ClaimResults:
    r"""A linear layer with $E[W] = 0$ and $\mathrm{Var}(W) = 1/n$ preserves the second moment of its input.

    ## The article
    The section on stable propagation says so and requires nothing of the mean of the input.

    ## The test
    Measure $E[y^2]/E[x^2]$ of $y = xW$ with 256 inputs whose mean is 0, 1 or 5 standard deviations.

    ## What is true
    The claim is true: $E[y_j^2] = \sum_i E[x_i^2]\,\mathrm{Var}(W_{ij})$ because the weights are independent with mean
    zero; the mean of $x$ does not appear. This is why Leadline tracks second moments and not variances.
    """
    for shift in MEANS:
        runs = trials.runs(partial(one_layer, WIDTH, WIDE, gain, shift))
        measured = mean([ahead for ahead, _ in runs])
        what = rf"$E[y^2]/E[x^2]$, mean of $x$ {shift:g}"
        yield equals(what, measured, 1.0, within=0.05, origin=f"the article; {SPREAD}")


@claim(code="S0-3", verdict="holds", falsified_by={"gain": 1.6})
def relu_needs_twice_the_variance(trials: SeededTrials, *, gain: float = 2.0) -> ClaimResults:
    r"""After a ReLU, $\mathrm{Var}(W) = 2/n$ preserves the second moment.

    ## The article
    "A constant-level scale is added; for relu the variance is changed to 2/n".

    ## The test
    Measure the gain of each of twenty layers $W\,\mathrm{relu}(x)$ of width 256 for one sample, averaged over
    layers and runs.

    ## What is true
    The claim is true on average over initializations: a ReLU passes half of the second moment of a symmetric input.
    The constant depends on the activation: GELU at the same variance has a gain of 0.850 per layer at unit input.
    The *typical* network does not preserve it (S0-F).
    """

    def layer_gain() -> float:
        x = torch.randn(1, WIDTH, dtype=DOUBLE)
        return statistics.fmean(layer_gains(moments_through(plain_stack(LAYERS, WIDTH, gain), x))[0])

    measured = mean(trials.runs(layer_gain))
    yield equals(
        "gain of a layer after a ReLU, one sample",
        measured,
        1.0,
        within=0.05,
        origin=r"the article; 5 %: spread $\sqrt{5/n}$ = 14 % per layer, 160 layers in all, so 1.1 % (derived)",
    )
    gelu = mean(trials.runs(lambda: gain_after(F.gelu, gain)))
    yield equals(
        "gain of a layer after a GELU, unit input",
        gelu,
        2 * 0.425221,
        within=0.05,
        by="correction",
        origin=r"$2 E[\phi(z)^2]$ by quadrature; 5 %: spread of 256 outputs over eight runs",
    )


def gain_after(activation: Activation, gain: float) -> float:
    x = torch.randn(BATCH, WIDTH, dtype=DOUBLE)
    return layer_gains(moments_through(plain_stack(1, WIDTH, gain, activation), x))[0][0]


@claim(code="S0-4", verdict="holds", falsified_by={"gain": 1.2})
def backward_gain(trials: SeededTrials, *, gain: float = 1.0) -> ClaimResults:
    r"""With $\mathrm{Var}(W) = 1/n$ the second moment of the gradient is multiplied by $m/n$ in the backward pass.

    ## The article
    "If we want to stabilize forward propagation, the initialization variance is $1/n$, and the second moment of
    backpropagation becomes $m/n$ times the original".

    ## The test
    Measure $E[g_x^2]/E[g_y^2]$ of linear layers with $m/n$ = 1, 4 and 1/4 for a gradient $g_y$ that is drawn
    independently.

    ## What is true
    The claim is true for gradients that do not depend on the weights: $E[g_x^2] = m\,\mathrm{Var}(W)\,E[g_y^2]$.
    """
    shapes = {1.0: (512, 512), 4.0: (256, 1024), 0.25: (1024, 256)}
    for ratio, (fan_in, fan_out) in shapes.items():
        measured = mean([back for _, back in trials.runs(partial(one_layer, fan_in, fan_out, gain))])
        what = rf"$E[g_x^2]/E[g_y^2]$ for $m/n$ = {ratio:g}"
        yield equals(what, measured, ratio, within=0.05, origin=f"the article; {SPREAD}")


@claim(code="S0-5", verdict="holds under conditions", falsified_by={"fan_out": 256})
def xavier_is_a_compromise(trials: SeededTrials, *, fan_out: int = 1024) -> ClaimResults:
    r"""Xavier's initialization takes the average of the two variances $1/n$ and $1/m$, which is $2/(n+m)$.

    ## The article
    Chinese: Xavier初始化则取了两者平均; English: "Xavier initialization takes the average of the two, 2/(n+m)".

    ## The test
    Compare the variance of `nn.init.xavier_normal_` for 256 inputs and 1024 outputs with both meanings of
    "average", and measure the resulting forward and backward gains.

    ## What is true
    $2/(n+m)$ is right, but "average of the two" is imprecise: it is the *harmonic* mean of $1/n$ and $1/m$ (one over
    the mean of the fans). The arithmetic mean is larger by $(n+m)^2/4nm$, here 1.56. It stabilizes neither direction
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
    for name, measured, predicted in (
        ("forward", ahead, 2 * n / (n + m)),
        ("backward", back, 2 * m / (n + m)),
    ):
        yield equals(
            f"{name} gain", measured, predicted, within=0.05, by="correction", origin=f"derived; {SPREAD}"
        )


def one_layer(fan_in: int, fan_out: int, gain: float, shift: float = 0.0) -> tuple[float, float]:
    """Return the forward and the backward gain of one linear layer; the input's mean is `shift` standard deviations."""
    x = shift + torch.randn(BATCH, fan_in, dtype=DOUBLE)
    return growth(moments_through([linear_layer(gaussian_weight(fan_in, fan_out, gain))], x))
