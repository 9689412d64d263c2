"""D904: the order of the inputs does not matter to the prediction."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from msgspec.structs import replace

from leadline.checks._check import Symptom, check
from leadline.checks._wiring_examples import probed
from leadline.records import Profile


def _example(order: Sequence[float]) -> Profile:
    profiles = [probed("past", [0.8] * 8, first=0, last=6), probed("order", order, first=0, last=6)]
    readings = [profile.dependence for profile in profiles if profile.dependence is not None]
    both = tuple(each for reading in readings for each in reading.perturbations)
    return replace(profiles[0], dependence=replace(readings[0], perturbations=both))


@check(
    code="D904",
    name="order-blind",
    since="0.1.0",
    sick=_example([0.8] * 7 + [0.0]),
    healthy=_example([0.8] * 7 + [0.1]),
)
def order_blind(profile: Profile) -> Iterator[Symptom]:
    r"""The prediction depends on which tokens came before, but not on their order.

    ## What it measures
    In a sequence whose targets are its own later inputs, all inputs before the last position come in reverse order. The
    output at the last position must change, as it does when they are replaced.

    ## Why it hurts
    Attention alone is a set operation. Without positions (or with positions that are not added, or that become equal by
    rounding in half precision), the network knows the words of a sentence and not the sentence.

    ## When it is wrong
    Bag-of-words models are blind to order on purpose. A causal mask over several layers makes the order visible even
    without positions; such networks are not reported, because the outputs do change.

    ## References
    Vaswani et al., "Attention Is All You Need", 2017, section 3.5; Haviv et al., "Transformer Language Models without
    Positional Encodings Still Learn Positional Information", 2022.
    """
    order = profile.dependence.of("order") if profile.dependence else None
    past = profile.dependence.of("past") if profile.dependence else None
    opens_later = profile.ledger is not None and profile.ledger.has_gates
    if order is None or past is None or opens_later or past.moved[-1] == 0 or order.moved[-1] > 0:
        return
    yield Symptom(
        severity="warning",
        where="the model",
        message=f"reversing the order of the {order.last + 1} earlier positions does not change the last output",
        action="Add position embeddings or rotary positions to the tokens, in float32 if the model runs in bfloat16.",
        evidence={"positions_reversed": float(order.last + 1)},
    )
