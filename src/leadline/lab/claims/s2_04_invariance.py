"""S2-4 to S2-7: weights in front of a norm, and how small they can get."""

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

EPS = 1e-5  # PyTorch's default


def behind_norm(x: Tensor, matrix: Tensor, eps: float) -> Tensor:
    return F.layer_norm(torch.relu(x @ matrix), (WIDTH,), eps=eps)


@claim(code="S2-4", verdict="holds", seeds=5, spoiled={"eps": 1e-5})
def norm_takes_out_scale(trials: SeededTrials, *, eps: float = 0.0) -> ClaimResults:
    r"""A layer norm takes out the scale of the weight before it:
    $\mathrm{LN}(\mathrm{relu}(x\,aW)) = \mathrm{LN}(\mathrm{relu}(xW))$.

    ## The article
    "Positive scale invariance". It says that a layer norm divides by the norm of the vector.

    ## The test
    The relative change of the output at $a = 10^{-3}$, with $\varepsilon = 0$ in the norm.

    ## What is true
    As stated, for $\varepsilon = 0$ (S2-5). A layer norm divides by the standard deviation *after centring*, which
    is $\lVert x - \mu \rVert/\sqrt d$ and not $\lVert x \rVert$; RMSNorm divides by $\lVert x \rVert/\sqrt d$.
    """

    def error() -> float:
        x, matrix = batch(), gaussian_weight(WIDTH, WIDTH)
        return relative_change(behind_norm(x, matrix, eps), behind_norm(x, 1e-3 * matrix, eps))

    yield exact(r"relative change of the output at $a = 10^{-3}$", full_range(trials.runs(error)))


@claim(code="S2-5", verdict="false as stated", seeds=8, spoiled={"eps": 0.0})
def arbitrarily_small(trials: SeededTrials, *, eps: float = EPS) -> ClaimResults:
    r"""Weights before a norm can be made arbitrarily small without changing the function.

    ## The article
    "We can scale every weight matrix by an arbitrarily small factor and still get the same output".

    ## The test
    As S2-4, with the $\varepsilon = 10^{-5}$ that real code has, for factors $a$ from 0.3 down to $10^{-3}$.

    ## What is true
    Only as long as the variance that is left stays far above $\varepsilon$: the relative error is
    $\varepsilon/(2 a^2 v)$, $v$ the variance in front of the norm, and then the function is gone. `leadline.shrink`
    stops there and says how far it got.
    """
    factors = (0.3, 0.1, 0.03, 1e-2, 1e-3)

    def errors() -> dict[float, tuple[float, float]]:
        x, matrix = batch(), gaussian_weight(WIDTH, WIDTH)
        variance = torch.relu(x @ matrix).var(dim=-1, correction=0)
        whole = behind_norm(x, matrix, eps)
        return {
            a: (
                relative_change(whole, behind_norm(x, a * matrix, eps)),
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
    shown = {"measured": {a: geometric([max(run[a][0], 1e-300) for run in runs]).value for a in factors}}
    theory = {"eps / 2a²v": {a: geometric([run[a][1] for run in runs]).value for a in factors}}
    yield plot("relative change of the output", "factor a of the weights", shown, theory)


@claim(code="S2-6", verdict="holds", seeds=5, spoiled={"normed": False})
def gradient_of_an_invariant_weight(trials: SeededTrials, *, normed: bool = True) -> ClaimResults:
    r"""The gradient of a scale-invariant weight is orthogonal to it, and grows as the weight shrinks:
    $\nabla(aW) = \nabla(W)/a$.

    ## The article
    Not said there; it follows from S2-4 by differentiating, and decides what weight decay does (S2-11).

    ## The test
    $\cos(g, W)$, and $\lVert g(W) \rVert / (10\,\lVert g(10 W) \rVert)$, behind a layer norm with
    $\varepsilon = 0$.

    ## What is true
    As stated: Euler's theorem for a function that is homogeneous of degree 0. With $\varepsilon = 10^{-5}$ the
    cosine is of the order $10^{-5}$ and the factor 9.98 instead of 10.
    """

    def measure() -> tuple[float, float]:
        x, matrix, target = batch(), gaussian_weight(WIDTH, WIDTH), torch.randn(BATCH, WIDTH, dtype=DOUBLE)

        def gradient(at: Tensor) -> Tensor:
            leaf = at.clone().requires_grad_()
            out = behind_norm(x, leaf, 0.0) if normed else torch.relu(x @ leaf)
            return torch.autograd.grad((out * target).sum(), leaf)[0]

        g, far = gradient(matrix), gradient(10 * matrix)
        cosine = (g * matrix).sum() / (g.norm() * matrix.norm())
        return abs(cosine.item()), abs(g.norm().item() / (10 * far.norm().item()) - 1)

    cosines, factors = zip(*trials.runs(measure), strict=True)
    yield exact(r"$|\cos(g, W)|$", full_range(cosines))
    yield exact(r"$|\lVert g(W) \rVert / (10\,\lVert g(10W) \rVert) - 1|$", full_range(factors))


@claim(code="S2-7", verdict="holds", seeds=3, spoiled={"norm": False})
def tiny_equivalent_network(trials: SeededTrials, *, norm: bool = True) -> ClaimResults:
    r"""Every network with a norm behind each layer has an equivalent one with tiny weights: only head and last norm
    keep theirs.

    ## The article
    The heart of it: "an equivalent network whose weight norms are arbitrarily small", so that weight decay costs
    nothing but for "the annoying last layer" and the last norm.

    ## The test
    `leadline.symmetries` and `leadline.shrink` on three blocks of linear layer, norm and ReLU with a head: which
    parameters can shrink, what is left of their squares when shrunk by a hundred, and whether the function is the
    same.

    ## What is true
    As stated, down to where $\varepsilon$ bites (S2-5; here it is $10^{-12}$), including every $\gamma$ and $\beta$
    but the last. It is a statement about the *value* of the optimum, and that infimum is not attained: what decay
    does to the training is S2-11.
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
    yield below("their squares, over what they were", left, 0.01, origin="the article: as small as one likes")
