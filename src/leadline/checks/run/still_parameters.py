"""T811: parameters get a gradient but do not move."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from leadline.checks._check import Symptom, check
from leadline.checks._examples import BLOCKS, constant, every_block, vector_history
from leadline.checks._history import NOT_OPTIMIZED, History, Recordings
from leadline.checks._ranges import layer_names, locate_parameters
from leadline.records import Severity

# Heuristic: whoever trains less than half of a network does so on purpose.
MAX_FORGOTTEN_SHARE = 0.5
# Heuristic: one or two skipped steps do not count as standing still.
MIN_RECORDINGS = 16


@check(
    code="T811",
    name="still-parameters",
    since="0.1.0",
    needs=("update_norm", "grad_norm"),
    sick=vector_history(
        40,
        {"grad_norm": every_block(1.0), "update_norm": lambda _: [0.0, 0.0] + [0.1] * (BLOCKS - 2)},
        numbers={"lr": constant(0.1)},
    ),
    healthy=vector_history(
        40,
        {"grad_norm": every_block(1.0), "update_norm": every_block(0.1)},
        numbers={"lr": constant(0.1)},
    ),
    every=16,
    calm=128,
)
def still_parameters(history: History) -> Iterator[Symptom]:
    r"""Parameters have a gradient, but no step ever changes them.

    ## What it measures
    The parameters that had a nonzero gradient and an update of exactly zero in each of the last `MIN_RECORDINGS` = 16
    recordings, while the learning rate was not zero. After as many steps, also the parameters that require a gradient
    and are held by no watched optimizer. These are only a note if they are more than half of all: then only a head is
    trained, on purpose. An error if no parameter moves.

    ## Why it hurts
    The optimizer does not know these parameters (it was built before they were, or given `head.parameters()` only),
    the learning rate of their group is zero, or their dtype rounds every step away. They cost a backward pass and keep
    their initial values.

    ## When it is wrong
    Layers that are trained in turns by several optimizers stand still for a while.

    ## References
    Derived. Jiang et al., "Training with confidence: catching silent errors in deep learning training with automated
    proactive checks", 2025, collects silent errors of this kind.
    """
    updates, gradients = history.recent("update_norm"), history.recent("grad_norm")
    rates = history.scalars("lr", MIN_RECORDINGS).values
    if not gradients or (rates and min(rates) <= 0):
        return
    not_optimized: list[int] = []
    if (history.step or 0) - (history.first_step or 0) >= MIN_RECORDINGS - 1:
        not_optimized = [index for index, norm in enumerate(gradients.rows[-1]) if norm == NOT_OPTIMIZED]
    still = _still(updates.rows[-MIN_RECORDINGS:], gradients.rows[-MIN_RECORDINGS:])
    if still or not_optimized:
        yield _symptom(history, updates, still, not_optimized)


def _still(updates: Sequence[Sequence[float]], gradients: Sequence[Sequence[float]]) -> list[int]:
    """Indices of the parameters that had a gradient and did not move in each recording."""
    if len(updates) < MIN_RECORDINGS or len(gradients) < MIN_RECORDINGS:
        return []
    candidates = [
        index for index, update in enumerate(updates[-1]) if update == 0 and gradients[-1][index] > 0
    ]
    return [
        index
        for index in candidates
        if all(row[index] == 0 for row in updates) and all(row[index] > 0 for row in gradients)
    ]


def _symptom(history: History, updates: Recordings, still: list[int], not_optimized: list[int]) -> Symptom:
    count, affected = len(history.recent("grad_norm").rows[-1]), sorted([*still, *not_optimized])
    _, layers = locate_parameters(history.layout, affected)
    severity: Severity = "warning"
    message = f"{len(affected)} of {count} parameters require a gradient and never move: "
    if still and not any(update > 0 for update in updates.rows[-1]):
        severity = "error"
        message = (
            f"the optimizer steps but none of {count} parameters moves, though gradients come: their dtype rounds "
            "every step away, or the steps are empty"
        )
        action = "Keep weights in float32 (`torch.autocast` instead of `model.half()`), or raise the learning rate."
    elif not_optimized:
        severity = "info" if not still and len(not_optimized) > MAX_FORGOTTEN_SHARE * count else "warning"
        message += "no watched optimizer holds them"
        action = (
            "Add them with `optimizer.add_param_group(...)`, or freeze them with `requires_grad_(False)`."
        )
    else:
        message += "the learning rate of their group is zero, or their dtype rounds every step away"
        action = "Raise the learning rate of their parameter group, or keep them in float32."
    return Symptom(
        severity=severity,
        where=layer_names(history.layout.parameters, affected),  # their blocks may hold others that move
        layers=layers,
        since=_since(updates.steps, updates.rows, still) if still else history.first_step or 0,
        message=message,
        action=action,
        forecast="they stay as they are",
        evidence={"still": float(len(affected)), "parameters": float(count)},
    )


def _since(steps: list[int], rows: Sequence[Sequence[float]], still: list[int]) -> int:
    """The first recording after which none of them moved."""
    moving = [step for step, row in zip(steps, rows, strict=True) if any(row[index] > 0 for index in still)]
    return next((step for step in steps if not moving or step > moving[-1]), steps[-1])
