"""What goes wrong with a step and is reported at once: non-finite losses, skipped steps, silent optimizers."""

from __future__ import annotations

import math
from typing import Any

from torch import Tensor, nn

from leadline.checks._check import Symptom
from leadline.checks._timeline import first_cause, render_timeline
from leadline.monitor.journal import Journal
from leadline.monitor.mixed_precision import Scaling
from leadline.monitor.non_finite import find_culprit
from leadline.records.run import Alert
from leadline.tracer.inputs import unwrap
from leadline.tracer.names import index_model

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
        action="Watch the optimizer that steps, and make sure that the loop calls `optimizer.step()`.",
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
        action="Find the op whose gradient is not finite: a lower loss scale does not help.",
        forecast="a scale that goes on falling does not cure it",
        evidence={"loss_scale": scale, "halvings": float(skipped)},
    )


# What goes wrong with a step and is said at once: numbers that are none, skipped steps, steps that do not come.


class Troubles:
    """Keeps an eye on losses, the scale of mixed precision, and whether there are steps at all."""

    def __init__(self, model: nn.Module, journal: Journal) -> None:
        self.model, self.journal = model, journal
        self.scaling = Scaling()
        self.patience = Patience()
        self.sick = False
        """The last step had a number that is none."""

    def blame(self, step: int, loss: Tensor | float) -> None:
        """A loss that is no number: its graph knows which op made it, until the backward pass frees it."""
        if self.sick or not isinstance(loss, Tensor):
            return
        named = index_model(unwrap(self.model)).parameters
        culprit = find_culprit(loss, {key: each.names[0] for key, each in named.items()})
        if culprit is not None:
            self.journal.history.non_finite_origins.setdefault(step, culprit)

    def at_end(self, step: int) -> list[Alert]:
        """What is left to say when there will be no further step."""
        told = self.note_stall(step) if self.patience.is_over else []
        self.note_scale(step)
        return told

    def note_stall(self, step: int) -> list[Alert]:
        """Many losses and no step."""
        scale, skipped = self.scaling.read(peek=True)
        losses = self.patience.waiting
        if scale is not None and skipped:
            return self.journal.tell("T809", skips_all(step, losses, scale, skipped))
        return self.journal.tell("T811", no_step(step, losses, never=self.patience.never))

    def note_scale(self, step: int) -> float | None:
        scale, skipped = self.scaling.read()
        if skipped:
            what = f"{skipped} step{'s' if skipped > 1 else ''} skipped: gradients overflowed at their loss scale"
            self.journal.event(step, "skipped step", what, {"steps": skipped, "loss_scale": scale})
        return scale

    def note(self, step: int, scalars: dict[str, float]) -> bool:
        """Numbers that are no numbers: said when they begin; whether they do, so that the next pass is followed."""
        broken = [name for name in ("loss", "grad_norm") if not math.isfinite(scalars.get(name, 0.0))]
        begins = bool(broken) and not self.sick
        if begins:
            data: dict[str, Any] = {"parameters": int(scalars.get("non_finite", 0))}
            if (cause := first_cause(self.journal.history)) is not None:
                data["timeline"] = render_timeline(cause)
            self.journal.event(step, "non-finite", f"{' and '.join(broken)} not finite", data)
        self.sick = bool(broken)
        return begins
