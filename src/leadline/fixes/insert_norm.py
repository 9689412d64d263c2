"""insert-norm: every weight layer's output normalised."""

from __future__ import annotations

from collections.abc import Iterator

from leadline.fixes._engine.fix import Patient, Plan, fix
from leadline.fixes._engine.init_edits import fresh_edits
from leadline.fixes._engine.lookup import called_module, head_of, is_fresh, weight_ops, weights
from leadline.readings.limits import MIN_STACK_LAYERS
from leadline.records import Edit

IMAGE = 4  # dimensions of (batch, channels, height, width)
BATCH = 8  # samples that a batch norm needs for its statistics (ours)


@fix(
    name="insert-norm",
    answers=("F101", "F102", "F103", "B201", "B202", "I301", "I302", "F104"),
    reach="architecture",
    since="0.2",
)
def insert_norm(patient: Patient) -> Iterator[Plan]:
    r"""Puts a norm behind every weight layer of a plain network.

    ## What it does
    A forward hook on each linear layer sends its output through a new `nn.LayerNorm`; behind convolutions it is an
    `nn.BatchNorm2d`, or an `nn.GroupNorm` of one group where the batch is small. The norm is a submodule of the layer
    (its name is in the state dict), and its parameters join the optimiser without decay. Heads, layers that have a
    norm already and residual branches are left alone.

    ## Why it works
    A norm resets the signal's size at every layer, whatever the weights do, so that neither growth nor decay
    accumulates.

    ## What it costs
    One norm a layer. Batch norm couples the samples of a batch, and in a plain stack of many layers makes gradients
    explode by 1.2 to 1.5 a layer (B205): there skips are the better repair.

    ## When it does not help
    Layer norm keeps the size, not the differences between samples: in a deep plain stack these still converge.

    ## References
    Ba et al., arXiv 1607.06450; Ioffe and Szegedy, arXiv 1502.03167; Yang et al., arXiv 1902.08129 (explosion).
    """
    edits = tuple(_edits(patient))
    if len(edits) >= MIN_STACK_LAYERS and is_fresh(patient):
        title = f"{len(edits)} {edits[0].options['kind']} inserted behind weight layers"
        yield Plan(title=title, edits=(*fresh_edits(patient), *edits), promise=0.4)


def _edits(patient: Patient) -> Iterator[Edit]:
    trace, ops, head = patient.trace, weight_ops(patient.trace), head_of(patient)
    for each in weights(patient):
        if each.residual or each.norm or not each.activation or (head and each.name == head.name):
            continue
        path, output = called_module(patient, each.name), trace.values[ops[each.name].outputs[0]]
        if path is None or path != each.name.rpartition(".")[0]:
            continue
        image = len(output.shape) == IMAGE
        kind = ("BatchNorm2d" if output.shape[0] >= BATCH else "GroupNorm") if image else "LayerNorm"
        width = output.shape[1] if image else output.shape[-1]
        yield Edit(action="norm", where=path, options={"kind": kind, "width": width})
