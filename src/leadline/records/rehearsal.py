"""The Rehearsal: the first steps of training, made on the batch at hand and undone, without torch."""

from __future__ import annotations

import math

import msgspec

LEARNED = 0.2  # of the loss to beat; calibrated by benchmarks/verdicts: 0.1 to 0.2 tell as many cases apart
THROWN = 2.0  # times the first loss; ours: far above the noise of a batch, and 1.2 tells as many apart
STEADY = 1.1  # times the lowest loss so far; ours: a fall that is never interrupted by more than a tenth
FALLEN = (
    LEARNED / 2
)  # of the loss to beat; ours: half-way to having learned, by a fall that is not interrupted
CONSTANT_STEPS = (
    60.0  # calibrated by benchmarks/verdicts: networks that learned were at most 20 steps from it
)


class Rehearsal(msgspec.Struct, frozen=True, kw_only=True):
    r"""Losses of one batch while the user's own optimiser makes a few steps on it.

    Learning begins where the outputs depend on the inputs: the loss then falls below that of the best constant output,
    $L_c$, which belongs to the targets alone (for classes, the entropy of their shares in the batch). Progress is
    $p = (L_s - L_n) / L_s$ with $L_s = \min(L_0, L_c)$, the loss $L_n$ after the last step and $L_0$ before the first.
    """

    losses: tuple[float, ...]
    """Before the first step, and after each; the last may be no number."""
    constant: float | None = None
    """$L_c$; None where the targets do not tell."""

    @property
    def steps(self) -> int:
        return len(self.losses) - 1

    @property
    def progress(self) -> float | None:
        """$p$; minus infinity if the loss became no number; None where there is no positive loss to beat."""
        first = self.losses[0]
        return self._below(first if self.constant is None else min(first, self.constant))

    @property
    def fallen(self) -> float | None:
        """The share of the first loss that is gone, however high that was."""
        return self._below(self.losses[0])

    @property
    def rise(self) -> float:
        """The highest loss over the lowest before it: 1 where the loss only falls."""
        lowest, highest = self.losses[0], 1.0
        for loss in self.losses:
            if not math.isfinite(loss):
                return math.inf
            highest = max(highest, loss / lowest if lowest > 0 else 1.0)
            lowest = min(lowest, loss)
        return highest

    @property
    def thrown(self) -> bool:
        """Some step took the loss far above where it began."""
        return any(not loss <= THROWN * self.losses[0] for loss in self.losses)

    @property
    def learned(self) -> bool:
        """It got well below what a constant output reaches, and was not thrown about on the way."""
        progress = self.progress
        return progress is not None and progress > LEARNED and not self.thrown

    @property
    def falls(self) -> bool:
        """Step by step the loss goes down, and well below that of a constant output."""
        progress = self.progress
        return progress is not None and progress > FALLEN and self.rise < STEADY

    @property
    def ahead(self) -> float:
        """Steps at the pace so far until the loss of a constant output is reached; 0 where it is, or not known."""
        first, last = self.losses[0], self.losses[-1]
        if self.constant is None or not math.isfinite(last) or last <= self.constant or not self.steps:
            return 0.0
        return (last - self.constant) * self.steps / (first - last) if last < first else math.inf

    @property
    def crawls(self) -> bool:
        """It would take hundreds of steps merely to learn how often each answer is right."""
        return self.ahead > CONSTANT_STEPS

    def _below(self, start: float) -> float | None:
        last = self.losses[-1]
        if not math.isfinite(start) or start <= 0:
            return None
        return (start - last) / start if math.isfinite(last) else -math.inf
