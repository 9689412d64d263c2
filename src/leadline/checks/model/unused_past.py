"""D903: the prediction uses no earlier position."""

from __future__ import annotations

from collections.abc import Iterator

from leadline.checks._check import Symptom, check
from leadline.checks._wiring_examples import probed
from leadline.records import Profile


@check(
    code="D903",
    name="unused-past",
    since="0.1.0",
    sick=probed("past", [0.8] * 7 + [0.0], first=0, last=6),
    healthy=probed("past", [0.8] * 7 + [0.1], first=0, last=6),
)
def unused_past(profile: Profile) -> Iterator[Symptom]:
    r"""The prediction at the last position does not depend on any earlier position.

    ## What it measures
    In a sequence whose targets are its own later inputs, all inputs before the last position are replaced. The output
    at the last position must change. Where outputs have no positions, all positions but the first are replaced, and all
    but the last: some output must change in both cases.

    ## Why it hurts
    The network can learn only which token follows which. Its mask is inverted, its attention or recurrence is dead, or
    the state is not passed on.

    ## When it is wrong
    A bigram model does this on purpose. Branches that start at zero (ReZero, SkipInit) use the past once they open;
    where a matrix or scale is zero and has a gradient, nothing is said.

    ## References
    Karpathy, "The Unreasonable Effectiveness of Recurrent Neural Networks", 2015 (what a longer context adds).
    """
    probe = profile.dependence.of("past") if profile.dependence else None
    opens_later = profile.ledger is not None and profile.ledger.has_gates
    if probe is not None and probe.largest > 0 and probe.moved[-1] == 0 and not opens_later:
        yield Symptom(
            severity="warning",
            where="the model",
            message=f"replacing all {probe.last + 1} earlier positions does not change the output at the last one",
            action="Check the direction of the attention mask, and that state or attention output is really used.",
            evidence={"positions_changed": float(probe.last + 1)},
        )
    lone = profile.dependence.lone_readings if profile.dependence else ()
    for each in lone:
        if profile.dependence is not None and profile.dependence.axes_of(each.input) > 2 and not opens_later:
            yield Symptom(
                severity="warning",
                where="the model",
                message=f"replacing all positions of {each.input} but the {'first' if each.first else 'last'} changes "
                f"no output: only one of {each.last - each.first + 2} positions is read",
                action="Check which position the output is taken from, and that state or attention reaches it.",
                evidence={"positions_changed": float(each.last - each.first + 1)},
            )
