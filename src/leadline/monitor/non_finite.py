"""The op that produced the first NaN, read from the graph of the loss; and the values saved after a crash."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from leadline.checks._history import History, NonFiniteOrigin
from leadline.records import spell
from leadline.tracer.stats import unobservable

# Heuristic: graph nodes that are visited; a network of a thousand layers has about as many.
MAX_NODES = 20_000
# PyTorch's names for what an op saved of its own result.
RESULT_NAMES = ("result", "out", "output")
# Saved tensors in which -inf is legitimate: attention masks.
MASK_NAMES = ("mask", "bias")
# Ops that only move numbers, so a non-finite value comes from an earlier op.
SHAPE_OPS = (
    "View",
    "UnsafeView",
    "Reshape",
    "T",
    "Transpose",
    "Permute",
    "Slice",
    "Select",
    "Squeeze",
    "Unsqueeze",
    "Expand",
    "Clone",
    "ToCopy",
    "Alias",
    "Cat",
    "Stack",
    "Split",
    "Unbind",
    "Index",
)
# Ops that can produce NaN or infinity from finite numbers.
POLE_OPS = (
    "Div",
    "Exp",
    "Exp2",
    "Expm1",
    "Log",
    "Log1P",
    "Log2",
    "Log10",
    "Pow",
    "Reciprocal",
    "Rsqrt",
    "Softmax",
    "Sqrt",
    "Tan",
)
Node = Any  # torch.autograd.graph.Node, whose attributes differ between ops


def find_origin(loss: Tensor, names: Mapping[int, str]) -> NonFiniteOrigin | None:
    """Return the op that produced the first NaN or infinity; None if the graph does not show it.

    `names` maps a parameter's id to its name.
    """
    if loss.grad_fn is None or torch._C._functorch.maybe_get_level(loss) != -1:
        return None
    nodes = _walk(loss.grad_fn)
    ops = sorted((each for each in nodes if not _is_leaf(each)), key=lambda each: each._sequence_nr())
    if all(next(_saved_tensors(each), None) is None for each in ops):
        return None  # compiled, or its backward pass has freed the tensors
    first = next(
        (each for each in ops if any(_has_nan_or_inf(saved) for _, saved in _saved_tensors(each))),
        loss.grad_fn,
    )
    return _trace_back(first, names)


def _trace_back(node: Node, names: Mapping[int, str]) -> NonFiniteOrigin:
    """Go back to the op that produced non-finite values from finite ones, or to a non-finite batch or weight."""
    uncertain: list[Node] = []  # ops that saved none of their inputs, the latest first
    while True:
        weight = _non_finite_weight(node, names)
        if weight is not None:
            return NonFiniteOrigin(op="", sentence=f"{weight} was not finite before the pass")
        inputs = {name: saved for name, saved in _saved_tensors(node) if not _is_result(name)}
        non_finite = [name for name, saved in inputs.items() if not saved.isfinite().all()]
        previous = _previous_op(node)
        if non_finite:
            if previous is None or all(_is_constant(node, name) for name in non_finite):
                return NonFiniteOrigin(
                    op="", sentence=f"the batch or a constant was not finite when it reached {_op(node)}"
                )
            uncertain = []
        elif inputs or previous is None or (uncertain and _has_finite_result(node)):
            certain = [node] if inputs or not uncertain else []
            return _choose_origin([*certain, *uncertain[::-1]], names)
        else:
            uncertain.append(node)
        node = previous


def _is_constant(node: Node, name: str) -> bool:
    """True for one of two operands that no op produced: a number, or a tensor without a graph."""
    position = {"_saved_self": 0, "_saved_other": 1}.get(name)
    return position is not None and len(node.next_functions) == 2 and node.next_functions[position][0] is None


def _choose_origin(candidates: Sequence[Node], names: Mapping[int, str]) -> NonFiniteOrigin:
    """Return the first candidate that can produce infinities, else the first; candidates are in order of execution."""
    origin = next((each for each in candidates if _op_name(each) in POLE_OPS), None)
    if len(candidates) == 1:
        claim = "produced it from finite numbers"
    elif origin is None:
        claim = "or an op after it produced it"
    else:
        claim = "produced it, as far as the graph shows"
    origin = candidates[0] if origin is None else origin
    module = _nearest_module(origin, names)
    return NonFiniteOrigin(
        op=_op(origin), sentence=f"{_op(origin)}{f' after {module}' if module else ''} {claim}"
    )


def _previous_op(node: Node) -> Node | None:
    """Return the op that ran last among the inputs' producers, skipping ops that only move numbers."""
    producers = [each for each, _ in node.next_functions if each is not None and _weight(each) is None]
    return _skip_shape_ops(max(producers, key=lambda each: each._sequence_nr())) if producers else None


