"""S3-5: does a deeper network fit its training data worse?"""

from __future__ import annotations

from functools import partial

import torch
from torch import nn

from leadline.lab.claim import ClaimResults, SeededTrials, claim
from leadline.lab.data import standardized_digits
from leadline.lab.estimate import above, below, geometric, plot
from leadline.lab.stacks import scaled_by_depth
from leadline.nn import MLP, Scheme

# Heuristic: sizes that show the effect and train in seconds.
SHALLOW, DEEP = 4, 24
WIDTH, BATCH, STEPS = 32, 128, 120
# Heuristic: the ratio from which a loss counts as higher, for both sides of the claim.
MIN_HIGHER_RATIO = 1.5
# Heuristic: rates of Adam; the better of two at each depth counts, so that no depth suffers from its rate.
RATES = (3e-3, 1e-3)


@claim(code="S3-5", verdict="holds", seeds=8, slow=True, falsified_by={"plain": "residual"})
def degradation(trials: SeededTrials, *, plain: str = "plain") -> ClaimResults:
    r"""A deeper plain network has a higher *training* error than a shallow one; with residual connections it
    does not.

    ## The article
    Section 2.1 describes the degradation problem, which residual connections were invented for.

    ## The test
    Train on digits for 120 steps of Adam at width 32 with 4 and 24 layers, the better of two rates at each depth and
    eight seeds. Compare the final loss on all training data of plain ReLU layers at He's gain and of residual blocks
    with branches of $N^{-1/2}$.

    ## What is true
    The claim is true here: the plain network with 24 layers ends far above the one with 4, and the residual one does
    not. Neither has a norm, and He's initialization is right for the plain one (S0-3), so the initial size of the
    gradient is not the reason. This experiment does not separate the possible reasons (inputs that become similar,
    the update of S0-6).
    """
    runs = {
        (scheme, depth): trials.runs(partial(best_loss, scheme, depth))
        for scheme in (plain, "residual")
        for depth in (SHALLOW, DEEP)
    }
    drops = {
        scheme: geometric(
            [deep / shallow for deep, shallow in zip(runs[scheme, DEEP], runs[scheme, SHALLOW], strict=True)]
        )
        for scheme in (plain, "residual")
    }
    yield above(
        f"training loss, plain, {DEEP} layers over {SHALLOW}",
        drops[plain],
        MIN_HIGHER_RATIO,
        origin="the article: higher; a ratio of 1.5 counts as higher, less as equal",
    )
    yield below(
        f"training loss, residual, {DEEP} blocks over {SHALLOW}",
        drops["residual"],
        MIN_HIGHER_RATIO,
        origin="the article: not higher, by the same criterion",
    )
    plot_curves = {
        name: {depth: sum(runs[scheme, depth]) / trials.seeds for depth in (SHALLOW, DEEP)}
        for name, scheme in (("plain", plain), ("residual", "residual"))
    }
    yield plot("training loss after 120 steps", "layers", plot_curves)


def best_loss(scheme: str, depth: int) -> float:
    wiring: str | Scheme = "none" if scheme == "plain" else scaled_by_depth(0.5)
    state = torch.get_rng_state()
    losses = []
    for rate in RATES:
        torch.set_rng_state(state)  # the same network at every rate
        losses.append(trained_loss(MLP(64, WIDTH, depth, 10, scheme=wiring), rate))
    return min(losses)


def trained_loss(model: nn.Module, rate: float) -> float:
    x, y = standardized_digits()
    adam = torch.optim.Adam(model.parameters(), lr=rate)
    for step in range(STEPS):
        start = step * BATCH % (len(x) - BATCH)
        loss = nn.functional.cross_entropy(model(x[start : start + BATCH]), y[start : start + BATCH])
        adam.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]
        adam.step()
    with torch.no_grad():
        return nn.functional.cross_entropy(model(x), y).item()
