"""Small synthetic profiles of wiring: the sick and healthy examples of the checks of family D."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from msgspec.structs import replace

from leadline.checks._examples import geometric
from leadline.records import (
    Dependence,
    InputUse,
    Ledger,
    LedgerRow,
    NetworkParts,
    OpSite,
    Optimizer,
    ParamGroup,
    Perturbation,
    Profile,
    Question,
    Source,
)
from leadline.records.wiring import PerturbationKind

SITE = OpSite(op="reshape", module="encoder", source=Source(file="model.py", line=12))


def probed(
    kind: PerturbationKind,
    moved: Sequence[float],
    *,
    first: int,
    last: int,
    changed: int = 0,
    forbidden: Sequence[int] = (),
) -> Profile:
    """A healthy stack in which changing some inputs moved the outputs like this."""
    perturbation = Perturbation(
        kind=kind,
        first=first,
        last=last,
        changed=changed,
        moved=tuple(moved),
        forbidden=tuple(forbidden),
        site=SITE if forbidden else None,
    )
    return _with(dependence=_dependence(perturbations=(perturbation,)))


def fed(*inputs: InputUse) -> Profile:
    """A healthy stack with these inputs."""
    return _with(dependence=_dependence(inputs=inputs))


def dropping(*sites: OpSite) -> Profile:
    """A healthy stack that drops something in eval mode at these places."""
    return _with(dependence=_dependence(dropouts=sites))


def asked(**fields: Any) -> Profile:
    """A healthy stack whose loss asks this question."""
    return _with(question=Question(**fields))


def ledger_with(*rows: LedgerRow, **fields: Any) -> Profile:
    """A healthy stack with these rows in its ledger."""
    return _with(ledger=Ledger(rows=rows, **fields))


def ledger_of_optimizer(name: str, *rows: LedgerRow) -> Profile:
    """A healthy stack with these rows, all of which the optimizer of this name steps."""
    group = ParamGroup(parameters=tuple(row.name for row in rows), lr=1e-3, weight_decay=0.0, options={})
    optimizer = Optimizer(name=name, groups=(group,), steps=0)
    return replace(ledger_with(*rows, optimizers=(name,)), optimizer=optimizer)


def learner(index: int = 0, **fields: Any) -> LedgerRow:
    """The row of a 64 x 64 matrix that learns, changed by `fields`."""
    plain: dict[str, Any] = {
        "name": f"layers.{index}.weight",
        "kind": "matrix",
        "count": 64 * 64,
        "block": f"layers.{index}",
        "gradient": "finite",
        "in_optimizer": 1,
        "moved": True,
    }
    return LedgerRow(**{**plain, **fields})


def _dependence(**fields: Any) -> Dependence:
    plain: dict[str, Any] = {
        "passes": 3,
        "noise": 0.0,
        "samples": 4,
        "sample_axis": 0,
        "positions": 8,
        "position_axis": 1,
        "perturbations": (),
        "inputs": (),
    }
    return Dependence(**{**plain, **fields})


def _with(**fields: Any) -> Profile:
    return replace(geometric(blocks=4), **fields)


def with_parts(**fields: Any) -> Profile:
    """A healthy stack in which these parts were recognized."""
    return _with(parts=NetworkParts(**fields))
