"""S2-1 to S2-3: what scaling does to a ReLU network without norms."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor, nn

from leadline.lab.claim import ClaimResults, SeededTrials, claim
from leadline.lab.estimate import above, exact, full_range
from leadline.lab.measurements import DOUBLE, relative_change

WIDTH, BATCH = 32, 16
FACTOR = 3.0
CLEAR = 0.1  # relative: a change that nobody takes for rounding


def mlp(*, bias: bool) -> nn.Sequential:
    """Three layers, ReLU between them, all parameters Gaussian."""
    layers = [nn.Linear(WIDTH, size, bias=bias, dtype=DOUBLE) for size in (WIDTH, WIDTH, 4)]
    net = nn.Sequential(layers[0], nn.ReLU(), layers[1], nn.ReLU(), layers[2])
    for each in net.parameters():
        nn.init.normal_(each, std=WIDTH**-0.5)
    return net


def batch() -> Tensor:
    return torch.randn(BATCH, WIDTH, dtype=DOUBLE)


def scaled(net: nn.Module, factor: float, *names: str) -> Callable[[Tensor], Tensor]:
    """The network with these parameters times the factor."""
    parameters = {name: each * (factor if name in names else 1.0) for name, each in net.named_parameters()}
    return lambda x: torch.func.functional_call(net, parameters, (x,))


@claim(code="S2-1", verdict="holds", seeds=5, spoiled={"bias": True})
def relu_networks_scale(trials: SeededTrials, *, bias: bool = False) -> ClaimResults:
    r"""A network of matrices and ReLUs scales with its input: $f(ax) = a f(x)$ for $a > 0$.

    ## The article
    "Positive scale equivariance" of the plainest of networks, in the section on ReLU networks.

    ## The test
    The relative difference of $f(ax)$ and $a f(x)$, three layers without biases, double precision.

    ## What is true
    As stated, for networks without biases (S2-2).
    """

    def error() -> float:
        net, x = mlp(bias=bias), batch()
        return relative_change(FACTOR * net(x), net(FACTOR * x))

    yield exact(r"$\lVert f(ax) - a f(x) \rVert / \lVert a f(x) \rVert$", full_range(trials.runs(error)))


@claim(code="S2-2", verdict="false as stated", seeds=5, spoiled={"bias": False})
def biases_break_the_scaling(trials: SeededTrials, *, bias: bool = True) -> ClaimResults:
    r"""The same holds for the usual feed-forward network, which has biases.

    ## The article
    It calls the property one of "the most ordinary network" and mentions biases only where weights are scaled.

    ## The test
    As S2-1, with biases.

    ## What is true
    $f(ax) = a f(x)$ fails as soon as there are biases: they stay while everything else grows.
    """

    def error() -> float:
        net, x = mlp(bias=bias), batch()
        return relative_change(FACTOR * net(x), net(FACTOR * x))

    found = full_range(trials.runs(error))
    yield exact(r"$\lVert f(ax) - a f(x) \rVert / \lVert a f(x) \rVert$ with biases", found)
    yield above("the same", found, CLEAR, by="correction", origin="biases are as large as the weights here")


@claim(code="S2-3", verdict="false as stated", seeds=5, spoiled={"bias": False})
def later_biases_count(trials: SeededTrials, *, bias: bool = True) -> ClaimResults:
    r"""Scaling one weight matrix and its own bias by $a$ scales the output by $a$.

    ## The article
    "If we do the same to any weight matrix along the way (and the corresponding bias), the effect is the same".

    ## The test
    The first of three layers, weight and bias, times 3; then also all biases behind it.

    ## What is true
    All *later* biases must be scaled too. `leadline.symmetries` finds the same: each of its free rescalings takes
    the biases behind the weight along, up to the next weight that is divided in return.
    """

    def errors() -> tuple[float, float]:
        net, x = mlp(bias=bias), batch()
        own = [name for name in dict(net.named_parameters()) if name.startswith("0.")]
        behind = [name for name in dict(net.named_parameters()) if name.endswith("bias")]
        wanted = FACTOR * net(x)
        return relative_change(wanted, scaled(net, FACTOR, *own)(x)), relative_change(
            wanted, scaled(net, FACTOR, *own, *behind)(x)
        )

    alone, along = zip(*trials.runs(errors), strict=True)
    yield exact("relative error, own bias scaled", full_range(alone))
    yield above("the same", full_range(alone), CLEAR, by="correction", origin="the later biases stay behind")
    yield exact("relative error, all later biases scaled as well", full_range(along), by="correction")
