"""D907: the loss asks for the wrong position."""

from __future__ import annotations

from collections.abc import Iterator
from statistics import median

from leadline.checks._check import Symptom, check
from leadline.checks._wiring_examples import asked
from leadline.records import Profile, TargetOffset

# Heuristic: how many times as much an output moves with the input of its own position as with those of others. It is 1
# behind a bottleneck that sums up the sequence, and 4 or more where a position has a way of its own.
MIN_OWN_POSITION_RATIO = 2.0
# Heuristic: the share of positions that are asked for their own input; where some inputs are masked, it is smaller.
MIN_COPIED_SHARE = 0.99


def _example(offset: int) -> Profile:
    return asked(offset=TargetOffset(input="idx", axis=1, offset=offset, share=1.0, positions=100))


@check(
    code="D907",
    name="shifted-targets",
    since="0.1.0",
    sick=_example(2),
    healthy=_example(1),
)
def shifted_targets(profile: Profile) -> Iterator[Symptom]:
    r"""The target of each position is the input of the same position, or of one more than one step ahead.

    ## What it measures
    The target that the loss uses at each position is the class with the most negative gradient. It is compared with the
    input at the same position, at the next ones and at the one before. A language model predicts the next input, at an
    offset of 1. It counts from the last input that a position sees: an encoder-decoder makes the inputs of its decoder
    from the labels, one position later, so its offset from the labels is 0. In a network that also sees later
    positions, an offset of 0 or less from what a position sees is a note if that may be an autoencoder: some inputs are
    masked, or a change of later inputs moves the outputs before them about as much as their own, as after a
    bottleneck.

    ## Why it hurts
    With an offset of 0 the network learns to copy what it sees: the loss falls to zero and generation repeats its last
    token. With 2 the labels were shifted twice, once in the data and once in the model; the network learns to skip a
    token and never sees why.

    ## When it is wrong
    A copy task asks for the own position on purpose. Prediction of several tokens at once has heads with larger
    offsets in addition to the one at 1.

    ## References
    Radford et al., "Improving Language Understanding by Generative Pre-Training", 2018, equation 1; Hugging Face
    documentation (causal models shift `labels` inside the model).
    """
    offset = profile.question.offset if profile.question else None
    if offset is None:
        return
    ahead = offset.offset + _lag(profile)
    seen = ahead <= 0
    if ahead == 1 or (seen and not _sees_its_own_position(profile)):
        return
    what = (
        "its own position" if ahead == 0 else "the position before it" if seen else f"{ahead} positions ahead"
    )
    yield Symptom(
        severity="error" if not seen or is_causal(profile) or _copies(profile, offset.share) else "info",
        where=offset.input,
        message=f"the loss asks each position for the input of {what}, at {100 * offset.share:.0f} % of "
        f"{offset.positions} positions",
        action=_action(profile)
        if seen
        else "Shift the labels once: either in the data or in the model, not in both.",
        evidence={"offset": float(ahead), "share": offset.share},
    )


def _action(profile: Profile) -> str:
    shift = "Use `inputs = tokens[:, :-1]` and `targets = tokens[:, 1:]`"
    return (
        f"{shift}."
        if is_causal(profile)
        else f"{shift} with a causal mask, or mask the tokens to be predicted."
    )


def _lag(profile: Profile) -> int:
    """How many positions the last input that a position sees is before its own.

    It is 1 for a decoder that makes its inputs from the labels, and -1 where a position also sees the next input and is
    asked for the one after it.
    """
    probe = profile.dependence.of("future") if profile.dependence else None
    if probe is None or len(probe.moved) <= probe.first + 1:
        return 0
    lag = next((index for index, move in enumerate(probe.moved) if move), 0) - probe.first
    offset = profile.question.offset if profile.question else None
    if lag == -1 and offset is not None and offset.offset > 1:
        return -1
    return int(lag == 1)


def _sees_its_own_position(profile: Profile) -> bool:
    """Whether the output at a position changes with the input at that position."""
    probe = profile.dependence.of("future") if profile.dependence else None
    return probe is not None and probe.first < len(probe.moved) and probe.moved[probe.first] > 0


def _copies(profile: Profile, share: float) -> bool:
    """Whether every position is asked for the class that it is given, which reaches it past any bottleneck."""
    probe = profile.dependence.of("future") if profile.dependence else None
    has_classes = profile.question is not None and profile.question.classes is not None
    if probe is None or not has_classes or share < MIN_COPIED_SHARE or not 0 < probe.first < len(probe.moved):
        return False
    others, own = median(probe.moved[: probe.first]), median(probe.moved[probe.first :])
    # A decoder that makes its inputs from its labels sees them one position later, and the last one may wrap around.
    sees_its_own = MIN_OWN_POSITION_RATIO * probe.moved[probe.first] >= own
    return sees_its_own and own >= MIN_OWN_POSITION_RATIO * others


def is_causal(profile: Profile) -> bool:
    """Whether no output changes with the inputs of later positions."""
    probe = profile.dependence.of("future") if profile.dependence else None
    return probe is not None and not any(probe.moved[: probe.first])
