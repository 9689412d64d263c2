"""Which op made the first NaN, read from the graph of the loss; and what is saved when training dies."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from leadline.checks._history import History, NonFiniteOrigin
from leadline.tracer.stats import unobservable

MOST = 20_000  # ops that are looked at; ours: a network of a thousand layers has as many
RESULTS = ("result", "out", "output")  # how PyTorch calls what an op kept of its own result
MASKS = ("mask", "bias")  # -inf in them is how attention is masked
SHAPES = (  # ops that only move numbers; what they hand on was made before them
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
POLES = (
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
Node = Any  # torch.autograd.graph.Node: its attributes differ from op to op


def find_culprit(loss: Tensor, names: Mapping[int, str]) -> NonFiniteOrigin | None:
    """The op that made the first number that is none; None if the graph does not tell. `names` are by parameter id."""
    if loss.grad_fn is None or torch._C._functorch.maybe_get_level(loss) != -1:
        return None
    nodes = _walk(loss.grad_fn)
    ran = sorted((each for each in nodes if not _is_leaf(each)), key=lambda each: each._sequence_nr())
    if all(next(_kept(each), None) is None for each in ran):
        return None  # compiled, or its backward pass has freed it
    first = next((each for each in ran if any(_is_loud(kept) for _, kept in _kept(each))), loss.grad_fn)
    return _trace_back(first, names)


def _trace_back(node: Node, names: Mapping[int, str]) -> NonFiniteOrigin:
    """Follow what was not finite to the op that made it of finite numbers; to the batch or a weight if none did."""
    unsure: list[Node] = []  # ops that kept nothing of what they were given, the last first
    while True:
        if (held := _broken_weight(node, names)) is not None:
            return NonFiniteOrigin(op="", sentence=f"{held} was not finite before the pass")
        given = {name: kept for name, kept in _kept(node) if not _is_result(name)}
        broken = [name for name, kept in given.items() if not kept.isfinite().all()]
        giver = _giver(node)
        if broken:
            if giver is None or all(_is_constant(node, name) for name in broken):
                return NonFiniteOrigin(op="", sentence=f"the batch, or a constant, brought it to {_op(node)}")
            unsure = []
        elif given or giver is None or (unsure and _is_sound(node)):
            return _blame([*([node] if given or not unsure else []), *unsure[::-1]], names)
        else:
            unsure.append(node)
        node = giver


def _is_constant(node: Node, name: str) -> bool:
    """One of two operands that no op made: a number, or a tensor without a graph."""
    place = {"_saved_self": 0, "_saved_other": 1}.get(name)
    return place is not None and len(node.next_functions) == 2 and node.next_functions[place][0] is None


def _blame(suspects: Sequence[Node], names: Mapping[int, str]) -> NonFiniteOrigin:
    """One of these in the order in which they ran: the first that is known to make infinities, else the first."""
    guilty = next((each for each in suspects if _op_name(each) in POLES), None)
    how = "made it of finite numbers" if len(suspects) == 1 else "made it, as far as its graph tells"
    if guilty is None:
        guilty = suspects[0]
        how = how if len(suspects) == 1 else "or what follows it made it"
    behind = _behind(guilty, names)
    return NonFiniteOrigin(
        op=_op(guilty), sentence=f"{_op(guilty)}{f', behind {behind},' if behind else ''} {how}"
    )


def _giver(node: Node) -> Node | None:
    """The op before, of several the one that ran last; what only moves numbers is passed over."""
    givers = [each for each, _ in node.next_functions if each is not None and _weight(each) is None]
    return _past_shapes(max(givers, key=lambda each: each._sequence_nr())) if givers else None


def _broken_weight(node: Node, names: Mapping[int, str]) -> str | None:
    weights = [_weight(each) for each, _ in node.next_functions if each is not None]
    seen = (each for each in weights if each is not None and not unobservable(each))
    broken = next((each for each in seen if not each.isfinite().all()), None)
    return None if broken is None else names.get(id(broken), "a weight")


def _is_sound(node: Node) -> bool:
    """It kept its result, which is finite: what came later made it."""
    results = [kept for name, kept in _kept(node) if _is_result(name)]
    return bool(results) and all(bool(each.isfinite().all()) for each in results)


def _walk(root: Node) -> set[Node]:
    seen, waiting = {root}, deque([root])
    while waiting and len(seen) < MOST:
        for each, _ in waiting.popleft().next_functions:
            if each is not None and each not in seen:
                seen.add(each)
                waiting.append(each)
    return seen


def _kept(node: Node) -> Iterator[tuple[str, Tensor]]:
    """The numbers that an op kept for its backward pass, by name; not those that a hook would first have to make."""
    for name in dir(node):
        if not name.startswith("_saved_") or any(mask in name for mask in MASKS):
            continue
        try:
            raw = getattr(node, f"_raw{name}", None)
            kept = None if raw is None or raw.unpack_hook is not None else getattr(node, name)
        except (RuntimeError, AttributeError):  # written over in place since, or freed
            continue
        if type(kept) is Tensor and kept.is_floating_point() and not unobservable(kept):
            yield name, kept


def _is_loud(kept: Tensor) -> bool:
    """NaN or +inf: -inf alone may be a mask."""
    return bool((kept.isnan() | (kept == torch.inf)).any())


def _is_result(name: str) -> bool:
    return name.removeprefix("_saved_").startswith(RESULTS)


def _is_leaf(node: Node) -> bool:
    return hasattr(node, "variable")


def _weight(node: Node) -> Tensor | None:
    """The weight that this is, perhaps turned; None for what an op made."""
    while not _is_leaf(node):
        if _op_name(node) not in SHAPES or node.next_functions[0][0] is None:
            return None
        node = node.next_functions[0][0]
    found: Tensor = node.variable
    return found


def _past_shapes(node: Node) -> Node:
    while _op_name(node) in SHAPES and node.next_functions and node.next_functions[0][0] is not None:
        before = node.next_functions[0][0]
        if _is_leaf(before):
            break
        node = before
    return node


def _behind(node: Node, names: Mapping[int, str]) -> str:
    """The nearest weight that the op's numbers went through."""
    seen, waiting = {node}, deque([node])
    while waiting and len(seen) < MOST:
        here = waiting.popleft()
        if _is_leaf(here) and id(here.variable) in names:
            path, _, name = names[id(here.variable)].rpartition(".")
            return path or name
        for each, _ in here.next_functions:
            if each is not None and each not in seen:
                seen.add(each)
                waiting.append(each)
    return ""


