"""D905: padding changes the outputs of real positions."""

from __future__ import annotations

from collections.abc import Iterator

from leadline.checks._check import Symptom, check
from leadline.checks._wiring_examples import probed
from leadline.records import Profile


@check(
    code="D905",
    name="unmasked-padding",
    since="0.1.0",
    sick=probed("padding", [0.1] * 6 + [0.0] * 2, first=6, last=7, forbidden=[0, 1, 2, 3, 4, 5]),
    healthy=probed("padding", [0.0] * 8, first=6, last=7),
)
def unmasked_padding(profile: Profile) -> Iterator[Symptom]:
    r"""The content of padded positions changes the outputs of real ones.

    ## What it measures
    Where the inputs include a padding mask, the tokens at the padded positions are replaced by other tokens. The
    outputs at the positions that are not padded must stay as they were, and so must outputs without positions. The
    loss must not count predictions at padded positions, unless their target is a real token. Without a mask, an
    embedding with a `padding_idx` says what padding is.

    ## Why it hurts
    What a sample means then depends on how much padding the longest sample of its batch makes necessary. The mask is
    not passed on, has the wrong polarity, or is not used in a mean over positions.

    ## When it is wrong
    A model that ignores the mask on purpose, because all its sequences have the same length, has no padding.

    ## References
    PyTorch documentation, `torch.nn.MultiheadAttention` (`key_padding_mask`: True means ignored).
    """
    reading = profile.dependence
    probe = reading.of("padding") if reading else None
    if reading is not None and reading.padding_counted:
        yield Symptom(
            severity="warning",
            where="the loss",
            message=f"the loss counts {reading.padding_counted} predictions whose position and target are padding",
            action="Set the labels of padded positions to -100, or pass `ignore_index`.",
            evidence={"padding_counted": float(reading.padding_counted)},
        )
    if probe is not None and probe.forbidden:
        count = len(probe.forbidden)
        reached = f"of {count} samples" if probe.by_sample else f"at {count} positions that are not padded"
        yield Symptom(
            severity="warning",
            where="the model",
            message=f"replacing the padding of {probe.input or 'the inputs'} changes the outputs {reached}",
            action="Pass the padding mask to every attention and every mean over positions, with the polarity "
            "that they expect.",
            evidence={"outputs_reached": float(count), "largest_change": probe.largest},
        )
