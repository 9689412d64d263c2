"""S2-11 and S2-12: the equilibrium of a scale-invariant weight under weight decay."""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
from torch import Tensor

from leadline.lab.claim import ClaimResults, SeededTrials, claim
from leadline.lab.estimate import above, equals, full_range, mean, plot
from leadline.readings.symmetry.equilibrium import equilibrium
from leadline.records import ParamGroup
from leadline.records.experiment import Party

# Heuristic: dimensions and steps; corrections are of order one over either.
COUNT, STEPS = 200, 2000
# Heuristic: gradient norm times weight norm; the equilibrium is proportional to it.
RADIUS = 0.7
CLOSE = (
    "5 %: corrections of order rate times decay and $1/d$, and the spread of a mean over 1000 steps (derived)"
)

Optimizer = Callable[[Tensor], torch.optim.Optimizer]


@claim(code="S2-11", verdict="false as stated", seeds=4, slow=True, falsified_by={"decay": 0.0})
def decay_sets_the_effective_rate(trials: SeededTrials, *, decay: float = 0.05) -> ClaimResults:
    r"""Weight decay does nothing on scale-invariant weights, so it can be left out.

    ## The article
    "We can remove the weight decay term and it will not have much effect". It warns that this is a statement about
    the optimum, not about what gradient descent finds.

    ## The test
    Run SGD with L2 decay on a weight whose gradient is random, orthogonal to it and proportional to
    $1/\lVert w \rVert$, as in S2-6. Compare the final norm and rotation per step with those without decay.

    ## What is true
    Weight decay does not change the optimum but decides how fast the weight rotates. Steps lengthen $w$, decay
    shortens it, and they balance at $\lVert w \rVert^4 = \eta G^2/2\lambda$ with a rotation of
    $\sqrt{2\eta\lambda}$ per step, for any initial weight. Without decay the norm grows forever and the rotation
    vanishes: the effective rate $\eta/\lVert w \rVert^2$ falls.
    """
    rate = 0.1

    def measure(with_decay: float) -> tuple[list[float], list[float]]:
        return simulate(lambda w: torch.optim.SGD([w], lr=rate, weight_decay=with_decay))

    runs, free = trials.runs(lambda: measure(decay)), trials.runs(lambda: measure(0.0))
    turned = full_range([late(run[1]) / late(other[1]) for run, other in zip(runs, free, strict=True)])
    yield equals(
        "rotation per step with decay over that without",
        turned,
        1.0,
        within=0.1,
        origin="the article: no effect; 10 %",
    )
    yield above(
        "the same", turned, 1.5, by="correction", origin="after 2000 steps; it grows with their number"
    )
    group = ParamGroup(parameters=("w",), lr=rate, weight_decay=0.05, options={"momentum": 0.0})
    yield from at_equilibrium(runs, "SGD", group)
    places = range(0, STEPS, STEPS // 20)
    plot_curves = {
        "with decay": {at: runs[0][0][at] for at in places},
        "without": {at: free[0][0][at] for at in places},
    }
    yield plot("norm of the weight", "steps", plot_curves, log=False)


@claim(code="S2-12", verdict="holds", seeds=3, slow=True, falsified_by={"beta": 0.5})
def adamw_settles(trials: SeededTrials, *, beta: float = 0.9) -> ClaimResults:
    r"""AdamW settles a scale-invariant weight at $\lVert w \rVert = \sqrt{\eta d/2\lambda}$, for any size of
    its gradients.

    ## The article
    The article does not say so. This is the counterpart of S2-11 for the optimizer that is used in practice.

    ## The test
    Run `torch.optim.AdamW` on the weight of S2-11 with $\beta_1 = 0.9$ and compare norm and rotation per step with the
    formulas in `leadline.readings.symmetry.equilibrium`.

    ## What is true
    The claim is true; the rotation is $\sqrt{2\eta\lambda\,(1-\beta_1)/(1+\beta_1)}$ per step. Neither depends on
    the size of the gradient.
    """
    rate, decay = 0.02, 0.2
    runs = trials.runs(
        lambda: simulate(lambda w: torch.optim.AdamW([w], lr=rate, weight_decay=decay, betas=(beta, 0.99)))
    )
    group = ParamGroup(parameters=("w",), lr=rate, weight_decay=decay, options={"betas": [0.9, 0.99]})
    yield from at_equilibrium(runs, "AdamW", group, by="article")


def at_equilibrium(
    runs: list[tuple[list[float], list[float]]], name: str, group: ParamGroup, by: Party = "correction"
) -> ClaimResults:
    """Compare norm and rotation with the formulas."""
    predicted = equilibrium(name, group, count=COUNT, radius=RADIUS)
    if predicted is None:
        return
    norms, angles = mean([average(run[0]) for run in runs]), mean([late(run[1]) for run in runs])
    for what, measured, value in (
        (r"$\lVert w \rVert$ at equilibrium", norms, predicted.norm),
        ("rotation per step at equilibrium, radians", angles, predicted.angle),
    ):
        yield equals(
            what, measured, value, within=0.05, by=by, origin=f"Kosson et al. 2024, derived; {CLOSE}"
        )


def simulate(optimizer: Optimizer) -> tuple[list[float], list[float]]:
    """Return the norm and the squared rotation of every step, starting at norm one."""
    w = torch.nn.functional.normalize(torch.randn(COUNT), dim=0).requires_grad_()
    step = optimizer(w)
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
    """Return the mean over the second half."""
    return sum(values[STEPS // 2 :]) / (STEPS - STEPS // 2)


def late(squares: list[float]) -> float:
    """Return the root mean square rotation of the second half."""
    return math.sqrt(average(squares))
