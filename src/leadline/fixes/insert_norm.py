"""The fix insert-norm: a norm after every weight layer of a plain network."""

from __future__ import annotations

from collections.abc import Iterator

from leadline.fixes._engine.fix import FixContext, Plan, fix
from leadline.fixes._engine.init_edits import fresh_edits
from leadline.fixes._engine.lookup import called_module, head_weight, is_fresh, weight_ops, weights
from leadline.readings.limits import MIN_STACK_LAYERS
from leadline.records import Edit, Value

# Derived: a batch of images is (batch, channels, height, width).
IMAGE_DIMS = 4
"""Dimensions of (batch, channels, height, width)."""

# Heuristic: statistics over fewer samples are too noisy for a batch norm.
MIN_BATCH_NORM_SAMPLES = 8


@fix(
    name="insert-norm",
    answers=("F101", "F102", "F103", "B201", "B202", "I301", "I302", "F104"),
    reach="architecture",
    since="0.1.0",
)
def insert_norm(context: FixContext) -> Iterator[Plan]:
    r"""Inserts a norm after every weight layer of a plain network.

    ## What it does
    A forward hook on each linear layer sends its output through a new `nn.LayerNorm`. After convolutions it is an
    `nn.BatchNorm2d`, or an `nn.GroupNorm` of one group where the batch is small. The norm is a submodule of the layer
    (its name is in the state dict), and its parameters join the optimizer without weight decay. Heads, layers that
    already have a norm, and residual branches are left alone. The weights are drawn anew.

    ## Why it works
    A norm resets the size of the signal at every layer for any weights, so that neither growth nor decay accumulates.

    ## What it costs
    One norm per layer. Batch norm couples the samples of a batch, and in a plain stack of many layers it makes
    gradients explode by 1.2 to 1.5 per layer (B205): skips are the better repair there.

    ## When it does not help
    Layer norm preserves the size, not the differences between samples: in a deep plain stack these still converge.

    ## References
    Ba et al., arXiv 1607.06450; Ioffe and Szegedy, arXiv 1502.03167; Yang et al., arXiv 1902.08129 (explosion).
    """
    edits = tuple(_norm_edits(context))
    if len(edits) >= MIN_STACK_LAYERS and is_fresh(context):
        title = f"{len(edits)} {edits[0].options['kind']} inserted after weight layers"
        yield Plan(title=title, edits=(*fresh_edits(context), *edits), promise=0.4)


def _norm_edits(context: FixContext) -> Iterator[Edit]:
    trace, ops, head = context.trace, weight_ops(context.trace), head_weight(context)
    for weight in weights(context):
        is_head = head is not None and weight.name == head.name
        if weight.residual or weight.norm or not weight.activation or is_head:
            continue
        path = called_module(context, weight.name)
        if path is not None and path == weight.name.rpartition(".")[0]:
            yield _norm_edit(path, trace.values[ops[weight.name].outputs[0]])


def _norm_edit(path: str, output: Value) -> Edit:
    if len(output.shape) != IMAGE_DIMS:
        return Edit(action="norm", where=path, options={"kind": "LayerNorm", "width": output.shape[-1]})
    kind = "BatchNorm2d" if output.shape[0] >= MIN_BATCH_NORM_SAMPLES else "GroupNorm"
    return Edit(action="norm", where=path, options={"kind": kind, "width": output.shape[1]})
