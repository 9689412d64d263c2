"""Build the finished, torch-free Trace from what the recorder wrote down."""

from __future__ import annotations

import inspect
import math
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from types import MappingProxyType
from typing import Any

import torch
from torch import Tensor, nn

from leadline.ops.table import Role, resolve_kind
from leadline.records import Attended, Gap, Module, Op, Parameter, Source, Stats, Trace, Units, Value
from leadline.tracer import stats
from leadline.tracer.names import ModelIndex, Named
from leadline.tracer.recorder import Recorder, Step
from leadline.tracer.sharded import filled, original_class
from leadline.tracer.sources import find_source, repository_root
from leadline.tracer.values import Entry, dtype_name


def find_gaps(
    ops: Sequence[Op], values: Sequence[Value], parameters: Sequence[Parameter], modules: Sequence[Module]
) -> list[Gap]:
    """Everything one would expect in the trace and does not find there."""
    found = (
        *_module_gaps(modules, parameters),
        *_parameter_gaps(parameters),
        (
            "ops the op table does not know",
            "measured, but no rule reads them",
            [op.callable for op in ops if op.kind is None],
        ),
        *_unmeasured("values not measured", [(value.unobserved, _place(value, ops)) for value in values]),
        *_unmeasured("parameters not measured", [(each.unobserved, each.name) for each in parameters]),
    )
    return [Gap(what=what, why=why, where=tuple(dict.fromkeys(where))) for what, why, where in found if where]


Found = tuple[str, str, list[str]]


def _module_gaps(modules: Sequence[Module], parameters: Sequence[Parameter]) -> Iterator[Found]:
    """A module may go uncalled because the pass missed it, or because another one used its parameters directly."""
    owners = {parameter.name.rpartition(".")[0] for parameter in parameters if parameter.used}
    uncalled = [module.path for module in modules if module.calls == 0 and not module.container]
    silent = [path for path in uncalled if path not in owners]
    bypassed = [path for path in uncalled if path in owners]
    yield "modules never called", "the pass did not reach them", silent
    yield (
        "modules whose parameters were used without calling them",
        "seen at the ops that read the parameters",
        bypassed,
    )


def _parameter_gaps(parameters: Sequence[Parameter]) -> Iterator[Found]:
    used = [parameter for parameter in parameters if parameter.used and not parameter.unobserved]
    gradless = [parameter.name for parameter in used if parameter.trainable and parameter.grad_norm is None]
    frozen = [parameter.name for parameter in used if not parameter.trainable]
    unused = [parameter.name for parameter in parameters if not parameter.used]
    yield "parameters not used", "no op of the pass read them", unused
    yield "trainable parameters without gradient", "the loss does not depend on them", gradless
    yield "frozen parameters", "requires_grad is False", frozen


def _unmeasured(what: str, reasons: Sequence[tuple[str, str]]) -> Iterator[Found]:
    for why in dict.fromkeys(why for why, _ in reasons if why):
        yield what, why, [place for reason, place in reasons if reason == why]


def _place(value: Value, ops: Sequence[Op]) -> str:
    if value.op is None:
        return value.name or f"value {value.id}"
    op = ops[value.op]
    return f"{op.module}:{op.name}" if op.module else op.name


# What the pass says about each parameter: its size, its gradient, and what it is used for.

_KINDS = {"weight": "matrix", "recurrent": "matrix", "embedding": "embedding", "norm": "norm"}


def read_parameters(
    model_index: ModelIndex, grads: Mapping[int, Tensor | None] | None, ops: Sequence[Op]
) -> tuple[Parameter, ...]:
    """All parameters in the model's order. `grads` is by identity; None if no backward pass ran."""
    named = list(model_index.parameters.values())
    uses = _uses(ops)
    weights = [each.item for each in named]
    gradients = [None if grads is None else grads.get(id(weight)) for weight in weights]
    blind = [stats.unobservable(weight) for weight in weights]
    seen = [None if why else weight for weight, why in zip(weights, blind, strict=True)]
    felt = [None if grad is None or stats.unobservable(grad) else grad for grad in gradients]
    measured = zip(_lengths(seen), _lengths(felt), _products(seen, felt), strict=True)
    return tuple(
        _parameter(each, uses.get(each.names[0]), why, *numbers)
        for each, why, numbers in zip(named, blind, measured, strict=True)
    )


