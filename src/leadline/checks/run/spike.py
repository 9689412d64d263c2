"""T801: one step stands far out from the steps before it."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from statistics import median_low

from leadline.checks._check import Symptom, check
from leadline.checks._examples import constant, noisy, scalar_history
from leadline.checks._history import History, Window
from leadline.checks._ranges import locate_parameters
from leadline.checks._statistics import score

# Cited: OLMo-core's skip-step optimizers leave out what lies 6 deviations above the last 128 steps.
MIN_SIGMAS = 6.0
WINDOW = 128
# Heuristic: half a window, so that the first spike after a warm-up is seen.
MIN_WINDOW = 64
# Heuristic: steps judged together, because checks do not look at every step.
RECENT_STEPS = 8
# Calibrated by benchmarks/alarms.py: the smallest deviation of a logarithm that is taken for noise.
MIN_DEVIATION = {"update_norm": 0.10, "grad_norm": 0.25, "loss": 0.10}
# Calibrated by benchmarks/alarms.py: one odd batch in 8 raises the loss of healthy runs, three do not.
MIN_LOSS_STEPS = 3
# Calibrated by benchmarks/alarms.py: gradients of small batches spike without moving the weights.
SIGMA_FACTORS = {"grad_norm": 2.0}
# Heuristic: layers whose own score is at least half of the largest are named.
MIN_NAMED_SHARE = 0.5

_WORDS = {"update_norm": "update", "grad_norm": "gradient", "loss": "loss"}
Spikes = Mapping[str, tuple[int, float]]
"""By metric, the step of the largest spike and its score in standard deviations."""


@check(
    code="T801",
    name="spike",
    since="0.1.0",
    needs=("update_norm", "grad_norm", "loss"),
    every=8,
    sick=scalar_history(
        200, update_norm=lambda step: noisy(constant(1.0), 0.05)(step) * (30.0 if step == 195 else 1.0)
    ),
    healthy=scalar_history(200, update_norm=noisy(constant(1.0), 0.3), loss=noisy(constant(2.0), 0.1)),
)
def spike(history: History) -> Iterator[Symptom]:
    r"""One step is far larger than the steps before it.

    ## What it measures
    For each of the last `RECENT_STEPS` = 8 steps, and of all steps before them since the last look, how many robust
    standard deviations the logarithms of the update norm (divided by the learning rate, so that a schedule is no
    spike), the gradient norm and the loss lie above the median of the `WINDOW` = 128 steps before. Fires at
    `MIN_SIGMAS` = 6 for the update, at twice that for the gradient, which clipping or the optimizer may tame (a
    warning), and at 6 for the loss if it lasts `MIN_LOSS_STEPS` = 3 steps of 8 (an error).

    ## Why it hurts
    Update norms move first: a gradient that the optimizer's running averages did not expect makes one step many times
    as large as usual, and the loss follows one step later. Some spikes heal within a few hundred steps; the others cost
    the run. Skipping or clipping that one step costs nothing.

    ## When it is wrong
    Data whose batches differ by nature (a rare language, a long document) make real spikes of the gradient that
    clipping removes. A change of the batch or of the loss by hand looks like one. In the first one or two hundred
    steps, while norms still fall from where they start, the window is wide and only large spikes are seen.

    ## References
    OLMo-core, `SkipStepOptimizer` (6 standard deviations over 128 steps); Chowdhery et al., "PaLM", 2022, section 5.1
    (spikes, and skipping the batches before them); Molybog et al., "A theory on Adam instability in large-scale
    machine learning", 2023 (update norms before a spike).
    """
    largest = {name: _largest_since_check(history, name) for name in MIN_DEVIATION}
    scored = {name: each for name, each in largest.items() if each is not None}
    spikes = {
        name: each for name, each in scored.items() if each[1] >= MIN_SIGMAS * SIGMA_FACTORS.get(name, 1.0)
    }
    if not spikes:
        return
    since = min(step for step, _ in spikes.values())
    worst = max(spikes, key=lambda name: spikes[name][1])
    where, layers = _layers(history, since)
    step, sigmas = spikes[worst]
    yield Symptom(
        severity="error" if "loss" in spikes else "warning",
        where=where,
        layers=layers,
        since=since,
        message=f"the {_WORDS[worst]} of step {step} lies {sigmas:.1f} standard deviations above the {WINDOW} steps "
        f"before it{_order(spikes)}",
        action=_action(since, in_loss="loss" in spikes),
        forecast="" if "loss" in spikes else "if the loss follows, it does so within a few steps",
        evidence={f"{name}_sigmas": each[1] for name, each in scored.items()},
    )


def _action(since: int, *, in_loss: bool) -> str:
    if in_loss:
        return f"Clip gradients, and go back to a checkpoint from before step {since} if the loss does not recover."
    return 'Clip gradients with `clip_grad_norm_`, or skip such steps with `leadline.watch(..., on_alert="skip_step")`.'


def _largest_since_check(history: History, name: str) -> tuple[int, float] | None:
    """The largest spike since checks last looked: in a fast loop these may be hundreds of steps."""
    reach = max(1, len(history.steps_since_check(name))) + RECENT_STEPS - 1
    window = _positive_values(history, name, WINDOW + reach)
    if len(window) < MIN_WINDOW + RECENT_STEPS:
        return None
    if max(window.values[-reach:]) < min(window.values) * _min_factor(name):
        return None
    stride = RECENT_STEPS - MIN_LOSS_STEPS + 1  # derived: any MIN_LOSS_STEPS in a row share one group
    ends = range(len(window), len(window) - reach + RECENT_STEPS - stride, -stride)
    groups = (_part(window, max(0, end - WINDOW - RECENT_STEPS), end) for end in ends)
    scores = [_score_recent(group, name) for group in groups]
    return max((each for each in scores if each is not None), key=lambda each: each[1], default=None)


def _positive_values(history: History, name: str, last: int) -> Window:
    """The last positive finite values; updates are divided by the learning rate of their step."""
    series = history.scalars(name, last)
    values = series.values
    if name == "update_norm":
        rate_series = history.scalars("lr", last)
        rates = dict(zip(rate_series.steps, rate_series.values, strict=True))
        pairs = zip(series.steps, values, strict=True)
        values = [value / rates[step] if rates.get(step, 0.0) > 0 else value for step, value in pairs]
    if all(0 < value < math.inf for value in values):
        return Window(steps=series.steps, values=values)
    positive = [
        (step, value) for step, value in zip(series.steps, values, strict=True) if 0 < value < math.inf
    ]
    return Window(steps=[step for step, _ in positive], values=[value for _, value in positive])


def _part(window: Window, first: int, end: int) -> Window:
    return Window(steps=window.steps[first:end], values=window.values[first:end])


def _min_factor(name: str) -> float:
    """How many times the median a spike is at least, in a window with the smallest deviation."""
    return math.exp(MIN_SIGMAS * MIN_DEVIATION[name])


def _score_recent(window: Window, name: str) -> tuple[int, float] | None:
    """Step and score of the recent value that counts; None if it is not large, or has too little to compare with.

    The value that counts is the largest one. Of the loss it is the `MIN_LOSS_STEPS`-th largest, so that one odd batch
    is no spike, dated to the first step that is as large. A score is at most the distance from the median over
    `MIN_DEVIATION`; this quick bound saves the logarithms of the whole window.
    """
    if len(window) < MIN_WINDOW + RECENT_STEPS:
        return None
    recent = sorted(
        zip(window.values[-RECENT_STEPS:], window.steps[-RECENT_STEPS:], strict=True), reverse=True
    )
    count = MIN_LOSS_STEPS if name == "loss" else 1
    value, step = recent[count - 1][0], min(each for _, each in recent[:count])
    earlier = window.values[:-RECENT_STEPS]
    if value < median_low(earlier) * _min_factor(name):
        return None
    logarithms = [math.log(each) for each in earlier]
    return step, score(math.log(value), logarithms, min_deviation=MIN_DEVIATION[name])


def _order(spikes: Spikes) -> str:
    """Which metric moved first, if more than one did."""
    if len(spikes) < 2:
        return ""
    first = min(spikes, key=lambda name: spikes[name][0])
    return f"; the {_WORDS[first]} moved first, at step {spikes[first][0]}"


def _layers(history: History, since: int) -> tuple[str, tuple[int, int] | None]:
    """The layers whose own update (or gradient) stood out at that step."""
    for name in ("update_norm", "grad_norm"):
        recordings = history.recent(name)
        if since not in recordings.steps or recordings.steps.index(since) < RECENT_STEPS:
            continue
        at = recordings.steps.index(since)
        scores = [
            _column_score(recordings.column(index)[: at + 1], MIN_DEVIATION[name])
            for index in range(len(recordings.rows[at]))
        ]
        largest = max(scores, default=0.0)
        if largest >= MIN_SIGMAS:
            named = [index for index, each in enumerate(scores) if each >= MIN_NAMED_SHARE * largest]
            return locate_parameters(history.layout, named)
    return "the whole model", None


def _column_score(column: list[float], min_deviation: float) -> float:
    values = [math.log(each) for each in column if 0 < each < math.inf]
    return score(values[-1], values[:-1], min_deviation=min_deviation) if len(values) > RECENT_STEPS else 0.0
