"""Facts that several fixes look up in a trace: what feeds a weight, who optimizes it, how QKV is packed."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from torch import nn

from leadline.checks._steps import optimizer_family
from leadline.fixes._engine.fix import Patient
from leadline.ops.optimizers import Family
from leadline.records import Edit, Op, Trace, Value, Weight
from leadline.tracer.inputs import unwrap

PASSING = frozenset({"layout", "cast", "dropout", "bias", "select", "pool", "scale"})


@dataclass(frozen=True, slots=True, kw_only=True)
class Span:
    """What a module reads and writes, where it reads one signal and writes one."""

    path: str
    entry: Value
    exit: Value
    weights: int


def own_model(patient: Patient) -> nn.Module:
    """The model itself, whose names the trace uses: without what compiles or distributes it."""
    return unwrap(patient.case.model)


def is_fresh(patient: Patient) -> bool:
    """Training has not begun: new initial weights throw nothing away."""
    known = patient.profile.optimizer
    return known is None or known.steps == 0


def family(patient: Patient) -> Family:
    """How the user's optimiser scales; Adam's kind where that is not known."""
    return optimizer_family(patient.profile) or "adam"


def has_step_hook(patient: Patient, kind: type | tuple[type, ...]) -> bool:
    """The optimiser's step has such a hook already."""
    hooks = getattr(patient.case.optimizer, "_optimizer_step_pre_hooks", {})
    return any(isinstance(hook, kind) for hook in hooks.values())


def signal_into(trace: Trace, op: Op) -> Value | None:
    """The activation that an op reads: its first floating-point input that is no parameter."""
    for number in op.inputs:
        value = trace.values[number]
        if value.floating and value.source not in ("parameter", "buffer", "constant"):
            return value
    return None


def feeder(trace: Trace, op: Op) -> Op | None:
    """The op that shaped what `op` reads, seen through those that pass a signal on; None: a batch input."""
    return shaper(trace, signal_into(trace, op))


def shaper(trace: Trace, value: Value | None) -> Op | None:
    """The op that shaped a value, seen through those that pass a signal on; None: a batch input."""
    while value is not None and value.op is not None:
        maker = trace.ops[value.op]
        if maker.kind not in PASSING:
            return maker
        value = signal_into(trace, maker)
    return None


def branch_end(patient: Patient, last: Weight) -> str | None:
    """The module whose output is the residual branch that ends in this weight.

    None where there is no such module, or the branch is more than what it puts out (attention and feed-forward side by
    side, a mixture of experts).
    """
    trace, residual = patient.trace, patient.profile.blocks[last.block].residual
    add = trace.values[residual.add].op if residual is not None else None
    sides = [shaper(trace, trace.values[n]) for n in trace.ops[add].inputs] if add is not None else []
    whole = any(side is not None and last.name in side.params for side in sides)
    return called_module(patient, last.name) if whole else None


def weight_ops(trace: Trace) -> dict[str, Op]:
    """The op that first uses each weight matrix, by the matrix's name."""
    shapes = {each.name: each.shape for each in trace.parameters}
    found: dict[str, Op] = {}
    for op in trace.ops:
        for name in op.params if op.kind == "weight" else ():
            if len(shapes.get(name, ())) > 1:
                found.setdefault(name, op)
    return found


def uses(trace: Trace) -> dict[str, int]:
    """How many weight ops of the pass read each parameter."""
    found: dict[str, int] = {}
    for op in trace.ops:
        for name in op.params if op.kind in ("weight", "recurrent") else ():
            found[name] = found.get(name, 0) + 1
    return found


def weights(patient: Patient) -> tuple[Weight, ...]:
    """The weight layers of the pass, each matrix once."""
    facts = patient.profile.facts
    return tuple({each.name: each for each in reversed(facts.weights)}.values())[::-1] if facts else ()


def head_of(patient: Patient) -> Weight | None:
    """The last weight layer of the pass."""
    facts = patient.profile.facts
    return facts.weights[-1] if facts and facts.weights else None


