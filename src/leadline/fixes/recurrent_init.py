"""The fix recurrent-init: a recurrence that neither forgets nor explodes."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import TYPE_CHECKING

from leadline.fixes._engine.edit_builders import draw_edit
from leadline.fixes._engine.fix import FixContext, Plan, fix
from leadline.fixes._engine.init_edits import orthogonal_gain, recurrent_names
from leadline.fixes._engine.lookup import count_uses, is_fresh, modules_of
from leadline.records import Edit

if TYPE_CHECKING:  # torch-free start
    from torch import nn


@fix(
    name="recurrent-init",
    answers=(
        "B207",
        "B201",
        "B202",
        "F101",
        "F102",
        "F103",
        "F106",
        "I301",
        "I304",
        "I308",
        "U50",
        "U52",
        "N70",
    ),
    reach="init",
    since="0.1.0",
)
def recurrent_init(context: FixContext) -> Iterator[Plan]:
    r"""Draws state-to-state matrices orthogonal, or as the identity before a ReLU.

    ## What it does
    Each state-to-state matrix (separately for each gate) becomes a random orthogonal one, or the identity where the
    activation of the cell is a ReLU. Biases become zero. Input matrices get unit gain in gated cells and
    $n\,E[W^2] = 1/T$ in simple ones, where $T$ is the number of time steps: the sum over $T$ steps then stays where the
    activation still has a slope.

    ## Why it works
    The same matrix acts at every time step: eigenvalues below 1 forget, those above 1 explode, geometrically. All
    eigenvalues of an orthogonal matrix have magnitude 1.

    ## What it costs
    Nothing in a fresh model.

    ## When it does not help
    Saturating activations still shrink the gradient by their slope at each step; over hundreds of steps a gated cell is
    needed.

    ## References
    Saxe et al., arXiv 1312.6120; Le et al., arXiv 1504.00941 (identity for ReLU); Pascanu et al., arXiv 1211.5063.
    """
    if not is_fresh(context):
        return
    edits = tuple(_draws(context))
    if edits:
        count = sum(edit.options["kind"] in ("orthogonal", "identity") for edit in edits)
        yield Plan(title=f"{count} recurrent matrices drawn orthogonal", edits=edits, promise=0.8)


def _draws(context: FixContext) -> Iterator[Edit]:
    from torch import nn  # torch-free start

    parameters = {each.name: each for each in context.trace.parameters}
    drawn: set[str] = set()
    for path, module in modules_of(context, (nn.RNNBase, nn.RNNCellBase)):
        for name, parameter in module.named_parameters(recurse=False):
            full_name = f"{path}.{name}" if path else name
            if parameter.requires_grad and full_name in parameters:
                drawn.add(full_name)
                yield _cell_draw(module, name, full_name, tuple(parameter.shape), _time_steps(context))
    for name in sorted(recurrent_names(context) - drawn):
        if parameters[name].trainable:
            yield draw_edit(name, "orthogonal", 1.0)


def _time_steps(context: FixContext) -> int:
    """Time steps of the batch: those of a fused recurrence, or how often a matrix is used."""
    facts, counts = context.profile.facts, count_uses(context.trace)
    fused = [recurrence.steps for recurrence in facts.recurrences] if facts else []
    return max([1, *fused, *(counts.get(name, 1) for name in recurrent_names(context))])


def _cell_draw(module: nn.Module, name: str, full_name: str, shape: tuple[int, ...], steps: int) -> Edit:
    gates = _gate_count(module)
    if name.startswith("bias"):
        return draw_edit(full_name, "constant", 0.0)
    if name.startswith("weight_hh"):
        is_square = shape[0] // gates == shape[1]
        kind = "identity" if gates == 1 and _uses_relu(module) and is_square else "orthogonal"
        return draw_edit(full_name, kind, 1.0, packed=gates)
    gain = orthogonal_gain(1.0 / steps if gates == 1 else 1.0, shape, math.prod(shape[1:]), gates)
    return draw_edit(full_name, "orthogonal", gain, packed=gates)


def _gate_count(module: nn.Module) -> int:
    from torch import nn  # torch-free start

    if isinstance(module, nn.LSTM | nn.LSTMCell):
        return 4
    return 3 if isinstance(module, nn.GRU | nn.GRUCell) else 1


def _uses_relu(module: nn.Module) -> bool:
    """A cell names its activation in `nonlinearity`, a layer in `mode` ("RNN_RELU")."""
    return "relu" in (getattr(module, "nonlinearity", ""), getattr(module, "mode", "").lower()[4:])
