"""Where residual branches and attentions begin and end in the modules of the model."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from leadline.fixes._engine.fix import FixContext
from leadline.fixes._engine.lookup import branch_end, weights
from leadline.records import Edit, Op, Placement, Trace, Weight


@dataclass(frozen=True, slots=True, kw_only=True)
class Branch:
    """A residual sub-layer. Paths are None where there is no module to hook."""

    block: int
    placement: Placement
    entry: str | None
    """The module that contains every op of the branch that reads the stream."""
    end: str | None
    """The module whose output is the output of the branch."""
    norm: str | None
    """The norm module that reads the sum."""
    width: int
    """Number of features of the stream."""
    layer: str | None
    """The module that contains both the branch and the add; a norm of its input normalizes the stream itself."""
    fed_by_norm: bool
    """Whether the stream comes out of a norm."""


def find_branches(context: FixContext, placements: Iterable[Placement]) -> list[Branch]:
    """The residual sub-layers with these norm placements, in order.

    Empty for models built of `leadline.nn.Residual`: the fix `rescheme` changes those.
    """
    from leadline.nn.residual import Residual  # torch-free start

    if any(isinstance(module, Residual) for module in context.model.modules()):
        return []
    last_weights = {each.block: each for each in weights(context) if each.residual and each.last}
    return [
        _branch(context, i, last_weights[i])
        for i, block in enumerate(context.profile.blocks)
        if block.residual is not None and block.residual.placement in placements and i in last_weights
    ]


def norm_edit(context: FixContext, branch: Branch, where: str, *, action: str = "norm") -> Edit:
    """A norm on the output of the module at `where`, or, with the action "norm-input", on its input."""
    return Edit(action=action, where=where, options={"kind": _norm_kind(context), "width": branch.width})


def _norm_kind(context: FixContext) -> str:
    """LayerNorm where the model has one, else RMSNorm."""
    from torch import nn  # torch-free start

    has_layer_norm = any(isinstance(module, nn.LayerNorm) for module in context.model.modules())
    return "LayerNorm" if has_layer_norm else "RMSNorm"


def _branch(context: FixContext, block: int, last: Weight) -> Branch:
    trace, residual = context.trace, context.profile.blocks[block].residual
    assert residual is not None
    total = trace.values[residual.add]
    assert total.op is not None
    add = trace.ops[total.op]
    start, readers = _branch_start(trace, add)
    branch_paths = [op.module for op in readers]
    source = trace.values[start].op
    return Branch(
        block=block,
        placement=residual.placement,
        entry=_module_around(trace, branch_paths, without=add.module),
        end=branch_end(context, last),
        norm=_norm_of_sum(trace, add),
        width=total.shape[-1],
        layer=_module_around(trace, [add.module, *branch_paths]),
        fed_by_norm=source is not None and trace.ops[source].kind == "norm",
    )


def _branch_start(trace: Trace, add: Op) -> tuple[int, list[Op]]:
    """The value that the branch is added to, and the ops of the branch that read it."""
    for start in add.inputs:
        readers = [op for op in trace.ops if start in op.inputs and op.index < add.index]
        if readers:
            return start, readers
    return add.inputs[0], []


def _module_around(trace: Trace, paths: list[str], *, without: str | None = None) -> str | None:
    """The innermost module that contains all paths and was called once; None if it contains `without` too."""
    path = _common_prefix(paths) if paths else ""
    calls = {module.path: module.calls for module in trace.modules}
    if without is not None and (without == path or without.startswith(f"{path}.")):
        return None
    return path if path and calls.get(path) == 1 else None


def _common_prefix(paths: list[str]) -> str:
    """The longest dotted path that all paths begin with."""
    parts = [path.split(".") for path in paths]
    shared = 0
    while all(len(each) > shared and each[shared] == parts[0][shared] for each in parts):
        shared += 1
    return ".".join(parts[0][:shared])


def _norm_of_sum(trace: Trace, add: Op) -> str | None:
    readers = [op for op in trace.ops if add.outputs[0] in op.inputs]
    norms = [op.module for op in readers if op.kind == "norm" and op.module != add.module]
    return norms[0] if len(readers) == len(norms) == 1 else None


# Attentions: for each one its module, and the projections that compute queries and keys.

TRANSPARENT_KINDS = frozenset(
    {"layout", "cast", "dropout", "bias", "select", "scale", "add", "join", "product"}
)
"""Kinds of ops between a projection and the logits: they split heads, apply rotary angles and scale lengths."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AttentionSite:
    """One attention of the pass."""

    module: str
    """Path of the module whose code computes it."""
    fused: bool
    """Whether it is one call of `scaled_dot_product_attention`."""
    head_width: int
    projections: tuple[str, str] | None
    """Paths of the modules whose outputs are the queries and the keys; None if they are not two modules."""
    normed: bool
    """Whether queries and keys already come out of a norm."""


