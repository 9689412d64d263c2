"""The ledger: one row per parameter tensor with its path from the loss to the optimizer, and where the path ends."""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Any

from msgspec.structs import replace

from leadline.ops.arguments import argument, value_of
from leadline.ops.table import LAYOUT_KINDS
from leadline.readings.wiring.frozen import ops_with, outputs_of
from leadline.readings.wiring.reached import (
    needed_ops,
    parent_of,
    read_discarded,
    read_discarded_parameters,
    siblings_of,
    site_of,
)
from leadline.records import DepthBlock, Module, Op, Optimizer, Parameter, Stats, Trace, Update
from leadline.records.wiring import (
    FlatCause,
    FlatStep,
    GradientState,
    IdleModule,
    Ledger,
    LedgerRow,
    OpSite,
    ReusedModule,
    UnregisteredTensor,
)
from leadline.tracer.cuts import values_after

# Kinds of ops that take a parameter apart or write it differently, and kinds that add a vector to what they compute.
REARRANGING_KINDS = frozenset({"layout", "cast", "select", "join"})
BIASED_KINDS = frozenset({"weight", "recurrent", "bias"})
# Kinds of ops that add up the terms of a loss, with their weights.
SUMMING_KINDS = LAYOUT_KINDS | {"add", "bias", "scale"}
# Cited: the signature of torch.nn.functional.batch_norm; names and positions of the running statistics.
RUNNING_STATISTICS = (("running_mean", 1), ("running_var", 2))


def read_ledger(trace: Trace, blocks: Sequence[DepthBlock], update: Update | None) -> Ledger:
    """One row per parameter of the traced model, and the modules and tensors that should have a part and have none."""
    needed = needed_ops(trace)
    reached = {name for op in trace.ops if op.index in needed for name in op.params}
    block_of = {name: block.name for block in reversed(blocks) for name in block.params}
    moved = {} if update is None else {step.name: step.update_norm > 0 for step in update.parameters}
    held = _held(trace.optimizer)
    front = _front(trace, held)
    rows = [
        replace(
            _row(parameter, reached, held, moved, block_of.get(parameter.name, "")),
            is_front=parameter.name in front,
            is_gate=_is_gate(trace, parameter),
        )
        for parameter in trace.parameters
    ]
    modules = {module.path: module for module in trace.modules}
    used = {parameter.name for parameter in trace.parameters if parameter.used}
    idle = tuple(_idle(trace, modules, used))
    discarded = tuple(read_discarded(trace, modules, needed))
    return Ledger(
        rows=tuple(rows),
        optimizers=_optimizer_names(trace.optimizer),
        foreign=held.foreign,
        unregistered=tuple(_unregistered(trace)),
        idle=idle,
        reused=tuple(_reused(modules, idle)),
        discarded=(*discarded, *read_discarded_parameters(trace, modules, needed, discarded)),
        flat=tuple(_flat_steps(trace, rows)),
        constant_terms=tuple(_constant_terms(trace, needed)),
        mode_dependent=tuple(each.path for each in trace.modules if each.mode_dependent and each.calls),
        idle_norms=tuple(_idle_norms(trace)),
    )


def _optimizer_names(optimizer: Optimizer | None) -> tuple[str, ...]:
    if optimizer is None:
        return ()
    return tuple(dict.fromkeys(optimizer.kind_of(group) for group in optimizer.groups))


class _Held:
    """What the optimizer holds: how often each parameter, in which group."""

    def __init__(self) -> None:
        self.known = False
        self.counts: Counter[str] = Counter()
        self.rates: dict[str, float | None] = {}
        self.kinds: dict[str, str] = {}
        self.decayed: set[str] = set()
        self.foreign = 0


