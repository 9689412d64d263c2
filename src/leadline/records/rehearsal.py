"""The rehearsal: what the first steps of training do on a few batches; they are undone afterwards."""

from __future__ import annotations

import math
from collections.abc import Sequence
from statistics import median

import msgspec

# Calibrated by benchmarks/verdicts: share of the loss to beat; any value from 0.1 to 0.2 separates the cases as well.
MIN_LEARNED_PROGRESS = 0.2
# Heuristic: half of the loss to beat is gone; more steps would not change the answer.
CLEAR_PROGRESS = 0.5
# Heuristic: half of the progress that is clear, on samples that the steps did not see.
MIN_GENERAL_PROGRESS = CLEAR_PROGRESS / 2
# Heuristic: half-way to having learned is enough for a loss that falls without interruption.
MIN_FALLING_PROGRESS = MIN_LEARNED_PROGRESS / 2
# Heuristic: a reference that learns less than this says nothing about what can be learned.
MIN_REFERENCE_PROGRESS = 0.05
# Heuristic: multiple of the first loss, far above the noise of a batch; 1.2 separates the cases as well.
MAX_START_MULTIPLE = 2.0
# Heuristic: multiple of the lowest loss so far; a fall is steady if no rise interrupts it by more than a tenth.
MAX_STEADY_RISE = 1.1
# Calibrated by benchmarks/verdicts: loss over the lowest loss before it; 1.1 to 1.5 separate equally many networks.
MAX_RISE = 1.3
# Calibrated by benchmarks/verdicts: steps after which networks that learn have done so, or most failures show.
MIN_FAILING_STEPS = 16
# Calibrated by benchmarks/verdicts: 29 of 30 networks that reached their target had learned by then.
MIN_STUCK_STEPS = 64
# Heuristic: a loss that still falls after 64 steps is followed for four times as long.
MAX_REHEARSAL_STEPS = 256
# Heuristic: share of the loss that the last quarter of the steps must remove for a loss that still falls.
MIN_MOVING_FALL = 2e-3
# Heuristic: the loss of earlier steps over that of later ones; less may be the noise of steps that are too long.
MIN_SETTLING_FALL = 1.3
# Heuristic: steps at the present pace to the loss of a constant output; no training of this length is called short.
MAX_STEPS_TO_CONSTANT = 1000.0


class ReferenceRun(msgspec.Struct, frozen=True, kw_only=True):
    """The same network trained on the same batches by a plain recipe: Adam on all parameters, without decay."""

    losses: tuple[float, ...]
    """Before the first step and after each step, each on the batch whose turn it is."""
    lr: float
    is_reset: bool
    """Its layers were initialized anew, as torch does it; otherwise it starts from the user's weights."""
    held_out: float | None = None
    """Lowest loss on the samples that it is not trained on, of those after 8, 16, 32 ... steps."""