def attention_sites(context: FixContext) -> Iterator[AttentionSite]:
    """Every attention of the forward pass, in order, except in modules that attend more than once."""
    candidates = [_attention_site(context.trace, op) for op in context.trace.ops]
    sites = [site for site in candidates if site is not None]
    paths = [site.module for site in sites]
    yield from (site for site in sites if site.module and paths.count(site.module) == 1)


def _attention_site(trace: Trace, op: Op) -> AttentionSite | None:
    logits = op if op.kind == "attention" else _logits(trace, op)
    if logits is None or op.phase != "forward":
        return None
    query, key = logits.inputs[0], logits.inputs[1]
    sources = [_sources(trace, number) for number in (query, key)]
    paths = [ops[0].module for ops in sources if len(ops) == 1 and ops[0].kind == "weight"]
    separate = len(paths) == 2 and paths[0] != paths[1] and op.module not in paths
    return AttentionSite(
        module=op.module,
        fused=op.kind == "attention",
        head_width=trace.values[query].shape[-1],
        projections=(paths[0], paths[1]) if separate else None,
        normed=all(any(_is_norm(trace, source) for source in ops) for ops in sources),
    )


def _logits(trace: Trace, op: Op) -> Op | None:
    """The product of queries and keys that an explicit softmax reads; None if `op` is not such a softmax."""
    if op.name != "softmax" or len(trace.values[op.outputs[0]].shape) < 3:
        return None
    value = op.inputs[0]
    while (number := trace.values[value].op) is not None:
        source = trace.ops[number]
        if source.kind == "product" and _is_query_key_product(trace, source):
            return source
        if source.kind not in ("layout", "cast", "scale", "add", "bias", "dropout", "select"):
            return None
        value = source.inputs[0]
    return None


def _is_query_key_product(trace: Trace, op: Op) -> bool:
    """Whether the op multiplies queries (..., n, d) by transposed keys (..., d, m)."""
    shapes = [trace.values[number].shape for number in op.inputs[:2]]
    if op.name not in ("matmul", "bmm") or len(shapes) < 2:
        return False
    return min(map(len, shapes)) >= 3 and shapes[0][-1] == shapes[1][-2]


def _sources(trace: Trace, value: int) -> list[Op]:
    """The weights and norms that a value is computed from, through ops that only rearrange, add and rotate."""
    sources: dict[int, Op] = {}
    pending, visited = [value], set[int]()
    while pending:
        number = trace.values[pending.pop()].op
        if number is None or number in visited:
            continue
        visited.add(number)
        op = trace.ops[number]
        if op.kind in TRANSPARENT_KINDS and not _is_norm(trace, op):
            pending.extend(_signal_inputs(trace, op))
        else:
            sources[number] = op
    return list(sources.values())


def _signal_inputs(trace: Trace, op: Op) -> list[int]:
    """The inputs of an op except parameters, constants, and tables that are broadcast over the batch."""
    signals = [n for n in op.inputs if trace.values[n].floating and trace.values[n].source is None]
    if op.kind not in ("scale", "product", "bias"):
        return [n for n in signals if trace.values[n].shape != (0,)]
    shape = trace.values[op.outputs[0]].shape
    return [n for n in signals if trace.values[n].shape == shape] or signals[:1]


def _is_norm(trace: Trace, op: Op) -> bool:
    """Whether the op is a norm of PyTorch, or one written out as x * rsqrt(mean square)."""
    sources = [trace.ops[number].name for n in op.inputs if (number := trace.values[n].op) is not None]
    return op.kind == "norm" or (op.kind == "product" and "rsqrt" in sources)