def _held(optimizer: Optimizer | None) -> _Held:
    held = _Held()
    if optimizer is None:
        return held
    held.known = True
    for group in optimizer.groups:
        names = [name for name in group.parameters if name != "?"]
        held.foreign += len(group.parameters) - len(names)
        held.counts.update(names)
        held.rates.update(dict.fromkeys(names, group.lr))
        held.kinds.update(dict.fromkeys(names, optimizer.kind_of(group)))
        if group.weight_decay:
            held.decayed.update(names)
    return held


def _front(trace: Trace, held: _Held) -> set[str]:
    """The parameters that no optimizer holds, in front of all that is held: a network of which only the end learns."""
    learning = {each.name for each in trace.parameters if held.counts[each.name] and each.grad_norm}
    learning_ops = ops_with(trace, learning)
    after_learning = values_after(trace, outputs_of(learning_ops))
    read = {value for op in learning_ops for value in op.inputs}
    front = set[str]()
    for parameter in trace.parameters:
        if held.counts[parameter.name] or not parameter.grad_norm:
            continue
        own = ops_with(trace, {parameter.name})
        comes_after = any(after_learning.intersection(op.inputs) for op in own)
        if not comes_after and read & values_after(trace, outputs_of(own)):
            front.add(parameter.name)
    return front


def _is_gate(trace: Trace, parameter: Parameter) -> bool:
    """Whether it is zero, has a gradient, and multiplies: a bias or the shift of a norm opens nothing."""
    if parameter.norm != 0 or gradient_state(parameter) != "finite" or parameter.kind in ("bias", "norm"):
        return False
    return not (len(parameter.shape) == 1 and _is_bias_in_parts(trace, parameter))


def _is_bias_in_parts(trace: Trace, vector: Parameter) -> bool:
    """Whether the parts of a vector are read by weight layers only: the biases of query, key and value in one."""
    parts = {value.id for value in trace.values if value.source == "parameter" and value.name == vector.name}
    kinds = set()
    for op in trace.ops:
        if parts.intersection(op.inputs):
            if op.kind in REARRANGING_KINDS:
                parts.update(op.outputs)
            else:
                kinds.add(op.kind)
    return bool(kinds) and kinds <= BIASED_KINDS


def _row(
    parameter: Parameter, reached: set[str], held: _Held, moved: dict[str, bool], block: str
) -> LedgerRow:
    count = held.counts[parameter.name] if held.known else None
    gradient = gradient_state(parameter)
    row = LedgerRow(
        name=parameter.name,
        kind=parameter.kind,
        count=parameter.count,
        block=block,
        trainable=parameter.trainable,
        reached=parameter.name in reached,
        gradient=gradient,
        in_optimizer=count,
        optimizer=held.kinds.get(parameter.name, ""),
        lr=held.rates.get(parameter.name),
        decayed=parameter.name in held.decayed,
        moved=moved.get(parameter.name),
    )
    return _with_reason(row, parameter)


def gradient_state(parameter: Parameter) -> GradientState:
    """What arrived as the gradient of a parameter."""
    if parameter.unobserved:
        return "unseen"
    if parameter.grad_non_finite:
        return "non-finite"
    if parameter.grad_norm is None:
        return "none"
    return "finite" if parameter.grad_norm > 0 else "zero"


def _with_reason(row: LedgerRow, parameter: Parameter) -> LedgerRow:
    """The row with the first thing, on the way from the pass to the step, that keeps the tensor from learning."""
    reason = ""
    if not row.trainable:
        reason = "frozen: requires_grad is False"
    elif not parameter.used:
        reason = "no op reads it"
    elif not row.reached:
        reason = "what is computed with it never reaches the loss"
    elif row.gradient == "none":
        reason = "the graph is cut between it and the loss"
    elif row.gradient == "zero":
        reason = "its gradient is exactly zero"
    elif row.gradient == "non-finite":
        reason = "its gradient is not finite"
    elif row.in_optimizer == 0:
        reason = "no optimizer holds it"
    elif row.lr == 0:
        reason = "its learning rate is zero"
    elif row.moved is False:
        reason = "the step does not change it"
    return replace(row, reason=reason)


