"""Build the torch-free Trace from what the recorder holds."""

from __future__ import annotations

import inspect
import math
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from types import MappingProxyType
from typing import Any, NamedTuple, TypeVar

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm
from torch.nn.modules.dropout import _DropoutNd

from leadline.ops.table import Role, resolve_kind
from leadline.records import (
    Attended,
    Gap,
    GradientStats,
    Mixing,
    Module,
    Op,
    Parameter,
    Source,
    Stats,
    Trace,
    Units,
    Value,
)
from leadline.tracer import counts, stats
from leadline.tracer.attention import fetch_attention
from leadline.tracer.mixing import fetch_mixings
from leadline.tracer.names import ModelIndex, Named
from leadline.tracer.recorder import RecordedOp, Recorder
from leadline.tracer.sharded import fill_gathered_parameters, original_class
from leadline.tracer.sources import find_source, repository_root
from leadline.tracer.values import ValueEntry, dtype_name

R = TypeVar("R")
F = TypeVar("F")


def build_trace(
    recorder: Recorder,
    model_index: ModelIndex,
    grads: Mapping[int, Tensor | None] | None,
    fields: Mapping[str, Any],
) -> Trace:
    """Return the Trace. `grads` is by the `id` of the parameter; None if no backward pass ran.

    `fields` holds further fields of the Trace.
    """
    measured = measure_pass(recorder, model_index, grads)
    return read_pass(measured, fields, stats.transfer((*measured.pending(), fields["loss"])))


class MeasuredPass(NamedTuple):
    """A recorded pass of which everything is measured; a device may still compute the numbers."""

    recorder: Recorder
    model_index: ModelIndex
    parameters: _MeasuredParameters
    gaps: tuple[Gap, ...]

    def pending(self) -> Iterator[Tensor]:
        """Numbers that were not read yet; `read_pass` needs all of them."""
        numbers = (*_pending_numbers(self.recorder.table.entries), *_flat(self.parameters))
        return (each for each in numbers if isinstance(each, Tensor))


def measure_pass(
    recorder: Recorder, model_index: ModelIndex, grads: Mapping[int, Tensor | None] | None
) -> MeasuredPass:
    """Measure what is left of a pass. Nothing is read from a device."""
    recorder.attentions.measure()
    recorded, entries = recorder.ops, recorder.table.entries
    unplaced = recorder.gradients.place_recomputed(
        [op.plan.callable for op in recorded], [op.outputs for op in recorded]
    )
    has_choices = any(entry.choices is not None for entry in entries)
    parameters = _measure_parameters(model_index, grads, has_choices=has_choices)
    return MeasuredPass(recorder, model_index, parameters, tuple(_checkpoint_gaps(unplaced)))


def read_pass(
    measured: MeasuredPass,
    fields: Mapping[str, Any],
    known: stats.Known,
    grad_norms: Mapping[str, float] = MappingProxyType({}),
) -> Trace:
    """Return the Trace of a pass whose pending numbers are `known`.

    `fields` holds further fields of the Trace. `grad_norms` holds, by name, the norms of gradients of which this
    process has only a shard.
    """
    recorder = measured.recorder
    recorded, entries = recorder.ops, recorder.table.entries
    roles = _roles(recorded, entries)
    ops = tuple(_op(index, op, roles, entries) for index, op in enumerate(recorded))
    values = _values(entries, recorded, known)
    parameters = _read_parameters(measured.model_index, measured.parameters, ops, known)
    parameters = fill_gathered_parameters(parameters, recorder.gathered_stats, grad_norms)
    modules = _modules(measured.model_index, recorder)
    gaps = (*fields["gaps"], *measured.gaps, *find_gaps(ops, values, parameters, modules))
    return Trace(
        **{**fields, "gaps": gaps, "loss": _known_number(fields["loss"], known)},
        torch=str(torch.__version__),
        ops=ops,
        values=values,
        parameters=parameters,
        modules=modules,
        exits=tuple(recorder.exits),
    )


def _roles(ops: Sequence[RecordedOp], entries: Sequence[ValueEntry]) -> list[Role]:
    """Return the role of each value: it carries the signal of the batch, depends on parameters only, or is constant."""
    first: dict[str | None, Role] = {"input": "signal", "target": "signal", "parameter": "parameter"}
    roles = [first.get(entry.source, "constant") for entry in entries]
    for op in ops:
        input_roles = {roles[value] for value in op.inputs}
        role: Role = "constant"
        if "signal" in input_roles:
            role = "signal"
        elif "parameter" in input_roles:
            role = "parameter"
        for value in op.outputs:
            roles[value] = role
    return roles


