"""What several fixes look up: weights, heads, blocks and modules of the model, and how its optimizer scales."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

from leadline.checks._steps import optimizer_family
from leadline.fixes._engine.fix import FixContext
from leadline.ops.optimizers import Family
from leadline.records import Op, ParamGroup, Trace, Value, Weight

if TYPE_CHECKING:  # torch-free start: files of fixes import this module
    from torch import nn

PASSING_KINDS = frozenset({"layout", "cast", "dropout", "bias", "select", "pool", "scale"})
"""Kinds of ops that pass a signal on without giving it a new scale by weights, norms or activations."""

# Heuristic: half a decade between one learning rate and the next, as in most searches by hand.
RATE_RATIO = 3.0

# Heuristic: variance of attention logits over the keys; at 4, twice the deviation of unit logits, few keys share a
# query.
MAX_LOGIT_VARIANCE = 4.0


@dataclass(frozen=True, slots=True, kw_only=True)
class ModuleSpan:
    """What a module reads and writes, where it reads one signal and writes one."""

    path: str
    entry: Value
    exit: Value
    weights: int
    """Number of weight ops inside."""


def is_fresh(context: FixContext) -> bool:
    """Whether training has not begun, so that new initial weights discard nothing."""
    optimizer = context.profile.optimizer
    return optimizer is None or optimizer.steps == 0


def family(context: FixContext) -> Family:
    """How the user's optimizer scales; "adam" where that is unknown."""
    return optimizer_family(context.profile) or "adam"


def has_step_hook(context: FixContext, kind: type | tuple[type, ...]) -> bool:
    """Whether the optimizer's step has a hook of this class already."""
    optimizers = context.case.optimizers
    hooks = [hook for each in optimizers for hook in getattr(each, "_optimizer_step_pre_hooks", {}).values()]
    return any(isinstance(hook, kind) for hook in hooks)


def signal_input(trace: Trace, op: Op) -> Value | None:
    """The activation that an op reads: its first floating-point input that is not a parameter."""
    for number in op.inputs:
        value = trace.values[number]
        if value.floating and value.source not in ("parameter", "buffer", "constant"):
            return value
    return None


def feeding_op(trace: Trace, op: Op) -> Op | None:
    """The op that shaped the signal `op` reads; None if that signal is a batch input."""
    return shaping_op(trace, signal_input(trace, op))


def shaping_op(trace: Trace, value: Value | None) -> Op | None:
    """The last op before `value` that does more than pass a signal on; None if there is none up to the batch."""
    while value is not None and value.op is not None:
        op = trace.ops[value.op]
        if op.kind not in PASSING_KINDS:
            return op
        value = signal_input(trace, op)
    return None


def branch_end(context: FixContext, last: Weight) -> str | None:
    """Path of the module whose output is the residual branch that ends in the weight `last`.

    None where there is no such module, or where the branch is more than its output (attention and feed-forward in
    parallel, a mixture of experts).
    """
    trace, residual = context.trace, context.profile.blocks[last.block].residual
    add = trace.values[residual.add].op if residual is not None else None
    sides = [shaping_op(trace, trace.values[n]) for n in trace.ops[add].inputs] if add is not None else []
    whole = any(side is not None and last.name in side.params for side in sides)
    return called_module(context, last.name) if whole else None


def weight_ops(trace: Trace) -> dict[str, Op]:
    """The op that first uses each weight matrix, by the name of the matrix."""
    shapes = {parameter.name: parameter.shape for parameter in trace.parameters}
    ops: dict[str, Op] = {}
    for op in trace.ops:
        for name in op.params if op.kind == "weight" else ():
            if len(shapes.get(name, ())) > 1:
                ops.setdefault(name, op)
    return ops


def count_uses(trace: Trace) -> dict[str, int]:
    """How many weight ops of the pass read each parameter."""
    counts: dict[str, int] = {}
    for op in trace.ops:
        for name in op.params if op.kind in ("weight", "recurrent") else ():
            counts[name] = counts.get(name, 0) + 1
    return counts


def weights(context: FixContext) -> tuple[Weight, ...]:
    """The weight layers of the pass, each matrix once."""
    facts = context.profile.facts
    return tuple({each.name: each for each in reversed(facts.weights)}.values())[::-1] if facts else ()


def head_weight(context: FixContext) -> Weight | None:
    """The last weight layer of the pass."""
    facts = context.profile.facts
    return facts.weights[-1] if facts and facts.weights else None


def head_parameters(context: FixContext) -> tuple[str, ...]:
    """Names of the parameters that the last weight op reads, including a table that was transposed for it."""
    trace = context.trace
    ops = [op for op in trace.ops if op.kind == "weight" and op.phase == "forward"]
    if not ops:
        return ()
    makers = [trace.ops[n] for i in ops[-1].inputs if (n := trace.values[i].op) is not None]
    views = [name for op in makers if op.kind == "layout" for name in op.params]
    return (*ops[-1].params, *views)


def residual_blocks(context: FixContext) -> list[int]:
    """Indices of the blocks that add a branch to their own input."""
    return [i for i, block in enumerate(context.profile.blocks) if block.residual is not None]


