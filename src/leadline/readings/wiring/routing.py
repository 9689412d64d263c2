"""Routers: choices of the largest scores of a weight layer on which the loss depends."""

from __future__ import annotations

import math
import re
from collections import defaultdict
from collections.abc import Iterable, Iterator

from msgspec.structs import replace

from leadline.ops.table import LAYOUT_KINDS
from leadline.readings.wiring.ledger import gradient_state
from leadline.readings.wiring.reached import needed_ops
from leadline.records import Op, Parameter, Trace, Value
from leadline.records.parts import Router
from leadline.records.wiring import OpSite

# Kinds of ops between the scores of a weight layer and the choice: noise, masks of groups, a softmax or a sigmoid.
PASSING = frozenset(
    {
        "layout",
        "cast",
        "dropout",
        "select",
        "join",
        "add",
        "bias",
        "scale",
        "pointwise",
        "softmax",
        "activation",
    }
)
# Heuristic: scores are chosen a few ops after they are computed.
MAX_PATH = 24
# Heuristic: router and experts are parts of one layer, at most this many modules above the router's weight.
MAX_MODULES_ABOVE = 3


def read_routers(trace: Trace) -> tuple[Router, ...]:
    """The routers of the pass, one per weight, by their ops: never by the names of classes.

    Several ops may choose by the same scores: one expert at a time, or once more for an auxiliary loss. The one that
    chooses the most experts per token stands for all.
    """
    routers: dict[str, Router] = {}
    for router in _choices(trace):
        known = routers.get(router.weight)
        if known is None or router.chosen > known.chosen:
            routers[router.weight] = router
    return tuple(
        replace(each, expert_gradients=_expert_gradients(trace, each, routers)) for each in routers.values()
    )


def _choices(trace: Trace) -> Iterator[Router]:
    """One router for each op that chooses among the scores of a weight layer."""
    parameters = {each.name: each for each in trace.parameters}
    needed = needed_ops(trace)
    for op in trace.ops:
        indices = trace.values[op.outputs[-1]] if op.outputs else None
        if indices is None or not indices.choices or not op.inputs:
            continue
        if not _selects(trace, indices, needed):
            continue
        scores = _scores_behind(trace, op, len(indices.choices))
        if scores is None or not trace.ops[scores[-1].op or 0].params:
            continue
        yield _router(trace, op, scores, parameters, needed)


