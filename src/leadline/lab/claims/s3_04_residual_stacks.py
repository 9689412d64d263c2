"""S3-4 and S3-6 to S3-8: the residual stream at initialization, without a norm, post-norm and pre-norm."""

from __future__ import annotations

import math
import statistics
from functools import partial

import torch
from torch import Tensor, nn

from leadline.lab.claim import ClaimResults, SeededTrials, claim
from leadline.lab.estimate import equals, geometric, mean, near, plot
from leadline.lab.measurements import DOUBLE, StackMoments, growth, moments_through
from leadline.lab.stacks import residual_stack, scaled_by_depth

# Heuristic: sizes that show the effect and run in seconds.
WIDTH, BATCH = 96, 4
DEPTHS = (4, 8, 16)
BLOCKS = 32


@claim(code="S3-4", verdict="false as stated", seeds=6, falsified_by={"alpha": 0.5})
def residuals_alone_do_not_cure(trials: SeededTrials, *, alpha: float = 0.0) -> ClaimResults:
    r"""Residual connections cure vanishing and exploding gradients.

    ## The article
    Sections 2.1, 3.1 and question 2 say that the identity map "effectively relieves" both.

    ## The test
    Measure the growth of the second moment, forward and backward, through 4 to 16 blocks $x + f(x)$ with branches of
    unit gain, without a norm or a scale.

    ## What is true
    They prevent vanishing and cause explosion: each block adds as much as the stream contains, so both double with
    every block, $2^N$. A norm on the stream, a norm before the branch or a scale of $N^{-1/2}$ bounds the growth.
    """
    runs = {depth: trials.runs(partial(sizes, depth, alpha)) for depth in DEPTHS}
    deep = DEPTHS[-1]
    for name, place in (("forward", 0), ("backward", 1)):
        measured = geometric([run[place] for run in runs[deep]])
        yield near(
            rf"{name} growth over {deep} blocks, in powers of two per block",
            mean([math.log2(run[place]) / deep for run in runs[deep]]),
            0.0,
            room=0.15,
            origin="the article: neither vanishing nor exploding; 0.15: a factor of five over sixteen blocks",
        )
        yield equals(
            f"{name} growth over {deep} blocks",
            measured,
            2.0**deep,
            within=0.5,
            by="correction",
            origin="derived; 50 %: the spread of sixteen factors of networks of width 96",
        )
    plot_curves = {
        "measured": {depth: geometric([run[0] for run in measured]).value for depth, measured in runs.items()}
    }
    yield plot(
        "growth of the second moment", "blocks", plot_curves, {"2^N": {depth: 2.0**depth for depth in DEPTHS}}
    )


def sizes(depth: int, alpha: float) -> tuple[float, float]:
    return growth(
        moments_through(
            residual_stack(depth, WIDTH, scaled_by_depth(alpha)), torch.randn(BATCH, WIDTH, dtype=DOUBLE)
        )
    )


@claim(code="S3-6", verdict="holds", seeds=6, falsified_by={"scheme": "pre"})
def post_norm_forgets(trials: SeededTrials, *, scheme: str = "post") -> ClaimResults:
    r"""Post-norm forgets its input: after $L$ blocks the input's part of the stream is $2^{-L/2}$ at
    initialization.

    ## The article
    The article does not say so, although its code is post-norm: each norm halves the weight of everything before it
    (Su Jianlin, archives 8620).

    ## The test
    Measure $\cos(x_L, x_0)$ after 2, 4 and 8 blocks $\mathrm{LN}(x + f(x))$ with branches of unit gain.

    ## What is true
    The claim is true: a skip that is normalized after every sum is no longer an identity path. This is why deep
    post-norm networks need DeepNorm or a warm-up.
    """
    depths = (2, 4, 8)

    def cosine(depth: int) -> float:
        x = nn.functional.layer_norm(torch.randn(16, WIDTH, dtype=DOUBLE), (WIDTH,))
        with torch.no_grad():
            y: Tensor = nn.Sequential(*residual_stack(depth, WIDTH, scheme))(x)
        return torch.cosine_similarity(x, y).mean().item()

    runs = {depth: mean(trials.runs(partial(cosine, depth))) for depth in depths}
    for depth, measured in runs.items():
        yield near(
            rf"$\cos(x_L, x_0)$ after {depth} blocks",
            measured,
            2 ** (-depth / 2),
            room=0.06,
            origin=r"derived: each block adds an equal and independent part; 0.06: $1/\sqrt d$ is 0.1, six runs",
        )
    plot_curves = {"measured": {depth: measured.value for depth, measured in runs.items()}}
    yield plot(
        "cosine with the input",
        "blocks",
        plot_curves,
        {"2^(-L/2)": {depth: 2 ** (-depth / 2) for depth in depths}},
    )


