"""S2-11 and S2-12: what weight decay does to a scale-invariant weight in the end."""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
from torch import Tensor

from leadline.lab.claim import ClaimResults, SeededTrials, claim
from leadline.lab.estimate import above, equals, full_range, mean, plot
from leadline.readings.symmetry.equilibrium import equilibrium
from leadline.records import ParamGroup

COUNT, STEPS = 200, 2000
RADIUS = 0.7  # gradient norm times weight norm
CLOSE = "5 %: of the order of rate times decay and of $1/d$, and the spread of a mean over a thousand steps (derived)"

Optimiser = Callable[[Tensor], torch.optim.Optimizer]


@claim(code="S2-11", verdict="false as stated", seeds=4, slow=True, spoiled={"decay": 0.0})
def decay_sets_the_effective_rate(trials: SeededTrials, *, decay: float = 0.05) -> ClaimResults:
    r"""On scale-invariant weights weight decay does nothing: one may leave it out.

    ## The article
    "We can remove the weight decay term and it will not have much effect". It warns that this is a statement about
    the optimum, not about what gradient descent finds.

    ## The test
    SGD with L2 decay on a weight whose gradient is random, orthogonal to it and falls as $1/\lVert w \rVert$, as
    S2-6 says: the norm and the rotation a step that it settles at, against those without decay.

    ## What is true
    It leaves the function's optimum alone and decides how fast the weight turns: steps lengthen $w$, decay shortens
    it, and they balance at $\lVert w \rVert^4 = \eta G^2/2\lambda$ with a rotation of $\sqrt{2\eta\lambda}$ a step,
    whatever the weights were. Without decay the norm grows for ever and the rotation dies out: the effective rate
    $\eta/\lVert w \rVert^2$ falls.
    """
    rate = 0.1

    def measure(with_decay: float) -> tuple[list[float], list[float]]:
        return simulate(lambda w: torch.optim.SGD([w], lr=rate, weight_decay=with_decay))

    runs, free = trials.runs(lambda: measure(decay)), trials.runs(lambda: measure(0.0))
    turned = full_range([late(run[1]) / late(other[1]) for run, other in zip(runs, free, strict=True)])
    yield equals(
        "rotation a step with decay over that without",
        turned,
        1.0,
        within=0.1,
        origin="the article: no effect; 10 %",
    )
    yield above(
        "the same", turned, 1.5, by="correction", origin="after 2000 steps; it grows with their number"
    )
    group = ParamGroup(parameters=("w",), lr=rate, weight_decay=0.05, options={"momentum": 0.0})
    yield from at_rest(runs, "SGD", group)
    places = range(0, STEPS, STEPS // 20)
    shown = {
        "with decay": {at: runs[0][0][at] for at in places},
        "without": {at: free[0][0][at] for at in places},
    }
    yield plot("norm of the weight", "steps", shown, log=False)


@claim(code="S2-12", verdict="holds", seeds=3, slow=True, spoiled={"beta": 0.5})
def adamw_settles(trials: SeededTrials, *, beta: float = 0.9) -> ClaimResults:
    r"""AdamW settles a scale-invariant weight at $\lVert w \rVert = \sqrt{\eta d/2\lambda}$, whatever the size of
    its gradients.

    ## The article
    Not said there: the counterpart of S2-11 for the optimiser that is used in practice.

    ## The test
    `torch.optim.AdamW` on the weight of S2-11 with $\beta_1 = 0.9$: norm, and rotation a step, against the formulas
    in `leadline.readings.symmetry.equilibrium`.

    ## What is true
    As stated; the rotation is $\sqrt{2\eta\lambda\,(1-\beta_1)/(1+\beta_1)}$ a step. The gradient's size drops out
    of both.
    """
    rate, decay = 0.02, 0.2
    runs = trials.runs(
        lambda: simulate(lambda w: torch.optim.AdamW([w], lr=rate, weight_decay=decay, betas=(beta, 0.99)))
    )
    group = ParamGroup(parameters=("w",), lr=rate, weight_decay=decay, options={"betas": [0.9, 0.99]})
    yield from at_rest(runs, "AdamW", group, by="article")


def at_rest(
    runs: list[tuple[list[float], list[float]]], name: str, group: ParamGroup, by: str = "correction"
) -> ClaimResults:
    """Norm and rotation against the formulas."""
    predicted = equilibrium(name, group, count=COUNT, radius=RADIUS)
    if predicted is None:
        return
    norms, angles = mean([average(run[0]) for run in runs]), mean([late(run[1]) for run in runs])
    for what, found, value in (
        (r"$\lVert w \rVert$ at rest", norms, predicted.norm),
        ("rotation a step at rest, radians", angles, predicted.angle),
    ):
        yield equals(what, found, value, within=0.05, by=by, origin=f"Kosson et al. 2024, derived; {CLOSE}")  # type: ignore[arg-type]


def simulate(optimiser: Optimiser) -> tuple[list[float], list[float]]:
    """Norm, and squared rotation, of every step, starting at norm one."""
    w = torch.nn.functional.normalize(torch.randn(COUNT), dim=0).requires_grad_()
    step = optimiser(w)
    norms, angles = [], []
    for _ in range(STEPS):
        before = w.detach().clone()
        noise = torch.randn(COUNT)
        noise -= before * (noise @ before) / (before @ before)
        w.grad = RADIUS * noise / noise.norm() / before.norm()
        step.step()
        after = w.detach()
        norms.append(after.norm().item())
        angles.append(2 * (1 - (before @ after / (before.norm() * after.norm())).item()))
    return norms, angles


def average(values: list[float]) -> float:
    """Over the second half."""
    return sum(values[STEPS // 2 :]) / (STEPS - STEPS // 2)


def late(squares: list[float]) -> float:
    """Root mean square rotation of the second half."""
    return math.sqrt(average(squares))
