"""D901: the output of one sample depends on other samples."""

from __future__ import annotations

from collections.abc import Iterator

from leadline.checks._check import Symptom, check, in_op
from leadline.checks._wiring_examples import probed
from leadline.records import Dependence, Perturbation, Profile


@check(
    code="D901",
    name="mixed-samples",
    since="0.1.0",
    sick=probed("sample", [0.3, 0.9, 0.1, 0.8], first=1, last=3, changed=2, forbidden=[0, 2]),
    healthy=probed("sample", [0.0, 0.9, 0.0, 0.8], first=1, last=3, changed=2),
)
def mixed_samples(profile: Profile) -> Iterator[Symptom]:
    r"""The output of one sample depends on other samples of the batch.

    ## What it measures
    Every second sample of the batch is replaced by other values, and the model runs again in eval mode with the same
    random numbers. The outputs of the samples between them must stay as they were, up to rounding. If they do, the
    others are replaced instead, and the batch is turned around: a maximum over the batch, or the first sample taken for
    all, depends on one sample, and positions that were counted along the batch depend on its order. The first op whose
    output changed for another sample is named, or the op that lost the axis of samples before it. If the pass draws
    random numbers, the order stays.

    ## Why it hurts
    The network learns from a mixture that exists only in this batch: at test time another batch gives another answer.
    Typical causes are a `view` or `reshape` that moves samples into each other, `batch_first` forgotten in a recurrent
    layer or an attention, a softmax or mean over dimension 0, attention across the batch, and an `arange` over the
    wrong axis. The loss usually still falls, only more slowly and not for the right reason.

    ## When it is wrong
    Some networks mix rows on purpose: graphs whose edges are not among the inputs, retrieval within the batch, experts
    with a limited capacity. One sequence without a batch axis looks like mixed samples, too: if only later rows change,
    this is a note; give such a sequence a first axis of length 1. Batch norm is no cause, because it uses its running
    statistics in eval mode.

    ## References
    Karpathy, "A Recipe for Training Neural Networks", 2019 (backpropagate from one sample to chart dependencies).
    """
    reading = profile.dependence
    probe = reading.of("sample") if reading else None
    if reading is None or probe is None or not probe.forbidden:
        return
    count = len(probe.forbidden)
    if probe.by_place:
        yield Symptom(
            severity="error",
            where="the model",
            message=f"the outputs of {count} of {len(probe.moved) - probe.changed} samples depend on their place in "
            "the batch: in reverse order they are others",
            action="Look for positions, indices or masks that are made along the batch axis, such as "
            "`torch.arange(x.size(0))` where positions are along axis 1.",
            evidence={
                "samples_reached": float(count),
                "largest_change": max(probe.moved[index] for index in probe.forbidden),
            },
        )
        return
    yield Symptom(
        severity="info" if _may_be_one_sequence(profile, reading, probe) else "error",
        where=(probe.site.module if probe.site else "") or "the model",
        message=f"changing {probe.changed} of {len(probe.moved)} samples also changes the outputs of {count} of the "
        f"other {len(probe.moved) - probe.changed}{in_op(probe.site)}",
        action="Keep the batch axis apart: check every `view`, `reshape` and `transpose`, `batch_first`, and the `dim` "
        "of softmax and mean from there on.",
        source=probe.site.source if probe.site else None,
        evidence={
            "samples_reached": float(count),
            "largest_change": max(probe.moved[index] for index in probe.forbidden),
        },
    )


def _may_be_one_sequence(profile: Profile, reading: Dependence, probe: Perturbation) -> bool:
    """Whether the rows may be positions of one sequence: inputs are rows of features, and only later rows changed.

    A row for which several predictions are made is a sequence itself.
    """
    predictions = profile.question.predictions if profile.question else ()
    if predictions and predictions[0] > len(probe.moved):
        return False
    if (
        probe.first == 0
    ):  # rows of features are changed from the second one on first, and nothing was seen then
        return False
    later = range(probe.first + 1, len(probe.moved), 2)  # every row after a changed one sees it
    is_causal = set(later) <= set(probe.forbidden) and 0 not in probe.forbidden and reading.positions is None
    return is_causal and all(len(each.shape) <= 2 for each in reading.inputs if each.visible)
