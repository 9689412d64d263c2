"""S2-4 to S2-7: weights before a norm, and how small they can become."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from leadline.api import shrink, symmetries
from leadline.lab.claim import ClaimResults, SeededTrials, claim
from leadline.lab.claims.s2_01_equivariance import BATCH, WIDTH, batch
from leadline.lab.estimate import above, below, equals, exact, full_range, geometric, plot
from leadline.lab.measurements import DOUBLE, relative_change
from leadline.lab.stacks import gaussian_weight

# Derived: the default of nn.LayerNorm.
EPS = 1e-5


def normed_layer(x: Tensor, matrix: Tensor, eps: float) -> Tensor:
    return F.layer_norm(torch.relu(x @ matrix), (WIDTH,), eps=eps)


@claim(code="S2-4", verdict="holds", seeds=5, falsified_by={"eps": 1e-5})
def norm_takes_out_scale(trials: SeededTrials, *, eps: float = 0.0) -> ClaimResults:
    r"""A layer norm removes the scale of the weight before it:
    $\mathrm{LN}(\mathrm{relu}(x\,aW)) = \mathrm{LN}(\mathrm{relu}(xW))$.

    ## The article
    It calls this "positive scale invariance" and says that a layer norm divides by the norm of the vector.

    ## The test
    Measure the relative change of the output at $a = 10^{-3}$ with $\varepsilon = 0$ in the norm.

    ## What is true
    The claim is true, for $\varepsilon = 0$ (S2-5). A layer norm divides by the standard deviation *after
    centering*, which is $\lVert x - \mu \rVert/\sqrt d$ and not $\lVert x \rVert$; RMSNorm divides by $\lVert x
    \rVert/\sqrt d$.
    """

    def error() -> float:
        x, matrix = batch(), gaussian_weight(WIDTH, WIDTH)
        return relative_change(normed_layer(x, matrix, eps), normed_layer(x, 1e-3 * matrix, eps))

    yield exact(r"relative change of the output at $a = 10^{-3}$", full_range(trials.runs(error)))


@claim(code="S2-5", verdict="false as stated", seeds=8, falsified_by={"eps": 0.0})
def arbitrarily_small(trials: SeededTrials, *, eps: float = EPS) -> ClaimResults:
    r"""Weights before a norm can be made arbitrarily small without changing the function.

    ## The article
    "We can scale every weight matrix by an arbitrarily small factor and still get the same output".

    ## The test
    Repeat S2-4 with $\varepsilon = 10^{-5}$, as in real code, for factors $a$ from 0.3 down to $10^{-3}$.

    ## What is true
    This is true only while the remaining variance is far above $\varepsilon$: the relative error is
    $\varepsilon/(2 a^2 v)$, $v$ the variance before the norm. Below that the function is lost. `leadline.shrink`
    stops there and reports how far it got.
    """
    factors = (0.3, 0.1, 0.03, 1e-2, 1e-3)

    def errors() -> dict[float, tuple[float, float]]:
        x, matrix = batch(), gaussian_weight(WIDTH, WIDTH)
        variance = torch.relu(x @ matrix).var(dim=-1, correction=0)
        whole = normed_layer(x, matrix, eps)
        return {
            a: (
                relative_change(whole, normed_layer(x, a * matrix, eps)),
                (EPS / (2 * a**2 * variance)).square().mean().sqrt().item(),
            )
            for a in factors
        }

    runs = trials.runs(errors)
    small = full_range([run[1e-3][0] for run in runs])
    yield exact(r"relative change of the output at $a = 10^{-3}$, $\varepsilon = 10^{-5}$", small)
    yield above(
        "the same",
        small,
        0.5,
        by="correction",
        origin=r"$a^2 v$ is then below a tenth of $\varepsilon$ (derived)",
    )
    for a in (0.1, 0.03):
        ratio = geometric([max(run[a][0], 1e-300) / run[a][1] for run in runs])
        what = rf"error at $a$ = {a:g} over $\varepsilon/(2a^2v)$"
        yield equals(
            what, ratio, 1.0, within=0.1, by="correction", origin=r"derived, first order in $\varepsilon$"
        )
    plot_curves = {
        "measured": {a: geometric([max(run[a][0], 1e-300) for run in runs]).value for a in factors}
    }
    theory = {"eps / 2a²v": {a: geometric([run[a][1] for run in runs]).value for a in factors}}
    yield plot("relative change of the output", "factor a of the weights", plot_curves, theory)


@claim(code="S2-6", verdict="holds", seeds=5, falsified_by={"normed": False})
def gradient_of_an_invariant_weight(trials: SeededTrials, *, normed: bool = True) -> ClaimResults:
    r"""The gradient of a scale-invariant weight is orthogonal to it, and grows as the weight shrinks:
    $\nabla(aW) = \nabla(W)/a$.

    ## The article
    The article does not say so. It follows from S2-4 by differentiation and decides what weight decay does (S2-11).

    ## The test
    Measure $\cos(g, W)$ and $\lVert g(W) \rVert / (10\,\lVert g(10 W) \rVert)$ before a layer norm with
    $\varepsilon = 0$.

    ## What is true
    The claim is true: it is Euler's theorem for a function that is homogeneous of degree 0. With $\varepsilon =
    10^{-5}$ the cosine is of the order $10^{-5}$ and the factor 9.98 instead of 10.
    """

    def measure() -> tuple[float, float]:
        x, matrix, target = batch(), gaussian_weight(WIDTH, WIDTH), torch.randn(BATCH, WIDTH, dtype=DOUBLE)

        def gradient(at: Tensor) -> Tensor:
            leaf = at.clone().requires_grad_()
            out = normed_layer(x, leaf, 0.0) if normed else torch.relu(x @ leaf)
            return torch.autograd.grad((out * target).sum(), leaf)[0]

        g, far = gradient(matrix), gradient(10 * matrix)
        cosine = (g * matrix).sum() / (g.norm() * matrix.norm())
        return abs(cosine.item()), abs(g.norm().item() / (10 * far.norm().item()) - 1)

    cosines, factors = zip(*trials.runs(measure), strict=True)
    yield exact(r"$|\cos(g, W)|$", full_range(cosines))
    yield exact(r"$|\lVert g(W) \rVert / (10\,\lVert g(10W) \rVert) - 1|$", full_range(factors))


@claim(code="S2-7", verdict="holds", seeds=3, falsified_by={"norm": False})
def tiny_equivalent_network(trials: SeededTrials, *, norm: bool = True) -> ClaimResults:
    r"""Every network with a norm after each layer has an equivalent network with tiny weights, except for the head
    and the last norm.

    ## The article
    This is its central statement: "an equivalent network whose weight norms are arbitrarily small", so weight decay
    costs nothing except for "the annoying last layer" and the last norm.

    ## The test
    Use `leadline.symmetries` and `leadline.shrink` on three blocks of linear layer, norm and ReLU with a head. Count
    the parameters that cannot shrink, shrink the others by a hundred, and compare the functions.

    ## What is true
    The claim is true until $\varepsilon$ matters (S2-5; here it is $10^{-12}$), including every $\gamma$ and $\beta$
    except the last. It is a statement about the *value* of the optimum, an infimum that is not attained. S2-11 shows
    what weight decay does in training.
    """

    def measure() -> tuple[float, float, float]:
        blocks = [
            (nn.Linear(WIDTH, WIDTH), nn.LayerNorm(WIDTH, eps=1e-12) if norm else nn.Identity(), nn.ReLU())
            for _ in range(3)
        ]
        net = nn.Sequential(*(layer for block in blocks for layer in block), nn.Linear(WIDTH, 3)).double()
        x = batch()
        expected = {name for name, _ in net.named_parameters() if not name.startswith(("7", "9"))}
        missing = len(expected - set(symmetries(net, x).inert))
        small = shrink(net, x, 1e-2) if not missing else net
        before, after = (
            sum(p.square().sum().item() for name, p in each.named_parameters() if name in expected)
            for each in (net, small)
        )
        return float(missing), relative_change(net(x), small(x)), after / before

    missing, drift, left = (full_range(each) for each in zip(*trials.runs(measure), strict=True))
    yield below(
        "parameters before the last norm that cannot shrink", missing, 0.5, origin="the article: none"
    )
    yield below(
        "change of the function when shrunk by 100",
        drift,
        1e-6,
        origin=r"the article: none; $\varepsilon = 10^{-12}$",
    )
    yield below(
        "sum of their squares after shrinking over before",
        left,
        0.01,
        origin="the article: arbitrarily small",
    )
