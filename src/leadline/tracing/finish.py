"""From the recorder's notes to the finished, torch-free Trace."""

from __future__ import annotations

import inspect
import math
from collections import Counter
from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any

import torch
from torch import Tensor, nn

from leadline import ops, stats
from leadline.ops import Role
from leadline.records import Attended, Gap, Module, Op, Source, Stats, Trace, Units, Value
from leadline.sources import find_source, repository_root
from leadline.tracing.census import Census, Named
from leadline.tracing.gaps import find_gaps
from leadline.tracing.gathered import class_of, filled
from leadline.tracing.ledger import Entry
from leadline.tracing.parameters import read_parameters
from leadline.tracing.recorder import Recorder, Step


def finish(
    recorder: Recorder,
    census: Census,
    grads: Mapping[int, Tensor | None] | None,
    facts: Mapping[str, Any],
    grad_norms: Mapping[str, float] = MappingProxyType({}),
) -> Trace:
    """Build the Trace. `grads` is by parameter identity, None if no backward pass ran; `facts` are further fields.

    `grad_norms` is by name, of parameters whose whole gradient is not here.
    """
    steps, entries = recorder.steps, recorder.ledger.entries
    lost = recorder.gradients.place_recomputed(
        [step.plan.callable for step in steps], [step.outputs for step in steps]
    )
    roles = _roles(steps, entries)
    made_ops = tuple(_op(index, step, roles, entries) for index, step in enumerate(steps))
    values = _values(entries, steps)
    parameters = filled(read_parameters(census, grads, made_ops), recorder.wholes, grad_norms)
    modules = _modules(census, recorder)
    gaps = (*facts["gaps"], *_lost_checkpoints(lost), *find_gaps(made_ops, values, parameters, modules))
    return Trace(
        **{**facts, "gaps": gaps},
        torch=str(torch.__version__),
        ops=made_ops,
        values=values,
        parameters=parameters,
        modules=modules,
    )


def _roles(steps: Sequence[Step], entries: Sequence[Entry]) -> list[Role]:
    """Of each value: does it carry the batch's signal, is it made of parameters only, or is it a constant?"""
    first: dict[str | None, Role] = {"input": "signal", "target": "signal", "parameter": "parameter"}
    roles = [first.get(entry.source, "constant") for entry in entries]
    for step in steps:
        read = {roles[value] for value in step.inputs}
        made: Role = "signal" if "signal" in read else "parameter" if "parameter" in read else "constant"
        for value in step.outputs:
            roles[value] = made
    return roles


def _op(index: int, step: Step, roles: Sequence[Role], entries: Sequence[Entry]) -> Op:
    params = (entries[value].name for value in step.inputs if entries[value].source == "parameter")
    return Op(
        index=index,
        name=step.plan.name,
        callable=step.plan.callable,
        kind=ops.resolve(step.plan.name, [roles[value] for value in step.inputs]),
        module=step.module,
        call=step.call,
        phase=step.phase,
        inputs=step.inputs,
        outputs=step.outputs,
        params=tuple(dict.fromkeys(params)),
        args=step.args,
        kwargs=step.kwargs,
    )


def _values(entries: Sequence[Entry], steps: Sequence[Step]) -> tuple[Value, ...]:
    forward = _settled([entry.forward for entry in entries])
    backward = _settled([entry.backward for entry in entries])
    units, common = _settled_units(entries), _settled_common(entries)
    readers = Counter(value for step in steps for value in step.inputs)
    for value, entry in enumerate(entries):  # in order of appearance: inheritance runs down chains of views
        if entry.op is None or not entry.moved:
            continue
        original = steps[entry.op].inputs[0]
        if math.prod(entries[original].shape) == math.prod(entry.shape):
            forward[value] = forward[original]
            backward[value] = backward[original] if readers[original] == 1 else None
            entry.unobserved = entry.unobserved or entries[original].unobserved
    attended = _settled_attention(entries)
    rows = zip(entries, forward, backward, units, common, attended, strict=True)
    return tuple(_value(number, *row) for number, row in enumerate(rows))


def _value(  # noqa: PLR0913  (one argument for each thing that is measured)
    number: int,
    entry: Entry,
    forward: Stats | None,
    backward: Stats | None,
    units: Units | None,
    common: float | None,
    attended: Attended | None,
) -> Value:
    return Value(
        id=number,
        shape=entry.shape,
        dtype=entry.dtype,
        op=entry.op,
        source=entry.source,
        name=entry.name,
        forward=forward,
        backward=backward,
        units=units,
        common_ms=common,
        attended=attended,
        unobserved=entry.unobserved,
    )


def _settled(readings: Sequence[stats.Reading | None]) -> list[Stats | None]:
    done = iter(stats.settle([reading for reading in readings if reading is not None]))
    return [None if reading is None else next(done) for reading in readings]


def _settled_units(entries: Sequence[Entry]) -> list[Units | None]:
    done = iter(stats.settle_units([entry.units for entry in entries if entry.units is not None]))
    return [None if entry.units is None else next(done) for entry in entries]


def _settled_common(entries: Sequence[Entry]) -> list[float | None]:
    done = iter(stats.fetch([entry.common for entry in entries if entry.common is not None]))
    return [None if entry.common is None else next(done) for entry in entries]


def _modules(census: Census, recorder: Recorder) -> tuple[Module, ...]:
    root = repository_root()
    kinds = {class_of(named.item) for named in census.modules.values()}
    sources = {kind: find_source(kind, root) for kind in kinds}
    return tuple(_module(named, recorder, sources[class_of(named.item)]) for named in census.modules.values())


def _settled_attention(entries: Sequence[Entry]) -> list[Attended | None]:
    done = iter(stats.settle_attention([entry.attended for entry in entries if entry.attended is not None]))
    return [None if entry.attended is None else next(done) for entry in entries]


def _module(named: Named[nn.Module], recorder: Recorder, source: Source | None) -> Module:
    kind, key = class_of(named.item), id(named.item)
    unset = inspect.getattr_static(nn.Module, "forward")
    return Module(
        path=named.names[0],
        type=f"{kind.__module__}.{kind.__qualname__}",
        calls=recorder.calls.counts[key],
        aliases=tuple(named.names[1:]),
        container=inspect.getattr_static(kind, "forward", None) is unset,
        source=source,
        given=recorder.given.get(key, ()),
        returned=recorder.made.get(key, ()),
    )


def _lost_checkpoints(lost: Sequence[str]) -> list[Gap]:
    why = "the recomputation did not repeat the forward pass op by op, so its gradients cannot be placed"
    return [Gap(what="gradients inside a reentrant checkpoint", why=why, where=tuple(lost))] if lost else []
