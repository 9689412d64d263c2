"""S0-10 and S0-E5: what a random matrix does to a vector, and whether it is nearly orthogonal."""

from __future__ import annotations

import math

import torch

from leadline.lab.claim import ClaimResults, SeededTrials, claim
from leadline.lab.estimate import equals, full_range, mean, near, plot, slope
from leadline.lab.measurements import DOUBLE
from leadline.lab.stacks import gaussian_weight

# Heuristic: factors of four show a power law; the vectors keep the spread of a mean below 5 %.
SIZES = (16, 64, 256)
VECTORS = 512


@claim(code="S0-10", verdict="holds", falsified_by={"shift": 0.3})
def image_is_nearly_orthogonal(trials: SeededTrials, *, shift: float = 0.0) -> ClaimResults:
    r"""In many dimensions a vector and its image under a random matrix are nearly orthogonal.

    ## The article
    It uses this for $v$ and $\varepsilon v J$, $J = \partial f/\partial x$, to get $1 + \varepsilon^2$ instead of
    $1 + \varepsilon$.

    ## The test
    Measure the root mean square of $\cos(v, vJ)$ over random vectors and Gaussian matrices of size 16, 64 and 256.

    ## What is true
    The claim is true: the cosine is $1/\sqrt d$. The reason that the article gives, that $J$ is close to an
    orthogonal matrix, is another matter (S0-E5): a rotation has this property too, and so does any matrix that is
    drawn without a preferred direction.
    """

    def cosine(size: int) -> float:
        v, matrix = torch.randn(VECTORS, size, dtype=DOUBLE), gaussian_weight(size, size)
        image = v @ (matrix + shift * torch.eye(size, dtype=DOUBLE))
        return torch.cosine_similarity(v, image).square().mean().sqrt().item()

    runs = trials.runs(lambda: {size: cosine(size) for size in SIZES})
    for size in SIZES:
        measured = mean([run[size] for run in runs])
        what = rf"rms of $\cos(v, vJ)$, $d$ = {size}"
        yield equals(
            what,
            measured,
            size**-0.5,
            within=0.1,
            origin=r"the article, as $1/\sqrt d$; 10 %: a few matrices per run",
        )
    yield near("its exponent in $d$", slope(runs), -0.5, room=0.05, origin="the same")
    plot_curves = {"measured": {size: mean([run[size] for run in runs]).value for size in SIZES}}
    yield plot(
        "rms cosine of a vector and its image",
        "dimensions",
        plot_curves,
        {"d^-1/2": {d: d**-0.5 for d in SIZES}},
    )


@claim(code="S0-E5", verdict="false as stated", falsified_by={"rotation": True})
def random_is_not_orthogonal(trials: SeededTrials, *, rotation: bool = False) -> ClaimResults:
    r"""A random matrix with variance $1/n$ is close to (a multiple of) an orthogonal one.

    ## The article
    It refers to an earlier post. (The Chinese sentence has 觉得, "feel", where 矩阵, "matrix", is meant.)

    ## The test
    Measure $\lVert J J^\top - I \rVert_F/\sqrt d$ of square Gaussian matrices with 256 rows, which is 0 for an
    orthogonal matrix, their extreme singular values, and how they change the length of a fixed vector.

    ## What is true
    A *square* Gaussian matrix is as far from orthogonal as it is long: the measure is 1 and the singular values
    fill the interval from 0 to 2. It does preserve the length of a vector that was
    chosen *independently of it*, up to a relative spread of $\sqrt{2/d}$ in the square. Wide rectangular matrices are
    closer to orthogonal.
    """
    size = SIZES[-1]

    def draw() -> torch.Tensor:
        matrix = gaussian_weight(size, size)
        return torch.linalg.qr(matrix)[0] if rotation else matrix

    matrices = trials.runs(draw)
    away = [(m @ m.T - torch.eye(size, dtype=DOUBLE)).norm().item() / math.sqrt(size) for m in matrices]
    singular = [torch.linalg.svdvals(m) for m in matrices]
    yield near(
        r"$\lVert JJ^\top - I \rVert_F/\sqrt d$",
        mean(away),
        0.0,
        room=0.1,
        origin="the article; 0.1 still counts as close",
    )
    yield equals(
        "the same",
        mean(away),
        1.0,
        within=0.05,
        by="correction",
        origin="derived: $d^2$ entries of variance $1/d$",
    )
    for name, values, predicted in (
        ("smallest", [s[-1].item() for s in singular], 0.0),
        ("largest", [s[0].item() for s in singular], 2.0),
    ):
        yield near(
            f"{name} singular value", full_range(values), predicted, room=0.1, by="correction",
            origin=r"the quarter-circle law; 0.1: finite size, $d^{-2/3}$",
        )  # fmt: skip
    x = torch.ones(size, dtype=DOUBLE)
    spread = trials.runs(
        lambda: torch.stack([(x @ draw().T).square().sum() / x.square().sum() for _ in range(12)])
    )
    yield equals(
        "relative spread of the squared length of a fixed vector's image",
        mean([each.sub(1).square().mean().sqrt().item() for each in spread]),
        math.sqrt(2 / size),
        within=0.25,
        by="correction",
        origin=r"derived, $\sqrt{2/d}$; 25 %: twelve matrices per run",
    )