def _non_finite_weight(node: Node, names: Mapping[int, str]) -> str | None:
    weights = [_weight(each) for each, _ in node.next_functions if each is not None]
    readable = (each for each in weights if each is not None and not unobservable(each))
    non_finite = next((each for each in readable if not each.isfinite().all()), None)
    return None if non_finite is None else names.get(id(non_finite), "a weight")


def _has_finite_result(node: Node) -> bool:
    """True if the op saved its result and it is finite, so a later op produced the non-finite value."""
    results = [saved for name, saved in _saved_tensors(node) if _is_result(name)]
    return bool(results) and all(bool(each.isfinite().all()) for each in results)


def _walk(root: Node) -> set[Node]:
    visited, queue = {root}, deque([root])
    while queue and len(visited) < MAX_NODES:
        for each, _ in queue.popleft().next_functions:
            if each is not None and each not in visited:
                visited.add(each)
                queue.append(each)
    return visited


def _saved_tensors(node: Node) -> Iterator[tuple[str, Tensor]]:
    """Yield name and value of each float tensor that an op saved for backward, except those a hook must unpack."""
    for name in dir(node):
        if not name.startswith("_saved_") or any(mask in name for mask in MASK_NAMES):
            continue
        try:
            raw = getattr(node, f"_raw{name}", None)
            saved = None if raw is None or raw.unpack_hook is not None else getattr(node, name)
        except (RuntimeError, AttributeError):  # overwritten in place, or freed
            continue
        if type(saved) is Tensor and saved.is_floating_point() and not unobservable(saved):
            yield name, saved


def _has_nan_or_inf(saved: Tensor) -> bool:
    """True for NaN or +inf; -inf alone may be a mask."""
    return bool((saved.isnan() | (saved == torch.inf)).any())


def _is_result(name: str) -> bool:
    return name.removeprefix("_saved_").startswith(RESULT_NAMES)


def _is_leaf(node: Node) -> bool:
    return hasattr(node, "variable")


def _weight(node: Node) -> Tensor | None:
    """Return the weight that this node is, possibly through a transpose or view; None for the result of an op."""
    while not _is_leaf(node):
        if _op_name(node) not in SHAPE_OPS or node.next_functions[0][0] is None:
            return None
        node = node.next_functions[0][0]
    weight: Tensor = node.variable
    return weight


def _skip_shape_ops(node: Node) -> Node:
    while _op_name(node) in SHAPE_OPS and node.next_functions and node.next_functions[0][0] is not None:
        before = node.next_functions[0][0]
        if _is_leaf(before):
            break
        node = before
    return node


def _nearest_module(node: Node, names: Mapping[int, str]) -> str:
    """Return the module of the nearest weight that the op's input passed through; "" if there is none."""
    visited, queue = {node}, deque([node])
    while queue and len(visited) < MAX_NODES:
        current = queue.popleft()
        if _is_leaf(current) and id(current.variable) in names:
            path, _, name = names[id(current.variable)].rpartition(".")
            return path or name
        for each, _ in current.next_functions:
            if each is not None and each not in visited:
                visited.add(each)
                queue.append(each)
    return ""


def _op_name(node: Node) -> str:
    """Return `LogSoftmax` for `LogSoftmaxBackward0`."""
    return str(node.name()).rsplit("::", 1)[-1].rstrip("0123456789").removesuffix("Backward")


def _op(node: Node) -> str:
    """Return the op's name in a program: `log_softmax` for `LogSoftmax`."""
    name = _op_name(node)
    return "".join(f"_{each.lower()}" if each.isupper() else each for each in name).lstrip("_")


# What a crash event records: the last values of each metric.

# Heuristic: steps of each metric; enough to see how the problem began, and below 20 KB for all metrics.
CRASH_STEPS = 64


def last_values(
    history: History, names: tuple[str, ...] = ("loss", "lr", "grad_norm", "update_norm")
) -> dict[str, Any]:
    """Return the last steps and values of each metric, as JSON values."""
    values: dict[str, Any] = {}
    for name in names:
        window = history.scalars(name, CRASH_STEPS)
        if window.steps:
            values[name] = {"steps": window.steps, "values": [spell(each) for each in window.values]}
    return values
