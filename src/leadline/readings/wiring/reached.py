"""What reaches the loss, and the modules and tensors whose results do not."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence

from leadline.ops.table import find_op
from leadline.records import Module, Op, Trace
from leadline.records.wiring import DiscardedResult, OpSite
from leadline.tracer.cuts import values_after


def needed_ops(
    trace: Trace, values: Iterable[int | None] | None = None, *, through_cuts: bool = True
) -> set[int]:
    """The ops that these values, by default the loss, depend on.

    Without `through_cuts` only those are returned that a gradient flows through.
    """
    values = (trace.loss_value,) if values is None else values
    writers = {value: op.index for op in trace.ops for value in op.outputs}
    pending, needed = [value for value in values if value is not None], set[int]()
    while pending:
        writer = writers.get(pending.pop())
        if writer is None or writer in needed:
            continue
        if through_cuts or trace.ops[writer].cut is None:
            needed.add(writer)
            pending += read_values(trace.ops[writer])
    return needed


def read_values(op: Op) -> tuple[int, ...]:
    """The inputs of which the op reads elements; `zeros_like` and its kind read only shapes."""
    row = find_op(op.name)
    return () if row is not None and row.reads_shapes else op.inputs


def read_discarded(trace: Trace, modules: dict[str, Module], needed: set[int]) -> Iterator[DiscardedResult]:
    """The outermost modules that computed something with trainable parameters of which nothing reaches the loss."""
    trainable = {parameter.name for parameter in trace.parameters if parameter.trainable}
    ops_of: dict[str, list[Op]] = defaultdict(list)
    for op in trace.ops:
        path = op.module
        while path:
            ops_of[path].append(op)
            path = parent_of(path)
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
            site=site_of(ops[-1]),
            replaced_by=_replacement(trace, module, modules, needed, ops_of),
            bypassed=_is_bypassed(trace, module, modules, needed, ops[-1])
            and not _is_returned(trace, module, modules, ops),
            kept=_is_kept(trace, module, modules, ops),
        )


def read_discarded_parameters(
    trace: Trace, modules: dict[str, Module], needed: set[int], known: Sequence[DiscardedResult]
) -> Iterator[DiscardedResult]:
    """Trainable tensors of a module of which other things are used, whose own results never reach the loss.

    An adapter beside a layer is one: the layer is used, and what the adapter computes is not added.
    """
    inside = tuple(f"{each.module}." for each in known)
    readers: dict[str, list[Op]] = defaultdict(list)
    for op in trace.ops:
        for name in dict.fromkeys(op.params):
            readers[name].append(op)
    for parameter in trace.parameters:
        owner, ops = modules.get(parent_of(parameter.name)), readers.get(parameter.name, [])
        if not parameter.trainable or owner is None or not ops or parameter.name.startswith(inside):
            continue
        if any(op.index in needed for op in ops) or not owner.returned or None in owner.returned:
            continue
        after = values_after(trace, (value for op in ops for value in op.outputs))
        if after.intersection(owner.returned) or _left_graph(trace, ops):
            continue
        yield DiscardedResult(module=parameter.name, type="Parameter", site=site_of(ops[-1]), kept=False)


def _left_graph(trace: Trace, ops: Sequence[Op]) -> bool:
    """Whether what these ops computed left the graph, as a number or by a `detach`: it may have come back."""
    left = [*(each.value for each in trace.exits), *(op.outputs[0] for op in trace.ops if op.cut == "call")]
    return bool(left) and bool({op.index for op in ops} & needed_ops(trace, left))


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
    for other in siblings_of(module, modules):
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
    if _left_graph(trace, ops):
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
    caller = parent_of(module.path)
    while caller in modules and modules[caller].container:
        caller = parent_of(caller)
    return caller


def site_of(op: Op) -> OpSite:
    return OpSite(op=op.name, module=op.module, source=op.source)


def parent_of(path: str) -> str:
    return path.rpartition(".")[0]


def siblings_of(module: Module, modules: dict[str, Module]) -> list[Module]:
    """The other modules of the same type in the same container, such as the layers of a ModuleList."""
    parent = parent_of(module.path)
    return [
        other
        for path, other in modules.items()
        if path != module.path and parent_of(path) == parent and other.type == module.type
    ]