def _uses(ops: Sequence[Op]) -> dict[str, Op]:
    """The first op that does something with each parameter; moving it about (a transpose, a cast) does not count."""
    uses: dict[str, Op] = {}
    for op in ops:
        for name in op.params:
            if name not in uses or uses[name].kind in ("layout", "cast"):
                uses[name] = op
    return uses


def _lengths(tensors: Sequence[Tensor | None]) -> list[Stats | None]:
    done = iter(stats.fetch_stats([stats.measure_norm(tensor) for tensor in tensors if tensor is not None]))
    return [None if tensor is None else next(done) for tensor in tensors]


def _products(weights: Sequence[Tensor | None], grads: Sequence[Tensor | None]) -> list[float | None]:
    r"""$\langle g, w \rangle$ for each pair that can be read."""
    pairs = [
        None if weight is None or grad is None else _product(weight, grad)
        for weight, grad in zip(weights, grads, strict=True)
    ]
    done = iter(stats.fetch([pair for pair in pairs if pair is not None]))
    return [None if pair is None else next(done) for pair in pairs]


def _product(weight: Tensor, grad: Tensor) -> stats.Number:
    return stats.inner_product(grad if grad.layout == weight.layout else grad.to_dense(), weight)


def _parameter(
    named: Named[nn.Parameter],
    use: Op | None,
    unobserved: str,
    weight: Stats | None,
    grad: Stats | None,
    product: float | None,
) -> Parameter:
    return Parameter(
        name=named.names[0],
        aliases=tuple(named.names[1:]),
        shape=tuple(named.item.shape),
        dtype=dtype_name(named.item.dtype),
        kind=_kind(named.item, use),
        trainable=named.item.requires_grad,
        used=use is not None or grad is not None,
        mean=None if weight is None else weight.mean,
        ms=None if weight is None else weight.ms,
        norm=None if weight is None else weight.rms * weight.count**0.5,
        grad_ms=None if grad is None else grad.ms,
        grad_norm=None if grad is None else grad.rms * grad.count**0.5,
        grad_dot_weight=product,
        grad_non_finite=0 if grad is None else grad.non_finite,
        unobserved=unobserved,
    )


def _kind(parameter: Tensor, use: Op | None) -> str:
    """Read off how the pass used the parameter: its shape and the op, never its name."""
    if parameter.numel() == 1:
        return "scalar"
    if use is None or use.kind is None:
        return "other"
    if use.kind in ("weight", "recurrent", "bias") and parameter.dim() < 2:
        return "bias"
    if use.kind == "weight" and use.name.startswith("conv"):
        return "conv"
    return _KINDS.get(use.kind, "other")


# From the recorder's notes to the finished, torch-free Trace.


def finish(
    recorder: Recorder,
    model_index: ModelIndex,
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
    parameters = filled(read_parameters(model_index, grads, made_ops), recorder.wholes, grad_norms)
    modules = _modules(model_index, recorder)
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
        kind=resolve_kind(step.plan.name, [roles[value] for value in step.inputs]),
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


def _settled(readings: Sequence[stats.RawStats | None]) -> list[Stats | None]:
    done = iter(stats.fetch_stats([reading for reading in readings if reading is not None]))
    return [None if reading is None else next(done) for reading in readings]


def _settled_units(entries: Sequence[Entry]) -> list[Units | None]:
    done = iter(stats.fetch_units([entry.units for entry in entries if entry.units is not None]))
    return [None if entry.units is None else next(done) for entry in entries]


def _settled_common(entries: Sequence[Entry]) -> list[float | None]:
    done = iter(stats.fetch([entry.common for entry in entries if entry.common is not None]))
    return [None if entry.common is None else next(done) for entry in entries]


def _modules(model_index: ModelIndex, recorder: Recorder) -> tuple[Module, ...]:
    root = repository_root()
    kinds = {original_class(named.item) for named in model_index.modules.values()}
    sources = {kind: find_source(kind, root) for kind in kinds}
    return tuple(
        _module(named, recorder, sources[original_class(named.item)])
        for named in model_index.modules.values()
    )


def _settled_attention(entries: Sequence[Entry]) -> list[Attended | None]:
    done = iter(stats.fetch_attention([entry.attended for entry in entries if entry.attended is not None]))
    return [None if entry.attended is None else next(done) for entry in entries]


def _module(named: Named[nn.Module], recorder: Recorder, source: Source | None) -> Module:
    kind, key = original_class(named.item), id(named.item)
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