def module_span(trace: Trace, path: str) -> ModuleSpan | None:
    """What the module at `path` reads and writes; None where that is not one signal each, or the module ran twice."""
    inside = [op for op in trace.ops if op.module == path or op.module.startswith(f"{path}.")]
    if not inside or any(op.call for op in inside if op.module == path):
        return None
    outputs = {value for op in inside for value in op.outputs}
    inputs = {number for op in inside for number in op.inputs if number not in outputs}
    entries = [v for v in (trace.values[n] for n in inputs) if v.floating and v.source in (None, "input")]
    own = {op.index for op in inside}
    exits = {n for op in trace.ops if op.index not in own for n in op.inputs if n in outputs}
    if len(entries) != 1 or len(exits) != 1:
        return None
    count = sum(op.kind == "weight" for op in inside)
    return ModuleSpan(path=path, entry=entries[0], exit=trace.values[exits.pop()], weights=count)


def called_module(context: FixContext, parameter: str) -> str | None:
    """Path of the innermost module around a parameter that the pass called exactly once; None if there is none."""
    calls = {module.path: module.calls for module in context.trace.modules}
    path = parameter.rpartition(".")[0]
    while path:
        if calls.get(path) == 1:
            return path
        path = path.rpartition(".")[0]
    return None


def modules_of(
    context: FixContext, kind: type[nn.Module] | tuple[type[nn.Module], ...]
) -> Iterator[tuple[str, nn.Module]]:
    """The submodules of a class, with their paths."""
    for path, module in context.model.named_modules():
        if isinstance(module, kind):
            yield path, module


def is_own_module(context: FixContext, op: Op) -> bool:
    """Whether the op is all that its module does: a module without parameters and children, such as `nn.ReLU`."""
    module = dict(context.model.named_modules()).get(op.module)
    return bool(op.module) and module is not None and not [*module.children(), *module.parameters()]


def last_op(context: FixContext, name: str | None, module: str | None = None) -> Op | None:
    """The last op of the forward pass with that name and in that module, where they are given."""
    for op in reversed(context.trace.ops):
        if op.phase == "forward" and name in (None, op.name) and module in (None, op.module):
            return op
    return None


# Queries, keys and values packed into one matrix: where each of them lies.

PACKED_ROWS = ("in_proj_weight", "qkv.weight", "Wqkv.weight")
"""Name endings of matrices of shape (3 out, in): PyTorch; leadline.nn and timm; flash attention."""
PACKED_COLUMNS = ("c_attn.weight",)
"""Name endings of matrices of shape (in, 3 out): GPT-2 computes y = x W."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Packing:
    """The parts `first` to `last` of `parts` equal parts along a dimension."""

    parts: int
    dim: int
    first: int
    last: int


# Derived: first and last third of a fused projection; the order is query, key, value.
QUERIES_AND_KEYS, VALUES = (0, 1), (2, 2)


def packing_of(trace: Trace, name: str, which: tuple[int, int]) -> Packing | None:
    """Where queries and keys, or values, lie in the matrix `name`; None if it is not packed.

    Projections that interleave the three per head (GPT-NeoX, Falcon) do not count: their parts are not blocks.
    """
    shape = next((each.shape for each in trace.parameters if each.name == name), ())
    for endings, dim in ((PACKED_ROWS, 0), (PACKED_COLUMNS, 1)):
        if name.endswith(endings) and len(shape) == 2 and shape[dim] == 3 * shape[1 - dim]:
            return Packing(parts=3, dim=dim, first=which[0], last=which[1])
    return None


def returns_shape(context: FixContext, shape: tuple[int, ...]) -> bool:
    """Whether the model itself returns a tensor of this shape, and only that."""
    root = next((each for each in context.trace.modules if not each.path), None)
    returned = () if root is None else root.returned
    if len(returned) != 1 or returned[0] is None:
        return False
    return context.trace.values[returned[0]].shape == shape


# The optimizer: options that are far from their usual values, and the rate at which the check saw the network learn.

# Heuristic: the usual rate of Adam for large networks, and that for small ones; the check U530 tries the same.
ADAM_RATES = (1e-3, 1e-2)
# Heuristic: the momentum of most recipes.
USUAL_MOMENTUM = 0.9
# Cited: Kingma & Ba 2015, algorithm 1.
USUAL_BETAS = (0.9, 0.999)
# Cited: Kingma & Ba 2015, algorithm 1.
USUAL_EPS = 1e-8
# Heuristic: at 0.97 a step averages 33 gradients, more than most recipes do.
MAX_MOMENTUM = 0.97
# Derived: below 0.9 the second moment is averaged over fewer than ten gradients, fewer than the first.
MIN_SECOND_BETA = 0.9
# Heuristic: entries of a gradient are often smaller than this, and then eps and not they set the step.
MAX_EPS = 1e-6


def unusual_options(group: ParamGroup) -> dict[str, float]:
    """The options of a group that are far from their usual values, with those."""
    changes: dict[str, float] = {}
    momentum, betas, eps = (group.options.get(name) for name in ("momentum", "betas", "eps"))
    if isinstance(momentum, int | float) and momentum > MAX_MOMENTUM:
        changes["momentum"] = USUAL_MOMENTUM
    if isinstance(betas, list | tuple) and len(betas) == 2:
        first, second = betas
        if first > MAX_MOMENTUM or second < MIN_SECOND_BETA:
            changes |= {"beta1": USUAL_BETAS[0], "beta2": USUAL_BETAS[1]}
    if isinstance(eps, int | float) and eps > MAX_EPS:
        changes["eps"] = USUAL_EPS
    return changes


def learned_rates(context: FixContext) -> Iterator[float]:
    """The rate of Adam at which the rehearsal of the check saw the network learn, if it did."""
    for finding in context.findings(("U530",)):
        rate = finding.evidence.get("reference_lr")
        if isinstance(rate, int | float):
            yield float(rate)
