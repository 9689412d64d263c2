"""T815: the loss is higher than when training began."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from statistics import median

from leadline.checks._check import Symptom, check
from leadline.checks._examples import falling, noisy, scalar_history
from leadline.checks._history import START_STEPS, History
from leadline.checks._loop import incomparable_clause, is_comparable
from leadline.checks._statistics import finite, noise, relative_slope, rise_scale

# Heuristic: losses of the beginning; more would count what was learned in them.
FIRST_STEPS = 8
# Heuristic: losses that must all be above the start; chance alone puts the first of 17 equal losses lowest once in 17.
RECENT_STEPS = 16
# Derived: the recent steps and the steps they are compared with must not overlap.
MIN_STEPS = 2 * RECENT_STEPS
# Calibrated by benchmarks/alarms.py: share of the first loss; healthy runs fall below their start within 32 steps.
MIN_RELATIVE_RISE = 0.05
# Heuristic: standard deviations between neighboring steps, in which even the lowest recent loss is above the start.
MIN_RISE_SIGMAS = 1.0
# Heuristic: the gradient norm grows as many times when gradients of some dozen steps add up.
MIN_GRADIENT_GROWTH = 4.0


@check(
    code="T815",
    name="loss-above-start",
    since="0.1.0",
    needs=("loss",),
    sick=scalar_history(64, loss=lambda step: 4.4 if step == 0 else noisy(falling(40.0, 7.0, 8), 0.02)(step)),
    healthy=scalar_history(400, loss=noisy(falling(2.3, 0.5, 60), 0.3)),
    explains=("T801", "T802"),
    every=8,
    confirm=2,
    calm=64,
)
def loss_above_start(history: History) -> Iterator[Symptom]:
    r"""The loss is higher than when training began.

    ## What it measures
    The lowest of the last `RECENT_STEPS` = 16 losses against the start $s$, which is the first loss or the median of
    the first `FIRST_STEPS` = 8, whichever is lower. Fires from step `MIN_STEPS` = 32 on if the lowest recent loss
    exceeds $s$ by `MIN_RELATIVE_RISE` = 5 % and by the noise between neighboring steps. Positive losses are compared by
    their logarithms, because the noise of a loss that explodes grows with it. Of other losses, a start smaller than the
    noise (of policy gradients, around zero) is no level to compare with.

    ## Why it hurts
    An untrained network that guesses is better than this one. The first steps were too large: with Adam every weight
    moves by about the learning rate however small its gradient, so a rate far above the usual one destroys the
    initialization at once, and what follows is slow recovery. If the gradient norm grows as well, gradients of many
    steps may be added up because `optimizer.zero_grad()` is missing.

    ## When it is wrong
    A loss whose meaning changes (a curriculum, a penalty that grows) rises without harm. It is a note where the loop
    shows that losses cannot be compared: another optimizer trains against this one, as in a game of generator and
    critic, or a network that learns makes the targets or the data of each step. After a jump in the first steps some
    runs recover and end well; the alert is then over.

    ## References
    Goyal et al., "Accurate, large minibatch SGD", 2017, section 2.2 (large rates in the first steps, and warm-up).
    """
    losses = history.scalars("loss")
    recent, first = finite(losses.values[-RECENT_STEPS:]), history.start("loss")
    if len(losses) < MIN_STEPS or len(recent) < RECENT_STEPS or not first:
        return
    start = min(first[0], median(first[:FIRST_STEPS]))
    scaled, level = rise_scale([start, *recent])
    spread, rise = noise(scaled[1:]), min(scaled[1:]) - scaled[0]
    if level < spread or rise < max(MIN_RELATIVE_RISE * level, MIN_RISE_SIGMAS * spread):
        return
    growth = _gradient_growth(history)
    yield Symptom(
        severity="error" if is_comparable(history) else "info",
        where="the loss",
        since=losses.steps[-RECENT_STEPS] if len(losses) > START_STEPS else losses.steps[0],
        message=f"the last {RECENT_STEPS} losses are above the first ones: {median(recent):.4g} after {start:.4g}"
        + (f", and the gradient norm has grown {growth:.0f} times" if growth >= MIN_GRADIENT_GROWTH else "")
        + incomparable_clause(history),
        action=rise_action(growth),
        trend=relative_slope(losses.steps[-RECENT_STEPS:], losses.values[-RECENT_STEPS:], median(recent)),
        evidence={"loss": median(recent), "start": start, "noise": spread, "gradient_growth": growth},
    )


def rise_action(growth: float) -> str:
    """What to do about a loss that rose while the gradient norm grew so many times."""
    if growth >= MIN_GRADIENT_GROWTH:
        return "Call `optimizer.zero_grad()` in every step; if it is, start again with a tenth of the learning rate."
    return "Start again with a tenth of the learning rate, or with a warm-up."


def gradient_growth(first: Sequence[float], last: Sequence[float]) -> float:
    """How many times larger the last gradient norms are than the first ones; 0 if they are not known."""
    before, after = finite(first), finite(last)
    return median(after) / median(before) if before and after and median(before) > 0 else 0.0


def _gradient_growth(history: History) -> float:
    return gradient_growth(history.start("grad_norm")[:4], history.scalars("grad_norm", 4).values)
