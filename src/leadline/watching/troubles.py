"""What goes wrong with a step and is said at once: numbers that are none, skipped steps, steps that do not come."""

from __future__ import annotations

import math
from typing import Any

from torch import Tensor, nn

from leadline.alarms.timeline import first_cause, render
from leadline.records.run import Alert
from leadline.tracing.census import take_census
from leadline.tracing.lend import unwrap
from leadline.watching.autopsy import find_culprit
from leadline.watching.journal import Journal
from leadline.watching.scaling import Scaling
from leadline.watching.stalling import Patience, no_step, skips_all


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
        named = take_census(unwrap(self.model)).parameters
        culprit = find_culprit(loss, {key: each.names[0] for key, each in named.items()})
        if culprit is not None:
            self.journal.history.blamed.setdefault(step, culprit)

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
                data["timeline"] = render(cause)
            self.journal.event(step, "non-finite", f"{' and '.join(broken)} not finite", data)
        self.sick = bool(broken)
        return begins
