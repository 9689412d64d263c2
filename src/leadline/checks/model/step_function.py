"""D919: a step function on the only path makes the gradient exactly zero."""

from __future__ import annotations

from collections.abc import Iterator

from leadline.checks._check import Symptom, check, in_op
from leadline.checks._wiring_examples import SITE, learner, ledger_with
from leadline.records import FlatStep, Profile


@check(
    code="D919",
    name="step-function",
    since="0.1.0",
    sick=ledger_with(
        learner(0, gradient="zero", moved=False), learner(1), flat=(FlatStep(site=SITE, tensors=1),)
    ),
    healthy=ledger_with(learner(0), learner(1)),
)
def step_function(profile: Profile) -> Iterator[Symptom]:
    r"""A rounding, a threshold or a softmax over one entry makes the gradient before it exactly zero.

    ## What it measures
    Ops such as `round`, `sign`, `floor` and comparisons, and a softmax over an axis of length 1 after a layer with one
    unit, whose output has a gradient that is not zero while the gradient of their input is exactly zero. It counts the
    trainable tensors whose gradient is zero before them.

    ## Why it hurts
    The derivative of a step function is zero almost everywhere, and a softmax over one entry is always 1. The part of
    the network before it never learns, although its parameters have a gradient and are in the optimizer.

    ## When it is wrong
    Quantization with a straight-through estimator has a gradient and is not reported.

    ## References
    Bengio, Leonard and Courville, "Estimating or Propagating Gradients Through Stochastic Neurons", 2013.
    """
    for step in profile.ledger.flat if profile.ledger else ():
        if step.cause == "zeros":
            continue
        is_single = step.cause == "single"
        what = f"{step.site.op} over an axis of length 1 is always the same" if is_single else step.site.op
        yield Symptom(
            severity="error",
            where=step.site.module or "the model",
            message=f"{what}{' and' if is_single else ''} makes the gradient exactly zero, so "
            f"{step.tensors} trainable tensors before it never learn{in_op(step.site)}",
            action="Take the softmax over the axis that holds the alternatives, or a sigmoid for a single score."
            if is_single
            else "Use a smooth function, or a straight-through estimator: `x + (x.round() - x).detach()`.",
            source=step.site.source,
            evidence={"tensors": float(step.tensors)},
        )
