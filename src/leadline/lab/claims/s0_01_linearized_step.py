"""S0-1: one step of SGD lowers the loss by the rate times the squared gradient."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from leadline.lab.claim import ClaimResults, SeededTrials, claim
from leadline.lab.estimate import equals, mean, median_curve, near, plot, slope
from leadline.lab.measurements import DOUBLE, sgd_step
from leadline.nn import MLP

DEPTHS = (2, 8, 32)
WIDTH, BATCH = 64, 16
SMALL = 1e-4  # share of the loss that the step promises: the error is then of that order times the curvature
USUAL = 0.1  # share of the loss: a step that a training would make


@claim(code="S0-1", verdict="holds under conditions", seeds=5, slow=True, spoiled={"small": 0.5})
def linearised_step(trials: SeededTrials, *, small: float = SMALL) -> ClaimResults:
    r"""One step of SGD changes the loss by $\Delta L \approx -\eta \lVert g \rVert^2$.

    ## The article
    The first equation of the section on incremental explosion; everything after it rests on this line.

    ## The test
    $r = \Delta L / (-\eta \lVert g \rVert^2)$ of plain ReLU networks with 2 to 32 layers, by `leadline.update`. The
    rate is set so that the step promises a ten thousandth of the loss, then a tenth of it.

    ## What is true
    It is the first term of a series: $r = 1 - \tfrac12 \eta\, g^\top H g / \lVert g \rVert^2 + \dots$ with the
    Hessian $H$, so that $1 - r$ falls in proportion to the rate. At a rate that a training would use, and the same
    promise, the ratio falls as the network gets deeper. That makes $r$ itself a diagnosis: it tells when the
    promise stops being kept. A large $|\Delta L|$ is no fault by itself, it is a predicted decrease.
    """
    found = trials.runs(lambda: ratios((small, small / 2, USUAL)))
    curves = {share: [each[share] for each in found] for share in (small, small / 2, USUAL)}
    for depth in (DEPTHS[0], DEPTHS[-1]):
        small_step = mean([curve[depth] for curve in curves[small]])
        what = rf"$r$ at {depth} layers, step promises {small:g} of the loss"
        yield equals(
            what, small_step, 1.0, within=0.01, origin="the article; 1 %: of the order of the promise"
        )
    deep = mean([curve[DEPTHS[-1]] for curve in curves[USUAL]])
    yield equals(
        rf"$r$ at {DEPTHS[-1]} layers, step promises {USUAL:g} of the loss",
        deep,
        1.0,
        within=0.01,
        origin="the article, which names no limit to the rate",
    )
    bends = [
        {1: abs(1 - half[DEPTHS[-1]]), 2: abs(1 - whole[DEPTHS[-1]])}
        for whole, half in zip(curves[small], curves[small / 2], strict=True)
    ]
    yield near(
        rf"exponent of $|1 - r|$ against the rate, {DEPTHS[-1]} layers",
        slope(bends),
        1.0,
        room=0.1,
        by="correction",
        origin="Taylor: the next term is of second order in the rate; room for the third",
    )
    shown = {f"promise {share:g}": median_curve(each) for share, each in curves.items() if share != small / 2}
    yield plot("measured over promised change of the loss", "layers", shown, log=False)


def ratios(shares: tuple[float, ...]) -> dict[float, dict[int, float]]:
    """Measured over promised change of the loss, by promise and depth."""
    found: dict[float, dict[int, float]] = {share: {} for share in shares}
    for depth in DEPTHS:
        model = MLP(WIDTH, WIDTH, depth, 4, scheme="none").to(DOUBLE)
        x, y = torch.randn(BATCH, WIDTH, dtype=DOUBLE), torch.randn(BATCH, 4, dtype=DOUBLE)

        def loss(out: Tensor, y: Tensor = y) -> Tensor:
            return nn.functional.mse_loss(out, y)

        probe = sgd_step(model, x, loss, 1e-6)
        for share in shares:
            step = sgd_step(model, x, loss, share * probe.loss / probe.grad_square)
            found[share][depth] = step.ratio if step.ratio is not None else float("nan")
    return found
