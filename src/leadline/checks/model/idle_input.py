"""D906: an input that says nothing, or that nothing reads."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

from leadline.checks._check import Symptom, check, in_op
from leadline.checks._ranges import first_names
from leadline.checks._wiring_examples import fed
from leadline.records import InputUse, Profile


@check(
    code="D906",
    name="idle-input",
    since="0.1.0",
    sick=fed(InputUse(name="input", shape=(8, 4), used=True, visible=True, constant=True)),
    healthy=fed(InputUse(name="input", shape=(8, 4), used=True, visible=True)),
)
def idle_input(profile: Profile) -> Iterator[Symptom]:
    r"""An input is constant, or the loss does not depend on it.

    ## What it measures
    Whether all elements of an input are equal (of at least `MIN_TELLING_ELEMENTS` = 8, because the first state of an
    episode may be two zeros), whether some op of the model on the way to the loss reads it, and whether everything
    that reads it makes zeros of it. A decoder that gets nothing but noise is named, too: no prediction of a loss op is
    computed from an input then. Of inputs with several columns, all but the first and all but the last are replaced: an
    output must change in both cases.

    ## Why it hurts
    A network whose only input is constant can learn the average answer and nothing else. A loader that returns zeros, a
    column that was dropped, or an argument that `forward` ignores looks like this.

    ## When it is wrong
    Optional arguments may be given and not used. An unused input is therefore only a note, and so is a constant one as
    long as another input varies. If no input is used, it is a warning: then all answers are the same, unless the model
    draws random numbers.

    ## References
    Karpathy, "A Recipe for Training Neural Networks", 2019 (verify that the network trains on real inputs).
    """
    inputs = profile.dependence.inputs if profile.dependence else ()
    used = [each for each in inputs if each.visible]
    constant = [each for each in used if each.constant]
    if constant:
        alone = len(constant) == len(used)
        elements = sum(math.prod(each.shape) for each in constant)
        yield Symptom(
            severity="error" if alone else "info",
            where=constant[0].name,
            message=f"all {elements} elements of {first_names([each.name for each in constant])} are equal"
            + (", and the model has no other input" if alone else ""),
            action="Print one batch of your data loader and correct how it is read.",
            evidence={"constant_inputs": float(len(constant)), "used_inputs": float(len(used))},
        )
    if profile.question is not None and not profile.question.reads_inputs:
        yield Symptom(
            severity="warning",
            where="the loss",
            message="nothing that the loss compares with targets was computed from an input",
            action="Give the layers before the loss what was computed from the inputs, not noise or constants alone.",
            evidence={"inputs": float(len(inputs))},
        )
    erased = [(each, each.erased) for each in inputs if each.erased is not None]
    if erased:
        first, site = erased[0]
        yield Symptom(
            severity="warning",
            where=first.name,
            message=f"no element of {first_names([each.name for each, _ in erased])} is left: all become zero"
            f"{in_op(site)}",
            action="Look at the factor, the integer division or the threshold there, and keep the values.",
            source=site.source,
            evidence={"erased_inputs": float(len(erased))},
        )
    for lone in profile.dependence.lone_readings if profile.dependence else ():
        opens_later = profile.ledger is not None and profile.ledger.has_gates
        if profile.dependence is not None and profile.dependence.axes_of(lone.input) == 2 and not opens_later:
            yield Symptom(
                severity="warning",
                where=lone.input,
                message=f"only one of {lone.last - lone.first + 2} columns of {lone.input} is read, the "
                f"{'first' if lone.first else 'last'}: replacing all others changes no output",
                action="Look at the index by which the model takes columns apart.",
                evidence={"columns_changed": float(lone.last - lone.first + 1)},
            )
    unused = [each for each in inputs if not each.used and not each.constant]
    if unused:
        yield _unread(unused, inputs, is_alone=not used)


def _unread(unused: Sequence[InputUse], inputs: Sequence[InputUse], *, is_alone: bool) -> Symptom:
    """Inputs that nothing reads; `is_alone` if no input is read."""
    names, evidence = first_names([each.name for each in unused]), {"unused_inputs": float(len(unused))}
    if is_alone:
        return Symptom(
            severity="warning",
            where=unused[0].name,
            message=f"no prediction depends on any input: {names} {'is' if len(unused) == 1 else 'are'} not read",
            action="Look for the line in `forward` that replaces the input, and use what the data loader gives.",
            evidence=evidence,
        )
    return Symptom(
        severity="info",
        where=unused[0].name,
        message=f"no prediction depends on {len(unused)} of {len(inputs)} inputs: {names}",
        action="Use it in `forward`, or leave it out of the batch.",
        evidence=evidence,
    )