def _op(index: int, op: RecordedOp, roles: Sequence[Role], entries: Sequence[ValueEntry]) -> Op:
    params = [entries[value].name for value in op.inputs if entries[value].source == "parameter"]
    return Op(
        index=index,
        name=op.plan.name,
        callable=op.plan.callable,
        kind=resolve_kind(op.plan.name, [roles[value] for value in op.inputs]),
        module=op.module,
        call=op.call,
        phase=op.phase,
        inputs=op.inputs,
        outputs=op.outputs,
        params=tuple(dict.fromkeys(params)) if params else (),
        args=op.args,
        kwargs=op.kwargs,
        source=op.source,
        cut=op.cut,
    )


def _pending_numbers(entries: Sequence[ValueEntry]) -> list[Any]:
    """What was measured of the values and may still be on a device: all of it is transferred at once."""
    numbers: list[Any] = []
    for entry in entries:  # without generators: most entries hold nothing, and there are thousands of them
        for raw in (entry.forward, entry.backward):
            if raw is not None and stats.is_deferred(raw):
                numbers += raw
        if entry.units is not None:
            numbers += entry.units
        if entry.attended is not None:
            numbers += (*entry.attended.numbers, entry.attended.slices)
        if entry.mixing is not None:
            numbers += (entry.mixing.matrix, entry.mixing.numbers, entry.gradient_spread)
        if entry.shared_mean is not None:
            numbers.append(entry.shared_mean)
        if entry.summed_targets is not None:
            numbers.append(entry.summed_targets)
        if entry.choices is not None:
            numbers.append(entry.choices)
    return numbers


def _known_number(number: stats.Number | None, known: stats.Known) -> float | None:
    if isinstance(number, Tensor):
        return known[id(number)][0]
    return None if number is None else float(number)


def _values(
    entries: Sequence[ValueEntry], ops: Sequence[RecordedOp], known: stats.Known
) -> tuple[Value, ...]:
    forward = _fetch_present([entry.forward for entry in entries], stats.fetch_stats, known)
    backward = _fetch_present([entry.backward for entry in entries], stats.fetch_gradients, known)
    units = _fetch_present([entry.units for entry in entries], stats.fetch_units, known)
    shared_means = [_known_number(entry.shared_mean, known) for entry in entries]
    attended = _fetch_present([entry.attended for entry in entries], fetch_attention, known)
    summed_targets = [_known_number(entry.summed_targets, known) for entry in entries]
    choices = [() if each.choices is None else tuple(map(int, known[id(each.choices)])) for each in entries]
    mixings = _fetch_present(
        [None if each.mixing is None else (each.mixing, each.gradient_spread) for each in entries],
        fetch_mixings,
        known,
    )
    readers = Counter(value for op in ops for value in op.inputs)
    for value, entry in enumerate(
        entries
    ):  # in order of appearance, because a view of a view inherits from the first
        if entry.op is None or not entry.is_rearranged:
            continue
        original = ops[entry.op].inputs[0]
        if math.prod(entries[original].shape) == math.prod(entry.shape):
            forward[value] = forward[original]
            backward[value] = backward[original] if readers[original] == 1 else None
            entry.unobserved = entry.unobserved or entries[original].unobserved
    rows = zip(
        entries,
        forward,
        backward,
        units,
        shared_means,
        attended,
        summed_targets,
        choices,
        mixings,
        strict=True,
    )
    return tuple(_value(number, *row) for number, row in enumerate(rows))


def _value(  # noqa: PLR0913  (one argument for each thing that is measured)
    number: int,
    entry: ValueEntry,
    forward: Stats | None,
    backward: GradientStats | None,
    units: Units | None,
    shared_mean: float | None,
    attended: Attended | None,
    summed_targets: float | None,
    choices: tuple[int, ...],
    mixing: Mixing | None,
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
        common_ms=shared_mean,
        attended=attended,
        summed_targets=summed_targets,
        choices=choices,
        mixing=mixing,
        unobserved=entry.unobserved,
    )


def _fetch_present(
    items: Sequence[R | None], fetch: Callable[[list[R], stats.Known], list[F]], known: stats.Known
) -> list[F | None]:
    """Fetch the items that are not None, all at once, and return them in their places."""
    fetched = iter(fetch([item for item in items if item is not None], known))
    return [None if item is None else next(fetched) for item in items]