class Rehearsal(msgspec.Struct, frozen=True, kw_only=True):
    r"""Losses while the user's optimizer makes a few steps, on each of a few batches in turn.

    Learning begins where the outputs depend on the inputs: the loss then falls below that of the best constant output,
    $L_c$, which belongs to the targets alone (for classes, the entropy of their shares). Progress is
    $p = (L_s - L_n) / (L_s - L_f)$ with $L_s = \min(L_0, L_c)$, the loss $L_n$ after the last step and $L_0$ before the
    first. No output has a loss below $L_f$, which is 0 unless targets are uncertain (soft labels, gray pixels).
    With several batches, $L_0$ and $L_n$ are means over all of them.
    """

    losses: tuple[float, ...]
    """Before the first step and after each step, each on the batch whose turn it is; the last may be NaN."""
    constant: float | None = None
    """$L_c$; None if it cannot be derived from the targets."""
    fresh: float | None = None
    """Where $L_c$ is not known, the loss of the network with new weights, as torch's own initializers make them."""
    floor: float = 0.0
    """$L_f$."""
    starts: tuple[float, ...] = ()
    """Before the first step, on each of several batches that take turns; empty for one batch."""
    held_out: float | None = None
    """Lowest loss on samples that the steps do not see, after 8, 16, 32 ... steps or at the end; None without them.

    It is that of evaluation mode: without dropout, and with the running statistics that the steps leave in batch norms.
    """
    held_out_in_training: float | None = None
    """Lowest loss on these samples in training mode."""
    held_out_early: float | None = None
    """The lowest loss on these samples within as many steps as a reference makes."""
    is_split: bool = False
    """The case has one batch, so the steps see half of its samples, and the others are held out."""
    error: str = ""
    """What the model raised after the last step, whose loss is NaN; "" if it ran."""
    references: tuple[ReferenceRun, ...] = ()
    """What plain recipes reach in a few steps; empty if the answer was clear without them."""

    @property
    def steps(self) -> int:
        return len(self.losses) - 1

    @property
    def batches(self) -> int:
        """How many batches take turns."""
        return max(len(self.starts), 1)

    @property
    def first(self) -> float:
        """$L_0$."""
        return self._mean(self.starts or self.losses[:1])

    @property
    def last(self) -> float:
        """$L_n$; NaN if a loss became non-finite."""
        return self._mean(self.losses[-self.batches :])

    @property
    def to_beat(self) -> float:
        """$L_s$; where it is known, no more than the first loss of the network with new weights."""
        starts = [run.losses[0] for run in self.references if run.is_reset and math.isfinite(run.losses[0])]
        return min(each for each in (self.first, self.constant, self.fresh, *starts) if each is not None)

    @property
    def beginning(self) -> Rehearsal:
        """The first steps, after which most networks that learn have done so."""
        return self.after(MIN_FAILING_STEPS)

    @property
    def progress(self) -> float | None:
        """$p$; minus infinity if the loss became non-finite; None if there is no positive loss to beat."""
        return self.progress_at(self.last)

    @property
    def held_out_progress(self) -> float | None:
        """Progress on the batch that the steps do not see; None without one."""
        return None if self.held_out is None else self.progress_at(self.held_out)

    def progress_at(self, loss: float) -> float | None:
        """The progress of a training that ends with this loss; None if there is no positive loss to beat."""
        start, floor = self.to_beat, self.floor
        if not math.isfinite(start) or start <= floor:
            return None
        return (start - loss) / (start - floor) if math.isfinite(loss) else -math.inf

    def end_of(self, run: ReferenceRun) -> float:
        """The loss of a reference at its end, over all batches; NaN if it became non-finite."""
        return self._mean(run.losses[-self.batches :])

    @property
    def best_reference(self) -> ReferenceRun | None:
        """The reference that ends lowest; None if none was trained, or none stayed finite."""
        finite = [each for each in self.references if math.isfinite(self.end_of(each))]
        return min(finite, key=self.end_of, default=None)

    @property
    def generalizes(self) -> bool:
        """A reference, or training mode, shows that held-out samples have something in common with the others."""
        in_training = self.held_out_in_training
        own = None if in_training is None else self.progress_at(in_training)
        return max(self._held_out_reference, -math.inf if own is None else own) > MIN_REFERENCE_PROGRESS

    @property
    def held_out_share(self) -> float | None:
        """Progress on the held-out samples over that of the better reference; None if none of them generalizes."""
        progress = None if self.held_out_early is None else self.progress_at(self.held_out_early)
        reference = self._held_out_reference
        return progress / reference if progress is not None and reference > MIN_REFERENCE_PROGRESS else None

    @property
    def _held_out_reference(self) -> float:
        losses = [each.held_out for each in self.references if each.held_out is not None]
        progress = [self.progress_at(loss) for loss in losses]
        return max((each for each in progress if each is not None), default=-math.inf)

    def share_of(self, run: ReferenceRun) -> float | None:
        """The progress over that of a reference after as many steps; None if the reference learned nothing either."""
        reached, progress = self.progress_at(self.end_of(run)), self.after(len(run.losses) - 1).progress
        if reached is None or progress is None or not reached > MIN_REFERENCE_PROGRESS:
            return None
        return progress / reached

    def after(self, steps: int) -> Rehearsal:
        """The rehearsal as it was after so many steps; the losses at its end are not known then."""
        return msgspec.structs.replace(
            self,
            losses=self.losses[: steps + 1],
            held_out=None,
            held_out_in_training=None,
            held_out_early=None,
            references=(),
        )

    @property
    def relative_fall(self) -> float | None:
        """Fall of the loss as a share of the first loss; None if that is not positive."""
        first, last = self.first, self.last
        if not 0 < first < math.inf:
            return None
        return (first - last) / first if math.isfinite(last) else -math.inf

    @property
    def rise(self) -> float:
        """The highest loss over the lowest before it on the same batch; 1 if the loss only falls."""
        if not self.starts:
            return _rise(self.losses)
        return max(_rise((start, *self.losses[i :: self.batches])) for i, start in enumerate(self.starts))

    @property
    def has_spike(self) -> bool:
        """Some step raised the loss far above the first loss, and it did not come back for the last quarter.

        One batch can be learned by heart with steps that are far too long, so coming back counts only on several.
        """
        start = max(self.starts or self.losses[:1])
        recent = self.losses[-max(len(self.losses) // 4, 1) :]
        is_long = self.batches > 1 and len(self.losses) > MIN_FAILING_STEPS
        is_back = is_long and all(loss <= start for loss in recent)
        return not is_back and any(not loss <= MAX_START_MULTIPLE * start for loss in self.losses)

    @property
    def learned(self) -> bool:
        """The loss fell well below that of a constant output, without a spike."""
        progress = self.progress
        return progress is not None and progress > MIN_LEARNED_PROGRESS and not self.has_spike

    @property
    def has_fallen_far(self) -> bool:
        """On the samples that the steps see, half of the loss to beat is gone."""
        return (self.progress or 0.0) > CLEAR_PROGRESS and not self.has_spike

    @property
    def steps_to_fall_far(self) -> int:
        """Steps after which half of the loss to beat was gone for the first time; all steps if it never was."""
        for step in range(self.batches, self.steps):
            progress = self.progress_at(self._mean(self.losses[step + 1 - self.batches : step + 1]))
            if progress is not None and progress > CLEAR_PROGRESS:
                return step
        return self.steps

    @property
    def is_clear(self) -> bool:
        """It learned so much that neither more steps nor a comparison could change the answer."""
        return self.has_fallen_far and not self.only_memorizes

    @property
    def only_memorizes(self) -> bool:
        """It learned little of what also holds for the samples that it did not see; False if none are held out."""
        progress = self.held_out_progress
        return progress is not None and progress < MIN_GENERAL_PROGRESS

    @property
    def shows_learning(self) -> bool:
        """It learned on several batches, or in the first steps on one: with more steps, one can be learned by heart."""
        return self.learned if self.batches > 1 else self.beginning.learned

    @property
    def falls(self) -> bool:
        """The loss falls steadily, and well below that of a constant output."""
        progress = self.progress
        return progress is not None and progress > MIN_FALLING_PROGRESS and self.rise < MAX_STEADY_RISE

    @property
    def pace(self) -> float:
        """Fall of the loss per step, from the mean of the third quarter of the steps to that of the last."""
        size = max(len(self.losses) // 4, 1)
        before, after = self.losses[-2 * size : -size] or self.losses[:1], self.losses[-size:]
        return (self._mean(before) - self._mean(after)) / size

    @property
    def is_moving(self) -> bool:
        """The last quarter of the steps lowered the loss by a part that shows."""
        return self.pace * self.steps / 4 > MIN_MOVING_FALL * (self.last - self.floor)

    @property
    def steps_to_constant(self) -> float:
        """Steps at this pace until the loss of a constant output is reached; 0 if it is reached, or unknown."""
        if self.constant is None or not math.isfinite(self.last) or self.last <= self.constant:
            return 0.0
        return (self.last - self.constant) / self.pace if self.pace > 0 else math.inf

    @property
    def is_too_slow(self) -> bool:
        """It would take a thousand steps merely to learn how frequent each answer is."""
        return self.steps_to_constant > MAX_STEPS_TO_CONSTANT

    @property
    def crawls(self) -> bool:
        """The loss falls without interruption, and too slowly."""
        return self.is_too_slow and self.rise < MAX_STEADY_RISE

    @property
    def settles(self) -> bool:
        """In spite of its ups and downs the loss is far lower in the last quarter of the steps than in the second."""
        quarter = len(self.losses) // 4
        if not quarter or not math.isfinite(self.last):
            return False
        return median(self.losses[-quarter:]) * MIN_SETTLING_FALL < median(self.losses[quarter : 2 * quarter])

    @property
    def is_restless(self) -> bool:
        """Some step raised the loss, and it neither settles nor ends better than that of a constant output."""
        progress = self.progress
        is_rising = progress is not None and self.rise > MAX_RISE and progress < MIN_FALLING_PROGRESS
        return is_rising and not self.settles

    @property
    def steps_to_learn(self) -> float:
        """Further steps until the network has learned, at the pace of the last quarter of the steps."""
        missing = self.last - self.to_beat + MIN_LEARNED_PROGRESS * (self.to_beat - self.floor)
        if not missing > 0:
            return 0.0
        return missing / self.pace if self.pace > 0 else math.inf

    @property
    def approaches(self) -> bool:
        """At its exponential rate of approach, the loss is near that of a constant output in as many steps."""
        if self.constant is None or not math.isfinite(self.last):
            return False
        size = max(len(self.losses) // 4, 1)
        before = self._mean(self.losses[-2 * size : -size] or self.losses[:1]) - self.constant
        after = self._mean(self.losses[-size:]) - self.constant
        near = MIN_FALLING_PROGRESS * (self.constant - self.floor)
        return near < after < before and math.log(after / near) <= 4 * math.log(before / after)

    @property
    def is_stuck(self) -> bool:
        """After all steps the loss is still that of a constant output (or of the start, if that is unknown).

        A loss that still moves is stuck only if the longest rehearsal leaves it above that of a constant output, and it
        does not approach that fast. A network that begins below the loss of a constant output has learned before.
        """
        if self.steps < MIN_STUCK_STEPS or not math.isfinite(self.last) or self.is_restless:
            return False
        if self.is_moving and (self.steps < MAX_REHEARSAL_STEPS or self.approaches):
            return False
        if self.constant is None:
            return self.last >= self.first
        needed = 0.0 if self.is_moving else MIN_FALLING_PROGRESS
        return self.last > self.constant - needed * (self.constant - self.floor)

    @property
    def is_undecided(self) -> bool:
        """After all steps the loss is not well below that of a constant output."""
        progress = self.progress
        return self.steps >= MIN_STUCK_STEPS and progress is not None and progress < MIN_FALLING_PROGRESS

    @staticmethod
    def _mean(losses: Sequence[float]) -> float:
        return sum(losses) / len(losses)


def _rise(losses: Sequence[float]) -> float:
    """The highest of these losses over the lowest before it; infinite if one is not finite."""
    lowest, highest = losses[0], 1.0
    for loss in losses:
        if not math.isfinite(loss):
            return math.inf
        lowest, highest = min(lowest, loss), max(highest, loss / lowest if lowest > 0 else 1.0)
    return highest
