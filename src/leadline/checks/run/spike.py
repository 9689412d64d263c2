"""T801: a step far out of line with the steps before it."""

from __future__ import annotations

import math
from collections.abc import Iterator
from statistics import median_low

from leadline.checks._check import Symptom, check
from leadline.checks._history import History, Window
from leadline.checks._ranges import of_parameters
from leadline.checks._run_examples import constant, course, noisy
from leadline.checks._statistics import score

SIGMAS = 6.0  # cited: OLMo-core's skip-step optimisers leave out what lies 6 deviations above 128 steps
WINDOW = 128  # cited: the same
ENOUGH = 64  # ours: half a window, so that the first spike after a warm-up is seen
RECENT = 8  # ours: steps judged together; an alarm need not be asked every step
LEAST = {  # smallest deviation of a logarithm that is taken for noise; calibrated by benchmarks/alarms.py
    "update_norm": 0.10,
    "grad_norm": 0.25,
    "loss": 0.10,
}
LASTING = (
    3  # calibrated by benchmarks/alarms.py: one odd batch in 8 raises the loss of healthy runs, three do not
)
ALONE = {
    "grad_norm": 2.0
}  # calibrated by the same script: gradients of small batches spike without moving anything
LOUD = 0.5  # ours: layers whose own score is at least half of the largest are named


@check(
    code="T801",
    name="spike",
    since="0.1",
    needs=("update_norm", "grad_norm", "loss"),
    every=8,
    sick=course(
        200, update_norm=lambda step: noisy(constant(1.0), 0.05)(step) * (30.0 if step == 195 else 1.0)
    ),
    healthy=course(200, update_norm=noisy(constant(1.0), 0.3), loss=noisy(constant(2.0), 0.1)),
)
def spike(history: History) -> Iterator[Symptom]:
    r"""One step is far larger than the steps before it.

    ## What it measures
    For each of the last `RECENT` = 8 steps, and of all before them since the last look, how many robust standard
    deviations the logarithms of the update's norm (divided by the rate, so that a schedule is no spike), the gradient's
    norm and the loss lie above the median of the `WINDOW` = 128 steps before. Fires at `SIGMAS` = 6 for the update, at
    twice that for the gradient, which clipping or the optimiser may tame (a warning), and at 6 for the loss if it lasts
    `LASTING` = 3 steps of 8 (an error).

    ## Why it hurts
    Update norms move first: a gradient that its running averages did not expect makes one step many times as large as
    usual, and the loss answers a step later. Some spikes heal within a few hundred steps; those that do not cost the
    run. Skipping or clipping that one step costs nothing.

    ## When it is wrong
    Data whose batches differ by nature (a rare language, a long document) make honest spikes of the gradient that
    clip away. A change of the batch or of the loss by hand looks like one. In the first one or two hundred steps, while
    norms still fall from where they start, the window is wide and only large spikes are seen.

    ## References
    OLMo-core, `SkipStepOptimizer` (6 standard deviations over 128 steps); Chowdhery et al., "PaLM", 2022, section 5.1
    (spikes, and skipping the batches before them); Molybog et al., "A theory on Adam instability in large-scale
    machine learning", 2023 (update norms before a spike).
    """
    found = {name: _loudest_since(history, name) for name in LEAST}
    loud = {
        name: each
        for name, each in found.items()
        if each is not None and each[1] >= SIGMAS * ALONE.get(name, 1.0)
    }
    if not loud:
        return
    since = min(step for step, _ in loud.values())
    worst = max(loud, key=lambda name: loud[name][1])
    where, layers = _layers(history, since)
    yield Symptom(
        severity="error" if "loss" in loud else "warning",
        where=where,
        layers=layers,
        since=since,
        message=f"the {_WORDS[worst]} of step {loud[worst][0]} lies {loud[worst][1]:.1f} standard deviations above the "
        f"{WINDOW} steps before it" + _order(loud),
        forecast="" if "loss" in loud else "the loss follows within a few steps, if it follows",
        evidence={f"{name}_sigmas": each[1] for name, each in found.items() if each is not None},
    )


