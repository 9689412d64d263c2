r"""The replay of a compiled pass, which cannot be recorded: the same batch, random state and gradient, uncompiled.

The loss function need not be known. The real pass provides $g = \partial L/\partial y$ of its outputs $y$. The replay
differentiates $\sum \langle g, y \rangle$ with $g$ held fixed, so its gradients are those of $L$.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import torch
from msgspec.structs import replace
from torch import Tensor, nn
from torch.optim import Optimizer

from leadline.records import Gap, Trace
from leadline.tracer.inputs import loss_of_output
from leadline.tracer.recorder import OnError
from leadline.tracer.restore import preserve_process_state, random_states, restore_random
from leadline.tracer.stats import Known
from leadline.tracer.trace import trace
from leadline.tracer.values import tensors_in


class Replay:
    """The inputs, random state and output gradients of one pass; `measure` repeats it and restores all state."""

    seconds = 0.0  # inside the pass, where nothing is recorded

    def __init__(self, model: nn.Module, on_error: OnError) -> None:
        self.model = model
        self.done = False
        self.loss: Tensor | None = None
        self._on_error = on_error
        self._call: tuple[tuple[Any, ...], dict[str, Any]] = ((), {})
        self._random: dict[str, Any] = {}
        self._grads: dict[int, Tensor] = {}
        self._replayed: Trace | None = None

    def enter(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        self._call, self._random = (args, kwargs), random_states()

    def leave(self, output: Any) -> None:
        self.done = True
        self.loss = loss_of_output(output)
        for position, tensor in enumerate(tensors_in(output)):
            if tensor.requires_grad and tensor.grad_fn is not None:
                tensor.grad_fn.register_prehook(self._gradient_hook(position, tensor.output_nr))

    def _gradient_hook(self, position: int, number: int) -> Callable[..., None]:
        def store(grads: tuple[Tensor | None, ...]) -> None:
            try:
                grad = grads[number]
                if grad is not None:
                    self._grads[position] = grad.detach()
            except Exception as error:
                self._on_error(error)

        return store

    def abandon(self) -> None:
        """Do nothing: the hooks are freed with the graph."""

    @property
    def seen(self) -> bool:
        return self.done and bool(self._grads)

    def measure(self, optimizer: Optimizer | None, loss_scale: float = 1.0) -> None:
        """Repeat the pass."""
        args, kwargs = self._call
        inputs = _arguments(self.model, args, kwargs)
        with preserve_process_state():
            restore_random(self._random)
            self._replayed = trace(self.model, inputs, None, self._surrogate_loss(loss_scale), optimizer)

    def pending(self) -> Iterable[Tensor]:
        """Nothing: a repeated pass is read at once."""
        return ()

    def read(self, loss: float | None, known: Known, grad_norms: Mapping[str, float] | None = None) -> Trace:
        """Return the trace of the repeated pass."""
        if self._replayed is None:
            raise RuntimeError("a pass is repeated before it is read")
        why = "the pass is compiled, so it was repeated uncompiled with the same output gradient"
        gap = Gap(what="the ops of the loss, and the compiled code itself", why=why)
        return replace(self._replayed, loss=loss, gaps=(*self._replayed.gaps, gap))

    def _surrogate_loss(self, loss_scale: float) -> Callable[[Any], Tensor]:
        def loss(output: Any) -> Tensor:
            outputs = tensors_in(output)
            terms = [
                (outputs[position] * (grad / loss_scale)).sum() for position, grad in self._grads.items()
            ]
            return torch.stack([term.float() for term in terms]).sum()

        return loss


def _arguments(model: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Return the inputs as `trace` takes them: a tuple, or a dict of all arguments if there are keywords."""
    if not kwargs:
        return args
    return dict(inspect.signature(model.forward).bind(*args, **kwargs).arguments) if args else kwargs
