"""The first-cause timeline: where the first NaN or infinity of a run came from, and what the steps before did."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from statistics import median

from leadline.checks._history import ABSENT, History
from leadline.checks._ranges import locate_parameters
from leadline.records import Anomaly, Profile
from leadline.records.run import FirstCause, NonFiniteMetric, StepScalars, Suspect

# Heuristic: as many steps as a terminal shows at once.
MAX_SHOWN_STEPS = 12
# Heuristic: what grew to twice its median before the end is a suspect.
MIN_SUSPECT_GROWTH = 2.0
# Heuristic: two recordings for the usual level, and the last two.
MIN_SUSPECT_RECORDINGS = 4
# Heuristic: the strongest suspects; a longer list hides them.
MAX_SUSPECTS = 5
SHOWN_METRICS = ("loss", "lr", "grad_norm", "update_norm", "weight_norm", "loss_scale")
# Derived: the order in which one step computes them.
STEP_ORDER: tuple[tuple[NonFiniteMetric, str], ...] = (
    ("loss", "loss"),
    ("gradient", "grad_norm"),
    ("update", "update_norm"),
    ("weight", "weight_norm"),
)


def first_cause(
    history: History,
    *,
    good: Profile | None = None,
    good_step: int | None = None,
    anomalies: Sequence[Anomaly] = (),
) -> FirstCause | None:
    """Where the first NaN or infinity of the history came from; None if everything is finite.

    `good` is the last profile of this run without non-finite values, taken at step `good_step`. `anomalies` are those
    of a trace of the broken step, if there is one: they name the op.
    """
    first = _first_non_finite(history)
    if first is None:
        return None
    step, metric = first
    where, layers = _place(history, step, metric)
    op = next((each for each in anomalies if not each.source), None)
    origin = history.non_finite_origins.get(step) if metric == "loss" else None
    known_op = op or origin
    precision = good.facts.precision if good is not None and good.facts else None
    return FirstCause(
        step=step,
        metric=metric,
        where=op.module if op and op.module else where,
        layers=layers,
        op=known_op.op if known_op else "",
        sentence=_sentence(history, step, metric, where, op),
        before=tuple(_moments(history, step)),
        suspects=tuple(sorted(_suspects(history, step), key=lambda each: -each.factor)[:MAX_SUSPECTS]),
        margin=precision.huge / precision.largest if precision and precision.largest else None,
        last_good=good_step,
    )


def _first_non_finite(history: History) -> tuple[int, NonFiniteMetric] | None:
    """The first step with a non-finite value, and which one came first in the order of a step."""
    skipped = _skipped_steps(history)
    candidates = []
    for rank, (metric, name) in enumerate(STEP_ORDER):
        series = history.scalars(name)
        bad = (s for s, v in zip(series.steps, series.values, strict=True) if not math.isfinite(v))
        step = next((s for s in bad if metric == "loss" or s not in skipped), None)
        if step is not None:
            candidates.append((step, rank))
    flags = history.scalars("non_finite")
    flagged = (s for s, v in zip(flags.steps, flags.values, strict=True) if v > 0 and s not in skipped)
    step = next(flagged, None)
    if step is not None:
        candidates.append((step, 1))
    if not candidates:
        return None
    first, rank = min(candidates)
    return first, STEP_ORDER[rank][0]


def _skipped_steps(history: History) -> set[int]:
    """Steps that mixed precision skipped: there is a loss scale, and no parameter moved."""
    scale, moved = history.scalars("loss_scale"), history.scalars("update_norm")
    if not scale.values:
        return set()
    return {step for step, each in zip(moved.steps, moved.values, strict=True) if each == 0}


def _place(history: History, step: int, metric: NonFiniteMetric) -> tuple[str, tuple[int, int] | None]:
    if metric == "loss":
        return "the forward pass", None
    name = {"gradient": "grad_norm", "update": "update_norm", "weight": "weight_norm"}[metric]
    rows = history.recent(name)
    if step not in rows.steps:
        return "the whole model", None
    row = rows.rows[rows.steps.index(step)]
    bad = [index for index, each in enumerate(row) if not math.isfinite(each)]
    if not bad:
        return "the whole model", None
    if metric != "gradient":
        return locate_parameters(history.layout, bad)
    return locate_parameters(history.layout, _deepest(history, bad))


def _deepest(history: History, bad: list[int]) -> list[int]:
    """The parameters in the last block: a non-finite gradient spreads to all blocks before the one that made it."""
    owners = history.layout.parameter_blocks
    block_of = {index: owners[index] for index in bad if index < len(owners)}
    blocks = [owner for owner in block_of.values() if owner is not None]
    if not blocks or any(owner is None and index > max(block_of) - 2 for index, owner in block_of.items()):
        return bad[-1:]
    return [index for index, owner in block_of.items() if owner == max(blocks)]


def _sentence(history: History, step: int, metric: NonFiniteMetric, where: str, op: Anomaly | None) -> str:
    if op is not None:
        direction = "forward" if op.direction == "forward" else "backward"
        module = op.module or "the model"
        return (
            f"at step {step} the {direction} pass of {op.op} in {module} produced the first non-finite value"
        )
    if metric == "loss":
        origin = history.non_finite_origins.get(step)
        source = origin.sentence if origin else "the forward pass or the batch made it so"
        return f"at step {step} the loss is not finite: {source}{_unrecorded_clause(history, step)}"
    if metric == "gradient" and history.ranks > 1:
        return (
            f"at step {step} the loss of this rank is finite but the gradients, which all ranks share, are not: "
            f"another rank produced them, or the backward pass broke at {where}"
        )
    return {
        "gradient": f"at step {step} the loss is finite but gradients are not: the backward pass broke at {where}",
        "update": f"at step {step} loss and gradients are finite but the optimizer's update is not, at {where}",
        "weight": f"at step {step} weights are not finite, at {where}",
    }[metric]


def _unrecorded_clause(history: History, step: int) -> str:
    """That it may have begun before this step, if the losses just before it were not recorded."""
    before = max((each for each in history.scalars("loss").steps if each < step), default=step - 1)
    return f"; the losses since step {before} were not recorded" if step - before > 1 else ""


def _moments(history: History, step: int) -> Iterator[StepScalars]:
    table: dict[int, dict[str, float]] = {}
    for name in SHOWN_METRICS:
        series = history.scalars(name)
        for at, value in zip(series.steps, series.values, strict=True):
            if at <= step:
                table.setdefault(at, {})[name] = value
    for at in sorted(table)[-MAX_SHOWN_STEPS:]:
        yield StepScalars(step=at, scalars=table[at])


def _suspects(history: History, step: int) -> Iterator[Suspect]:
    for name, word in (("loss", "the loss"), ("grad_norm", "the gradient"), ("update_norm", "the update")):
        series = history.scalars(name)
        yield from _grown(word, series.steps, series.values, step)
    for name, word in (("grad_norm", "gradient"), ("update_norm", "update"), ("weight_norm", "norm")):
        rows = history.recent(name)
        for index in range(len(rows.rows[-1]) if rows.rows else 0):
            label = history.layout.parameters[index] if index < len(history.layout.parameters) else str(index)
            yield from _grown(f"the {word} of {label}", rows.steps, rows.column(index), step)


def _grown(what: str, steps: Sequence[int], values: Sequence[float], end: int) -> Iterator[Suspect]:
    measured = [
        (s, v) for s, v in zip(steps, values, strict=True) if s <= end and math.isfinite(v) and v > ABSENT
    ]
    if len(measured) < MIN_SUSPECT_RECORDINGS:
        return
    usual = median(value for _, value in measured[:-2])
    last = measured[-1][1]
    if usual <= 0 or last < MIN_SUSPECT_GROWTH * usual:
        return
    calm = [at for at, value in measured if value < MIN_SUSPECT_GROWTH * usual]
    since = next((at for at, _ in measured if not calm or at > calm[-1]), measured[-1][0])
    yield Suspect(what=what, factor=last / usual, since=since)


def render_timeline(cause: FirstCause) -> str:
    """The timeline as plain text."""
    lines = [cause.sentence[0].upper() + cause.sentence[1:] + ".", ""]
    names = [name for name in SHOWN_METRICS if any(name in each.scalars for each in cause.before)]
    lines.append("  " + f"{'step':>8}" + "".join(f"{name:>13}" for name in names))
    for each in cause.before:
        mark = ">" if each.step == cause.step else " "
        cells = "".join(f"{_number(each.scalars.get(name)):>13}" for name in names)
        lines.append(f"{mark} {each.step:>8}{cells}")
    if cause.suspects:
        lines += ["", "Before that step:"]
        lines += [
            f"  {each.what} grew to {each.factor:.3g} times its usual size from step {each.since} on"
            for each in cause.suspects
        ]
    else:
        lines += [
            "",
            "Nothing grew before that step. Inspect its batch first.",
        ]
    if cause.margin is not None:
        at = f" at step {cause.last_good}" if cause.last_good is not None else ""
        lines.append(
            f"  the last finite trace{at} stayed a factor of {cause.margin:.3g} below the limit of its dtype"
        )
    return "\n".join(lines) + "\n"


def _number(value: float | None) -> str:
    return "-" if value is None else f"{value:.4g}"
