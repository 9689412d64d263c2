"""S4-5 to S4-7: gradients through norms, of one layer and of a stack."""

from __future__ import annotations

import math
import statistics
from functools import partial

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from leadline.lab.claim import ClaimResults, SeededTrials, claim
from leadline.lab.estimate import equals, exact, full_range, geometric, mean, plot
from leadline.lab.measurements import DOUBLE, layer_gains, moments_through, relative_change
from leadline.lab.stacks import gaussian_weight, linear_layer

# Heuristic: a width that runs in seconds.
WIDTH = 64


def batch_norm(z: Tensor) -> Tensor:
    """Normalize with the statistics of the batch, without eps."""
    return (z - z.mean(0)) / z.var(0, correction=0).sqrt()


@claim(code="S4-5", verdict="holds", seeds=5, falsified_by={"norm": False})
def scale_of_weight_drops_out(trials: SeededTrials, *, norm: bool = True) -> ClaimResults:
    r"""Before a norm, the backward factor $\partial z/\partial a$ does not change when the weight is scaled.

    ## The article
    "Scaling invariance of weights": a small weight has a small $\sigma$, which enlarges it again on the way back.

    ## The test
    Compare the gradients of the input and of $W$ through $\mathrm{BN}(aW)$ with $W$ and with $10\,W$.

    ## What is true
    The claim is true for the gradient of the signal. The gradient of the *weight* does change, by one over the factor.
    This is why weight decay sets the effective rate (S2-11).
    """

    def measure() -> tuple[float, float]:
        a, matrix, c = (
            torch.randn(16, WIDTH, dtype=DOUBLE),
            gaussian_weight(WIDTH, WIDTH),
            torch.randn(16, WIDTH, dtype=DOUBLE),
        )

        def both(factor: float) -> tuple[Tensor, ...]:
            x, w = a.clone().requires_grad_(), (factor * matrix).requires_grad_()
            z = batch_norm(x @ w) if norm else x @ w
            return torch.autograd.grad((z * c).sum(), (x, w))

        (x_one, w_one), (x_ten, w_ten) = both(1.0), both(10.0)
        return relative_change(x_one, x_ten), abs(10 * w_ten.norm().item() / w_one.norm().item() - 1)

    signal, parameter = zip(*trials.runs(measure), strict=True)
    yield exact(r"change of $\partial L/\partial a$ when $W$ becomes $10\,W$", full_range(signal))
    yield exact(
        r"$|10\,\lVert g(10W) \rVert/\lVert g(W) \rVert - 1|$", full_range(parameter), by="correction"
    )


@claim(code="S4-6", verdict="false as stated", seeds=6, falsified_by={"running": True})
def jacobian_of_batch_norm(trials: SeededTrials, *, running: bool = False) -> ClaimResults:
    r"""The backward factor of a batch norm is the weight over the (moving) standard deviation:
    $\partial z/\partial a = w/\sigma$.

    ## The article
    The equation after the definition of $z_l$; its summary speaks of the "moving standard deviation".

    ## The test
    Compare the gradient through a batch norm in training mode, for a random cotangent, with $g/\sigma$ for batches of
    4, 16 and 64 (relative difference), and the ratio of squared norms for a layer norm.

    ## What is true
    In training mode mean and variance depend on the input too:
    $J = \frac1\sigma(I - \frac1B 11^\top - \frac1B zz^\top)W$, with the statistics of the *batch*. Two directions
    are removed: the relative error of $w/\sigma$ is $\sqrt{2/B}$, and $1 - 2/B$ of the square remains. A layer norm
    removes $2/d$, an RMSNorm $1/d$. In evaluation mode, with moving statistics, $w/\sigma$ is exact.
    """
    errors = {}
    for size in (4, 16, 64):
        runs = trials.runs(partial(against_simple, size, running=running))
        errors[size] = geometric([max(run[0], 1e-300) for run in runs])
        if size == 64:
            yield equals(
                r"relative difference from $g/\sigma$, batch of 64",
                errors[size],
                0.0,
                within=0.01,
                origin="the article: no difference",
            )
        yield equals(
            rf"the same over $\sqrt{{2/B}}$, batch of {size}",
            geometric([max(run[0], 1e-300) / math.sqrt(2 / size) for run in runs]),
            1.0,
            within=0.1,
            by="correction",
            origin="derived: two of $B$ directions are projected out; 10 %: 64 features per run",
        )
    left = trials.runs(layer_norm_share)
    yield equals(
        rf"share of the squared gradient that a layer norm passes, $d$ = {WIDTH}",
        mean(left),
        1 - 2 / WIDTH,
        within=0.01,
        by="correction",
        origin="derived; 1 %: 256 samples per run",
    )
    plot_curves = {"measured": {size: measured.value for size, measured in errors.items()}}
    theory = {"sqrt(2/B)": {size: math.sqrt(2 / size) for size in errors}}
    yield plot("relative error of w / sigma", "batch", plot_curves, theory)


