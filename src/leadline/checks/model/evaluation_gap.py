"""U535: what was learned in training mode is lost in evaluation mode."""

from __future__ import annotations

from collections.abc import Iterator

from msgspec.structs import replace

from leadline.checks._check import Symptom, check
from leadline.checks._examples import stack_with_update
from leadline.records import Profile, Rehearsal
from leadline.records.rehearsal import MIN_LEARNED_PROGRESS
from leadline.text import plural


def _rehearsed(held_out: float) -> Profile:
    rehearsal = Rehearsal(
        losses=(2.3, 1.2, 0.6),
        constant=2.2,
        held_out=held_out,
        held_out_in_training=0.7,
        held_out_early=held_out,
    )
    return replace(stack_with_update(), rehearsal=rehearsal)


@check(code="U535", name="evaluation-gap", since="0.2.0", sick=_rehearsed(5.0), healthy=_rehearsed(0.8))
def evaluation_gap(profile: Profile) -> Iterator[Symptom]:
    r"""After a few steps the network beats a constant output in training mode, and not in evaluation mode.

    ## What it measures
    The loss on samples that the steps of a rehearsal do not see, in both modes, after 8, 16, 32 ... steps; the lowest
    counts. Evaluation mode uses the running statistics that the steps leave in batch norms, without their first values,
    and no dropout. Fires if progress below the loss to beat is above `MIN_LEARNED_PROGRESS` = 0.2 in training mode, and
    not above 0 in evaluation mode.

    ## Why it hurts
    Batch norm trains with the statistics of the batch and is evaluated with averages of earlier ones. If the weights
    move so fast, or the inputs are so far from zero mean, that the averages no longer describe what the layer gets, the
    training loss falls and every evaluation is poor.

    ## When it is wrong
    A gap that comes from large first steps can close when the learning rate falls or more steps are made: of four
    problems of `benchmarks/atlas` on which it fires, two reach their target. So it does not decide the verdict. A model
    that computes another loss in evaluation mode is compared with that one.

    ## References
    Ioffe and Szegedy, "Batch normalization", 2015, section 3.1; Singh and Shrivastava, "EvalNorm: estimating batch
    normalization statistics for evaluation", 2019.
    """
    rehearsal = profile.rehearsal
    if rehearsal is None or rehearsal.held_out is None or rehearsal.held_out_in_training is None:
        return
    in_training = rehearsal.progress_at(rehearsal.held_out_in_training)
    in_evaluation = rehearsal.progress_at(rehearsal.held_out)
    if in_training is None or in_evaluation is None:
        return
    if in_training > MIN_LEARNED_PROGRESS and in_evaluation <= 0:
        yield Symptom(
            severity="warning",
            where="evaluation mode",
            message=f"after {plural(rehearsal.steps, 'step')} the loss on other samples is "
            f"{rehearsal.held_out_in_training:.3g} in training mode and {rehearsal.held_out:.3g} in evaluation mode, "
            f"where {rehearsal.to_beat:.3g} is to beat",
            action="Standardize the inputs and lower the learning rate, so that the running statistics of "
            "`nn.BatchNorm` keep up, or use `nn.GroupNorm`, which has none.",
            evidence={"training": rehearsal.held_out_in_training, "evaluation": rehearsal.held_out},
        )
