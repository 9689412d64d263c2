"""S0-1: one step of SGD lowers the loss by the rate times the squared gradient."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from leadline.lab.claim import ClaimResults, SeededTrials, claim
from leadline.lab.estimate import equals, mean, median_curve, near, plot, slope
from leadline.lab.measurements import DOUBLE, sgd_step
from leadline.nn import MLP

# Heuristic: sizes that show the effect and run in seconds.
DEPTHS = (2, 8, 32)
WIDTH, BATCH = 64, 16
# Derived: the predicted decrease as a share of the loss; the error is of this order times the curvature.
SMALL = 1e-4
# Heuristic: a step that real training would make.
USUAL = 0.1


@claim(code="S0-1", verdict="holds under conditions", seeds=5, slow=True, falsified_by={"small": 0.5})
def linearized_step(trials: SeededTrials, *, small: float = SMALL) -> ClaimResults:
    r"""One step of SGD changes the loss by $\Delta L \approx -\eta \lVert g \rVert^2$.

    ## The article
    It is the first equation of the section on incremental explosion, and everything after it depends on this line.

    ## The test
    Measure $r = \Delta L / (-\eta \lVert g \rVert^2)$ of plain ReLU networks with 2 to 32 layers with
    `leadline.update`. The rate is set so that the predicted decrease is 1/10000 of the loss, then a tenth of it.

    ## What is true
    It is the first term of a series: $r = 1 - \tfrac12 \eta\, g^\top H g / \lVert g \rVert^2 + \dots$ with the
    Hessian $H$, so $1 - r$ is proportional to the rate. At a rate that real training uses, and for the same
    predicted decrease, the ratio falls as the network gets deeper. This makes $r$ itself a diagnosis: it shows where
    the prediction stops being true. A large $|\Delta L|$ is not a fault in itself: it is a predicted decrease.
    """
    measured = trials.runs(lambda: ratios((small, small / 2, USUAL)))
    curves = {share: [each[share] for each in measured] for share in (small, small / 2, USUAL)}
    for depth in (DEPTHS[0], DEPTHS[-1]):
        small_step = mean([curve[depth] for curve in curves[small]])
        what = rf"$r$ at {depth} layers, predicted decrease {small:g} of the loss"
        yield equals(
            what,
            small_step,
            1.0,
            within=0.01,
            origin="the article; 1 %: of the order of the predicted decrease",
        )
    deep = mean([curve[DEPTHS[-1]] for curve in curves[USUAL]])
    yield equals(
        rf"$r$ at {DEPTHS[-1]} layers, predicted decrease {USUAL:g} of the loss",
        deep,
        1.0,
        within=0.01,
        origin="the article, which gives no limit for the rate",
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
        origin="Taylor: the next term is of second order in the rate; 0.1 allows for the third",
    )
    plot_curves = {
        f"predicted {share:g}": median_curve(each) for share, each in curves.items() if share != small / 2
    }
    yield plot("measured over predicted change of the loss", "layers", plot_curves, log=False)


def ratios(shares: tuple[float, ...]) -> dict[float, dict[int, float]]:
    """Return the measured over the predicted change of the loss, by predicted decrease and depth."""
    measured: dict[float, dict[int, float]] = {share: {} for share in shares}
    for depth in DEPTHS:
        model = MLP(WIDTH, WIDTH, depth, 4, scheme="none").to(DOUBLE)
        x, y = torch.randn(BATCH, WIDTH, dtype=DOUBLE), torch.randn(BATCH, 4, dtype=DOUBLE)

        def loss(out: Tensor, y: Tensor = y) -> Tensor:
            return nn.functional.mse_loss(out, y)

        probe = sgd_step(model, x, loss, 1e-6)
        for share in shares:
            step = sgd_step(model, x, loss, share * probe.loss / probe.grad_square)
            measured[share][depth] = step.ratio if step.ratio is not None else float("nan")
    return measured
