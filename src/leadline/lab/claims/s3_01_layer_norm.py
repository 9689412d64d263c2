"""S3-1 to S3-3: what a layer norm computes, and a residual block with a zero branch."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from leadline.lab.claim import ClaimResults, SeededTrials, claim
from leadline.lab.estimate import above, below, exact, full_range
from leadline.lab.measurements import DOUBLE, relative_change
from leadline.lab.stacks import ResidualBlock, gaussian_weight, linear_layer

# Heuristic: a width that runs in seconds. The eps is the default of nn.LayerNorm.
WIDTH, EPS = 64, 1e-5


@claim(code="S3-1", verdict="holds", seeds=5, falsified_by={"correction": 1})
def mean_zero_variance_one(trials: SeededTrials, *, correction: int = 0) -> ClaimResults:
    r"""A layer norm gives mean 0 and variance 1 for any batch size, including a single sample.

    ## The article
    Section 3.2 has the formula $\hat x_i = (x_i - \mu_L)/\sqrt{\sigma_L^2 + \epsilon}$.

    ## The test
    Measure mean and variance after `layer_norm` for a batch of one, with inputs of mean 3 and standard deviation 5.

    ## What is true
    The claim is true over the features of one sample: the variance is $v/(v + \epsilon)$, $v$ that of the input. The
    article's words describe the statistics of "that feature dimension", which are those of a batch norm.
    """

    def measure() -> tuple[float, float]:
        x = 3 + 5 * torch.randn(1, WIDTH, dtype=DOUBLE)
        y, v = F.layer_norm(x, (WIDTH,), eps=EPS), x.var(correction=0)
        expected = v / (v + EPS)
        return abs(y.mean().item()), abs(y.var(correction=correction).item() / expected.item() - 1)

    means, variances = zip(*trials.runs(measure), strict=True)
    yield exact("|mean| after the norm, batch of one", full_range(means))
    yield exact(r"variance over $v/(v+\epsilon)$, minus 1", full_range(variances))


@claim(code="S3-2", verdict="holds", seeds=5, falsified_by={"training": False})
def samples_are_apart(trials: SeededTrials, *, training: bool = True) -> ClaimResults:
    r"""A layer norm does not depend on the batch; a batch norm does.

    ## The article
    This is its answer to question 3. Elsewhere it says that layer norm "uses fixed statistics" and may one day become
    adaptive.

    ## The test
    Replace sample 1 and measure the change of the output for sample 0, for a layer norm and for a batch norm in
    training mode.

    ## What is true
    The claim is true: the change is exactly 0 for the layer norm and clearly visible for the batch norm. But a layer
    norm has no fixed or running statistics at all: it computes them from each vector.
    """

    def measure() -> tuple[float, float]:
        x = torch.randn(8, WIDTH, dtype=DOUBLE)
        other = x.clone()
        other[1] = 10 * torch.randn(WIDTH, dtype=DOUBLE)
        batch_norm = nn.BatchNorm1d(WIDTH, dtype=DOUBLE).train(training)
        moved = [
            relative_change(f(x)[0], f(other)[0]) for f in (lambda v: F.layer_norm(v, (WIDTH,)), batch_norm)
        ]
        return moved[0], moved[1]

    layer, batch = zip(*trials.runs(measure), strict=True)
    yield below("change of sample 0, layer norm", full_range(layer), 0.0, origin="the article: none; exactly")
    yield above(
        "change of sample 0, batch norm",
        full_range(batch),
        0.1,
        origin="the article: it depends on the batch",
    )


@claim(code="S3-3", verdict="holds", seeds=5, falsified_by={"size": 0.01})
def zero_branch_is_identity(trials: SeededTrials, *, size: float = 0.0) -> ClaimResults:
    r"""With $F = 0$ a residual block $y = F(x) + x$ is the identity, and so is its Jacobian.

    ## The article
    Section 3.1 says that only the residual has to be learned.

    ## The test
    Measure the output and the Jacobian of a block whose branch has zero weights.

    ## What is true
    The claim is true. ReZero, SkipInit and Fixup start every block there.
    """

    def measure() -> tuple[float, float]:
        block, x = (
            ResidualBlock(linear_layer(size * gaussian_weight(WIDTH, WIDTH))),
            torch.randn(WIDTH, dtype=DOUBLE),
        )
        jacobian: Tensor = torch.autograd.functional.jacobian(block, x)  # type: ignore[no-untyped-call]
        return relative_change(x, block(x)), (jacobian - torch.eye(WIDTH, dtype=DOUBLE)).norm().item()

    outputs, jacobians = zip(*trials.runs(measure), strict=True)
    yield exact(r"$\lVert y - x \rVert/\lVert x \rVert$", full_range(outputs))
    yield exact(r"$\lVert J - I \rVert$", full_range(jacobians))
