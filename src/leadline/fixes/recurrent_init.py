"""recurrent-init: a recurrence that neither forgets nor explodes."""

from __future__ import annotations

import math
from collections.abc import Iterator

from torch import nn

from leadline.fixes._edits.draw import draw_edit
from leadline.fixes._engine.fix import Patient, Plan, fix
from leadline.fixes._engine.init_edits import orthogonal_gain, recurrent_names
from leadline.fixes._engine.lookup import is_fresh, modules_of, uses
from leadline.records import Edit

GATES = {nn.LSTM: 4, nn.LSTMCell: 4, nn.GRU: 3, nn.GRUCell: 3}


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
    since="0.2",
)
def recurrent_init(patient: Patient) -> Iterator[Plan]:
    r"""Draws state-to-state matrices orthogonal, or as the identity in front of a ReLU.

    ## What it does
    Each state-to-state matrix (of every gate on its own) becomes a random orthogonal one; the identity where the
    cell's activation is a ReLU. Biases become zero; input matrices get unit gain in gated cells and $n\,E[W^2] = 1/T$
    in simple ones, $T$ the time steps: what $T$ steps add up to then stays where the activation still has a slope.

    ## Why it works
    The same matrix acts at every time step: eigenvalues below 1 forget, those above explode, geometrically. An
    orthogonal matrix has all of them at 1 in magnitude.

    ## What it costs
    Nothing in a fresh model.

    ## When it does not help
    Saturating activations still shrink the gradient by their slope at each step; over hundreds of steps a gated cell is
    needed.

    ## References
    Saxe et al., arXiv 1312.6120; Le et al., arXiv 1504.00941 (identity for ReLU); Pascanu et al., arXiv 1211.5063.
    """
    if not is_fresh(patient):
        return
    edits = tuple(_edits(patient))
    if edits:
        count = sum(edit.options["kind"] in ("orthogonal", "identity") for edit in edits)
        yield Plan(title=f"{count} recurrent matrices drawn orthogonal", edits=edits, promise=0.8)


def _edits(patient: Patient) -> Iterator[Edit]:
    names = recurrent_names(patient)
    shapes = {each.name: each for each in patient.trace.parameters}
    done: set[str] = set()
    for path, module in modules_of(patient, (nn.RNNBase, nn.RNNCellBase)):
        for name, parameter in module.named_parameters(recurse=False):
            full = f"{path}.{name}" if path else name
            if parameter.requires_grad and full in shapes:
                done.add(full)
                yield _cell_edit(module, name, full, tuple(parameter.shape), _steps(patient))
    for name in sorted(names - done):
        if shapes[name].trainable:
            yield draw_edit(name, "orthogonal", 1.0)


def _steps(patient: Patient) -> int:
    """Time steps of the batch: of a fused recurrence, or how often a matrix is used."""
    facts, counts = patient.profile.facts, uses(patient.trace)
    fused = [each.steps for each in facts.recurrences] if facts else []
    return max([1, *fused, *(counts.get(name, 1) for name in recurrent_names(patient))])


def _cell_edit(module: nn.Module, name: str, full: str, shape: tuple[int, ...], steps: int) -> Edit:
    gates = next((count for kind, count in GATES.items() if isinstance(module, kind)), 1)
    if name.startswith("bias"):
        return draw_edit(full, "constant", 0.0)
    if name.startswith("weight_hh"):
        relu = gates == 1 and "relu" in (
            getattr(module, "nonlinearity", ""),
            getattr(module, "mode", "").lower()[4:],
        )
        square = shape[0] // gates == shape[1]
        kind = "identity" if relu and square else "orthogonal"
        return draw_edit(full, kind, 1.0, packed=gates)
    gain = orthogonal_gain(1.0 / steps if gates == 1 else 1.0, shape, math.prod(shape[1:]), gates)
    return draw_edit(full, "orthogonal", gain, packed=gates)