def _modules(model_index: ModelIndex, recorder: Recorder) -> tuple[Module, ...]:
    root = repository_root()
    modules = [(named, original_class(named.item)) for named in model_index.modules.values()]
    classes = {
        kind: (find_source(kind, root), _has_no_forward(kind)) for kind in {kind for _, kind in modules}
    }
    return tuple([_module(named, kind, recorder, *classes[kind]) for named, kind in modules])


def _has_no_forward(kind: type[nn.Module]) -> bool:
    return inspect.getattr_static(kind, "forward", None) is inspect.getattr_static(nn.Module, "forward")


def _module(
    named: Named[nn.Module],
    kind: type[nn.Module],
    recorder: Recorder,
    source: Source | None,
    is_container: bool,
) -> Module:
    key = id(named.item)
    return Module(
        path=named.names[0],
        type=f"{kind.__module__}.{kind.__qualname__}",
        calls=recorder.calls.counts[key],
        aliases=tuple(named.names[1:]),
        container=is_container,
        source=source,
        given=recorder.module_inputs.get(key, ()),
        returned=recorder.module_outputs.get(key, ()),
        mode_dependent=_is_mode_dependent(named.item),
    )


def _is_mode_dependent(module: nn.Module) -> bool:
    """Whether the module is a dropout that drops something, or a batch norm."""
    if isinstance(module, _DropoutNd):
        return module.p > 0
    return isinstance(module, _BatchNorm)


# Parameters: their size, their gradient, and how the pass used them.

_KINDS = {"weight": "matrix", "recurrent": "matrix", "embedding": "embedding", "norm": "norm"}


class _MeasuredParameters(NamedTuple):
    """What was measured of the parameters, in the order of the model; it may still be on a device."""

    pairs: list[stats.PairStats]
    slices: list[Tensor | None]
    """Norms of the slices of each gradient of stacked matrices; None where the pass routes nothing."""


def _measure_parameters(
    model_index: ModelIndex, grads: Mapping[int, Tensor | None] | None, *, has_choices: bool
) -> _MeasuredParameters:
    """Measure all parameters and their gradients. `grads` is by `id`; None if no backward pass ran.

    With `has_choices` the pass may route tokens to experts, whose matrices are often stacked in one parameter.
    """
    weights = [each.item for each in model_index.parameters.values()]
    gradients = [None if grads is None else grads.get(id(weight)) for weight in weights]
    pairs = [stats.read_pair(weight, grad) for weight, grad in zip(weights, gradients, strict=True)]
    slices = [
        None
        if grad is None or pair.grad is None or not has_choices
        else stats.attempt(counts.measure_slices, grad)[0]
        for grad, pair in zip(gradients, pairs, strict=True)
    ]
    return _MeasuredParameters(pairs, slices)


def _flat(measured: _MeasuredParameters) -> Iterator[Any]:
    for pair in measured.pairs:
        for raw in (pair.weight, pair.grad):
            if raw is not None and stats.is_deferred(raw):
                yield from raw
        yield pair.product
    yield from measured.slices


def _read_parameters(
    model_index: ModelIndex, measured: _MeasuredParameters, ops: Sequence[Op], known: stats.Known
) -> tuple[Parameter, ...]:
    """Return all parameters in the order of the model."""
    uses = _uses(ops)
    pairs = measured.pairs
    weights = _fetch_present([pair.weight for pair in pairs], stats.fetch_stats, known)
    grads = _fetch_present([pair.grad for pair in pairs], stats.fetch_gradients, known)
    products = [_known_number(pair.product, known) for pair in pairs]
    slices = [() if each is None else tuple(known[id(each)]) for each in measured.slices]
    numbers = zip((pair.unobserved for pair in pairs), weights, grads, products, slices, strict=True)
    return tuple(
        _parameter(each, uses.get(each.names[0]), *row)
        for each, row in zip(model_index.parameters.values(), numbers, strict=True)
    )


def _uses(ops: Sequence[Op]) -> dict[str, Op]:
    """Return the first op that uses each parameter; rearranging it (a transpose, a cast) does not count."""
    uses: dict[str, Op] = {}
    for op in ops:
        for name in op.params:
            if name not in uses or uses[name].kind in ("layout", "cast"):
                uses[name] = op
    return uses


