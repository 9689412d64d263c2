"""D935: a view moves an axis, and its elements stay where they are."""

from __future__ import annotations

from collections.abc import Iterator

from leadline.checks._check import Symptom, check, in_op
from leadline.checks._wiring_examples import SITE, with_parts
from leadline.records import MovedAxis, Profile

MOVED = MovedAxis(site=SITE, before=(8, 12, 32), after=(8, 4, 12, 8), axis=12)


@check(
    code="D935",
    name="scrambled-axes",
    since="0.2.0",
    sick=with_parts(moved_axes=(MOVED,)),
    healthy=with_parts(),
)
def scrambled_axes(profile: Profile) -> Iterator[Symptom]:
    r"""A `view` or `reshape` puts an axis into another place, which only a transpose can do.

    ## What it measures
    The shapes before and after each `view` and `reshape`. A view can join neighboring axes and take them apart. If an
    axis of the same length stands in another place afterward, and is no part of one of the old axes, its elements are
    not those of the old axis: $(N, T, h d)$ viewed as $(N, h, T, d)$ puts pieces of several positions into one.

    ## Why it hurts
    Heads, positions, channels or pixels are mixed in an order that has no meaning. The shapes fit, and the network
    learns what it can from neighbors that are none.

    ## When it is wrong
    Lengths may be equal by chance, and relative positions are shifted by such views on purpose: where a column is added
    before the view, all that follows selects from it, or axes were moved right before they are joined, nothing is said.
    Frames that are joined to longer ones, such as $(16, 4)$ to $(4, 16)$, are not reported either.

    ## References
    PyTorch documentation, `torch.Tensor.view` (the condition on strides) and `torch.permute`.
    """
    moved = [each for each in (profile.parts.moved_axes if profile.parts else ()) if not each.is_compared]
    for first in moved[:1]:
        yield Symptom(
            severity="warning",
            where=first.site.module or "the model",
            message=f"the axis of length {first.axis} changes its place in a view from {first.before} to "
            f"{first.after}, which leaves the elements where they are{in_op(first.site)}",
            action="Take the axes apart in their order first, and move them by `transpose` or `permute` afterward.",
            source=first.site.source,
            evidence={"views": float(len(moved))},
        )
