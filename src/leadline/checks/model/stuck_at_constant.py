"""U525: many steps, and still the loss of a constant output."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from msgspec.structs import replace

from leadline.checks._check import Symptom, check
from leadline.checks._examples import stack_with_update
from leadline.records import Profile, Rehearsal
from leadline.records.rehearsal import MAX_STEADY_RISE, MIN_STUCK_STEPS
from leadline.text import on_batches

# Derived: a dropout rate p adds noise of p / (1 - p) times the power of the signal, here three times.
MIN_NOISY_DROPOUT = 0.75
# Heuristic: multiple of the present learning rate; a smaller difference is within the error of the safe rate.
MIN_RATE_ROOM = 2.0


def _rehearsed(losses: Sequence[float]) -> Profile:
    return replace(stack_with_update(), rehearsal=Rehearsal(losses=tuple(losses), constant=2.2))


@check(
    code="U525",
    name="stuck-at-constant",
    since="0.1.0",
    sick=_rehearsed([2.3, *[2.19] * MIN_STUCK_STEPS]),
    healthy=_rehearsed([2.3 - 0.008 * step for step in range(MIN_STUCK_STEPS + 1)]),
)
def stuck_at_constant(profile: Profile) -> Iterator[Symptom]:
    r"""Many steps on the same few batches leave the loss at that of a constant output.

    ## What it measures
    A rehearsal: the user's optimizer makes 64 to `MAX_REHEARSAL_STEPS` = 256 steps on half of the batch (or on the
    first few in turn, if the case has more), which are undone. Fires if the last loss is less than
    `MIN_FALLING_PROGRESS` = 10 % below that of the best output that is the same for every sample (for classes, the
    entropy of their shares), and the last quarter of the steps lowered it by less than `MIN_MOVING_FALL` = 0.2 %. A
    loss that moves more is judged after 256 steps: fires if it is above that of a constant output and does not approach
    it fast. Where the loss of a constant output is unknown, the last loss must not be below the first. The warm-up of a
    `torch.optim.lr_scheduler` is shortened to 16 steps.

    ## Why it hurts
    A network learns first how frequent each answer is, which takes only the bias of its last layer. What depends on the
    inputs comes next. A few repeated batches can be learned by heart, so a network that does not even begin to will not
    do better on new ones. The signal is lost on the way (no skips, no norm, saturated or dead units), drowned in
    noise (dropout), absent (inputs that are all alike), or the steps are too short.

    ## When it is wrong
    The rehearsal uses the present learning rate, which a warm-up of your own may raise. Some networks leave a long
    plateau later. Where targets are noise and the network is small, even one batch takes longer to learn.

    ## References
    Andrej Karpathy, "A recipe for training neural networks", 2019 ("overfit one batch"). Thresholds:
    `benchmarks/verdicts`.
    """
    rehearsal = profile.rehearsal
    if rehearsal is None or not rehearsal.is_stuck:
        return
    rate = None if profile.update is None else profile.update.lr
    setting = "" if rate is None else f" at learning rate {rate:.3g}"
    first, last, constant = rehearsal.first, rehearsal.last, rehearsal.constant
    compared = "" if constant is None else f", where a constant output has {constant:.3g}"
    place = on_batches(rehearsal.batches, is_split=rehearsal.is_split)
    yield Symptom(
        severity="warning",
        where="the loss",
        message=f"{rehearsal.steps} steps{setting} {place} took the loss only from "
        f"{first:.3g} to {last:.3g}{compared}",
        action=_action(profile, rehearsal),
        evidence={"first": first, "last": last, "steps": float(rehearsal.steps)}
        | ({} if constant is None else {"constant": constant}),
    )


def _action(profile: Profile, rehearsal: Rehearsal) -> str:
    dropout = profile.facts.dropout if profile.facts else 0.0
    if dropout >= MIN_NOISY_DROPOUT:
        return f"Lower the dropout rate from p={dropout:.2g} to at most 0.5."
    rate = profile.update.lr if profile.update is not None else None
    safe = profile.update.safe_lr if profile.update is not None else None
    if rate and safe and safe > MIN_RATE_ROOM * rate and rehearsal.rise < MAX_STEADY_RISE:
        return f"Raise the learning rate toward {safe:.2g}, which is still safe."
    return (
        "Make the outputs depend on the inputs: add skip connections and norms between the layers, and check that "
        "the samples of a batch differ."
    )
