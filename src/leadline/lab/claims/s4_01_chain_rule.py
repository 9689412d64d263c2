"""S4-1, S4-8 and S4-9: the chain rule by hand, the identity of residual networks, and what clipping preserves."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from leadline.lab.claim import ClaimResults, SeededTrials, claim
from leadline.lab.estimate import above, exact, full_range
from leadline.lab.measurements import DOUBLE, relative_change
from leadline.lab.stacks import Dense, ResidualBlock, gaussian_weight
from leadline.nn import clip_norm_

# Heuristic: sizes that show the effect and run in seconds.
WIDTH, DEPTH = 24, 6


@claim(code="S4-1", verdict="holds", seeds=5, falsified_by={"slope": "tanh"})
def chain_rule(trials: SeededTrials, *, slope: str = "sigmoid") -> ClaimResults:
    r"""The gradient of an early layer is a product with one factor per layer: slope of the activation times weight.

    ## The article
    These are its first equations. Further down it says that a factor "is actually equal to the gradient of the
    activation", which contradicts its own $f'(z)\,w$.

    ## The test
    Compare $\partial L/\partial W_1$ of six sigmoid layers from autograd with the product
    $\prod_l \mathrm{diag}(\phi'(z_l))\,W_l$ written out by hand.

    ## What is true
    The claim is true with matrices: $J_l = \mathrm{diag}(\phi'(z_l))\,W_l$. The order matters, and the size of a
    product of matrices is not the product of their entries' sizes (S4-4).
    """

    def error() -> float:
        matrices = [gaussian_weight(WIDTH, WIDTH).requires_grad_() for _ in range(DEPTH)]
        h, pre_activations = torch.randn(WIDTH, dtype=DOUBLE), []
        start = h
        for matrix in matrices:
            z = matrix @ h
            h = z.sigmoid()
            pre_activations.append(z.detach())
        read = torch.randn(WIDTH, dtype=DOUBLE)
        by_autograd = torch.autograd.grad(h @ read, matrices[0])[0]
        back = read
        for matrix, z in zip(reversed(matrices), reversed(pre_activations), strict=True):
            y = z.sigmoid() if slope == "sigmoid" else z.tanh()
            local = back * (y * (1 - y) if slope == "sigmoid" else 1 - y**2)
            back = matrix.detach().T @ local
        return relative_change(by_autograd, local[:, None] * start)

    yield exact("relative difference of autograd and the product", full_range(trials.runs(error)))


@claim(code="S4-8", verdict="holds under conditions", seeds=5, falsified_by={"after": "identity"})
def residual_identity(trials: SeededTrials, *, after: str = "relu") -> ClaimResults:
    r"""In a residual network the gradient of the top reaches every layer:
    $\partial L/\partial x_l = \partial L/\partial x_L\,(1 + \dots)$.

    ## The article
    $g_l = g_L + g_L\,\frac{\partial}{\partial x_l} \sum_i F(x_i)$, $g_l$ the gradient at $x_l$, with the sum from
    $i = 1$; the block that it draws applies a ReLU after the sum.

    ## The test
    Compute both sides with autograd for blocks $x + F(x)$, and for the article's own block $\mathrm{relu}(x + F(x))$.

    ## What is true
    It is an identity for blocks with nothing after the sum (ResNet v2); the sum starts at $i = l$, and the 1 is the
    identity matrix. With a ReLU after the sum, as in the article's own block and ResNet v1, it does not hold. "The
    sum cannot be $-1$ everywhere" is an argument about scalars; in many dimensions the object is $\prod(I + J_i)$,
    which can shrink a direction without any $J_i$ being $-I$.
    """

    def error(after_sum: str) -> float:
        blocks = [ResidualBlock(Dense(gaussian_weight(WIDTH, WIDTH))) for _ in range(DEPTH)]
        start = torch.randn(WIDTH, dtype=DOUBLE, requires_grad=True)
        x: Tensor = start
        branches = []
        for block in blocks:
            branches.append(block.branch(x))
            x = block(x) if after_sum == "identity" else torch.relu(block(x))
        c = torch.randn(WIDTH, dtype=DOUBLE)
        whole = torch.autograd.grad(x @ c, start, retain_graph=True)[0]
        through = torch.autograd.grad(torch.stack(branches).sum(0) @ c, start)[0]
        return relative_change(whole, c + through)

    yield exact(
        "relative difference of both sides, blocks $x + F(x)$",
        full_range(trials.runs(lambda: error("identity"))),
    )
    own = full_range(trials.runs(lambda: error(after)))
    yield exact(r"the same, the article's block $\mathrm{relu}(x + F(x))$", own)
    yield above(
        "the same", own, 0.01, by="correction", origin="a ReLU after the sum removes part of the identity"
    )


@claim(code="S4-9", verdict="holds under conditions", seeds=5, falsified_by={"scale": 1e-6})
def clipping(trials: SeededTrials, *, scale: float = 1.0) -> ClaimResults:
    r"""Clipping forces the gradient into a range, which prevents explosion, and it is otherwise harmless.

    ## The article
    "Set a threshold; if the gradient exceeds it, it is forced back into this range." It does not say whether the
    norm or each value is meant.

    ## The test
    Compare the direction of a heavy-tailed gradient before and after clipping by norm (`leadline.nn.clip_norm_`) and
    by value, to a tenth of its norm or of its largest entry.

    ## What is true
    Clipping by norm preserves the direction exactly and only shortens the gradient. Clipping by value changes the
    direction.
    """

    def cosines() -> tuple[float, float]:
        gradient = scale * torch.randn(400, dtype=DOUBLE) ** 3
        limit = 0.1
        by_norm = nn.Parameter(torch.zeros(400, dtype=DOUBLE))
        by_norm.grad = gradient.clone()
        clip_norm_([by_norm], limit * gradient.norm().item())
        by_value = gradient.clamp(-limit * gradient.abs().max() / scale, limit * gradient.abs().max() / scale)
        away = [
            1 - torch.cosine_similarity(gradient, each, dim=0).item() for each in (by_norm.grad, by_value)
        ]
        return abs(away[0]), abs(away[1])

    norm, value = zip(*trials.runs(cosines), strict=True)
    yield exact("1 - cosine with the gradient before, clipped by norm", full_range(norm))
    yield exact("the same, clipped by value", full_range(value))
    yield above(
        "the same",
        full_range(value),
        0.05,
        by="correction",
        origin="the heavy tail is cut off while small entries stay",
    )
