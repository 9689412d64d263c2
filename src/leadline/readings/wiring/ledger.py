"""The ledger: one row per parameter tensor with its path from the loss to the optimizer, and where the path ends."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence

from msgspec.structs import replace

from leadline.ops.arguments import argument
from leadline.ops.table import LAYOUT_KINDS, find_op
from leadline.readings.wiring.frozen import ops_with, outputs_of
from leadline.records import DepthBlock, Module, Op, Optimizer, Parameter, Trace, Update
from leadline.records.wiring import (
    DiscardedResult,
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
    return Ledger(
        rows=tuple(rows),
        optimizers=_optimizer_names(trace.optimizer),
        foreign=held.foreign,
        unregistered=tuple(_unregistered(trace)),
        idle=idle,
        reused=tuple(_reused(modules, idle)),
        discarded=tuple(_discarded(trace, modules, needed)),
        flat=tuple(_flat_steps(trace, rows)),
        constant_terms=tuple(_constant_terms(trace, needed)),
        mode_dependent=tuple(each.path for each in trace.modules if each.mode_dependent and each.calls),
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


def needed_ops(trace: Trace, values: Iterable[int | None] | None = None) -> set[int]:
    """The ops that these values, by default the loss, depend on, whether or not a gradient flows through them."""
    values = (trace.loss_value,) if values is None else values
    writers = {value: op.index for op in trace.ops for value in op.outputs}
    pending, needed = [value for value in values if value is not None], set[int]()
    while pending:
        writer = writers.get(pending.pop())
        if writer is not None and writer not in needed:
            needed.add(writer)
            pending += read_values(trace.ops[writer])
    return needed


def read_values(op: Op) -> tuple[int, ...]:
    """The inputs of which the op reads elements; `zeros_like` and its kind read only shapes."""
    row = find_op(op.name)
    return () if row is not None and row.reads_shapes else op.inputs


def _unregistered(trace: Trace) -> Iterator[UnregisteredTensor]:
    readers: dict[int, Op] = {}
    for op in trace.ops:
        for value in op.inputs:
            readers.setdefault(value, op)
    for leaf in trace.unregistered:
        if leaf.value in readers:
            yield UnregisteredTensor(
                shape=trace.values[leaf.value].shape,
                site=_site(readers[leaf.value]),
                in_optimizer=leaf.in_optimizer,
            )


def _site(op: Op) -> OpSite:
    return OpSite(op=op.name, module=op.module, source=op.source)


def _parent(path: str) -> str:
    return path.rpartition(".")[0]


def _own_parameters(trace: Trace) -> dict[str, list[Parameter]]:
    """The trainable parameters inside each module, by its path, including those of its children."""
    inside: dict[str, list[Parameter]] = defaultdict(list)
    for parameter in trace.parameters:
        path = parameter.name
        while path and parameter.trainable:
            path = _parent(path)
            inside[path].append(parameter)
    return inside


def _siblings(module: Module, modules: dict[str, Module]) -> list[Module]:
    """The other modules of the same type in the same container, such as the layers of a ModuleList."""
    parent = _parent(module.path)
    return [
        other
        for path, other in modules.items()
        if path != module.path and _parent(path) == parent and other.type == module.type
    ]


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
        ran = sum(other.calls > 0 for other in _siblings(module, modules))
        yield IdleModule(
            path=module.path,
            type=module.type,
            parameters=sum(each.count for each in own),
            siblings_ran=ran,
        )


def _reused(modules: dict[str, Module], idle: Sequence[IdleModule]) -> Iterator[ReusedModule]:
    idle_paths = {each.path for each in idle}
    for module in modules.values():
        waiting = tuple(other.path for other in _siblings(module, modules) if other.path in idle_paths)
        if module.calls > 1 and waiting:
            yield ReusedModule(path=module.path, type=module.type, calls=module.calls, idle_siblings=waiting)


def _discarded(trace: Trace, modules: dict[str, Module], needed: set[int]) -> Iterator[DiscardedResult]:
    """The outermost modules that computed something with trainable parameters of which nothing reaches the loss."""
    trainable = {parameter.name for parameter in trace.parameters if parameter.trainable}
    ops_of: dict[str, list[Op]] = defaultdict(list)
    for op in trace.ops:
        path = op.module
        while path:
            ops_of[path].append(op)
            path = _parent(path)
    found: list[str] = []
    for module in modules.values():
        ops = ops_of.get(module.path, [])
        weighted = [op for op in ops if any(name in trainable for name in op.params)]
        if module.container or not weighted or any(op.index in needed for op in ops):
            continue
        if any(module.path.startswith(f"{outer}.") for outer in found):
            continue
        found.append(module.path)
        yield DiscardedResult(
            module=module.path,
            type=module.type,
            site=_site(ops[-1]),
            replaced_by=_replacement(trace, module, modules, needed, ops_of),
            bypassed=_is_bypassed(trace, module, modules, needed, ops[-1])
            and not _is_returned(trace, module, modules, ops),
            kept=_is_kept(trace, module, modules, ops),
        )


def _replacement(
    trace: Trace,
    module: Module,
    modules: dict[str, Module],
    needed: set[int],
    ops_of: dict[str, list[Op]],
) -> str:
    """A later sibling of the same shape, with the same input, whose result is used; "" if there is none.

    A loop overwrites results by those of later layers. Heads that run side by side are no such thing: the loss may use
    the first of them only.
    """
    last = max(op.index for op in ops_of[module.path])
    given = {value for value in module.given if value is not None}
    shapes = _parameter_shapes(trace, module)
    for other in _siblings(module, modules):
        is_used = any(op.index in needed and op.index > last for op in ops_of.get(other.path, []))
        is_given = given and given <= {value for value in other.given if value is not None}
        if is_used and is_given and _parameter_shapes(trace, other) == shapes:
            return other.path
    return ""


def _parameter_shapes(trace: Trace, module: Module) -> list[tuple[int, ...]]:
    return [each.shape for each in trace.parameters if each.name.startswith(f"{module.path}.")]


def _is_bypassed(
    trace: Trace, module: Module, modules: dict[str, Module], needed: set[int], last: Op
) -> bool:
    """Whether the caller of the module goes on with its input where its result would fit: a forgotten assignment."""
    if len(module.given) != 1 or len(module.returned) != 1:
        return False
    given, returned = module.given[0], module.returned[0]
    if given is None or returned is None or trace.values[given].shape != trace.values[returned].shape:
        return False
    caller = _caller(module, modules)
    inside = f"{caller}." if caller else ""
    return any(
        given in op.inputs and op.index in needed and op.index > last.index
        for op in trace.ops
        if op.module == caller or op.module.startswith(inside)
    )


def _is_kept(trace: Trace, module: Module, modules: dict[str, Module], ops: Sequence[Op]) -> bool:
    """Whether the caller of the module returns something that was computed from its result, or may return it.

    What a caller returns is known if it returned tensors and each of them was recorded. What left the graph, as a
    number or an array or by a `detach`, may have come back unseen.
    """
    left = [*(each.value for each in trace.exits), *(op.outputs[0] for op in trace.ops if op.cut == "call")]
    if left and {op.index for op in ops} & needed_ops(trace, left):
        return True
    returned = _returned(module, modules)
    if not returned or any(value is None for value in returned):
        return True
    return _is_returned(trace, module, modules, ops)


def _is_returned(trace: Trace, module: Module, modules: dict[str, Module], ops: Sequence[Op]) -> bool:
    """Whether the caller is known to return something that was computed from the module's result."""
    needed = needed_ops(trace, [value for value in _returned(module, modules) if value is not None])
    return any(op.index in needed for op in ops)


