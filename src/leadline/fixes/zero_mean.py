"""zero-mean: residual branches that do not all push the stream one way."""

from __future__ import annotations

from collections.abc import Iterator

from leadline.fixes._engine.fix import Patient, Plan, fix
from leadline.fixes._engine.lookup import edit_of_activation, owns_op, residual_blocks
from leadline.records import Edit, Op

ODD = "tanh"  # an odd function of a centred signal has mean zero
IMAGE = 4  # dimensions of (batch, channels, height, width): features are at 1


@fix(name="zero-mean", answers=("F105", "F101", "B202"), reach="architecture", since="0.2")
def zero_mean(patient: Patient) -> Iterator[Plan]:
    r"""Takes the mean out of residual branches that end in an activation.

    ## What it does
    Where a branch's end is an activation module, a forward hook subtracts the mean over the features of each
    position. Where it is a call in the block's own code, that call is rerouted to tanh, which is odd and so has mean
    zero. The cleaner change is yours to make: end every branch in a linear map.

    ## Why it works
    Branches that end in a ReLU or SiLU have a positive mean. Means add up like $N$, while independent zero-mean
    branches add up like $\sqrt N$: with $x + \epsilon f(x)$ the stream grows like $(1 + c\,\epsilon)^N$ instead of
    $(1 + \epsilon^2)^N$.

    ## What it costs
    One mean and one subtraction a block; branches cannot shift all features alike any more.

    ## When it does not help
    If a norm in front of every branch makes the growth linear anyway.

    ## References
    The growth law: `docs/explanation/theory.md`; measured for blocks that end in Swish: arXiv 2503.14858, appendix.
    """
    ends = [op for i in residual_blocks(patient) if (op := _end(patient, i)) is not None]
    edits = tuple(dict.fromkeys(_key(patient, op) for op in ends))
    if edits:
        made = tuple(_edit(each) for each in edits)
        yield Plan(title=f"the mean taken out of {len(ends)} residual branches", edits=made, promise=0.5)


def _end(patient: Patient, block: int) -> Op | None:
    """The activation whose output the block adds, if its branch ends in one."""
    trace, residual = patient.trace, patient.profile.blocks[block].residual
    maker = trace.values[residual.add].op if residual is not None else None
    for number in trace.ops[maker].inputs if maker is not None else ():
        op = trace.values[number].op
        if op is not None and trace.ops[op].kind == "activation" and trace.ops[op].name != ODD:
            return trace.ops[op]
    return None


def _key(patient: Patient, op: Op) -> tuple[str, str, int]:
    images = len(patient.trace.values[op.outputs[0]].shape) == IMAGE
    return ("" if owns_op(patient, op) else op.name, op.module, 1 if images else -1)


def _edit(key: tuple[str, str, int]) -> Edit:
    calls, where, dim = key
    if calls:
        return edit_of_activation(where, calls, ODD, own=False)
    return Edit(action="recentre", where=where, options={"dim": dim})