def _unregistered(trace: Trace) -> Iterator[UnregisteredTensor]:
    """Trainable leaves outside the model that the loss has a gradient for.

    Those behind a cut are not meant to learn, such as a target network whose result is detached.
    """
    learned = needed_ops(trace, through_cuts=False)
    readers: dict[int, Op] = {}
    for index in sorted(learned):
        for value in trace.ops[index].inputs:
            readers.setdefault(value, trace.ops[index])
    for leaf in trace.unregistered:
        if leaf.value in readers:
            yield UnregisteredTensor(
                shape=trace.values[leaf.value].shape,
                site=site_of(readers[leaf.value]),
                in_optimizer=leaf.in_optimizer,
            )


def _idle_norms(trace: Trace) -> Iterator[str]:
    """Batch norms that divide by the running statistics they were built with: mean 0 and variance 1."""
    for op in trace.ops:
        if op.name != "batch_norm" or argument(op, "training", 5, default=False):
            continue
        mean, variance = (_stats_of(trace, argument(op, *each)) for each in RUNNING_STATISTICS)
        if mean and variance and mean.abs_max == 0 and variance.mean == 1 and variance.ms == 1:
            yield op.module


def _stats_of(trace: Trace, recorded: Any) -> Stats | None:
    value = value_of(recorded)
    return None if value is None else trace.values[value].forward


def _own_parameters(trace: Trace) -> dict[str, list[Parameter]]:
    """The trainable parameters inside each module, by its path, including those of its children."""
    inside: dict[str, list[Parameter]] = defaultdict(list)
    for parameter in trace.parameters:
        path = parameter.name
        while path and parameter.trainable:
            path = parent_of(path)
            inside[path].append(parameter)
    return inside


def _idle(trace: Trace, modules: dict[str, Module], used: set[str]) -> Iterator[IdleModule]:
    """The outermost modules with trainable parameters of which no call and no parameter was used."""
    inside = _own_parameters(trace)
    found: list[str] = []
    for module in modules.values():
        own = inside.get(module.path, [])
        if module.calls or module.container or not own or any(each.name in used for each in own):
            continue
        if any(module.path.startswith(f"{outer}.") for outer in found):
            continue
        found.append(module.path)
        ran = sum(other.calls > 0 for other in siblings_of(module, modules))
        yield IdleModule(
            path=module.path,
            type=module.type,
            parameters=sum(each.count for each in own),
            siblings_ran=ran,
        )


def _reused(modules: dict[str, Module], idle: Sequence[IdleModule]) -> Iterator[ReusedModule]:
    idle_paths = {each.path for each in idle}
    for module in modules.values():
        if module.calls < 2 or not idle_paths:
            continue
        waiting = tuple(other.path for other in siblings_of(module, modules) if other.path in idle_paths)
        if waiting:
            yield ReusedModule(path=module.path, type=module.type, calls=module.calls, idle_siblings=waiting)


def _flat_steps(trace: Trace, rows: Sequence[LedgerRow]) -> Iterator[FlatStep]:
    """Ops whose output has a gradient while those of all their inputs are exactly zero, once per module."""
    zero = {row.name for row in rows if row.trainable and row.gradient == "zero"}
    if not zero:
        return
    makers = {value: op for op in trace.ops for value in op.outputs}
    seen: set[tuple[str, str]] = set()
    for op in trace.ops:
        if (op.name, op.module) in seen or not _stops_gradient(trace, op):
            continue
        cause = _cause_of_stop(trace, op, makers)
        behind = needed_ops(trace, op.inputs)
        tensors = {
            name
            for other in trace.ops
            if other.index in behind or other is op
            for name in (*other.params, *(_transposed_weights(trace, op, makers) if other is op else ()))
            if name in zero
        }
        if cause is not None and tensors:
            seen.add((op.name, op.module))
            weights = [*op.params, *_transposed_weights(trace, op, makers)]
            weight = next(iter(weights), "") if cause == "zeros" else ""
            yield FlatStep(site=site_of(op), tensors=len(tensors), cause=cause, weight=weight)