def _returned(module: Module, modules: dict[str, Module]) -> tuple[int | None, ...]:
    """What the caller of the module returns, None for what was not recorded; () if nothing is known."""
    caller = _caller(module, modules)
    return modules[caller].returned if caller in modules else ()


def _caller(module: Module, modules: dict[str, Module]) -> str:
    """The path of the innermost module around this one that can be called."""
    caller = _parent(module.path)
    while caller in modules and modules[caller].container:
        caller = _parent(caller)
    return caller


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
            for name in other.params
            if name in zero
        }
        if cause is not None and tensors:
            seen.add((op.name, op.module))
            weight = next(iter(op.params), "") if cause == "zeros" else ""
            yield FlatStep(site=_site(op), tensors=len(tensors), cause=cause, weight=weight)


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
        parameters = [each for each in trace.parameters if each.name in op.params and len(each.shape) > 1]
        given = trace.values[op.inputs[0]].forward
        is_zero = given is not None and given.ms == 0 and given.count > 1
        return "zeros" if is_zero and parameters and all(each.norm == 0 for each in parameters) else None
    return None


def _is_layer_output(value: int, makers: Mapping[int, Op]) -> bool:
    """Whether a weight layer computed it, also if it was scaled or moved since."""
    op = makers.get(value)
    while op is not None and (op.kind in LAYOUT_KINDS or op.kind in ("scale", "activation")) and op.inputs:
        op = makers.get(op.inputs[0])
    return op is not None and op.kind == "weight"


def _constant_terms(trace: Trace, needed: Collection[int]) -> Iterator[OpSite]:
    """Loss ops that the loss depends on and nothing trainable goes into, such as a teacher compared with itself."""
    trainable = {each.name for each in trace.parameters if each.trainable}
    sources = [each.id for each in trace.values if each.source == "parameter" and each.name in trainable] + [
        leaf.value for leaf in trace.unregistered
    ]
    learned = values_after(trace, sources)
    if trace.loss_value not in learned:
        return  # nothing of the loss learns: the graph is cut, which other checks say
    for op in trace.ops:
        if op.kind == "loss" and op.index in needed and not learned & {*op.inputs}:
            yield _site(op)