_WORDS = {"update_norm": "update", "grad_norm": "gradient", "loss": "loss"}


def _loudest_since(history: History, name: str) -> tuple[int, float] | None:
    """The loudest of all that came since alarms were asked last: in a fast loop that may be hundreds of steps."""
    reach = max(1, len(history.since_asked(name))) + RECENT - 1
    judged = _series(history, name, WINDOW + reach)
    if len(judged) < ENOUGH + RECENT or max(judged.values[-reach:]) < min(judged.values) * _least(name):
        return None
    stride = RECENT - LASTING + 1  # derived: as many in a row as must last share a group
    ends = range(len(judged), len(judged) - reach + RECENT - stride, -stride)
    groups = (_part(judged, max(0, end - WINDOW - RECENT), end) for end in ends)
    return max(
        filter(None, (_loudest(each, name) for each in groups)), key=lambda each: each[1], default=None
    )


def _series(history: History, name: str, last: int) -> Window:
    """A window and the steps that are judged against it: what is positive and finite; of the update over the rate."""
    found = history.scalars(name, last)
    values = found.values
    if name == "update_norm":
        series = history.scalars("lr", last)
        rates = dict(zip(series.steps, series.values, strict=True))
        pairs = zip(found.steps, values, strict=True)
        values = [each / rates[step] if rates.get(step, 0.0) > 0 else each for step, each in pairs]
    if all(0 < each < math.inf for each in values):
        return Window(steps=found.steps, values=values)
    kept = [(step, each) for step, each in zip(found.steps, values, strict=True) if 0 < each < math.inf]
    return Window(steps=[step for step, _ in kept], values=[each for _, each in kept])


def _part(window: Window, first: int, end: int) -> Window:
    return Window(steps=window.steps[first:end], values=window.values[first:end])


def _least(name: str) -> float:
    """How many times the median is loud, if the window is as quiet as is believed."""
    return math.exp(SIGMAS * LEAST[name])


def _loudest(judged: Window, name: str) -> tuple[int, float] | None:
    """Step and score of the recent value that counts; None without enough to compare it with, or if it is not loud.

    It is the largest one; of the loss the `LASTING`-th largest, so that one odd batch is no spike, and the first step
    of those as large. A score is at most the distance from the median over `LEAST`, which is quick to see and spares
    the logarithms of all the others.
    """
    if len(judged) < ENOUGH + RECENT:
        return None
    recent = sorted(zip(judged.values[-RECENT:], judged.steps[-RECENT:], strict=True), reverse=True)
    count = LASTING if name == "loss" else 1
    value, step = recent[count - 1][0], min(each for _, each in recent[:count])
    window = judged.values[:-RECENT]
    if value < median_low(window) * _least(name):
        return None
    found = score(math.log(value), [math.log(each) for each in window], least=LEAST[name])
    return step, found


def _order(loud: dict[str, tuple[int, float]]) -> str:
    """Who moved first, if more than one did."""
    if len(loud) < 2:
        return ""
    first = min(loud, key=lambda name: loud[name][0])
    return f"; the {_WORDS[first]} moved first, at step {loud[first][0]}"


def _layers(history: History, since: int) -> tuple[str, tuple[int, int] | None]:
    """The layers whose own update (or gradient) was out of line at that step."""
    for name in ("update_norm", "grad_norm"):
        found = history.recent(name)
        if since not in found.steps or found.steps.index(since) < RECENT:
            continue
        at = found.steps.index(since)
        scores = [
            _column_score(found.column(index)[: at + 1], LEAST[name]) for index in range(len(found.rows[at]))
        ]
        most = max(scores, default=0.0)
        if most >= SIGMAS:
            return of_parameters(history.layout, [i for i, each in enumerate(scores) if each >= LOUD * most])
    return "the whole model", None


def _column_score(column: list[float], least: float) -> float:
    kept = [math.log(each) for each in column if 0 < each < math.inf]
    return score(kept[-1], kept[:-1], least=least) if len(kept) > RECENT else 0.0
