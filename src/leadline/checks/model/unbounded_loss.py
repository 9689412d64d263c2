"""D940: a loss without a minimum."""

from __future__ import annotations

from collections.abc import Iterator

from leadline.checks._check import Symptom, check
from leadline.checks._wiring_examples import asked
from leadline.records import Profile


@check(
    code="D940",
    name="unbounded-loss",
    since="0.2.0",
    sick=asked(unbounded_output=(64, 8)),
    healthy=asked(unbounded_output=None),
)
def unbounded_loss(profile: Profile) -> Iterator[Symptom]:
    r"""The loss falls without end when one of the outputs grows.

    ## What it measures
    With everything else held fixed, an output is multiplied by 64, 256 and 1024, and by the same numbers with a minus
    sign. Fires if the loss ends far below the first one and falls faster and faster: for the last enlargement by more
    than 8 times as much as for the one before. A loss with a minimum cannot do that, and a score that is maximized in
    proportion falls by 4 times as much.

    ## Why it hurts
    The optimizer has a way to lower the loss that has nothing to do with the data: it makes this output larger and
    larger. The loss falls to ever lower negative numbers until something overflows. A term with the wrong sign looks
    like this (a divergence, a penalty, a squared distance), also beside terms that are right.

    ## When it is wrong
    A constraint outside of the loss, such as clipped weights, may keep the output from growing.

    ## References
    Kingma and Welling, "Auto-encoding variational Bayes", 2014, appendix B (the sign of the divergence).
    """
    shape = profile.question.unbounded_output if profile.question else None
    if shape is not None:
        size = " x ".join(map(str, shape)) or "one number"
        yield Symptom(
            severity="error",
            where="the loss",
            message=f"the loss falls faster and faster, without end, when the output of shape {size} grows",
            action="Check the sign of each term of the loss that reads this output: penalties, divergences and "
            "squared distances are added.",
            evidence={"axes": float(len(shape))},
        )
