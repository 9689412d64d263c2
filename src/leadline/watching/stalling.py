"""Losses that come and steps that do not: a silent optimiser, or a scaler that skips every step.

A step hook is called by a step. When none comes, the only sign of life are the losses that are told.
"""

from __future__ import annotations

from torch import Tensor

from leadline.alarms.alarm import Symptom

FIRST = 1024  # losses told before there ever was a step; ours: more micro-batches than anybody adds up
FEWEST = 64  # losses told since the last step; ours: a window that alarms look at, halved
FEWEST_AT_END = 8  # the same when the watch is closed; ours: short runs are told too
TIMES = 4  # as many losses as the step that had the most; ours


class Patience:
    """How many losses may be told before a step is missed. Those that nobody could step by do not count."""

    def __init__(self) -> None:
        self.losses = FIRST
        """As many of one step are too many."""
        self.waiting = 0
        """Losses with a graph that were told since the last step."""
        self._most = 0

    def wears_out(self, loss: Tensor | float) -> bool:
        """A loss was told; whether it is one too many."""
        if isinstance(loss, Tensor) and loss.requires_grad:
            self.waiting += 1
        return self.waiting >= self.losses

    def stepped(self) -> None:
        """A step was made."""
        if self.waiting > self._most or self.losses == FIRST:
            self._most = max(self.waiting, self._most)
            self.losses = max(FEWEST, TIMES * self._most)
        self.waiting = 0

    @property
    def is_over(self) -> bool:
        """Whether too many wait for a step at the end of a run."""
        return self.waiting >= max(FEWEST_AT_END, TIMES * self._most)

    @property
    def never(self) -> bool:
        """There was no step yet."""
        return self.losses == FIRST


def no_step(step: int, losses: int, *, never: bool) -> Symptom:
    """T811 when nothing but silence is known."""
    begun = f"{losses} losses were told" if never else f"{losses} losses were told since step {step - 1}"
    return Symptom(
        severity="warning" if never else "error",
        where="the optimiser",
        since=step,
        message=f"{begun}, and the optimiser that is watched has not stepped: another one steps, a GradScaler skips "
        "every step, or optimizer.step() is not called",
        forecast="nothing of this is watched" if never else "",
        evidence={"losses": float(losses)},
    )


def skips_all(step: int, losses: int, scale: float, skipped: int) -> Symptom:
    """T809 when the scaler is known, and its scale has fallen."""
    return Symptom(
        severity="error",
        where="the loss scale",
        since=step,
        message=f"no step in {losses} losses: the scaler has skipped {skipped} steps in a row, for a gradient was not "
        f"finite, and its scale is down to {scale:.3g}",
        forecast="a scale that goes on falling does not cure it",
        evidence={"loss_scale": scale, "halvings": float(skipped)},
    )