def _parameter(  # noqa: PLR0913  (one argument for each thing that is measured)
    named: Named[nn.Parameter],
    use: Op | None,
    unobserved: str,
    weight: Stats | None,
    grad: GradientStats | None,
    product: float | None,
    slices: tuple[float, ...],
) -> Parameter:
    kind = _kind(named.item, use)
    return Parameter(
        name=named.names[0],
        aliases=tuple(named.names[1:]),
        shape=tuple(named.item.shape),
        dtype=dtype_name(named.item.dtype),
        kind=kind,
        trainable=named.item.requires_grad,
        used=use is not None or grad is not None,
        mean=None if weight is None else weight.mean,
        ms=None if weight is None else weight.ms,
        norm=None if weight is None else weight.rms * weight.count**0.5,
        grad_ms=None if grad is None else grad.ms,
        grad_norm=None if grad is None else grad.rms * grad.count**0.5,
        grad_dot_weight=product,
        grad_non_finite=0 if grad is None else grad.non_finite,
        grad_slices=() if kind == "conv" else slices,
        unobserved=unobserved,
    )


def _kind(parameter: Tensor, use: Op | None) -> str:
    """Return the kind of the parameter from its shape and the op that uses it, never from its name."""
    if parameter.numel() == 1:
        return "scalar"
    if use is None or use.kind is None:
        return "other"
    if use.kind in ("weight", "recurrent", "bias") and parameter.dim() < 2:
        return "bias"
    if use.kind == "weight" and use.name.startswith("conv"):
        return "conv"
    return _KINDS.get(use.kind, "other")


# What is missing from the trace.


def find_gaps(
    ops: Sequence[Op], values: Sequence[Value], parameters: Sequence[Parameter], modules: Sequence[Module]
) -> list[Gap]:
    """Return everything that one would expect in the trace but that is missing."""
    candidates = (
        *_module_gaps(modules, parameters),
        *_parameter_gaps(parameters),
        (
            "ops the op table does not know",
            "they are measured, but no check uses them",
            [op.callable for op in ops if op.kind is None],
        ),
        *_unmeasured("values not measured", [(value.unobserved, _place(value, ops)) for value in values]),
        *_unmeasured("parameters not measured", [(each.unobserved, each.name) for each in parameters]),
    )
    return [
        Gap(what=what, why=why, where=tuple(dict.fromkeys(where))) for what, why, where in candidates if where
    ]


GapCandidate = tuple[str, str, list[str]]
"""What, why and where; there is a gap if `where` is not empty."""


def _module_gaps(modules: Sequence[Module], parameters: Sequence[Parameter]) -> Iterator[GapCandidate]:
    """Yield modules that were not called: the pass missed them, or another module used their parameters directly."""
    owners = {parameter.name.rpartition(".")[0] for parameter in parameters if parameter.used}
    uncalled = [module.path for module in modules if module.calls == 0 and not module.container]
    unreached = [path for path in uncalled if path not in owners]
    bypassed = [path for path in uncalled if path in owners]
    yield "modules never called", "the pass did not reach them", unreached
    yield (
        "modules whose parameters were used without calling them",
        "they are recorded at the ops that read the parameters",
        bypassed,
    )


def _parameter_gaps(parameters: Sequence[Parameter]) -> Iterator[GapCandidate]:
    used = [parameter for parameter in parameters if parameter.used and not parameter.unobserved]
    gradless = [parameter.name for parameter in used if parameter.trainable and parameter.grad_norm is None]
    frozen = [parameter.name for parameter in used if not parameter.trainable]
    unused = [parameter.name for parameter in parameters if not parameter.used]
    yield "parameters not used", "no op of the pass read them", unused
    yield "trainable parameters without gradient", "the loss does not depend on them", gradless
    yield "frozen parameters", "requires_grad is False", frozen


def _unmeasured(what: str, reasons: Sequence[tuple[str, str]]) -> Iterator[GapCandidate]:
    for why in dict.fromkeys(why for why, _ in reasons if why):
        yield what, why, [place for reason, place in reasons if reason == why]


def _place(value: Value, ops: Sequence[Op]) -> str:
    if value.op is None:
        return value.name or f"value {value.id}"
    op = ops[value.op]
    return f"{op.module}:{op.name}" if op.module else op.name


def _checkpoint_gaps(unplaced: Sequence[str]) -> list[Gap]:
    if not unplaced:
        return []
    why = "the recomputation did not repeat the forward pass op by op, so its gradients cannot be assigned"
    return [Gap(what="gradients inside a reentrant checkpoint", why=why, where=tuple(unplaced))]