def _op_name(node: Node) -> str:
    """`LogSoftmaxBackward0` is `LogSoftmax`."""
    return str(node.name()).rsplit("::", 1)[-1].rstrip("0123456789").removesuffix("Backward")


def _op(node: Node) -> str:
    """As it is called in a program: `LogSoftmax` is `log_softmax`."""
    name = _op_name(node)
    return "".join(f"_{each.lower()}" if each.isupper() else each for each in name).lstrip("_")


# What is saved when training dies: the error, the last steps' numbers, and where the last good sample is.

LAST_STEPS = 64  # ours: enough to see how it began; a ring of all metrics stays below 20 KB


def last_words(
    history: History, names: tuple[str, ...] = ("loss", "lr", "grad_norm", "update_norm")
) -> dict[str, Any]:
    """The last values of each number, with their steps, as JSON values."""
    found: dict[str, Any] = {}
    for name in names:
        window = history.scalars(name, LAST_STEPS)
        if window.steps:
            found[name] = {"steps": window.steps, "values": [_spelled(each) for each in window.values]}
    return found


def _spelled(value: float) -> float | str:
    """JSON has no NaN: it is spelled as in every record."""
    if value != value:
        return "NaN"
    return value if abs(value) != float("inf") else ("Infinity" if value > 0 else "-Infinity")
