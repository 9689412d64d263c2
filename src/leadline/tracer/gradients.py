"""The backward half of a trace: the gradient that arrives at each value, measured in hooks of the autograd graph."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor
from torch.autograd.graph import Node

from leadline.tracer import stats
from leadline.tracer.mixing import stream_spread
from leadline.tracer.stats import RawStats
from leadline.tracer.values import ValueEntry, ValueTable

CHECKPOINT_NODE = "CheckpointFunctionBackward"


@dataclass(slots=True)
class CheckpointRegion:
    """A reentrant checkpoint: its ops run without a graph first, and again with one in the backward pass."""

    node: Node
    end: int
    """Index of the op that wrote the output of the region."""
    recomputed: list[tuple[str, list[RawStats | None]]] = field(default_factory=list)
    """Recomputed ops in order: the callable, and the statistics of the gradient of each output."""


class Gradients:
    """Measures gradients in pre-hooks on the nodes of the autograd graph.

    These are the only hooks that change nothing. Module backward hooks wrap inputs and outputs, break on in-place ops,
    and change the bits of gradients in half of real models. The pre-hook of a node receives the sum over all uses of
    the value, before any later in-place change of it.
    """

    def __init__(self, table: ValueTable, run_safely: Callable[..., Any]) -> None:
        self.regions: dict[int, CheckpointRegion] = {}
        self.is_listening = False
        self._table = table
        self._run_safely = run_safely
        self._value_by_node: dict[int, int] = {}

    def wait(self, tensor: Tensor, value: int, entry: ValueEntry) -> None:
        """Measure the gradient of an op's output when it arrives; as long as it has no graph, the entry awaits it.

        It is called when the value is written and again when it is read, because the output of a custom autograd
        function has no graph while its forward runs.
        """
        node = tensor.grad_fn
        entry.awaits_gradient = node is None
        if node is None:
            return
        self._value_by_node[node._sequence_nr()] = value
        if type(node).__name__ == CHECKPOINT_NODE and entry.op is not None:
            self.regions.setdefault(id(node), CheckpointRegion(node, entry.op))
        number = tensor.output_nr

        def measure_gradient(grads: Sequence[Tensor | None]) -> None:
            grad = grads[number]
            if self.is_listening and grad is not None:
                self._run_safely(self._measure, grad, entry)
                if entry.mixing is not None:
                    entry.gradient_spread = self._run_safely(_measure_spread, grad, entry.mixing.axis)

        node.register_prehook(measure_gradient)

    def _measure(self, grad: Tensor, entry: ValueEntry) -> None:
        entry.backward = _measure(grad)

    def find_dependencies(self, tensor: Tensor, read: Callable[[Tensor], int]) -> list[int]:
        """Return the known values that, according to autograd, this tensor was computed from; `read` gives leaves."""
        values: list[int] = []
        visited: set[Node] = set()
        todo = [tensor.grad_fn] if tensor.grad_fn is not None else []
        while todo:
            for node, _ in todo.pop().next_functions:
                if node is None or node in visited:
                    continue
                visited.add(node)
                if hasattr(node, "variable"):
                    values.append(read(node.variable))
                elif node._sequence_nr() in self._value_by_node:
                    values.append(self._value_by_node[node._sequence_nr()])
                else:
                    todo.append(node)
        return values

    def op_recomputed(self, callable_name: str, outputs: Sequence[Tensor]) -> None:
        """Measure the gradients of an op that runs in the backward pass, if a reentrant checkpoint recomputes it."""
        region = self.regions.get(id(_current_node())) if outputs else None
        if region is None or not torch.is_grad_enabled():
            return
        gradients: list[RawStats | None] = [None] * len(outputs)
        region.recomputed.append((callable_name, gradients))
        for position, tensor in enumerate(outputs):
            if tensor.grad_fn is not None:
                tensor.grad_fn.register_prehook(_gradient_hook(gradients, position, tensor.output_nr))

    def place_recomputed(self, callables: Sequence[str], outputs: Sequence[Sequence[int]]) -> list[str]:
        """Assign the gradients of recomputed ops to the ops of the forward pass that they repeat.

        `callables` and `outputs` are those of all ops. Returns a description of what could not be assigned.
        """
        unplaced = []
        for region in self.regions.values():
            start = _align([name for name, _ in region.recomputed], callables, region.end)
            if start is None:
                unplaced.append(f"{len(region.recomputed)} ops of a checkpoint that ends at op {region.end}")
                continue
            for offset, (_, gradients) in enumerate(region.recomputed):
                for value, gradient in zip(outputs[start + offset], gradients, strict=False):
                    entry = self._table.entries[value]
                    entry.backward = entry.backward or gradient
        return unplaced


def _measure(grad: Tensor) -> RawStats | None:
    with torch._C.DisableTorchFunction():  # a hook may run while the recorder is active
        return stats.read_gradient(grad)


def _measure_spread(grad: Tensor, axis: int) -> Tensor | None:
    with torch._C.DisableTorchFunction():
        return None if stats.unobservable(grad) or axis >= grad.dim() else stream_spread(grad, axis)


def _gradient_hook(gradients: list[RawStats | None], position: int, number: int) -> Any:
    def measure_gradient(grads: Sequence[Tensor | None]) -> None:
        grad = grads[number]
        if grad is not None:
            gradients[position] = _measure(grad)

    return measure_gradient


def _current_node() -> Node | None:
    """Return the node that autograd is running; None if this torch lacks the private call, and then checkpoints stay
    unmeasured.
    """
    current = getattr(torch._C, "_current_autograd_node", None)
    return current() if current is not None else None


def _align(recomputed: list[str], callables: Sequence[str], end: int) -> int | None:
    """Return the index at which the recomputed ops began in the forward pass; they end at `end` or a little later."""
    for last in range(end, min(end + len(recomputed), len(callables))):
        start = last - len(recomputed) + 1
        if start >= 0 and list(callables[start : last + 1]) == recomputed:
            return start
    return None
