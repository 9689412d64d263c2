"""From the recorder's notes to the finished, torch-free Trace."""

from __future__ import annotations

import inspect
import math
from collections import Counter
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

from leadline import ops, stats
from leadline.ops import Role
from leadline.records import Gap, Module, Op, Parameter, Stats, Trace, Units, Value
from leadline.tracing.census import Census, Named
from leadline.tracing.ledger import Entry
from leadline.tracing.recorder import Recorder, Step

_PARAMETER_KINDS = {"weight": "matrix", "recurrent": "matrix", "embedding": "embedding", "norm": "norm"}


def finish(
    recorder: Recorder, census: Census, grads: dict[int, Tensor | None] | None, facts: dict[str, Any]
) -> Trace:
    """Build the Trace. `grads` is by parameter id, None if no backward pass ran; `facts` are the Trace's own fields."""
    steps, entries = recorder.steps, recorder.ledger.entries
    lost = recorder.gradients.place_recomputed(
        [step.plan.callable for step in steps], [step.outputs for step in steps]
    )
    roles = _roles(steps, entries)
    trace_ops = tuple(_op(index, step, roles, entries) for index, step in enumerate(steps))
    values = _values(entries, steps)
    parameters = _parameters(census, grads, trace_ops)
    modules = tuple(_module(named, recorder.calls.counts[key]) for key, named in census.modules.items())
    gaps = (*facts.pop("gaps"), *_lost_checkpoints(lost), *_gaps(trace_ops, values, parameters, modules))
    return Trace(
        **facts,
        torch=str(torch.__version__),
        ops=trace_ops,
        values=values,
        parameters=parameters,
        modules=modules,
        gaps=gaps,
    )


def _roles(steps: Sequence[Step], entries: Sequence[Entry]) -> list[Role]:
    """Of each value: does it carry the batch's signal, is it made of parameters only, or is it a constant?"""
    roles: list[Role] = ["signal" if e.source in ("input", "target") else "constant" for e in entries]
    for value, entry in enumerate(entries):
        if entry.source == "parameter":
            roles[value] = "parameter"
    for step in steps:
        read = [roles[value] for value in step.inputs]
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
    )


def _values(entries: Sequence[Entry], steps: Sequence[Step]) -> tuple[Value, ...]:
    forward = _settled([entry.forward for entry in entries])
    backward = _settled([entry.backward for entry in entries])
    units = _settled_units(entries)
    readers = Counter(value for step in steps for value in step.inputs)
    for value, entry in enumerate(entries):  # in order of appearance, so that inheritance runs down chains of views
        if entry.op is None or not entry.moved:
            continue
        original = steps[entry.op].inputs[0]
        if math.prod(entries[original].shape) == math.prod(entry.shape):
            forward[value] = forward[original]
            backward[value] = backward[original] if readers[original] == 1 else None
            entry.unobserved = entry.unobserved or entries[original].unobserved
    return tuple(
        Value(
            id=value,
            shape=entry.shape,
            dtype=entry.dtype,
            op=entry.op,
            source=entry.source,
            name=entry.name,
            forward=forward[value],
            backward=backward[value],
            units=units[value],
            unobserved=entry.unobserved,
        )
        for value, entry in enumerate(entries)
    )


def _settled(readings: Sequence[stats.Reading | None]) -> list[Stats | None]:
    done = iter(stats.settle([reading for reading in readings if reading is not None]))
    return [None if reading is None else next(done) for reading in readings]


def _settled_units(entries: Sequence[Entry]) -> list[Units | None]:
    done = iter(stats.settle_units([entry.units for entry in entries if entry.units is not None]))
    return [None if entry.units is None else next(done) for entry in entries]


def _parameters(
    census: Census, grads: dict[int, Tensor | None] | None, trace_ops: Sequence[Op]
) -> tuple[Parameter, ...]:
    uses: dict[str, Op] = {}
    for op in trace_ops:
        for name in op.params:
            if name not in uses or uses[name].kind in ("layout", "cast"):
                uses[name] = op
    named = list(census.parameters.values())
    blind = [stats.unobservable(each.item) for each in named]
    weights = _settled([None if why else stats.measure_length(each.item) for each, why in zip(named, blind, strict=True)])
    gradients = [None if grads is None else grads.get(id(each.item)) for each in named]
    arrived = _settled([None if g is None or stats.unobservable(g) else stats.measure_length(g) for g in gradients])
    products = _products([each.item for each in named], gradients, blind)
    return tuple(
        _parameter(each, uses.get(each.names[0]), weight, grad, product, why)
        for each, weight, grad, product, why in zip(named, weights, arrived, products, blind, strict=True)
    )


