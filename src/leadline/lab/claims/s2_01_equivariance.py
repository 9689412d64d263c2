"""S2-1 to S2-3: what scaling does to a ReLU network without norms."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor, nn

from leadline.lab.claim import ClaimResults, SeededTrials, claim
from leadline.lab.estimate import above, exact, full_range
from leadline.lab.measurements import DOUBLE, relative_change

# Heuristic: sizes that run in seconds, and a factor that no rounding can imitate.
WIDTH, BATCH = 32, 16
FACTOR = 3.0
# Heuristic: a relative change that cannot be a rounding error.
MIN_CLEAR_CHANGE = 0.1


def mlp(*, bias: bool) -> nn.Sequential:
    """Return three layers with ReLU between them and Gaussian parameters."""
    layers = [nn.Linear(WIDTH, size, bias=bias, dtype=DOUBLE) for size in (WIDTH, WIDTH, 4)]
    net = nn.Sequential(layers[0], nn.ReLU(), layers[1], nn.ReLU(), layers[2])
    for each in net.parameters():
        nn.init.normal_(each, std=WIDTH**-0.5)
    return net


def batch() -> Tensor:
    return torch.randn(BATCH, WIDTH, dtype=DOUBLE)


def scaled(net: nn.Module, factor: float, *names: str) -> Callable[[Tensor], Tensor]:
    """Return the network with these parameters multiplied by the factor."""
    parameters = {name: each * (factor if name in names else 1.0) for name, each in net.named_parameters()}
    return lambda x: torch.func.functional_call(net, parameters, (x,))


@claim(code="S2-1", verdict="holds", seeds=5, falsified_by={"bias": True})
def relu_networks_scale(trials: SeededTrials, *, bias: bool = False) -> ClaimResults:
    r"""A network of matrices and ReLUs scales with its input: $f(ax) = a f(x)$ for $a > 0$.

    ## The article
    The section on ReLU networks calls it "positive scale equivariance" of the simplest networks.

    ## The test
    Measure the relative difference of $f(ax)$ and $a f(x)$ for three layers without biases in double precision.

    ## What is true
    The claim is true, for networks without biases (S2-2).
    """

    def error() -> float:
        net, x = mlp(bias=bias), batch()
        return relative_change(FACTOR * net(x), net(FACTOR * x))

    yield exact(r"$\lVert f(ax) - a f(x) \rVert / \lVert a f(x) \rVert$", full_range(trials.runs(error)))


@claim(code="S2-2", verdict="false as stated", seeds=5, falsified_by={"bias": False})
def biases_break_the_scaling(trials: SeededTrials, *, bias: bool = True) -> ClaimResults:
    r"""The usual feed-forward network, which has biases, scales with its input in the same way.

    ## The article
    It calls the property one of "the most ordinary network" and mentions biases only where weights are scaled.

    ## The test
    Repeat S2-1 with biases.

    ## What is true
    $f(ax) = a f(x)$ fails as soon as there are biases: they stay the same while everything else grows.
    """

    def error() -> float:
        net, x = mlp(bias=bias), batch()
        return relative_change(FACTOR * net(x), net(FACTOR * x))

    measured = full_range(trials.runs(error))
    yield exact(r"$\lVert f(ax) - a f(x) \rVert / \lVert a f(x) \rVert$ with biases", measured)
    yield above(
        "the same",
        measured,
        MIN_CLEAR_CHANGE,
        by="correction",
        origin="biases are as large as the weights here",
    )


@claim(code="S2-3", verdict="false as stated", seeds=5, falsified_by={"bias": False})
def later_biases_count(trials: SeededTrials, *, bias: bool = True) -> ClaimResults:
    r"""Scaling one weight matrix and its own bias by $a$ scales the output by $a$.

    ## The article
    "If we do the same to any weight matrix along the way (and the corresponding bias), the effect is the same".

    ## The test
    Multiply the weight and the bias of the first of three layers by 3; then also all later biases.

    ## What is true
    All *later* biases must be scaled too. `leadline.symmetries` agrees: each of its free rescalings includes the
    biases after the weight, up to the next weight, which is divided in return.
    """

    def errors() -> tuple[float, float]:
        net, x = mlp(bias=bias), batch()
        own = [name for name in dict(net.named_parameters()) if name.startswith("0.")]
        biases = [name for name in dict(net.named_parameters()) if name.endswith("bias")]
        expected = FACTOR * net(x)
        return relative_change(expected, scaled(net, FACTOR, *own)(x)), relative_change(
            expected, scaled(net, FACTOR, *own, *biases)(x)
        )

    alone, along = zip(*trials.runs(errors), strict=True)
    yield exact("relative error, own bias scaled", full_range(alone))
    yield above(
        "the same",
        full_range(alone),
        MIN_CLEAR_CHANGE,
        by="correction",
        origin="the later biases are not scaled",
    )
    yield exact("relative error, all later biases scaled as well", full_range(along), by="correction")
