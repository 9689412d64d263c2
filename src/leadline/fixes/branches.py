"""Where a residual branch begins and ends in the user's modules, so that norms and scales can be hooked there."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from torch import nn

from leadline.fixes.fix import Patient
from leadline.fixes.looking import branch_end, own_model, weights
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
