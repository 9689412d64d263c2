"""T811: parameters get a gradient and do not move."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from leadline.checks._check import Symptom, check
from leadline.checks._history import UNHELD, History, Rows
from leadline.checks._ranges import layer_names, of_parameters
from leadline.checks._run_examples import BLOCKS, constant, flat, sampled

MEANT = 0.5  # ours: who trains less than half of a network does so on purpose
STEPS = 16  # recordings in a row; ours: a skipped step or two are not it


@check(
    code="T811",
    name="still-parameters",
    since="0.1",
    needs=("update_norm", "grad_norm"),
    sick=sampled(
        40,
        {"grad_norm": flat(1.0), "update_norm": lambda _: [0.0, 0.0] + [0.1] * (BLOCKS - 2)},
        numbers={"lr": constant(0.1)},
    ),
    healthy=sampled(40, {"grad_norm": flat(1.0), "update_norm": flat(0.1)}, numbers={"lr": constant(0.1)}),
    every=16,
    calm=128,
)
def still_parameters(history: History) -> Iterator[Symptom]:
    r"""Parameters have a gradient, and no step ever changes them.

    ## What it measures
    In the last `STEPS` = 16 recordings, which parameters had a gradient that is not zero and an update of exactly
    zero each time, while the rate was not zero; and, once there were as many steps, which require a gradient and are
    held by no optimiser that is watched (a note if these are more than half: then only a head is trained, on purpose).
    An error if none moves at all.

    ## Why it hurts
    The optimiser does not know them (built before they were, or given `head.parameters()` only), their group's rate
    is zero, or their type rounds every step away. They cost a backward pass and stay as they were drawn.

    ## When it is wrong
    Layers that are trained in turns by several optimisers stand still for a while.

    ## References
    Derived. Jiang et al., "Training with confidence: catching silent errors in deep learning training with automated
    proactive checks", 2025, collects silent errors of this kind.
    """
    moved, pulled = history.recent("update_norm"), history.recent("grad_norm")
    rates = history.scalars("lr", STEPS).values
    if not pulled or (rates and min(rates) <= 0):
        return
    begun = (history.step or 0) - (history.began or 0) >= STEPS - 1
    unheld = [index for index, pull in enumerate(pulled.rows[-1]) if pull == UNHELD] if begun else []
    still = _still(moved.rows[-STEPS:], pulled.rows[-STEPS:])
    if still or unheld:
        yield _symptom(history, moved, still, unheld)


def _still(rows: Sequence[Sequence[float]], pulls: Sequence[Sequence[float]]) -> list[int]:
    """Those that were pulled at and did not move, each time."""
    if len(rows) < STEPS or len(pulls) < STEPS:
        return []
    candidates = [index for index, each in enumerate(rows[-1]) if each == 0 and pulls[-1][index] > 0]
    return [i for i in candidates if all(row[i] == 0 for row in rows) and all(row[i] > 0 for row in pulls)]


def _symptom(history: History, moved: Rows, still: list[int], unheld: list[int]) -> Symptom:
    count, found = len(history.recent("grad_norm").rows[-1]), sorted([*still, *unheld])
    _, layers = of_parameters(history.layout, found)
    nothing = bool(still) and not any(each > 0 for each in moved.rows[-1])
    meant = not still and len(unheld) > MEANT * count
    why = (
        "no optimiser that is watched holds them"
        if unheld
        else "their rate is zero, or their type rounds every step away"
    )
    return Symptom(
        severity="error" if nothing else "info" if meant else "warning",
        where=layer_names(history.layout.parameters, found),  # a block may hold others that move
        layers=layers,
        since=_since(moved.steps, moved.rows, still) if still else history.began or 0,
        message="the optimiser steps and no parameter moves, though gradients come: their type rounds every step away, "
        "or the steps are empty"
        if nothing
        else f"{len(found)} of {count} parameters require a gradient and never move: {why}",
        forecast="they stay as they are",
        evidence={"still": float(len(found)), "parameters": float(count)},
    )


def _since(steps: list[int], rows: Sequence[Sequence[float]], still: list[int]) -> int:
    """The first recording after which none of them moved."""
    moving = [step for step, row in zip(steps, rows, strict=True) if any(row[index] > 0 for index in still)]
    return next((step for step in steps if not moving or step > moving[-1]), steps[-1])