def against_simple(size: int, *, running: bool) -> tuple[float, float]:
    """Return the relative difference of a batch norm's gradient from g / sigma, and the ratio of their squares."""
    y = torch.randn(size, WIDTH, dtype=DOUBLE).requires_grad_()
    c = torch.randn(size, WIDTH, dtype=DOUBLE)
    sigma = y.detach().var(0, correction=0).sqrt()
    z = (y - y.detach().mean(0)) / sigma if running else batch_norm(y)
    measured = torch.autograd.grad((z * c).sum(), y)[0]
    simple = c / sigma
    per_feature = (measured - simple).square().sum(0) / simple.square().sum(0)
    return per_feature.mean().sqrt().item(), (measured.square().sum() / simple.square().sum()).item()


def layer_norm_share() -> float:
    y = torch.randn(256, WIDTH, dtype=DOUBLE).requires_grad_()
    c = torch.randn(256, WIDTH, dtype=DOUBLE)
    measured = torch.autograd.grad((F.layer_norm(y, (WIDTH,), eps=0.0) * c).sum(), y)[0]
    simple = c / y.detach().var(1, correction=0, keepdim=True).sqrt()
    return (measured.square().sum(1) / simple.square().sum(1)).mean().item()


class LinearNormRelu(nn.Module):
    """A linear map, a norm and a ReLU."""

    def __init__(self, norm: str) -> None:
        super().__init__()
        self.linear, self.norm = linear_layer(gaussian_weight(WIDE, WIDE, 2.0)), norm

    def forward(self, x: Tensor) -> Tensor:
        z: Tensor = self.linear(x)
        normed = batch_norm(z) if self.norm == "batch" else F.layer_norm(z, (WIDE,), eps=0.0)
        return torch.relu(normed)


# Heuristic: sizes at which the explosion with batch norm exceeds its spread.
WIDE, SAMPLES, LAYERS = 192, 192, 16


@claim(code="S4-7", verdict="holds under conditions", seeds=4, slow=True, falsified_by={"kind": "layer"})
def normalization_prevents_explosion(trials: SeededTrials, *, kind: str = "batch") -> ClaimResults:
    r"""Normalization prevents vanishing and exploding gradients.

    ## The article
    This is the longest of its remedies. It treats batch norm and layer norm alike.

    ## The test
    Measure the factor per layer of the squared gradient with `leadline.trace` in plain stacks of linear map, norm and
    ReLU with 16 layers and a batch of 192, for batch norm and for layer norm.

    ## What is true
    With layer norm the factor is 1. With batch norm the gradient *explodes*, by $\pi/(\pi - 1) = 1.467$ per layer
    at large width and batch (Yang et al. 2019): the norm removes the mean of the ReLU output and so enlarges the
    rest. Leadline's check B205 detects it. Batch norm is harmless inside residual branches, not in plain stacks.
    """
    values = {name: trials.runs(partial(backward_factor, name)) for name in ("layer", kind)}
    layer, batch = geometric(values["layer"]), geometric(values[kind])
    origin = "the article: neither vanishes nor explodes; 7 % would be a factor of three over sixteen layers"
    yield equals(
        "factor of the squared gradient per layer, layer norm", layer, 1.0, within=0.07, origin=origin
    )
    yield equals("the same, batch norm", batch, 1.0, within=0.07, origin=origin)
    yield equals(
        "the same, batch norm",
        batch,
        math.pi / (math.pi - 1),
        within=0.05,
        by="correction",
        origin=r"$\pi/(\pi-1)$, Yang et al. 2019, at infinite width and batch; 5 %: 192 of each",
    )


def backward_factor(name: str) -> float:
    """Return the geometric mean over the layers, without the first four, in which the angles between samples change."""
    points = moments_through(
        [LinearNormRelu(name) for _ in range(LAYERS)], torch.randn(SAMPLES, WIDE, dtype=DOUBLE)
    )
    return statistics.geometric_mean(layer_gains(points)[1][4:])
