"""The backward half of the trace: the gradient that arrives at each value, measured where autograd hands it over."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor
from torch.autograd.graph import Node

from leadline.tracer import stats
from leadline.tracer.stats import RawStats
from leadline.tracer.values import Ledger

CHECKPOINT = "CheckpointFunctionBackward"


@dataclass(slots=True)
class Region:
    """A reentrant checkpoint: ops ran without a graph and run again, with one, in the backward pass."""

    node: Node
    end: int
    """Index of the op that wrote the region's output."""
    again: list[tuple[str, list[RawStats | None]]] = field(default_factory=list)
    """What ran again, in order: the callable, and for each output the gradient that arrived."""


class Gradients:
    """Waits for gradients by pre-hooks on the nodes of the autograd graph.

    Of all hooks these change nothing: module backward hooks wrap inputs and outputs, break on in-place ops, and change
    the bits of gradients in half of real models. A node's pre-hook receives the sum over all uses of the value, before
    any later in-place change of it.
    """

    def __init__(self, ledger: Ledger, safely: Callable[..., Any]) -> None:
        self.regions: dict[int, Region] = {}
        self.listening = False
        self._ledger = ledger
        self._safely = safely
        self._values: dict[int, int] = {}

    def wait(self, tensor: Tensor, value: int) -> None:
        """Measure the gradient of this value when it arrives. May be called again; only the first call counts.

        Called when a value is written and again whenever it is read: the output of a custom autograd function has no
        graph yet while its forward runs.
        """
        entry = self._ledger.entries[value]
        if entry.awaited or entry.op is None:
            return
        node = tensor.grad_fn
        if node is None:
            return
        entry.awaited = True
        self._values[node._sequence_nr()] = value
        if node.name() == CHECKPOINT:
            self.regions.setdefault(id(node), Region(node, entry.op))
        number = tensor.output_nr

        def arrived(grads: Sequence[Tensor | None]) -> None:
            grad = grads[number]
            if self.listening and grad is not None:
                entry.backward = self._safely(_measure, grad)

        node.register_prehook(arrived)

    def behind(self, tensor: Tensor, read: Callable[[Tensor], int]) -> list[int]:
        """The known values, and by `read` the leaves, that autograd says this tensor was made of."""
        found: list[int] = []
        seen: set[Node] = set()
        todo = [tensor.grad_fn] if tensor.grad_fn is not None else []
        while todo:
            for node, _ in todo.pop().next_functions:
                if node is None or node in seen:
                    continue
                seen.add(node)
                if hasattr(node, "variable"):
                    found.append(read(node.variable))
                elif node._sequence_nr() in self._values:
                    found.append(self._values[node._sequence_nr()])
                else:
                    todo.append(node)
        return found

    def recomputed(self, callable_name: str, outputs: Sequence[Tensor]) -> None:
        """An op ran in the backward pass. If a reentrant checkpoint is running again, its gradients are wanted."""
        region = self.regions.get(id(_current_node())) if outputs else None
        if region is None or not torch.is_grad_enabled():
            return
        arrivals: list[RawStats | None] = [None] * len(outputs)
        region.again.append((callable_name, arrivals))
        for position, tensor in enumerate(outputs):
            if tensor.grad_fn is not None:
                tensor.grad_fn.register_prehook(_keeper(arrivals, position, tensor.output_nr))

    def place_recomputed(self, callables: Sequence[str], outputs: Sequence[Sequence[int]]) -> list[str]:
        """Give the gradients of recomputed ops to the ops of the forward pass that they repeat.

        `callables` and `outputs` are those of all ops. Returns what could not be placed.
        """
        lost = []
        for region in self.regions.values():
            start = _align([name for name, _ in region.again], callables, region.end)
            if start is None:
                lost.append(f"{len(region.again)} ops of a checkpoint that ends at op {region.end}")
                continue
            for offset, (_, arrivals) in enumerate(region.again):
                for value, arrival in zip(outputs[start + offset], arrivals, strict=False):
                    entry = self._ledger.entries[value]
                    entry.backward = entry.backward or arrival
        return lost


def _measure(grad: Tensor) -> RawStats | None:
    with torch._C.DisableTorchFunction():  # a hook may run with the recorder active
        return None if stats.unobservable(grad) else stats.measure(grad)


def _keeper(arrivals: list[RawStats | None], position: int, number: int) -> Any:
    def arrived(grads: Sequence[Tensor | None]) -> None:
        grad = grads[number]
        if grad is not None:
            arrivals[position] = _measure(grad)

    return arrived


def _current_node() -> Node | None:
    """The node that autograd is executing (a private call, guarded: without it checkpoints go unmeasured)."""
    current = getattr(torch._C, "_current_autograd_node", None)
    return current() if current is not None else None


def _align(again: list[str], callables: Sequence[str], end: int) -> int | None:
    """Where in the forward pass the repeated ops began: they end at `end`, or a little later."""
    for last in range(end, min(end + len(again), len(callables))):
        start = last - len(again) + 1
        if start >= 0 and list(callables[start : last + 1]) == again:
            return start
    return None
