"""D902: the model can read the answer from its inputs."""

from __future__ import annotations

from collections.abc import Iterator

from msgspec.structs import replace

from leadline.checks._check import Symptom, check, in_op
from leadline.checks._wiring_examples import asked, probed
from leadline.records import Profile, TargetOffset

NEXT_TOKEN = TargetOffset(input="idx", axis=1, offset=1, share=1.0, positions=100)


def _example(profile: Profile) -> Profile:
    return replace(profile, question=asked(offset=NEXT_TOKEN).question)


@check(
    code="D902",
    name="visible-answer",
    since="0.1.0",
    sick=_example(probed("future", [0.1] * 4 + [0.8] * 4, first=4, last=7, forbidden=[0, 1, 2, 3])),
    healthy=_example(probed("future", [0.0] * 4 + [0.8] * 4, first=4, last=7)),
)
def visible_answer(profile: Profile) -> Iterator[Symptom]:
    r"""The model sees the tokens that it is asked to predict.

    ## What it measures
    Which question the loss asks is read from the data: at position $t$ its target is the input at $t + k$. With
    $k \ge 1$, outputs up to a position may not depend on inputs after it. All inputs from the middle of the sequence on
    are replaced, and the outputs before the middle must stay as they were. Positions that the loss ignores do not
    count. The first op that carried the change to an earlier position is named.

    ## Why it hurts
    The loss falls quickly, below anything an honest model could reach, because the answer is copied from the input. At
    generation time the future is not there, and the model has learned nothing. The causal mask is missing, inverted,
    dropped on one path, or added to the wrong tensor.

    ## When it is wrong
    It is not, as long as the loss asks for later inputs. Masked language models and encoders are not asked for them,
    so nothing is said there.

    ## References
    Vaswani et al., "Attention Is All You Need", 2017, section 3.2.3 (masking preserves the autoregressive property).
    """
    probe = profile.dependence.of("future") if profile.dependence else None
    offset = profile.question.offset if profile.question else None
    if probe is None or offset is None or not probe.forbidden:
        return
    last = probe.forbidden[-1]
    yield Symptom(
        severity="error",
        where=(probe.site.module if probe.site else "") or "the model",
        message=f"the loss will fall because the model can see the answers: changing {offset.input} from position "
        f"{probe.first} on changes {len(probe.forbidden)} outputs before it, up to position {last}"
        f"{in_op(probe.site)}",
        action="Give the attention a causal mask (`is_causal=True`, or a mask that is -inf above the diagonal) on "
        "every path from the tokens to the loss.",
        source=probe.site.source if probe.site else None,
        evidence={
            "positions_reached": float(len(probe.forbidden)),
            "largest_change": max(probe.moved[index] for index in probe.forbidden),
        },
    )