@claim(code="S3-7", verdict="holds", seeds=14, slow=True, falsified_by={"scheme": "post"})
def pre_norm_stream_grows(trials: SeededTrials, *, scheme: str = "pre") -> ClaimResults:
    r"""The stream of a pre-norm network grows linearly: $E[x_l^2] = 1 + l v$, $v$ the second moment of a branch.

    ## The article
    The article does not say so. This is the counterpart of S3-6 for the wiring that is used today.

    ## The test
    Measure the stream after 8, 16 and 32 of 32 blocks $x + f(\mathrm{LN}(x))$ with $v = 1$ with `leadline.trace`.

    ## What is true
    The claim is true. A later branch adds to a larger stream, so it changes less: the deep half of a pre-norm network
    is close to the identity.
    """
    runs = trials.runs(lambda: stream(scheme))
    for block in (8, 16, 32):
        measured = mean([run[block].forward / run[0].forward for run in runs])
        yield equals(
            rf"$E[x_l^2]/E[x_0^2]$, $l$ = {block}",
            measured,
            1 + block,
            within=0.1,
            origin="derived: independent branches; 10 %: width 96, a few runs",
        )
    plot_curves = {
        "measured": {block: statistics.fmean(run[block].forward for run in runs) for block in range(0, 33, 4)}
    }
    yield plot(
        "second moment of the stream",
        "blocks",
        plot_curves,
        {"1 + l": {b: 1.0 + b for b in range(0, 33, 4)}},
        log=False,
    )


@claim(code="S3-8", verdict="holds", seeds=14, slow=True, falsified_by={"scheme": "post"})
def pre_norm_gradients(trials: SeededTrials, *, scheme: str = "pre") -> ClaimResults:
    r"""In a pre-norm network the squared gradient at block $l$, over that at the top, is $(1 + Lv)/(1 + lv)$.

    ## The article
    The article does not say so. It puts "relieves the vanishing gradient" into numbers, for pre-norm.

    ## The test
    Measure the second moment of the stream's gradient at $l$ = 0, 8 and 16 of 32 in the networks of S3-7.

    ## What is true
    The claim is true: the gradient grows toward the input like a harmonic sum and not exponentially, so it neither
    vanishes nor explodes with depth.
    """
    runs = trials.runs(lambda: stream(scheme))
    for block in (0, 8, 16):
        measured = mean([run[block].backward / run[BLOCKS].backward for run in runs])
        yield equals(
            rf"$E[g_l^2]/E[g_L^2]$, $l$ = {block} of {BLOCKS}",
            measured,
            (1 + BLOCKS) / (1 + block),
            within=0.2,
            origin="derived: a norm divides gradients by the stream; 20 %: the backward spread of width 96, a few runs",
        )
    places = range(0, BLOCKS + 1, 4)
    plot_curves = {
        "measured": {
            b: statistics.fmean(run[b].backward / run[BLOCKS].backward for run in runs) for b in places
        }
    }
    yield plot(
        "squared gradient over that at the top",
        "block",
        plot_curves,
        {"theory": {b: (1 + BLOCKS) / (1 + b) for b in places}},
    )


def stream(scheme: str) -> list[StackMoments]:
    """Return the moments through 32 blocks for inputs of unit second moment."""
    x = nn.functional.layer_norm(torch.randn(BATCH, WIDTH, dtype=DOUBLE), (WIDTH,))
    return moments_through(residual_stack(BLOCKS, WIDTH, scheme), x)
