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

SHALLOW, DEEP = 4, 24
WIDTH, BATCH, STEPS = 32, 128, 120
HIGHER = 1.5  # ratio of losses from which on one counts as higher: ours, for both sides of the claim
RATES = (3e-3, 1e-3)  # of Adam: the better of two at each depth, so that no depth is blamed for its rate


@claim(code="S3-5", verdict="holds", seeds=8, slow=True, spoiled={"plain": "residual"})
def degradation(trials: SeededTrials, *, plain: str = "plain") -> ClaimResults:
    r"""A deeper plain network has a higher *training* error than a shallow one; with residual connections it has
    not.

    ## The article
    Section 2.1: the degradation problem, which residual connections were invented for.

    ## The test
    Digits, 120 steps of Adam, width 32, 4 and 24 layers, the better of two rates at each depth, eight seeds: plain
    ReLU layers at He's gain against residual blocks with branches of $N^{-1/2}$. The loss on all of the training
    data in the end.

    ## What is true
    As stated, here: the plain network of 24 layers ends far above that of 4, the residual one does not. There is no
    norm in either, and He's initialisation is right for the plain one (S0-3), so the initial size of the gradient
    is not the reason. What is (inputs that become alike, the update of S0-6) this experiment does not separate.
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
        HIGHER,
        origin="the article: higher; half as much again is taken for higher, less for the same",
    )
    yield below(
        f"training loss, residual, {DEEP} blocks over {SHALLOW}",
        drops["residual"],
        HIGHER,
        origin="the article: not higher, by the same measure",
    )
    shown = {
        name: {depth: sum(runs[scheme, depth]) / trials.seeds for depth in (SHALLOW, DEEP)}
        for name, scheme in (("plain", plain), ("residual", "residual"))
    }
    yield plot("training loss after 120 steps", "layers", shown)


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