def head_parameters(patient: Patient) -> tuple[str, ...]:
    """The parameters that the last weight op of the pass reads, a table that was transposed for it included."""
    trace = patient.trace
    ops = [op for op in trace.ops if op.kind == "weight" and op.phase == "forward"]
    makers = [trace.ops[n] for i in ops[-1].inputs if (n := trace.values[i].op) is not None] if ops else []
    views = [name for op in makers if op.kind == "layout" for name in op.params]
    return (*ops[-1].params, *views) if ops else ()


def residual_blocks(patient: Patient) -> list[int]:
    """Blocks that add a branch to their own start, projections aside."""
    return [i for i, block in enumerate(patient.profile.blocks) if block.residual is not None]


def span_of(trace: Trace, path: str) -> Span | None:
    """What the module at `path` reads and writes; None where that is not one signal each, or it ran twice."""
    inside = [op for op in trace.ops if op.module == path or op.module.startswith(f"{path}.")]
    if not inside or any(op.call for op in inside if op.module == path):
        return None
    made = {value for op in inside for value in op.outputs}
    read = {number for op in inside for number in op.inputs if number not in made}
    entries = [v for v in (trace.values[n] for n in read) if v.floating and v.source in (None, "input")]
    own = {op.index for op in inside}
    exits = {n for op in trace.ops if op.index not in own for n in op.inputs if n in made}
    if len(entries) != 1 or len(exits) != 1:
        return None
    held = sum(op.kind == "weight" for op in inside)
    return Span(path=path, entry=entries[0], exit=trace.values[exits.pop()], weights=held)


def called_module(patient: Patient, parameter: str) -> str | None:
    """Path of the innermost module around a parameter that the pass really called once; None: there is none."""
    calls = {each.path: each.calls for each in patient.trace.modules}
    path = parameter.rpartition(".")[0]
    while path:
        if calls.get(path) == 1:
            return path
        path = path.rpartition(".")[0]
    return None


def modules_of(
    patient: Patient, kind: type[nn.Module] | tuple[type[nn.Module], ...]
) -> Iterator[tuple[str, nn.Module]]:
    """The model's submodules of a class, with their paths."""
    for path, module in own_model(patient).named_modules():
        if isinstance(module, kind):
            yield path, module


def owns_op(patient: Patient, op: Op) -> bool:
    """The op is all that its module does: a module that has neither parameters nor children, like `nn.ReLU`."""
    owner = dict(own_model(patient).named_modules()).get(op.module)
    return bool(op.module) and owner is not None and not [*owner.children(), *owner.parameters()]


def edit_of_activation(where: str, calls: str, to: str, *, own: bool) -> Edit:
    """Another function in place of the activation `calls`: of its own module, or where a module's code calls it."""
    if own:
        return Edit(action="swap", where=where, options={"to": to})
    return Edit(action="reroute", where=where, options={"calls": calls, "to": to})


# Queries, keys and values packed into one matrix: where each of them lies.

ROWS = ("in_proj_weight", "qkv.weight", "Wqkv.weight")
"""Ends of names of matrices (3 out, in): of PyTorch, of leadline.nn and timm, of flash attention."""
COLUMNS = ("c_attn.weight",)
"""The same for (in, 3 out): GPT-2 writes y = x W."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Packing:
    """The parts `first` to `last` of `parts` equal ones along a dimension."""

    parts: int
    dim: int
    first: int
    last: int


QUERIES_AND_KEYS, VALUES = (0, 1), (2, 2)


def packing_of(trace: Trace, name: str, which: tuple[int, int]) -> Packing | None:
    """Where queries and keys, or values, lie in the matrix of that name; None if it is no packed one.

    Projections that interleave the three head by head (GPT-NeoX, Falcon) are none: their parts are not blocks.
    """
    shape = next((each.shape for each in trace.parameters if each.name == name), ())
    for ends, dim in ((ROWS, 0), (COLUMNS, 1)):
        if name.endswith(ends) and len(shape) == 2 and shape[dim] == 3 * shape[1 - dim]:
            return Packing(parts=3, dim=dim, first=which[0], last=which[1])
    return None
