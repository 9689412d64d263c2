"""Where residual branches and attentions begin and end in the modules of the user."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from torch import nn

from leadline.fixes._engine.fix import Patient
from leadline.fixes._engine.lookup import branch_end, own_model, weights
from leadline.nn.residual import Residual
from leadline.records import Edit, Op, Placement, Trace, Weight


@dataclass(frozen=True, slots=True, kw_only=True)
class Branch:
    """A sub-layer of a residual stack; paths are None where there is no module to hook."""

    block: int
    placement: Placement
    entry: str | None
    """The module that reads the stream: all of the branch that does so lies inside."""
    end: str | None
    """The module whose output is the branch's last weight's."""
    norm: str | None
    """The norm module right behind the add."""
    width: int
    """Features of the stream."""
    layer: str | None
    """The module that reads the stream and holds both branch and add: a norm in front of it is one of the stream."""
    fed_by_norm: bool
    """The stream comes out of a norm."""


def branches(patient: Patient, placements: Iterable[Placement]) -> list[Branch]:
    """The residual sub-layers whose norms sit so, in order; none of leadline.nn's, which `rescheme` rewires."""
    if any(isinstance(module, Residual) for module in own_model(patient).modules()):
        return []
    ends = {each.block: each for each in weights(patient) if each.residual and each.last}
    return [
        _branch(patient, i, ends[i])
        for i, block in enumerate(patient.profile.blocks)
        if block.residual is not None and block.residual.placement in placements and i in ends
    ]


def norm_kind(patient: Patient) -> str:
    """Layer norm where the model has one, else RMS norm."""
    return (
        "LayerNorm" if any(isinstance(m, nn.LayerNorm) for m in own_model(patient).modules()) else "RMSNorm"
    )


def norm_edit(patient: Patient, branch: Branch, where: str, *, on: str = "norm") -> Edit:
    """A norm behind what the module at `where` puts out, or (`norm-input`) in front of what it reads."""
    return Edit(action=on, where=where, options={"kind": norm_kind(patient), "width": branch.width})


def _branch(patient: Patient, block: int, last: Weight) -> Branch:
    trace, residual = patient.trace, patient.profile.blocks[block].residual
    assert residual is not None
    total = trace.values[residual.add]
    assert total.op is not None
    add = trace.ops[total.op]
    start, readers = _start(trace, add)
    branch, layer = [op.module for op in readers], [add.module, *(op.module for op in readers)]
    maker = trace.values[start].op
    return Branch(
        block=block,
        placement=residual.placement,
        entry=_around(trace, branch, without=add.module),
        end=branch_end(patient, last),
        norm=_norm_behind(trace, add),
        width=total.shape[-1],
        layer=_around(trace, layer),
        fed_by_norm=maker is not None and trace.ops[maker].kind == "norm",
    )


def _start(trace: Trace, add: Op) -> tuple[int, list[Op]]:
    """What the add adds the branch to, and the ops of the branch that read it."""
    for start in add.inputs:
        readers = [op for op in trace.ops if start in op.inputs and op.index < add.index]
        if readers:
            return start, readers
    return add.inputs[0], []


def _around(trace: Trace, paths: list[str], *, without: str | None = None) -> str | None:
    """The innermost module around all of these that the pass called once; None if it is around `without` too."""
    path = _common(paths) if paths else ""
    calls = {each.path: each.calls for each in trace.modules}
    if without is not None and (without == path or without.startswith(f"{path}.")):
        return None
    return path if path and calls.get(path) == 1 else None


def _common(paths: list[str]) -> str:
    """The longest path of whole names that all begin with."""
    parts = [path.split(".") for path in paths]
    shared = 0
    while all(len(each) > shared and each[shared] == parts[0][shared] for each in parts):
        shared += 1
    return ".".join(parts[0][:shared])


def _norm_behind(trace: Trace, add: Op) -> str | None:
    readers = [op for op in trace.ops if add.outputs[0] in op.inputs]
    norms = [op.module for op in readers if op.kind == "norm" and op.module != add.module]
    return norms[0] if len(readers) == len(norms) == 1 else None