def _router(
    trace: Trace, op: Op, scores: list[Value], parameters: dict[str, Parameter], needed: set[int]
) -> Router:
    indices = trace.values[op.outputs[-1]]
    experts = len(indices.choices)
    weight = parameters[trace.ops[scores[-1].op or 0].params[0]]
    rows = math.prod(trace.values[op.inputs[0]].shape) // experts
    return Router(
        site=OpSite(op=op.name, module=op.module, source=op.source),
        weight=weight.name,
        experts=experts,
        chosen=max(sum(indices.choices) // max(rows, 1), 1),
        load=indices.choices,
        gradient=gradient_state(weight),
        trainable=weight.trainable,
        is_zero=weight.norm == 0,
        is_balanced=_is_balanced(trace, [*scores, indices], experts, needed),
        is_corrected=any(_adds_bias(trace, trace.values[each.id], experts) for each in scores[:-1]),
    )


def _scores_behind(trace: Trace, op: Op, experts: int) -> list[Value] | None:
    """The values from what is chosen back to the output of a weight layer with one column per expert."""
    value, path = trace.values[op.inputs[0]], list[Value]()
    for _ in range(MAX_PATH):
        path.append(value)
        if value.op is None or not value.shape:
            return None
        made_by = trace.ops[value.op]
        if made_by.kind == "weight":
            return path if value.shape[-1] == experts else None
        inputs = [trace.values[each] for each in made_by.inputs if trace.values[each].floating]
        if made_by.kind not in PASSING or not inputs:
            return None
        value = max(inputs, key=lambda each: math.prod(each.shape))
    return None


def _selects(trace: Trace, indices: Value, needed: set[int]) -> bool:
    """Whether the loss depends on which elements were chosen, and they are no tokens of an embedding."""
    readers = [op for op in trace.ops if indices.id in op.inputs]
    if any(op.kind in ("embedding", "loss") for op in readers):
        return False
    followed = _descendants(trace, [indices.id])
    if any(op.kind == "embedding" and followed & set(op.inputs[:1]) for op in trace.ops):
        return False
    leaves_graph = any(each.value in followed for each in trace.exits)
    return leaves_graph or any(op.index in needed for op in readers)


def _descendants(trace: Trace, values: list[int]) -> set[int]:
    """Integers and truth values that were computed from these values alone."""
    reached = set(values)
    for op in trace.ops:
        if reached & set(op.inputs):
            reached.update(each for each in op.outputs if not trace.values[each].floating)
    return reached


def _is_balanced(trace: Trace, values: list[Value], experts: int, needed: set[int]) -> bool:
    """Whether the loss reads a number per expert that is a sum over tokens of its scores or of its choices."""
    tokens = math.prod(values[0].shape)
    reached = {each.id for each in values}
    for op in trace.ops:
        if op.index not in needed or not reached & set(op.inputs) or op.kind in ("weight", "product"):
            continue
        for output in op.outputs:
            value = trace.values[output]
            size = math.prod(value.shape)
            if op.kind == "reduce" and experts in value.shape and size < tokens:
                return True
            if experts in value.shape:  # still one number per expert: scores, one-hot choices
                reached.add(output)
    return False


def _adds_bias(trace: Trace, value: Value, experts: int) -> bool:
    """Whether the value is a sum with one number per expert, held by the model."""
    op = None if value.op is None else trace.ops[value.op]
    if op is None or op.kind not in ("add", "bias"):
        return False
    held = [_before_layout(trace, trace.values[each]) for each in op.inputs]
    return any(each.source in ("buffer", "parameter") and math.prod(each.shape) == experts for each in held)


def _before_layout(trace: Trace, value: Value) -> Value:
    """The value that only changes of shape or dtype lead to this one from."""
    while value.op is not None and trace.ops[value.op].kind in LAYOUT_KINDS and trace.ops[value.op].inputs:
        value = trace.values[trace.ops[value.op].inputs[0]]
    return value


# Which parameters are those of the experts: matrices stacked along a first axis, or the entries of a list of modules.


def _expert_gradients(trace: Trace, router: Router, weights: Iterable[str]) -> tuple[float, ...]:
    """The norm of the gradient of each expert, in the module nearest to the router that has one part per expert.

    A module that contains other routers, by their `weights`, is no mixture but a stack of them.
    """
    module = router.weight.rpartition(".")[0]
    for _ in range(MAX_MODULES_ABOVE):
        prefix = f"{module}." if module else ""
        if sum(each.startswith(prefix) for each in weights) > 1:
            break
        inside = [each for each in trace.parameters if each.name.startswith(prefix)]
        squares = _stacked_squares(inside, router.experts) or _listed_squares(inside, module, router)
        if squares:
            return tuple(math.sqrt(each) for each in squares)
        if not module:
            break
        module = module.rpartition(".")[0]
    return ()


def _stacked_squares(parameters: list[Parameter], experts: int) -> list[float]:
    """Squared norms from parameters whose first axis runs over the experts."""
    stacks = [each.grad_slices for each in parameters if len(each.grad_slices) == experts]
    return [sum(stack[expert] ** 2 for stack in stacks) for expert in range(experts)] if stacks else []


def _listed_squares(parameters: list[Parameter], module: str, router: Router) -> list[float]:
    """Squared norms from numbered modules of equal shapes, one per expert, none of which contains the router."""
    lists: dict[str, dict[int, list[Parameter]]] = defaultdict(lambda: defaultdict(list))
    for each in parameters:
        entry = re.match(r"(.*?\.[A-Za-z_]*)(\d+)\.", each.name[len(module) :])
        if entry is not None:
            lists[entry[1]][int(entry[2])].append(each)
    for path, entries in lists.items():
        shapes = {tuple(each.shape for each in own) for own in entries.values()}
        holds_router = router.weight.startswith(f"{module}{path}")
        if sorted(entries) == list(range(router.experts)) and len(shapes) == 1 and not holds_router:
            return [sum((each.grad_norm or 0.0) ** 2 for each in entries[k]) for k in range(router.experts)]
    return []
