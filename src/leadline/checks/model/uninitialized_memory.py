"""D928: parameters or buffers that nothing initializes."""

from __future__ import annotations

from collections.abc import Iterator

from leadline.checks._check import Symptom, check
from leadline.checks._ranges import first_names
from leadline.checks._wiring_examples import with_parts
from leadline.records import Profile, UnwrittenTensor
from leadline.text import plural


@check(
    code="D928",
    name="uninitialized-memory",
    since="0.1.0",
    explains=("N701", "I304", "D919"),
    sick=with_parts(unwritten=(UnwrittenTensor(name="experts.weight", unwritten=4096, count=4096),)),
    healthy=with_parts(unwritten=()),
)
def uninitialized_memory(profile: Profile) -> Iterator[Symptom]:
    r"""A parameter or buffer still holds what its memory held before: `torch.empty` without an initializer.

    ## What it measures
    The model is built once more while torch fills fresh memory with NaN
    (`torch.utils.deterministic.fill_uninitialized_memory`): every NaN that is left was never written. Random numbers
    and settings are restored afterwards. A model without weights (a config) needs no second build, because its
    initializers were followed. What the pass does not read is a note.

    ## Why it hurts
    Fresh memory is often zero, so that the bug hides: a parameter of zeros gets no gradient or breaks no symmetry. On
    another machine, or later in the same process, it holds huge numbers or NaN, and the run fails without a reason.

    ## When it is wrong
    If the weights are loaded after the factory returns. A model that already exists cannot be built again; then this is
    listed as not checked, and so is a build that takes longer than ten seconds.

    ## References
    PyTorch documentation, `torch.utils.deterministic.fill_uninitialized_memory`; `torch.empty`.
    """
    unwritten = profile.parts.unwritten if profile.parts else None
    for is_read in (True, False):
        tensors = [each for each in unwritten or () if each.is_read == is_read]
        if not tensors:
            continue
        elements = sum(each.count if each.unwritten is None else each.unwritten for each in tensors)
        yield Symptom(
            severity="error" if is_read else "info",
            where=tensors[0].name,
            message=f"{plural(elements, 'element')} of {plural(len(tensors), 'tensor')} never written"
            f"{' since allocated' if is_read else ', which the pass does not read'}: "
            f"{first_names([each.name for each in tensors])}",
            action="Initialize them where they are created, for example with "
            "`nn.init.normal_(self.weight, std=0.02)` or `torch.zeros` instead of `torch.empty`.",
            evidence={"tensors": float(len(tensors)), "elements": float(elements)},
        )