def _products(
    weights: Sequence[Tensor], grads: Sequence[Tensor | None], blind: Sequence[str]
) -> list[float | None]:
    pairs = [
        stats.inner_product(grad.to_dense() if grad.is_sparse else grad, weight)
        if grad is not None and not why and grad.dtype == weight.dtype
        else None
        for weight, grad, why in zip(weights, grads, blind, strict=True)
    ]
    done = iter(stats.fetch([pair for pair in pairs if pair is not None]))
    return [None if pair is None else next(done) for pair in pairs]


def _parameter(
    named: Named[nn.Parameter], use: Op | None, weight: Stats | None, grad: Stats | None, product: float | None, why: str
) -> Parameter:
    return Parameter(
        name=named.names[0],
        aliases=tuple(named.names[1:]),
        shape=tuple(named.item.shape),
        dtype=str(named.item.dtype).removeprefix("torch."),
        kind=_parameter_kind(named.item, use),
        trainable=named.item.requires_grad,
        used=use is not None or grad is not None,
        ms=None if weight is None else weight.ms,
        norm=None if weight is None else weight.rms * weight.count**0.5,
        grad_ms=None if grad is None else grad.ms,
        grad_norm=None if grad is None else grad.rms * grad.count**0.5,
        grad_dot_weight=product,
        grad_non_finite=0 if grad is None else grad.non_finite,
        unobserved=why,
    )


def _parameter_kind(parameter: Tensor, use: Op | None) -> str:
    """Read off how the pass used the parameter: its shape and the op, never its name."""
    if parameter.numel() == 1:
        return "scalar"
    if use is not None and use.kind == "weight" and use.name.startswith("conv") and parameter.dim() > 2:
        return "conv"
    if use is not None and use.kind in ("weight", "recurrent", "bias") and parameter.dim() < 2:
        return "bias"
    return _PARAMETER_KINDS.get(use.kind or "", "other") if use is not None else "other"


def _module(named: Named[nn.Module], calls: int) -> Module:
    kind = type(named.item)
    return Module(
        path=named.names[0],
        type=f"{kind.__module__}.{kind.__qualname__}",
        calls=calls,
        aliases=tuple(named.names[1:]),
        container=inspect.getattr_static(kind, "forward", None) is inspect.getattr_static(nn.Module, "forward"),
    )


def _lost_checkpoints(lost: Sequence[str]) -> list[Gap]:
    why = "the recomputation did not repeat the forward pass op by op, so its gradients cannot be placed"
    return [Gap(what="gradients inside a reentrant checkpoint", why=why, where=tuple(lost))] if lost else []


def _gaps(
    trace_ops: Sequence[Op], values: Sequence[Value], parameters: Sequence[Parameter], modules: Sequence[Module]
) -> list[Gap]:
    """What the pass did not show, grouped by reason."""
    owners = {parameter.name.rpartition(".")[0] for parameter in parameters if parameter.used}
    silent = [m.path for m in modules if m.calls == 0 and not m.container and m.path not in owners]
    bypassed = [m.path for m in modules if m.calls == 0 and not m.container and m.path in owners]
    unknown = dict.fromkeys(op.callable for op in trace_ops if op.kind is None)
    gradless = [p.name for p in parameters if p.used and p.trainable and p.grad_norm is None and not p.unobserved]
    found = [
        ("modules never called", "the pass did not reach them", silent),
        ("modules whose parameters were used without calling them", "seen at the ops that read the parameters", bypassed),
        ("ops the op table does not know", "measured, but no rule reads them", list(unknown)),
        ("parameters not used", "no op of the pass read them", [p.name for p in parameters if not p.used]),
        ("trainable parameters without gradient", "the loss does not depend on them", gradless),
        ("frozen parameters", "requires_grad is False", [p.name for p in parameters if p.used and not p.trainable]),
    ]
    for why in dict.fromkeys(value.unobserved for value in values if value.unobserved):
        found.append(("values not measured", why, [_place(v, trace_ops) for v in values if v.unobserved == why]))
    for why in dict.fromkeys(parameter.unobserved for parameter in parameters if parameter.unobserved):
        found.append(("parameters not measured", why, [p.name for p in parameters if p.unobserved == why]))
    return [Gap(what=what, why=why, where=tuple(where)) for what, why, where in found if where]


def _place(value: Value, trace_ops: Sequence[Op]) -> str:
    if value.op is None:
        return value.name or f"value {value.id}"
    op = trace_ops[value.op]
    return f"{op.module}:{op.name}" if op.module else op.name