def _stops_gradient(trace: Trace, op: Op) -> bool:
    if not op.inputs or not op.outputs:
        return False
    after = trace.values[op.outputs[0]].backward
    before = [trace.values[value].backward for value in op.inputs]
    if after is None or not after.ms > 0 or before[0] is None:
        return False
    return all(each.ms == 0 for each in before if each is not None)


def _cause_of_stop(trace: Trace, op: Op, makers: Mapping[int, Op]) -> FlatCause | None:
    """Why no gradient passes an op; None if it is a saturated or dead function, which may come back to life."""
    if op.kind == "pointwise":
        return "step"
    if op.kind == "softmax":
        axis = argument(op, "dim", 1)
        shape = trace.values[op.inputs[0]].shape
        is_single = isinstance(axis, int) and -len(shape) <= axis < len(shape) and shape[axis] == 1
        # attention has a single key where the batch has one; a layer with one unit has one for ever
        return "single" if is_single and _is_layer_output(op.inputs[0], makers) else None
    if op.kind == "weight":
        weights = {*op.params, *_transposed_weights(trace, op, makers)}
        parameters = [each for each in trace.parameters if each.name in weights and len(each.shape) > 1]
        given = trace.values[op.inputs[0]].forward
        is_zero = given is not None and given.ms == 0 and given.count > 1
        return "zeros" if is_zero and parameters and all(each.norm == 0 for each in parameters) else None
    return None


def _transposed_weights(trace: Trace, op: Op, makers: Mapping[int, Op]) -> Iterator[str]:
    """The parameters that an op reads after they were only moved, as in `x @ weight.t()`."""
    for value in op.inputs:
        maker = makers.get(value)
        while maker is not None and maker.kind in LAYOUT_KINDS and maker.inputs:
            value = maker.inputs[0]
            maker = makers.get(value)
        if trace.values[value].source == "parameter":
            yield trace.values[value].name


def _is_layer_output(value: int, makers: Mapping[int, Op]) -> bool:
    """Whether a weight layer computed it, also if it was scaled or moved since."""
    op = makers.get(value)
    while op is not None and (op.kind in LAYOUT_KINDS or op.kind in ("scale", "activation")) and op.inputs:
        op = makers.get(op.inputs[0])
    return op is not None and op.kind == "weight"


def _constant_terms(trace: Trace, needed: Collection[int]) -> Iterator[OpSite]:
    """Loss ops that the loss depends on and nothing that learns goes into, such as a teacher compared with itself."""
    trainable = {each.name for each in trace.parameters if each.trainable}
    sources = [each.id for each in trace.values if each.source == "parameter" and each.name in trainable] + [
        leaf.value for leaf in trace.unregistered
    ]
    learned = {*sources}
    for op in trace.ops:  # behind a cut nothing learns, and indices have no gradient
        if op.cut is None and learned & {*op.inputs}:
            learned |= {value for value in op.outputs if trace.values[value].floating}
    if trace.loss_value not in learned:
        return  # nothing of the loss learns: the graph is cut, which other checks say
    for op in trace.ops:
        if op.kind == "loss" and op.index in needed and not learned & {*op.inputs}:
            yield site_of(op)
    computed = values_after(trace, sources)
    for op in _added_terms(trace):
        if op.kind != "loss" and computed & {*op.outputs} and not learned & {*op.outputs}:
            yield site_of(op)


def _added_terms(trace: Trace) -> Iterator[Op]:
    """The ops that computed the terms of which the loss is the sum."""
    makers = {value: op for op in trace.ops for value in op.outputs}
    pending = [] if trace.loss_value is None else [trace.loss_value]
    while pending:
        op = makers.get(pending.pop())
        if op is None:
            continue
        if op.kind in SUMMING_KINDS and all(math.prod(trace.values[each].shape) == 1 for each in op.inputs):
            pending += op.inputs
        else:
            yield op
