"""S0-F: the second moment is preserved on average and lost in the typical network."""

from __future__ import annotations

import math
from functools import partial

import torch
from torch import Tensor

from leadline.lab.claim import ClaimResults, SeededTrials, claim
from leadline.lab.estimate import Estimate, equals, mean, median, near, plot

# Heuristic: a depth of half the width shows the effect; the networks are many because its tail is heavy.
WIDTH, DEPTH, NETWORKS = 48, 24, 200
SHARE = DEPTH / WIDTH


@claim(code="S0-F", verdict="holds under conditions", seeds=10, slow=True, falsified_by={"gain": 1.15})
def finite_width(trials: SeededTrials, *, gain: float = 1.0) -> ClaimResults:
    r"""The right variance preserves the second moment through any number of layers.

    ## The article
    It is assumed throughout: with $1/n$, or $2/n$ for ReLU, forward propagation is stable.

    ## The test
    Measure $q_L/q_0$ of 2000 networks with 24 layers of width 48, linear and ReLU: its mean, its median, and the
    mean and variance of its logarithm.

    ## What is true
    The *mean* over initializations stays 1 and the *median* falls: $\ln(q_L/q_0)$ is close to normal with variance
    $2L/n$ (linear) or $5L/n$ (ReLU, He) and a mean of minus half of that. At depths comparable to the width,
    a network with the "right" variance is typically off by a large factor. Leadline gives its predictions as bands
    of that width, and no prediction if the band is wider than $e$.
    """
    plot_curves = {}
    for name, rectified, rate in (("linear", False, 2.0), ("ReLU", True, 5.0)):
        logs = trials.runs(partial(log_ratios, gain, rectified=rectified))
        final = [run[-1] for run in logs]
        middles = median([run.median().exp().item() for run in final])
        if rectified:
            averages = mean([run.exp().mean().item() for run in final])
            yield equals(
                rf"mean of $q_L/q_0$, {name}", averages, 1.0, within=0.5,
                origin="the article; 50 %: a mean of log-normals with variance 2.5, 200 networks per run (derived)",
            )  # fmt: skip
            yield equals(
                rf"median of $q_L/q_0$, {name}",
                middles,
                1.0,
                within=0.25,
                origin="the article, for a typical network",
            )
        yield near(
            rf"variance of $\ln(q_L/q_0)$ over $L/n$, {name}",
            scaled(final, 1 / SHARE),
            rate,
            room=0.2 * rate,
            by="correction",
            origin="derived: $2/n$ per linear layer, $5/n$ per ReLU layer; 20 %: next order in $1/n$",
        )
        yield near(
            rf"mean of $\ln(q_L/q_0)$ over $L/n$, {name}",
            mean([run.mean().item() / SHARE for run in final]),
            -rate / 2,
            room=0.2 * rate / 2,
            by="correction",
            origin="derived: minus half the variance, so that the mean ratio stays 1",
        )
        plot_curves[f"{name}, median"] = {
            layer: torch.cat([run[layer] for run in logs]).median().exp().item()
            for layer in range(0, DEPTH + 1, 4)
        }
    theory = {"e^(-5L/2n)": {layer: math.exp(-2.5 * layer / WIDTH) for layer in range(0, DEPTH + 1, 4)}}
    yield plot("second moment over that of the input", "layers", plot_curves, theory)


def scaled(runs: list[Tensor], by: float) -> Estimate:
    return mean([run.var().item() * by for run in runs])


def log_ratios(gain: float, *, rectified: bool) -> Tensor:
    """Return ln(q_l / q_0) by layer and network, for NETWORKS networks with one sample each."""
    x = torch.randn(NETWORKS, 1, WIDTH)
    start, measured = x.square().mean((1, 2)), [torch.zeros(NETWORKS)]
    std = math.sqrt((2.0 if rectified else 1.0) * gain / WIDTH)
    for _ in range(DEPTH):
        x = (x.relu() if rectified else x) @ (std * torch.randn(NETWORKS, WIDTH, WIDTH))
        measured.append((x.square().mean((1, 2)) / start).log())
    return torch.stack(measured)