# Where a model attends: for each attention the op, its module, and the projections that make queries and keys.

SEEN_THROUGH = frozenset({"layout", "cast", "dropout", "bias", "select", "scale", "add", "join", "product"})
"""Kinds of ops between a projection and the logits: heads are cut, rotary angles applied, lengths scaled."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Attending:
    """One attention of the pass."""

    module: str
    """Path of the module whose code computes it."""
    fused: bool
    """It is one call of `scaled_dot_product_attention`."""
    head_width: int
    projections: tuple[str, str] | None
    """Paths of the modules whose outputs are the queries and the keys; None if they are not two modules."""
    normed: bool
    """Queries and keys come out of a norm already."""


def attentions(patient: Patient) -> Iterator[Attending]:
    """Every attention of the forward pass, in order; a module that attends twice is left out."""
    found = [each for op in patient.trace.ops if (each := _attending(patient.trace, op)) is not None]
    paths = [each.module for each in found]
    yield from (each for each in found if paths.count(each.module) == 1 and each.module)


def _attending(trace: Trace, op: Op) -> Attending | None:
    logits = op if op.kind == "attention" else _logits(trace, op)
    if logits is None or op.phase != "forward":
        return None
    query, key = logits.inputs[0], logits.inputs[1]
    makers = [_makers(trace, number) for number in (query, key)]
    paths = [each[0].module for each in makers if len(each) == 1 and each[0].kind == "weight"]
    apart = len(paths) == 2 and paths[0] != paths[1] and op.module not in paths
    return Attending(
        module=op.module,
        fused=op.kind == "attention",
        head_width=trace.values[query].shape[-1],
        projections=(paths[0], paths[1]) if apart else None,
        normed=all(any(_is_norm(trace, maker) for maker in each) for each in makers),
    )


def _logits(trace: Trace, op: Op) -> Op | None:
    """The product of queries and keys that a spelled-out softmax reads; None if it reads no such thing."""
    if op.name != "softmax" or len(trace.values[op.outputs[0]].shape) < 3:
        return None
    value = op.inputs[0]
    while (number := trace.values[value].op) is not None:
        maker = trace.ops[number]
        if maker.kind == "product" and _contracts(trace, maker):
            return maker
        if maker.kind not in ("layout", "cast", "scale", "add", "bias", "dropout", "select"):
            return None
        value = maker.inputs[0]
    return None


def _contracts(trace: Trace, op: Op) -> bool:
    """A matrix product of queries (..., n, d) with transposed keys (..., d, m)."""
    shapes = [trace.values[number].shape for number in op.inputs[:2]]
    if op.name not in ("matmul", "bmm") or len(shapes) < 2:
        return False
    return min(map(len, shapes)) >= 3 and shapes[0][-1] == shapes[1][-2]


def _makers(trace: Trace, value: int) -> list[Op]:
    """The weights and norms that a value is made of, seen through what only rearranges, adds and rotates."""
    found: dict[int, Op] = {}
    waiting, done = [value], set[int]()
    while waiting:
        number = trace.values[waiting.pop()].op
        if number is None or number in done:
            continue
        done.add(number)
        op = trace.ops[number]
        if op.kind in SEEN_THROUGH and not _is_norm(trace, op):
            waiting.extend(_signals(trace, op))
        else:
            found[number] = op
    return list(found.values())


def _signals(trace: Trace, op: Op) -> list[int]:
    """What an op reads but parameters, constants, and tables that are spread over the batch."""
    wanted = [n for n in op.inputs if trace.values[n].floating and trace.values[n].source is None]
    if op.kind not in ("scale", "product", "bias"):
        return [n for n in wanted if trace.values[n].shape != (0,)]
    shape = trace.values[op.outputs[0]].shape
    return [n for n in wanted if trace.values[n].shape == shape] or wanted[:1]


def _is_norm(trace: Trace, op: Op) -> bool:
    """A norm of PyTorch, or one that is spelled out as x * rsqrt(mean square)."""
    makers = [trace.ops[number].name for n in op.inputs if (number := trace.values[n].op) is not None]
    return op.kind == "norm" or (op.kind == "product" and "rsqrt" in makers)
